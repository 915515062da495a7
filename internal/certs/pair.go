package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// caName is the name of every CA of ours, by which they are known among others in a bundle.
const caName = "inference-metrics-adapter serving CA"

// backdate is how long before it was made a certificate is valid: kube-apiserver's clock may be behind.
const backdate = 24 * time.Hour

// pair is a serving certificate with its key.
type pair struct {
	// cert is the certificate and the CA that signed it, and key is the certificate's; both are PEM.
	cert, key []byte
	leaf, ca  *x509.Certificate
}

// newPair makes a certificate for a host, and a CA that signs this one certificate: its key is gone when
// newPair returns, so that nobody can steal it.
func newPair(host string, now time.Time, lifetime time.Duration) (*pair, error) {
	template := func(name string) (*x509.Certificate, error) {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
		return &x509.Certificate{
			SerialNumber:          serial,
			Subject:               pkix.Name{CommonName: name},
			NotBefore:             now.Add(-backdate),
			NotAfter:              now.Add(lifetime),
			BasicConstraintsValid: true,
		}, err
	}
	ca, err := template(caName)
	if err != nil {
		return nil, err
	}
	ca.IsCA, ca.MaxPathLenZero, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	leaf, err := template("")
	if err != nil {
		return nil, err
	}
	// Without a subject, as names longer than 64 bytes fit into the alternative names only.
	leaf.DNSNames = []string{host}
	leaf.KeyUsage, leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if ca, err = sign(ca, ca, caKey, caKey); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if leaf, err = sign(leaf, ca, key, caKey); err != nil {
		return nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return &pair{cert: encode(leaf, ca), key: keyPEM, leaf: leaf, ca: ca}, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// readPair returns a pair from its PEM, if kube-apiserver would accept it for the host now.
func readPair(certPEM, key []byte, host string, now time.Time) (*pair, error) {
	if len(certPEM) == 0 || len(key) == 0 {
		return nil, errors.New("no certificate, or no key")
	}
	if _, err := tls.X509KeyPair(certPEM, key); err != nil {
		return nil, err
	}
	chain, err := cert.ParseCertsPEM(certPEM)
	if err != nil {
		return nil, err
	}
	p := &pair{cert: certPEM, key: key, leaf: chain[0], ca: chain[len(chain)-1]}
	if !p.ca.IsCA {
		return nil, errors.New("the certificate is not followed by the CA that signed it")
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(p.ca)
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err = p.leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between, CurrentTime: now})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// due tells that it is time for another: in the last third of the lifetime.
func (p *pair) due(now time.Time, lifetime time.Duration) bool {
	return now.After(p.leaf.NotAfter.Add(-lifetime / 3))
}

// readBundle returns the certificates in a bundle of PEM. Others' bundles may hold what we cannot read.
func readBundle(bundle []byte) ([]*x509.Certificate, error) {
	if len(bytes.TrimSpace(bundle)) == 0 {
		return nil, nil
	}
	all, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("reading a bundle of CAs: %w", err)
	}
	return all, nil
}

func encode(certs ...*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&text, &pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw}) // a buffer takes all
	}
	return text.Bytes()
}
