package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// server is an HTTP server on a loopback address.
type server struct {
	*http.Server
	address string
}

// listen starts serving. It refuses addresses that others than this machine could reach.
func listen(address string, h http.Handler) (*server, error) {
	if !loopbackAddress(address) {
		return nil, fmt.Errorf("%s is not a loopback address: the emulator listens on loopback only", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &server{&http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}, l.Addr().String()}
	go s.Serve(l) // returns when the server is closed
	return s, nil
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func loopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopbackHost(host)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.Encode(v) // an error is the client's, who is gone
}

func writeError(w http.ResponseWriter, status int, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		status = http.StatusRequestEntityTooLarge
	}
	writeJSON(w, status, map[string]string{"error": err.Error()})
}
