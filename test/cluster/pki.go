package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority is a certificate authority of the cluster's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// keyPair is a certificate and its key, as PEM and as the files that hold it.
type keyPair struct {
	cert, key         []byte
	certFile, keyFile string
}

// Certificates live for a day: a cluster is not meant to live longer, and nothing rotates them.
const lifetime = 24 * time.Hour

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pemOf("CERTIFICATE", cert.Raw)}, nil
}

// server issues a serving certificate for the names (host names or addresses).
func (a *authority) server(dir, file string, names ...string) (*keyPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.issue(dir, file, template)
}

// client issues a client certificate for a user and its groups.
func (a *authority) client(dir, file, user string, groups ...string) (*keyPair, error) {
	return a.issue(dir, file, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(dir, file string, template *x509.Certificate) (*keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := sign(template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := marshalKey(key)
	if err != nil {
		return nil, err
	}
	pair := &keyPair{
		cert:     pemOf("CERTIFICATE", cert.Raw),
		key:      keyPEM,
		certFile: filepath.Join(dir, file+".crt"),
		keyFile:  filepath.Join(dir, file+".key"),
	}
	if err := os.WriteFile(pair.certFile, pair.cert, 0o644); err != nil {
		return nil, err
	}
	return pair, os.WriteFile(pair.keyFile, pair.key, 0o600)
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Minute)
	template.NotAfter = time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func marshalKey(key *ecdsa.PrivateKey) ([]byte, error) {
	// SEC 1 form: kube-apiserver derives the public key from it, which it does not from PKCS #8.
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pemOf("EC PRIVATE KEY", der), nil
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeKubeconfig writes a kubeconfig with everything it needs inside.
func writeKubeconfig(file, server string, ca []byte, user clientcmdapi.AuthInfo) error {
	const name = "loopback"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: &user},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	// Replaced as a whole: it may be rewritten while a program reads it.
	temp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	temp.Close()
	if err := clientcmd.WriteToFile(config, temp.Name()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), file)
}
