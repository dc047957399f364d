#!/bin/sh
# Installs the distribution packages that DVS needs to be built, demonstrated and tested on Debian 12 or 13.
#
#   scripts/setup.sh build|demo|test     each includes the one before it; default: demo
#   scripts/setup.sh bench               what 'build' has, and what the benchmark's peers need
#   scripts/setup.sh docs                what 'build' has, and what makes a site of the documentation
#
# Idempotent: a package that is there is not touched, and with nothing missing no privilege is needed.
set -eu

purpose=${1:-demo}

# package:why
build_packages="
gcc:compiles the embedded SQLite and the cryptography library
libc6-dev:the C library, also in its static form, for one static binary
make:runs the targets of the Makefile
"
demo_packages="
nginx-light|nginx:the unmodified web server of the demo
curl:fetches the files inside the container
iproute2:lets you look at the network namespaces of the nodes
ca-certificates:curl wants it
"
test_packages="
python3:the Python module, and one of the unmodified programs that the tests run
git:likewise
sqlite3:likewise
redis-server:likewise, with its command line
redis-tools:likewise
postgresql:likewise
python3-psycopg2:the small shop of the guide asks PostgreSQL
python3-redis:it asks redis, too
etcd-server:the cluster engine of several machines
etcd-client:asks it beside DVS
nftables:translates addresses, as a router before a machine does
strace:shows that the message path makes no system calls
busybox-static:a small root file system
debootstrap:a Debian root file system (long tests only)
g++:compiles the headers of the C library as C++
pkg-config|pkgconf:finds the C library, as its users do
mandoc:checks the manual pages
procps:ps and pkill inside containers
libnbd-bin:clients of disks (nbdinfo, nbdcopy)
qemu-utils:likewise (qemu-io, qemu-img)
fio:likewise, with verification
fuse3:mounts a file tree for who is not root
libacl1-dev:pjdfstest, a test suite of others, is built with it (long tests only)
"

bench_packages="
g++:compiles ZeroMQ, one of the peers
openssh-server:runs a program elsewhere, as jobs do
etcd-server:the engine of the cluster whose nodes are lost
fio:a client of disks over NBD
nbdkit:serves an image over NBD, as we do
qemu-utils:likewise (qemu-nbd)
libfuse3-dev:has a file system that passes everything through, the peer of the file tree
git:looks at many small files
nginx-light|nginx:answers through published ports
wrk:asks it
curl:fetches long files
postgresql:keeps its data in the file tree
stress-ng:asks many things of a file tree
nftables:forwards, the peer of published ports and the way out
iproute2:makes networks for it
"

docs_packages="
python3-sphinx:makes pages and their search
python3-myst-parser:reads Markdown for it
mandoc:shows manual pages
"

case $purpose in
    build) wanted=$build_packages ;;
    demo) wanted="$build_packages$demo_packages" ;;
    test) wanted="$build_packages$demo_packages$test_packages" ;;
    bench) wanted="$build_packages$bench_packages" ;;
    docs) wanted="$build_packages$docs_packages" ;;
    *) echo "setup: unknown purpose '$purpose'" >&2; echo "  try: scripts/setup.sh build|demo|test|bench|docs" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: this is not a Debian-like system, nothing was installed" >&2
    echo "  try: install by hand what these lines name:$wanted" >&2
    exit 1
fi

is_installed() {
    dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

missing=
while IFS=: read -r names why; do
    [ -n "$names" ] || continue
    found=
    for name in $(echo "$names" | tr '|' ' '); do
        if is_installed "$name"; then found=yes; fi
    done
    [ -n "$found" ] && continue
    first=${names%%|*}
    [ -n "$missing" ] || echo "setup: these packages are missing:"
    printf '  %-16s %s\n' "$first" "$why"
    missing="$missing $first"
done <<LIST
$wanted
LIST

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: no Rust tool chain (cargo) in PATH" >&2
    echo "  try: install Rust 1.88 or newer with rustup" >&2
    exit 1
fi

[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
else
    echo "setup: root is needed to install them, and there is no sudo" >&2
    echo "  try: as root: apt-get install$missing" >&2
    exit 1
fi

echo "setup: installing$missing"
# RUNLEVEL=1 keeps the packages' services from being started: DVS starts its own copies inside containers.
install="env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends"
# shellcheck disable=SC2086
$as_root $install $missing >/dev/null 2>&1 || {
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root $install $missing >/dev/null
}
