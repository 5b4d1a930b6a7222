#!/bin/sh
# Builds each module for each kernel of Debian's (tools/kernels) on amd64, arm64 and armhf, where the kernel's
# configuration allows it. A warning is an error. Then applies the patches to the sources of those kernels.
# Prints a table.
#
# Usage: tests/builds.sh [--all]    --all: each kernel that Debian offers, not only the newest of each suite
set -eu
cd "$(dirname "$0")/.."
cache=${BUSBAR_CACHE:-$HOME/.cache/busbar}/boards
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
kernels=$(tools/kernels "$@")
root=$cache/root
work=$root/work
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
failed=

# Whether the kernel has the options that a module needs. Usage: possible MODULE RELEASE
possible() {
    for option in $(make -s -C kernel "needs-$1"); do
        grep -q "^$option=[ym]" "$root/usr/src/linux-headers-$2/.config" || return 1
    done
}

# Usage: build RELEASE COMPILER
build() {
    folder=$work/$1
    mkdir -p "$folder/modules"
    cp -r kernel/compat kernel/uapi "$folder"
    wanted=
    for module in $modules; do
        possible "$module" "$1" || continue
        wanted="$wanted $module"
        mkdir "$folder/modules/$module"
        cp kernel/modules/"$module"/*.[ch] kernel/modules/"$module"/Kbuild "$folder/modules/$module"
        echo "obj-m += modules/$module/" >>"$folder/Kbuild"
    done
    [ -n "$wanted" ] || return 0
    # objtool reads /proc.
    unshare --mount --pid --fork --mount-proc="$root/proc" chroot "$root" make -k -j"$(nproc)" \
        -C "/usr/src/linux-headers-$1" M="/work/$1" CC="$2" KCFLAGS=-Werror modules >"$folder/log" 2>&1 || true
    # Of modpost and objtool.
    ! grep -qi warning "$folder/log" || failed="$failed $1:warnings"
    for module in $wanted; do
        [ -e "$folder/modules/$module/$module.ko" ] || failed="$failed $1:$module"
    done
    case $failed in *" $1:"*) cat "$folder/log" ;; esac
}

# Applies all patches to the newest source of the series that a suite has. Of the source, only files that the
# patches change are kept. Usage: apply SUITE SERIES
apply() {
    patches=$PWD/kernel/patches/$2
    files=$(sed -n 's,^--- a/,,p; s,^+++ b/,,p' "$patches"/*.patch | sort -u)
    APT_CONFIG=$cache/apt/$1-amd64/apt.conf
    export APT_CONFIG
    version=$(apt-cache madison "linux-source-$2" | cut -d '|' -f 2 | tr -d ' ' | sort -V | tail -n 1)
    source=$cache/source/$version-$(echo "$files" | sha256sum | cut -c 1-16)
    if [ ! -d "$source" ]; then
        echo "builds: unpacking the source of $version" >&2
        rm -rf "$cache/source"
        mkdir -p "$cache/source/new"
        (cd "$cache/source" && apt-get -qq download "linux-source-$2=$version")
        # shellcheck disable=SC2046
        dpkg-deb --fsys-tarfile "$cache/source"/*.deb | tar -x -O "./usr/src/linux-source-$2.tar.xz" |
            tar -x -J --strip-components=1 -C "$cache/source/new" $(echo "$files" | sed "s,^,linux-source-$2/,") \
            2>"$cache/source/log" || [ -e "$cache/source/new/MAINTAINERS" ] # Some files are new.
        rm "$cache/source"/*.deb
        mv "$cache/source/new" "$source"
    fi
    cp -r "$source" "$work/source"
    git="git -C $work/source -c user.name=Busbar -c user.email=busbar@localhost -c commit.gpgsign=false"
    $git init -q
    $git add -A
    $git commit -q -m "$version"
    if $git am -q "$patches"/*.patch >"$work/log" 2>&1; then
        echo "patches: all $(find "$patches" -name '*.patch' | wc -l) apply to Linux $version"
    else
        cat "$work/log"
        failed="$failed patches:$version"
    fi
}

row() {
    printf '%-28s' "$1"
    shift
    printf '%-15s' "$@"
    echo
}

# shellcheck disable=SC2086
row kernel $modules
while read -r release architecture compiler; do
    build "$release" "$compiler"
    cells=
    for module in $modules; do
        if [ -e "$work/$release/modules/$module/$module.ko" ]; then cell=builds
        elif [ -d "$work/$release/modules/$module" ]; then cell=FAILS
        else cell=-; fi
        cells="$cells $cell"
    done
    # shellcheck disable=SC2086
    row "$release" $cells
    rm -rf "${work:?}/$release"
done <<EOF
$kernels
EOF

apply trixie-security 6.12

# What must have been there, so that a server without kernels does not pass.
for expected in '6\.12\..* amd64' '6\.12\..* arm64' '6\.12\..* armhf' '[7-9]\..* amd64' '[7-9]\..* arm64'; do
    echo "$kernels" | grep -q "^$expected " || failed="$failed no-kernel:$expected"
done
[ -z "$failed" ] || { echo "builds: failed:$failed" >&2; exit 1; }
echo "builds: $(echo "$kernels" | wc -l) kernels"
