#!/usr/bin/env bash
# Installs the Debian packages that the tests need, where their programs are missing.
set -euo pipefail

missing=()
need() { # need PROGRAM PACKAGE
  command -v "$1" >/dev/null || missing+=("$2")
}
need buildah buildah          # builds the image without a Docker engine
need busybox busybox-static   # a shell for the image's builder stage
need chromium chromium        # looks at the status page
need curl curl                # the demo asks the API with it
need gcc gcc                  # the race detector and etcd's and Prometheus's cgo parts
need jq jq                    # reads what the check of vulnerabilities finds, and lists of parts
need openssl openssl          # the adapter's serving certificate

((${#missing[@]})) || exit 0
if ! command -v apt-get >/dev/null || ((EUID != 0)); then
  echo "missing: ${missing[*]} (Debian package names): install them, or run this as root on Debian" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
