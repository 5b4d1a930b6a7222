#!/bin/sh
# Builds and installs the modules with DKMS, as on a board, for the lab's kernel and into a temporary
# folder: all modules, all but one, and those that a kernel without IIO supports, beside one that does not build.
set -eu
cd "$(dirname "$0")/.."
built=$(${BUSBAR:-target/release/busbar} lab build --json)
build=$(echo "$built" | jq -r .build)
release=$(echo "$built" | jq -r .release)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 143' TERM
mkdir -p "$root/tree" "$root/installed/$release"

kernel=kernel
# Usage: dkms_make TARGET KERNEL-TREE [VARIABLE=VALUE…]
dkms_make() {
    target=$1 tree=$2
    shift 2
    make --silent -C "$kernel" "$target" DESTDIR="$root" "$@" \
        KERNEL="$release" DKMS_FLAGS="--kernelsourcedir $tree --sourcetree $root/usr/src \
            --dkmstree $root/tree --installtree $root/installed --no-depmod" >"$root/log" 2>&1
}
failed() {
    cat "$root/log"
    find "$root/tree" -name make.log -exec cat {} +
    echo "dkms: $*"
    exit 1
}
# Prints the installed modules in alphabetical order.
installed() {
    find "$root/installed" -name '*.ko*' -exec basename {} \; | sed 's/\.ko.*//' | sort | xargs
}
expect() {
    [ "$(installed)" = "$1" ] || failed "installed: $(installed); expected: $1"
    echo "dkms: $2 for $release: ${1:-nothing}"
}

all="rpmsg_eptfd rpmsg_netlink vconv vcoproc vnic"
replaces() {
    conf=$root/etc/modprobe.d/rpmsg_eptfd.conf
    if [ "$1" = yes ]; then [ -s "$conf" ]; else [ ! -e "$conf" ]; fi || failed "$conf: wanted: $1"
}
dkms_make install-modules "$build" || failed "all modules"
expect "$all" "all modules"
replaces yes
dkms_make uninstall-modules "$build" MODULES=vconv || failed "uninstall of vconv"
expect "rpmsg_eptfd rpmsg_netlink vcoproc vnic" "all but one"
dkms_make uninstall-modules "$build" || failed "uninstall"
expect "" "uninstalled"
replaces no
dkms_make dkms "$build" || failed "packages"
replaces yes
dkms_make dkms "$build" BESIDE=1 || failed "packages beside the pair"
replaces no
rm -rf "$root/usr/src"/*
[ -z "$(ls "$root/usr/src")" ] || failed "left: $(ls "$root/usr/src")"

# A kernel without IIO gets the other modules.
mkdir "$root/without"
find "$build" -mindepth 1 -maxdepth 1 ! -name .config -exec ln -s {} "$root/without/" \;
sed 's/^CONFIG_IIO_BUFFER_DMA=.*//' "$build/.config" >"$root/without/.config"
dkms_make install-modules "$root/without" MODULES="vconv rpmsg_eptfd" || failed "without IIO"
expect "rpmsg_eptfd" "a kernel without IIO"
grep -q 'vconv: not for this kernel: .*CONFIG_IIO_BUFFER_DMA' "$root/log" || failed "no reason for vconv"
dkms_make uninstall-modules "$root/without" || failed "uninstall"

# A module that does not build fails alone.
cp -r kernel "$root/kernel"
kernel=$root/kernel
echo '#error this module does not build' >>"$kernel/modules/vcoproc/main.c"
if dkms_make install-modules "$build" MODULES="vcoproc vconv"; then failed "a module that does not build"; fi
grep -q '^not built: vcoproc$' "$root/log" || failed "the error does not name the module"
expect "vconv" "one that does not build"
dkms_make uninstall-modules "$build" || failed "uninstall"

if dkms_make dkms "$build" MODULES=none; then failed "accepted a module that does not exist"; fi
grep -q 'no such module: none' "$root/log" || failed "the error does not name the module"
