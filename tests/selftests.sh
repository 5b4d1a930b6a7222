#!/bin/sh
# Builds the selftests that the patches add to the kernel, those of epoll also for 32 bits. Prints the paths of the
# programs; tests/guest.sh runs them.
#
# Usage: tests/selftests.sh [--all | --arm64]
#   --all    also the kernel's own test of epoll's wakeups
#   --arm64  for that processor, by clang
set -eu
cd "$(dirname "$0")/.."
case ${1-} in
--arm64)
    architecture=arm64
    . tests/sources.sh
    root32=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/root/armhf-build
    tools/root armhf "$root32" libc6-dev libgcc-12-dev
    compiler="clang --target=aarch64-linux-gnu --sysroot=$(echo "$built" | jq -r .root) -fuse-ld=lld"
    compiler32="clang --target=arm-linux-gnueabihf --sysroot=$root32 -fuse-ld=lld -isystem $(headers arm)/usr/include"
    ;;
"" | --all)
    unset architecture
    . tests/sources.sh
    compiler=gcc compiler32="gcc -m32"
    ;;
*) sed -n '5,7s/^# //p' "$0" >&2; exit 2 ;;
esac
# A guest reads them when their turn comes, while others may be built.
out=$out/$(echo "$built" | jq -r .series)
mkdir -p "$out"

# Usage: build COMPILER TO FROM [OPTION…]
build() {
    command=$1 to=$out/$2 from=$selftests/$3.c
    shift 3
    # As the kernel's Makefile defines it.
    # shellcheck disable=SC2086
    $command -O2 -Wall -Werror -D_GNU_SOURCE= $include "$@" -o "$to" "$from" -lpthread >"$out/log" 2>&1 ||
        { cat "$out/log" >&2; exit 1; }
    echo "$to"
}
for name in epoll_batch_test epoll_hold_test epoll_pwait1_test; do
    build "$compiler" "$name" "filesystems/epoll/$name"
    build "$compiler32" "${name}_32" "filesystems/epoll/$name" -static
done
# This test runs between two NICs, which its script sets up.
build "$compiler" devmem_tokens net/devmem_tokens
cp "$selftests/net/devmem_tokens.sh" "$out/"
build "$compiler" ffs_dmabuf_test drivers/usb/gadget/ffs_dmabuf_test
# Some of the tests of this one have a time limit that a busy machine exceeds.
if [ "${1-}" = --all ]; then
    build "$compiler" epoll_wakeup_test filesystems/epoll/epoll_wakeup_test -Wno-error
fi
