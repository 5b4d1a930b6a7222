#!/bin/sh
# Installs libbusbar by cargo-c and by `make install`: both install the same files, and a C program is built with those of
# cargo-c. To build cargo-c takes minutes, so it is kept in target.
set -eu
cd "$(dirname "$0")/.."
version=0.10.15
tool=$PWD/target/cargo-c-$version
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 143' TERM
[ -x "$tool/bin/cargo-cinstall" ] || cargo install --quiet --locked --root "$tool" --version "$version" cargo-c
PATH=$tool/bin:$PATH cargo cinstall --locked --release -p busbar-c --destdir "$root/cargo" --prefix /usr --libdir lib
make --silent install DESTDIR="$root/make" PREFIX=/usr >/dev/null

# Of the whole installation, what belongs to the library.
files() {
    (cd "$1/usr" && find lib include/busbar.h include/busbar/epoll_calls.h ! -type d | sort)
}
files "$root/make" >"$root/make.files"
files "$root/cargo" | diff "$root/make.files" -
soname() { LC_ALL=C readelf -d "$1/usr/lib/libbusbar.so" | grep -o 'soname: .*'; }
[ "$(soname "$root/cargo")" = "$(soname "$root/make")" ] || { echo "the sonames differ"; exit 1; }
cmp "$root/make/usr/include/busbar.h" "$root/cargo/usr/include/busbar.h"

export PKG_CONFIG_PATH="$root/cargo/usr/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root/cargo"
[ "$(pkg-config --modversion busbar)" = "$(cargo pkgid -p busbar-c | sed 's/.*[#@]//')" ]
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -o "$root/stream" examples/c/stream.c $(pkg-config --cflags --libs busbar) -lm
{ sleep 1; echo; } | LD_LIBRARY_PATH="$root/cargo/usr/lib" "$root/stream" 'synth:sine?rate=1M' voltage0_i |
    grep 'block 1: 32768 samples, rms '
echo "cargo-c: $(wc -l <"$root/make.files") files, as make install has them"
