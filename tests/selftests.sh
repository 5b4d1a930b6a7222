#!/bin/sh
# Builds the selftests that the patches add to the kernel, those of epoll also for 32 bits, and with --all
# the kernel's own test of epoll's wakeups. Prints the paths of the programs; tests/guest.sh runs them.
set -eu
cd "$(dirname "$0")/.."
. tests/sources.sh

build() {
    to=$1 from=$2
    shift 2
    # shellcheck disable=SC2086
    gcc -O2 -Wall -D_GNU_SOURCE $include "$@" -o "$out/$to" \
        "$selftests/$from.c" -lpthread >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
    echo "$out/$to"
}
for name in epoll_batch_test epoll_hold_test epoll_pwait1_test; do
    build "$name" "filesystems/epoll/$name"
    build "${name}_32" "filesystems/epoll/$name" -m32 -static
done
# This test runs between two NICs, which its script sets up.
build devmem_tokens net/devmem_tokens
cp "$selftests/net/devmem_tokens.sh" "$out/"
build ffs_dmabuf_test drivers/usb/gadget/ffs_dmabuf_test
# Some of the tests of this one have a time limit that a busy machine exceeds.
if [ "${1-}" = --all ]; then
    build epoll_wakeup_test filesystems/epoll/epoll_wakeup_test
fi
