#!/bin/sh
# Builds and installs the modules with DKMS, as on a board, for the lab's kernel and into a temporary
# folder: all modules as one package, one module alone, and those that a kernel without IIO supports.
set -eu
cd "$(dirname "$0")/.."
built=$(${BUSBAR:-target/release/busbar} lab build --debug --json)
build=$(echo "$built" | jq -r .build)
release=$(echo "$built" | jq -r .release)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tree" "$root/installed/$release"

# Usage: dkms_make TARGET KERNEL-TREE [VARIABLE=VALUE…]
dkms_make() {
    target=$1 tree=$2
    shift 2
    make --silent -C kernel "$target" DESTDIR="$root" "$@" \
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
expect "$all" "one package"
replaces yes
dkms_make uninstall-modules "$build" || failed "uninstall"
expect "" "uninstalled"
replaces no
dkms_make dkms "$build" || failed "a package"
replaces yes
dkms_make dkms "$build" BESIDE=1 || failed "a package beside the pair"
replaces no
rm -rf "$root/usr/src"/*
[ -z "$(ls "$root/usr/src")" ] || failed "left: $(ls "$root/usr/src")"

dkms_make install-modules "$build" PACKAGE=busbar-vconv MODULES=vconv || failed "vconv alone"
expect "vconv" "one module"
dkms_make uninstall-modules "$build" PACKAGE=busbar-vconv || failed "uninstall of vconv"
expect "" "uninstalled"

# A kernel without IIO gets the other modules.
mkdir "$root/without"
find "$build" -mindepth 1 -maxdepth 1 ! -name .config -exec ln -s {} "$root/without/" \;
sed 's/^CONFIG_IIO_BUFFER_DMA=.*//' "$build/.config" >"$root/without/.config"
dkms_make install-modules "$root/without" || failed "without IIO"
expect "rpmsg_eptfd rpmsg_netlink vcoproc vnic" "a kernel without IIO"
dkms_make uninstall-modules "$root/without" || failed "uninstall"

if dkms_make dkms "$build" MODULES=none; then failed "accepted a module that does not exist"; fi
grep -q 'no such module: none' "$root/log" || failed "the error does not name the module"
