#!/usr/bin/env bash
# Applies an overlay of deploy/manifests, unless that would take an API from another server.
#
#   deploy/install.sh deploy/manifests/overlays/prometheus
#
# Only one server can own an API, and applying would take it from whoever has it: custom metrics from a
# prometheus-adapter, external metrics from KEDA, whose HPAs would then stop. So this looks first, and
# changes nothing where another server has an API that the overlay serves. With --take it is taken. Where
# you have looked yourself, "kubectl apply -k OVERLAY" does the same.
#
# It wants kubectl, with rights on all that is installed.
set -euo pipefail

usage() { echo "usage: ${0##*/} OVERLAY [--take]" >&2; exit 2; }
[[ $# -ge 1 && $# -le 2 && -d $1 && ${2:---take} == --take ]] || usage
overlay=$1 take=${2:-}
ours=inference-metrics/inference-metrics-adapter

# The names of the overlay's APIServices, which kustomize writes with two spaces before them.
apis=$(kubectl kustomize "$overlay" | awk '$1 == "kind:" && /^kind/ { kind = $2 } /^  name:/ && kind == "APIService" { print $2 }')
[[ -n $apis ]] || { echo "$overlay serves no API" >&2; exit 1; }

taken=()
for api in $apis; do
  owner=$(kubectl get apiservice "$api" --ignore-not-found \
    -o 'jsonpath={.spec.service.namespace}/{.spec.service.name}')
  [[ -z $owner || $owner == "$ours" ]] || taken+=("$api is served by $owner")
done
if [[ ${#taken[@]} -gt 0 && $take != --take ]]; then
  printf '%s\n' "${taken[@]}" >&2
  echo "nothing was changed: leave that API out of the overlay, or give --take to replace its server" >&2
  exit 1
fi

kubectl apply -k "$overlay"
