package install

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/inference-metrics/adapter/test/cluster"
)

// testFrontProxyCA has kube-apiserver's next CA published: the adapter takes requests that are signed by it,
// which it did not before.
func (i *install) testFrontProxyCA(t *testing.T, adapter *cluster.Adapter) {
	ca := newAuthority(t, "next-front-proxy-ca")
	der, key := ca.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "front-proxy-client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}}
	ask := func() (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+adapter.Address+"/apis/custom.metrics.k8s.io/v1beta2", nil)
		if err != nil {
			return 0, err
		}
		r.Header.Set("X-Remote-User", "somebody")
		r.Header.Set("X-Remote-Group", "system:masters")
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	if code, err := ask(); err != nil || code == http.StatusOK {
		t.Fatalf("a request that is signed by an unknown CA got %d, %v", code, err)
	}
	maps := i.cluster.Client.CoreV1().ConfigMaps("kube-system")
	m, err := maps.Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Data["requestheader-client-ca-file"] += string(ca.pem())
	if _, err := maps.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the adapter takes a request that is signed by the new CA", func() error {
		if code, err := ask(); err != nil || code != http.StatusOK {
			return fmt.Errorf("got %d, %v", code, err)
		}
		return nil
	})
}

// authority is a CA that somebody else has.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: a.cert.Raw})
}

// issue signs a certificate, and makes its key.
func (a *authority) issue(t *testing.T, template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if der, err = x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key); err != nil {
		t.Fatal(err)
	}
	return der, key
}

// testTokenFile runs an adapter with a token from a file, as in a pod, and replaces it with another
// before it is revoked.
func (i *install) testTokenFile(t *testing.T) {
	ctx := t.Context()
	secrets := i.cluster.Client.CoreV1().Secrets(cluster.AdapterNamespace)
	file := filepath.Join(t.TempDir(), "token")
	// issue writes a token that is good for as long as a Secret is there, and returns it.
	issue := func(name string) string {
		s, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		token, err := i.cluster.Client.CoreV1().ServiceAccounts(cluster.AdapterNamespace).CreateToken(ctx, cluster.AdapterName, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Secret", Name: name, UID: s.UID,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(token.Status.Token), 0o600); err != nil {
			t.Fatal(err)
		}
		return token.Status.Token
	}
	first := issue("first")
	config, err := clientcmd.LoadFromFile(i.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData, user.TokenFile = nil, nil, file
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	adapter := i.start(t, "prometheus", "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--serving-cert-lifetime="+lifetime.String())

	issue("second")
	if err := secrets.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "kube-apiserver refuses the first token", func() error {
		config := rest.AnonymousClientConfig(i.cluster.Config)
		config.BearerToken = first
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		if _, err := client.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	// It asks kube-apiserver about each token that it has not seen, which the first token no longer allows.
	users := 0
	eventually(t, 3*time.Minute, "the adapter asks kube-apiserver with the new token", func() error {
		users++
		name := fmt.Sprintf("user-%d", users)
		if _, err := i.cluster.Client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		user, err := i.cluster.ServiceAccountConfig(ctx, "default", name)
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+adapter.Address+"/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/vllm_queue_depth", nil)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+user.BearerToken)
		resp, err := insecure.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden { // it knows who asks, and that they may not
			return fmt.Errorf("got %s", resp.Status)
		}
		return nil
	})
}
