# Both bases are arguments, so that a build without the public registries can bring its own
# (see hack/test-image.sh).
ARG BUILDER=golang:1.26
ARG BASE=gcr.io/distroless/static:nonroot

FROM ${BUILDER} AS build
ARG VERSION=dev
WORKDIR /src
COPY . .
ENV GOCACHE=/go/cache
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/go/cache \
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/adapter ./cmd/adapter

FROM ${BASE}
COPY --from=build /out/adapter /adapter
# A number, so that Kubernetes can check runAsNonRoot; it is distroless's nonroot.
USER 65532:65532
EXPOSE 6443
ENTRYPOINT ["/adapter"]
