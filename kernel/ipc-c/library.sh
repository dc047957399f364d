#!/bin/sh
# Makes the C library of what cargo built, and installs it.
#
#   library.sh link ARCHIVE DIRECTORY         libm3ipc.so and libm3ipc.a, from the archive of crate ipc-c
#   library.sh install DIRECTORY              to $DESTDIR$PREFIX (default /usr/local) as $LIBDIR, $INCLUDEDIR, $MANDIR say
#
# Why not a cdylib of cargo's: everything here is built with the C library linked statically (.cargo/config.toml), for which
# rustc makes none; and rustc's own list of exports leaves no room for a version script. The code in the archive is position
# independent either way.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
# Raised when a published function changes or goes.
abi=0

CC=${CC:-cc}
AR=${AR:-ar}
LD=${LD:-ld}
OBJCOPY=${OBJCOPY:-objcopy}

exports() {
    sed -n 's/^\t\([a-z].*\);$/\1/p' "$here/m3ipc.map"
}

# One object of all that the exports need, with their names alone visible: a second library in Rust, or one that has the same
# helpers, does not collide with it.
link_archive() {
    roots=$(exports | sed 's/^/-u /')
    # shellcheck disable=SC2086
    "$LD" -r --gc-sections $roots -o "$2/m3ipc.o" "$1"
    exports >"$2/exports"
    # What the compiler embeds for link-time optimisation is of no use joined, and confuses tools that look for it.
    "$OBJCOPY" --keep-global-symbols="$2/exports" --strip-debug -R .llvmbc -R .llvmcmd "$2/m3ipc.o"
    rm -f "$2/libm3ipc.a"
    "$AR" rcs "$2/libm3ipc.a" "$2/m3ipc.o"
}

link_shared() {
    "$CC" -shared -o "$1/libm3ipc.so.$version" "$1/m3ipc.o" \
        -Wl,-soname,"libm3ipc.so.$abi" -Wl,--version-script="$here/m3ipc.map" \
        -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--as-needed -lgcc_s
    ln -sf "libm3ipc.so.$version" "$1/libm3ipc.so.$abi"
    ln -sf "libm3ipc.so.$abi" "$1/libm3ipc.so"
}

link() {
    mkdir -p "$2"
    link_archive "$1" "$2"
    link_shared "$2"
    rm -f "$2/m3ipc.o" "$2/exports"
}

install_all() {
    prefix=${PREFIX:-/usr/local}
    libdir=${LIBDIR:-$prefix/lib}
    includedir=${INCLUDEDIR:-$prefix/include}
    mandir=${MANDIR:-$prefix/share/man}
    to=${DESTDIR:-}
    install -d "$to$libdir/pkgconfig" "$to$includedir" "$to$mandir/man3" "$to$mandir/man7"
    install -m 644 "$1/libm3ipc.a" "$to$libdir/"
    install -m 755 "$1/libm3ipc.so.$version" "$to$libdir/"
    ln -sf "libm3ipc.so.$version" "$to$libdir/libm3ipc.so.$abi"
    ln -sf "libm3ipc.so.$abi" "$to$libdir/libm3ipc.so"
    install -m 644 "$here/include/m3ipc.h" "$here/include/m3ipc_dvk.h" "$to$includedir/"
    sed -e "s|@prefix@|$prefix|; s|@libdir@|$libdir|; s|@includedir@|$includedir|; s|@version@|$version|" \
        "$here/m3ipc.pc.in" >"$to$libdir/pkgconfig/m3ipc.pc"
    chmod 644 "$to$libdir/pkgconfig/m3ipc.pc"
    install_manual "$to$mandir"
}

# A page under its own name, and under that of each function it describes.
install_manual() {
    install -m 644 "$here/man/"*.7 "$1/man7/"
    for page in "$here/man/"*.3; do
        file=$(basename "$page")
        install -m 644 "$page" "$1/man3/"
        sed -n 's/^\.Nm \([a-z0-9_A-Z]*\) ,\{0,1\}$/\1/p; s/^\.Nm \([a-z0-9_A-Z]*\)$/\1/p' "$page" | sort -u | while read -r name; do
            [ "$name.3" = "$file" ] || ln -sf "$file" "$1/man3/$name.3"
        done
    done
}

case ${1:-} in
    link) [ $# = 3 ] && link "$2" "$3" && exit ;;
    install) [ $# = 2 ] && install_all "$2" && exit ;;
esac
sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n 5 >&2
exit 2
