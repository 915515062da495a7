#!/usr/bin/env bash
# Builds the image where no registry can be reached, and runs the program from it.
#
# The Dockerfile's bases are public images. Here the builder is assembled from this machine's Go and
# a busybox, and the final base is empty, which also shows that the program needs nothing around it.
# The build sees this machine's module and build caches and no network.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/inference-metrics-adapter/images
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
go_version=$(go env GOVERSION)
builder=localhost/go-builder:$go_version
image=localhost/inference-metrics-adapter:$version

# A storage of its own: what is built here is nobody else's image.
buildah() { command buildah --storage-driver vfs --root "$cache" --runroot "$run" "$@"; }

if ! buildah inspect --type image "$builder" >/dev/null 2>&1; then
  echo "assembling $builder"
  root=$(mktemp -d -p "$run")
  mkdir -p "$root/bin" "$root/tmp" "$root/usr/local"
  cp "$(command -v busybox)" "$root/bin/busybox"
  ln -s busybox "$root/bin/sh"
  chmod 1777 "$root/tmp"
  container=$(buildah from scratch)
  buildah copy --quiet "$container" "$root" /
  buildah copy --quiet "$container" "$(go env GOROOT)" /usr/local/go
  buildah config --env PATH=/usr/local/go/bin:/bin --env GOPATH=/go --env GOTOOLCHAIN=local \
    --env GOPROXY=off --env GOFLAGS=-buildvcs=false "$container"
  buildah commit --quiet --rm "$container" "$builder"
fi

go list -deps ./cmd/adapter >/dev/null # fetches the modules that the build needs
mkdir -p "$(go env GOCACHE)"
buildah bud --isolation chroot --pull-never --quiet --force-rm --layers=false \
  --build-arg BUILDER="$builder" --build-arg BASE=scratch --build-arg VERSION="$version" \
  --volume "$(go env GOMODCACHE):/go/pkg/mod:ro" --volume "$(go env GOCACHE):/go/cache" \
  --tag "$image" .

fail() { echo "image: $*" >&2; exit 1; }

config=$(buildah inspect --type image --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}' "$image")
[[ $config == '65532:65532 [/adapter]' ]] || fail "user and entrypoint are $config"

container=$(buildah from "$image")
# Nothing but the program is in the image, so that it runs at all says that it is static.
got=$(buildah run --isolation chroot "$container" -- /adapter --version) || fail "the program does not run"
[[ $got == *"$version"* ]] || fail "--version says $got, want $version"
diff -u docs/adapter-flags.txt <(buildah run --isolation chroot "$container" -- /adapter --help 2>&1) ||
  fail "--help is not docs/adapter-flags.txt"
buildah rm "$container" >/dev/null
buildah rmi "$image" >/dev/null # the builder stays, for the next time
echo "image: ok ($got)"
