#!/usr/bin/env bash
# Installs missing compilers: a C linker from Debian, Rust with rustup, Go from the Go module proxy.
#
# usage: toolchains.sh FOLDER
#
# Rust goes into FOLDER/rust and Go into FOLDER/go. The Makefile puts their `bin` folders first on the PATH. Compilers of
# the computer that are new enough are used, and nothing is downloaded. RUSTUP_UPDATE_ROOT, RUSTUP_DIST_SERVER and GOPROXY
# select mirrors, as for the tools themselves.
set -euo pipefail
folder=$1
root=$(cd "$(dirname "$0")/.." && pwd)

rust_server=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}
go_proxy=${GOPROXY:-https://proxy.golang.org}
go_proxy=${go_proxy%%[,|]*}
rust_min=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
rustup=1.28.2
go_min=1.26
go=1.26.8
case $(uname -m) in
    x86_64)
        rust_host=x86_64-unknown-linux-gnu
        rustup_digest=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
        go_host=linux-amd64
        go_digest=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
    aarch64)
        rust_host=aarch64-unknown-linux-gnu
        rustup_digest=e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c
        go_host=linux-arm64
        go_digest=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
    *)
        echo "toolchains: unsupported architecture $(uname -m): the development stack needs x86_64 or aarch64" >&2
        exit 1 ;;
esac

partial=$folder/.partial-$$
step=
finish() {
    status=$?
    rm -rf "$partial"
    [ $status = 0 ] || echo "✗ $step failed
  try: check that Debian's mirror, $rust_server and $go_proxy are reachable, and that the disk has 3 GB free; then run it again" >&2
    exit $status
}
trap finish EXIT

# begin STEP: prints the step that starts now.
begin() {
    step=$1
    echo "== $step"
}

has() {
    command -v "$1" >/dev/null
}

# at_least FOUND MINIMUM: whether a version is new enough.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort --version-sort | head -n 1)" = "$2" ]
}

packages=()
has cc || packages+=(gcc libc6-dev)
# curl downloads, python3 unpacks.
has curl || packages+=(curl ca-certificates)
has python3 || packages+=(python3)
if [ ${#packages[@]} -gt 0 ]; then
    begin "installing ${packages[*]}"
    apt-get update --quiet --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends "${packages[@]}" >/dev/null
fi

# fetch URL DIGEST FILE: downloads a file and checks its SHA-256.
fetch() {
    curl --fail --silent --show-error --location --retry 3 --output "$3" "$1"
    echo "$2  $3" | sha256sum --check --status || { echo "$1: unexpected SHA-256, expected $2" >&2; exit 1; }
}

rust_found=$(rustc --version 2>/dev/null | awk '{print $2}') || true
if ! at_least "${rust_found:-0}" "$rust_min" || ! has cargo || ! has rustfmt || ! has clippy-driver; then
    begin "installing Rust $rust_min.0 into $folder"
    mkdir -p "$partial"
    fetch "$rust_server/archive/$rustup/$rust_host/rustup-init" "$rustup_digest" "$partial/rustup-init"
    chmod +x "$partial/rustup-init"
    RUSTUP_HOME=$folder/rustup CARGO_HOME=$partial/cargo "$partial/rustup-init" -y --no-modify-path --profile minimal \
        --component rustfmt,clippy --default-toolchain "$rust_min.0" >/dev/null
    ln -sfn "rustup/toolchains/$rust_min.0-$rust_host" "$folder/rust"
fi

go_found=$(go version 2>/dev/null | awk '{print substr($3, 3)}') || true
if ! at_least "${go_found:-0}" "$go_min"; then
    begin "installing Go $go into $folder"
    mkdir -p "$partial"
    name=v0.0.1-go$go.$go_host
    fetch "$go_proxy/golang.org/toolchain/@v/$name.zip" "$go_digest" "$partial/go.zip"
    python3 -m zipfile -e "$partial/go.zip" "$partial"
    unpacked=$partial/golang.org/toolchain@$name
    # A Go module archive stores no file modes.
    chmod +x "$unpacked"/bin/* "$unpacked"/pkg/tool/*/*
    rm -rf "$folder/go-$go"
    mv "$unpacked" "$folder/go-$go"
    ln -sfn "go-$go" "$folder/go"
fi
