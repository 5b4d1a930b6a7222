#!/bin/sh
# Runs the selftests that the patches add to the kernel in the lab's kernels for arm64, as root. clang compiles them here,
# those of epoll also for 32 bits. Of the variants of the tests of index tokens one runs, as in `make test`.
#
# Usage: tests/selftests_arm64.sh
set -eu
cd "$(dirname "$0")/.."
unset BUSBAR_LINUX
. tools/cross
busbar=target/release/busbar
built=$($busbar lab build --arch arm64 --debug --json)
root=$(echo "$built" | jq -r .root)
source=$(readlink -f "$(echo "$built" | jq -r .build)/source")
selftests=$source/tools/testing/selftests
out=$PWD/target/selftests/arm64
root32=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/root/armhf-build
mkdir -p "$out"
tools/root armhf "$root32" libc6-dev libgcc-12-dev
for architecture in arm64 arm; do
    make --silent -C "$source" ARCH=$architecture LLVM=1 O="$out/headers-$architecture" headers >"$out/log" 2>&1 ||
        { cat "$out/log"; exit 1; }
done

# Usage: build KERNEL TO FROM [32]
build() {
    case ${4-} in
    32) architecture=arm options="--target=arm-linux-gnueabihf --sysroot=$root32 -static" ;;
    *) architecture=arm64 options="--target=aarch64-linux-gnu --sysroot=$root" ;;
    esac
    # shellcheck disable=SC2086
    clang $options -fuse-ld=lld -O2 -Wall -Werror -D_GNU_SOURCE= -isystem "$out/headers-$architecture/usr/include" \
        -I"$selftests" -o "$out/$2" "$selftests/$3.c" -lpthread
    echo "selftest:$2 $out/$2" >>"$out/plan-$1"
}
rm -f "$out"/plan-*
for name in epoll_batch_test epoll_hold_test epoll_pwait1_test; do
    build debug "$name" "filesystems/epoll/$name"
    build debug "${name}_32" "filesystems/epoll/$name" 32
done
build debug ffs_dmabuf_test drivers/usb/gadget/ffs_dmabuf_test
# Between two NICs, which its script sets up.
build release devmem_tokens net/devmem_tokens
cp "$selftests/net/devmem_tokens.sh" "$out"

cross arm64 "$root"
cargo build --locked -p busbar-cli -p busbar-dev --target "$triple"
status=0
for kernel in debug release; do
    case $kernel in debug) option=--debug ;; *) option= ;; esac
    # A link that a script of a package would have made.
    # shellcheck disable=SC2016,SC2086
    $busbar lab run --arch arm64 $option --timeout 1800 -- sh -c 'rmdir /var/run && ln -s /run /var/run
        export BUSBAR_QUICK=1 BUSBAR_TARGET="$1"; exec tests/guest.sh "$2"' sh "target/$triple/debug" \
        "$out/plan-$kernel" || status=$?
done
exit "$status"
