#!/bin/sh
# Installs the Debian packages in a fresh Debian 12, uses and purges them. No file may be left. First for amd64, where
# the modules are built for a kernel of Debian's, of which only the headers are there. Then for arm64, in the lab on that
# processor's own kernel of Debian's, where the modules are loaded and used. Runs as root.
#
# Usage: tests/packages.sh [amd64|arm64]    default: both
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^VERSION := //p' kernel/Makefile)
cache=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}
debs=$PWD/target/packages
lab="target/release/busbar lab"
lab_kernel="--stock --arch arm64"
# The new system for arm64. A guest sees it.
arm64=$PWD/target/debian-arm64
# What the packages need, and what they are used by: beside a system of Debian's.
programs=gcc-12,make,libc6-dev,libelf1,pahole,dkms,pkg-config,soapysdr-tools

# In the new system, with the packages, a program and this script in /tmp. Usage: inside ARCHITECTURE RELEASE MODULE…
inside() {
    architecture=$1 release=$2
    shift 2
    apt-get install -y -qq --no-install-recommends /tmp/*_"$architecture".deb /tmp/*_all.deb
    busbar --version | grep -q "^busbar $version"
    busbar doctor >/dev/null
    getent group busbar >/dev/null
    grep -q 'GROUP="busbar"' /lib/udev/rules.d/70-busbar.rules
    for file in man/man1/busbar-stream.1.gz man/man2/epoll_pwait1.2.gz bash-completion/completions/busbar \
        zsh/vendor-completions/_busbar fish/vendor_completions.d/busbar.fish; do test -s "/usr/share/$file"; done
    # A C program runs with the shared library and with the static one.
    test -s /usr/include/busbar/linux/rpmsg_eptfd.h
    gcc-12 -o /tmp/stream /tmp/stream.c -lbusbar -lm
    gcc-12 -o /tmp/stream.static /tmp/stream.c -l:libbusbar.a -lm
    for program in stream stream.static; do takes $program 'synth:sine?rate=1M' voltage0_i; done
    pkg-config --exists "busbar = $version"
    SoapySDRUtil --check=busbar >/dev/null
    SoapySDRUtil --probe='driver=busbar,uri=synth:sine' | grep -q 'Native format: CS16'
    built=$(find "/lib/modules/$release" -path '*/dkms/*.ko*' -exec basename {} \; | sed 's/\.ko.*//' | sort | xargs)
    if [ "$built" != "$*" ]; then
        cat /var/lib/dkms/busbar-*/"$version"/build/make.log || true
        echo "built: $built; expected: $*" >&2
        exit 1
    fi
    [ "$(uname -r)" != "$release" ] || loaded "$@"
    apt-get purge -y -qq busbar busbar-dkms libbusbar0.1 libbusbar-dev soapysdr0.8-module-busbar >/dev/null
    [ ! -e /usr/bin/busbar ]
    left=$(find / -xdev \( -iname '*busbar*' -o -path '*/dkms/*.ko*' -o -name 'rpmsg_eptfd*' \) \
        ! -path '/tmp/*' ! -path '/proc/*' ! -path '/sys/*')
    [ -z "$left" ] || { echo "left: $left" >&2; exit 1; }
}

# Usage: takes PROGRAM SOURCE CHANNEL
takes() { { sleep 1; echo; } | "/tmp/$1" "$2" "$3" | grep -q 'block 1: .* samples, rms '; }

# In the new system, whose kernel runs. Usage: loaded MODULE…
loaded() {
    for module; do
        modprobe "$module"
        echo "loads: $module"
    done
    busbar stream list | grep -q vconv0
    takes stream iio:vconv0 voltage0_i
    busbar coprocessor run --service echo &
    timeout 60 sh -c 'until busbar endpoint list | grep -q echo; do sleep 0.2; done'
    busbar endpoint ping echo -c 5 -i 0
    kill -TERM $!
    wait $! || true
    for module; do modprobe -r "$module"; done
}

test_amd64() {
    tools/kernels >/dev/null
    headers=$(find "$cache/boards/root/usr/src" -maxdepth 1 -name 'linux-headers-6.12.*+deb12-amd64' -printf '%f\n' |
        sort -V | tail -n 1)
    release=${headers#linux-headers-}
    common=${release%-amd64}
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # With headers in place, the packages' own script builds the modules.
    cat >"$work/prepare" <<EOF
set -eu
mkdir -p "\$1/usr/src" "\$1/usr/lib" "\$1/lib/modules/$release" "\$1/tmp/tests" "\$1/tmp/kernel"
cp -a "$cache/boards/root/usr/src/$headers" "$cache/boards/root/usr/src/linux-headers-$common-common" "\$1/usr/src"
cp -a "$cache/boards/root/usr/lib/linux-kbuild-$common" "\$1/usr/lib"
ln -s "/usr/src/$headers" "\$1/lib/modules/$release/build"
cp kernel/Makefile "\$1/tmp/kernel"
cp tests/packages.sh "\$1/tmp/tests"
EOF
    # vnic is the only module that this kernel can have.
    # shellcheck disable=SC2016
    mmdebstrap --quiet --mode=root --variant=apt --aptopt='APT::Sandbox::User "root"' --format=null \
        --include=$programs --customize-hook="sh $work/prepare \"\$1\"" \
        --customize-hook="copy-in $(echo "$debs"/*_amd64.deb "$debs"/*_all.deb) examples/c/stream.c /tmp" \
        --customize-hook="chroot \"\$1\" sh /tmp/tests/packages.sh inside amd64 $release vnic" bookworm
}

# Prepares the new system, which a guest completes, as its programs do not run here.
make_arm64() {
    for package in debootstrap jq; do
        command -v $package >/dev/null || apt-get install -y -qq --no-install-recommends $package >/dev/null
    done
    wanted="$programs,libssl3 $release"
    [ "$(cat "$arm64/wanted" 2>/dev/null)" != "$wanted" ] || return 0
    rm -rf "$arm64"
    mkdir -p "$arm64/headers"
    debootstrap --foreign --arch=arm64 --variant=minbase --include="$programs,libssl3" bookworm "$arm64/root" \
        http://deb.debian.org/debian >"$arm64/log" 2>&1 || { cat "$arm64/log"; exit 1; }
    tar -c -C "$arm64/root" -f "$arm64/root.tar" .
    rm -rf "$arm64/root"
    . tools/debian
    configure debian-security/bookworm-security arm64
    update
    common=${release%-arm64}
    (cd "$arm64/headers" && apt-get -qq download "linux-headers-$release:arm64" "linux-headers-$common-common" \
        "linux-kbuild-$common:arm64")
    echo "$wanted" >"$arm64/wanted"
}

# In the guest.
guest() {
    new=/tmp/new
    mkdir $new
    mount -t tmpfs -o size=90% new $new
    tar -x -C $new -f "$arm64/root.tar"
    mount -t proc proc $new/proc
    chroot $new /debootstrap/debootstrap --second-stage >/tmp/log || { tail -n 50 /tmp/log; exit 1; }
    rm -rf $new/var/cache/apt/archives/*.deb
    cp "$arm64"/headers/*.deb "$debs"/*_arm64.deb "$debs"/*_all.deb examples/c/stream.c $new/tmp
    mkdir $new/tmp/tests $new/tmp/kernel
    cp tests/packages.sh $new/tmp/tests
    cp kernel/Makefile $new/tmp/kernel
    # Debian's own modules.
    release=$(uname -r)
    mkdir -p "$new/lib/modules/$release"
    cp -r "/lib/modules/$release/kernel" "/lib/modules/$release"/modules.builtin* "/lib/modules/$release"/modules.order \
        "$new/lib/modules/$release"
    chroot $new depmod "$release"
    chroot $new sh -c 'apt-get install -y -qq --no-install-recommends /tmp/linux-*.deb && rm /tmp/linux-*.deb'
    for folder in sys dev; do mount --rbind /$folder $new/$folder; done
    chroot $new sh /tmp/tests/packages.sh inside arm64 "$release" rpmsg_eptfd rpmsg_netlink vcoproc vconv vnic
}

test_arm64() {
    release=$($lab build $lab_kernel --json | jq -r .release)
    make_arm64
    $lab run $lab_kernel --timeout 3000 -- tests/packages.sh guest
}

case ${1-} in inside | guest) "$@"; exit ;; esac
for architecture in ${*:-amd64 arm64}; do
    case $architecture in
    amd64 | arm64) "test_$architecture" ;;
    *) sed -n '6s/^# //p' "$0" >&2; exit 2 ;;
    esac
    echo "packages: $architecture: installed, used and purged"
done
