#!/bin/sh
# Builds each module for each kernel of Debian's (tools/kernels) on amd64, arm64 and armhf, where the kernel's
# configuration allows it. A warning is an error. Then applies the patches to sources of Debian's. Prints a table.
#
# Usage: tests/builds.sh [--all | --newest]    default: those that tests/versions names
#   --all     each kernel that Debian offers; one more source
#   --newest  builds nothing: names the releases that tests/versions does not have yet
set -eu
cd "$(dirname "$0")/.."
cache=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/boards
. tools/debian
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
unset MAKEFLAGS MFLAGS MAKELEVEL
all=${1-}
if [ "$all" = --newest ]; then exec tools/kernels --newest; fi
mkdir -p "$cache"
exec 7>"$cache/builds.lock"
flock 7
kernels=$(tools/kernels "$@")
root=$cache/root
work=$root/work
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
failed=

# Whether the kernel has the options that a module needs. Usage: possible MODULE RELEASE
possible() {
    [ -r "$root/usr/src/linux-headers-$2/.config" ] || { failed="$failed $2:no-configuration"; return 0; }
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

# Unpacks a source that a suite has: the files that the patches change. Usage: unpack SUITE SERIES newest|oldest
unpack() {
    suite=$1 series=$2
    patches=$(find "$PWD/kernel/patches/$series" -name '*.patch' | sort)
    # shellcheck disable=SC2086
    files=$({ echo MAINTAINERS && sed -n 's,^--- a/,,p; s,^+++ b/,,p' $patches; } | sort -u)
    APT_CONFIG=$cache/apt/$suite-amd64/apt.conf
    export APT_CONFIG
    case $3 in newest) line='$' ;; oldest) line=1 ;; esac
    version=$(source_versions "$series" | sed -n "${line}p")
    [ -n "$version" ] || return 0
    exec 8>"$cache/source.lock"
    flock 8
    sources=$cache/source/$suite
    source=$sources/$version-$(echo "$files" | sha256sum | cut -c 1-16)
    [ ! -d "$source" ] || return 0
    echo "builds: unpacking the source of $version" >&2
    rm -rf "$sources"
    mkdir -p "$sources/new"
    (cd "$sources" && apt-get -qq download "linux-source-$series=$version")
    # shellcheck disable=SC2046
    dpkg-deb --fsys-tarfile "$sources"/*.deb | tar -x -O "./usr/src/linux-source-$series.tar.xz" |
        tar -x -J --strip-components=1 -C "$sources/new" $(echo "$files" | sed "s,^,linux-source-$series/,") \
        2>"$sources/log" || true
    # Some files are new.
    if grep -v -e 'Not found in archive$' -e 'Exiting with failure status' "$sources/log" >&2; then return 1; fi
    [ -e "$sources/new/MAINTAINERS" ]
    rm "$sources"/*.deb
    mv "$sources/new" "$source"
}

# Numbers of patches that a version does not take: kernel/patches/README.md. Usage: left_out VERSION
left_out() {
    case $1 in
    6.12.95-*) echo "0032 0035 0043" ;;
    6.12.107-*) echo "0035 0043" ;;
    esac
}

# Applies the patches of a series to that source. Usage: apply SUITE SERIES newest|oldest
apply() {
    unpack "$@"
    [ -n "$version" ] || { failed="$failed no-source:$suite"; return 0; }
    without=$(left_out "$version")
    for number in $without; do patches=$(echo "$patches" | grep -v "/$number-"); done
    rm -rf "$work/source"
    cp -r "$source" "$work/source"
    git="git -C $work/source -c user.name=Busbar -c user.email=busbar@localhost -c commit.gpgsign=false"
    $git init -q
    $git add -A
    $git commit -q -m "$version"
    # shellcheck disable=SC2086
    if $git am -q $patches >"$work/log" 2>&1; then
        echo "patches: $(echo "$patches" | wc -l) of $series apply to Linux $version${without:+, without $without}"
    else
        cat "$work/log"
        failed="$failed patches:$version"
    fi
}

# Usage: each_source unpack|apply
each_source() {
    "$1" bookworm-backports 6.12 newest
    [ "$all" != --all ] || "$1" trixie 6.12 oldest
    "$1" trixie-security 6.12 newest
    "$1" trixie-backports 7.3 newest
}

# Downloads take their time while compilers run. What fails here is tried again later.
each_source unpack &
unpacking=$!
trap 'kill $unpacking 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

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

wait $unpacking || true
trap 'rm -rf "$work"' EXIT
each_source apply

# What must have been there, so that a server without kernels does not pass.
for expected in '6\.12\..* amd64' '6\.12\..* arm64' '6\.12\..*-armmp armhf' \
    '6\.12\..*-armmp-lpae armhf' '[7-9]\..* amd64' '[7-9]\..* arm64'; do
    echo "$kernels" | grep -q "^$expected " || failed="$failed no-kernel:$expected"
done
[ -z "$failed" ] || { echo "builds: failed:$failed" >&2; exit 1; }
echo "builds: $(echo "$kernels" | wc -l) kernels"
