#!/bin/sh
# Tests the wheels of `make wheel` for other processors, which QEMU emulates: with Debian 12's Python and NumPy of each,
# unpacked into the cache. Runs as root.
#
# Usage: tests/wheels.sh MACHINE…    of aarch64, armv7
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
cache=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/python

# The root of a processor, by its names in Debian and in QEMU, and by that of the folder of its libraries.
prepare() {
    root=$cache/$1
    tools/root "$1" "$root" python3-numpy python3-pytest python3-pytest-asyncio
    cp "/usr/bin/qemu-$2-static" "$root/qemu"
    # Alternatives, which Debian's scripts would have made. They are not run.
    ln -sf blas/libblas.so.3 "$root/usr/lib/$3/libblas.so.3"
    ln -sf lapack/liblapack.so.3 "$root/usr/lib/$3/liblapack.so.3"
    mkdir -p "$root/proc"
}

for machine in "$@"; do
    case $machine in
    aarch64) prepare arm64 aarch64 aarch64-linux-gnu; linux=aarch64 ;;
    armv7) prepare armhf arm arm-linux-gnueabihf; linux=armv7l ;;
    *) echo "usage: tests/wheels.sh MACHINE…, of aarch64, armv7" >&2; exit 2 ;;
    esac
    rm -rf "$root/test"
    mkdir "$root/test"
    python3 -m zipfile -e target/wheels/busbar-"$version"-cp311-abi3-manylinux_2_28_"$linux".whl "$root/test"
    cp crates/python/tests/conftest.py crates/python/tests/test_source.py crates/python/tests/test_pipeline.py "$root/test"
    sed -n '/^\[tool.pytest/,/^$/p' pyproject.toml >"$root/test/pyproject.toml"
    # QEMU executes no other programs (ctrl_c), and NumPy before 2.1 takes no DLPack of read-only memory.
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" /qemu /usr/bin/python3 -m pytest -q \
        -p no:cacheprovider -W ignore --rootdir /test -k "not dlpack and not every_way and not ctrl_c" /test' sh "$root"
    echo "wheels: $machine: passed"
done
