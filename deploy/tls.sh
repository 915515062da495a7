#!/usr/bin/env bash
# Makes the adapter's serving certificate, or replaces it.
#
# kube-apiserver talks to the adapter over TLS and has to know whose certificate to trust. This
# script makes a CA of its own, signs one certificate for the Service with it, throws the CA's key
# away, tells the APIServices to trust the CA, and stores the certificate in the Secret that the
# pods mount. Run it after `kubectl apply -k`, and again whenever the certificate is to be replaced:
# pods reload it by themselves, and the previous CA stays trusted until they have.
#
# It wants kubectl, with rights on Secrets in the namespace and on APIServices, and openssl.
set -euo pipefail

namespace=inference-metrics
service=inference-metrics-adapter
secret=inference-metrics-adapter-tls
apiservices=(v1beta1.custom.metrics.k8s.io v1beta2.custom.metrics.k8s.io)
external=v1beta1.external.metrics.k8s.io
days=${DAYS:-3650}

# That of external metrics is often another server's, which has a CA of its own.
owner=$(kubectl get apiservice "$external" --ignore-not-found \
  -o 'jsonpath={.spec.service.namespace}/{.spec.service.name}')
if [[ $owner == "$namespace/$service" ]]; then
  apiservices+=("$external")
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
umask 077

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" \
  -subj "/CN=$service-ca" -addext 'keyUsage=critical,keyCertSign' \
  -keyout "$dir/ca.key" -out "$dir/ca.crt" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$service.$namespace.svc" \
  -keyout "$dir/tls.key" -out "$dir/tls.csr" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
openssl x509 -req -in "$dir/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial \
  -days "$days" -out "$dir/tls.crt" -extfile <(
    echo "subjectAltName=DNS:$service.$namespace.svc,DNS:$service.$namespace.svc.cluster.local"
    echo 'extendedKeyUsage=serverAuth'
  ) 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }

# The new CA first, and of those trusted so far only the newest. All trust the same ones: an APIService
# that has just been added has to trust what pods still serve with.
{ cat "$dir/ca.crt"
  kubectl get apiservice "${apiservices[0]}" -o 'jsonpath={.spec.caBundle}' | base64 -d |
    awk '/BEGIN CERTIFICATE/ { n++ } n == 1'
} >"$dir/bundle.crt"
for name in "${apiservices[@]}"; do
  kubectl patch apiservice "$name" --type merge \
    -p "{\"spec\":{\"caBundle\":\"$(base64 <"$dir/bundle.crt" | tr -d '\n')\"}}"
done
kubectl create secret tls "$secret" --namespace "$namespace" --cert "$dir/tls.crt" --key "$dir/tls.key" \
  --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -
