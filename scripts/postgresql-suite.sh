#!/bin/sh
# Puts PostgreSQL's regression suite into a directory, for the PostgreSQL that is installed:
#   scripts/postgresql-suite.sh DIRECTORY
# Its sources (23 MB) and the headers of its server are fetched from the archive of Debian; nothing is installed.
set -eu

into=$1
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
major=${bin#/usr/lib/postgresql/}
major=${major%/bin}
version=$("$bin/postgres" --version | grep -Eo '[0-9]+\.[0-9]+' | head -n 1)
archive=https://deb.debian.org/debian/pool/main/p/postgresql-$major/postgresql-${major}_$version.orig.tar.bz2
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

fetch() {
    curl -fsS --retry 3 -o "$1" "$2" || {
        echo "postgresql-suite: $2 is not there; the suite has to be that of PostgreSQL $version" >&2
        return 1
    }
}

cd "$place"
fetch source.tar.bz2 "$archive"
tar xjf source.tar.bz2 --strip-components=1 --wildcards '*/src/test/regress/*' '*/src/include/*'
apt-get -qq -o APT::Sandbox::User=root download "postgresql-server-dev-$major"
dpkg -x "postgresql-server-dev-$major"_*.deb headers

# What was generated when it was built is in the package alone; all else is of the version that runs.
cc -O2 -fPIC -shared -w -Isrc/include -I"headers/usr/include/postgresql/$major/server" \
    -o src/test/regress/regress.so src/test/regress/regress.c
cp "${bin%/bin}/lib/refint.so" "${bin%/bin}/lib/autoinc.so" "${bin%/bin}/lib/pgxs/src/test/regress/pg_regress" src/test/regress/
mkdir -p "$into"
cp -r src/test/regress/. "$into"
