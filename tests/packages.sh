#!/bin/sh
# Installs the Debian packages in a fresh Debian 12, uses, removes and purges them. No file may be left. For amd64 the
# modules are built for a kernel of Debian's, of which only the headers are there. For arm64 all is in the lab, on that
# processor's own kernel of Debian's, and the modules are loaded and used, too. The packages for armhf are compared with
# the others, and their command runs. Runs as root.
#
# Usage: tests/packages.sh [amd64|arm64|armhf…]    default: those that there are packages of
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^VERSION := //p' kernel/Makefile)
cache=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}
debs=$PWD/target/packages
lab="target/release/busbar lab"
# The new system for arm64. A guest sees it.
arm64=$PWD/target/debian-arm64
# What the packages need, and what they are used by: beside a system of Debian's.
programs=gcc-12,make,libc6-dev,libelf1,pahole,dkms,pkg-config,soapysdr-tools,systemd-standalone-sysusers

# In the new system, with the packages, a program and this script in /tmp.
# Usage: inside ARCHITECTURE RELEASE running|built MODULE…    for a kernel that runs, or that only has headers
inside() {
    architecture=$1 release=$2 kernel=$3
    shift 3
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends /tmp/*_"$architecture".deb /tmp/*_all.deb
    busbar --version | grep -q "^busbar $version"
    busbar doctor >/dev/null
    getent group busbar >/dev/null
    grep -q 'GROUP="busbar"' /lib/udev/rules.d/70-busbar.rules
    for file in man/man1/busbar-stream.1.gz man/man2/epoll_pwait1.2.gz bash-completion/completions/busbar \
        zsh/vendor-completions/_busbar fish/vendor_completions.d/busbar.fish doc/busbar/notices.txt \
        doc/busbar/busbar.cdx.json doc/libbusbar0.1/notices.txt doc/libbusbar0.1/busbar.cdx.json; do
        test -s "/usr/share/$file"
    done
    # The server is there, waits for a converter, and starts only for who enables it.
    grep -q '^BUSBAR_SERVE="--read-only --wait"$' /etc/default/busbar-serve
    grep -q '^Environment="BUSBAR_SERVE=--read-only --wait"$' /lib/systemd/system/busbar-serve.service
    [ ! -e /etc/systemd/system/multi-user.target.wants/busbar-serve.service ]
    # A C program runs with the shared library and with the static one.
    test -s /usr/include/busbar/linux/rpmsg_eptfd.h
    gcc-12 -o /tmp/stream /tmp/stream.c -lbusbar -lm
    gcc-12 -o /tmp/stream.static /tmp/stream.c -l:libbusbar.a -lm
    for program in stream stream.static; do takes $program 'synth:sine?rate=1M' voltage0_i; done
    pkg-config --exists "busbar = $version"
    SoapySDRUtil --check=busbar >/dev/null
    SoapySDRUtil --probe='driver=busbar,uri=synth:sine' | grep -q 'Native format: CS16'
    built=$(find "/lib/modules/$release" -path '*/dkms/*.ko*' -exec basename {} \; | sed 's/\.ko.*//' | sort | xargs)
    if [ "$built" != "$(printf '%s\n' "$@" | sort | xargs)" ]; then
        cat /var/lib/dkms/busbar-*/"$version"/build/make.log || true
        echo "built: $built; expected: $*" >&2
        exit 1
    fi
    # Only where there is the module do its aliases replace those of Linux.
    aliases=/usr/lib/modprobe.d/rpmsg_eptfd.conf
    case $built in *rpmsg_eptfd*) [ -e $aliases ] ;; *) [ ! -e $aliases ] ;; esac
    [ "$kernel" != running ] || loaded "$@"
    apt-get remove -y -qq busbar-dkms >/dev/null
    [ ! -e $aliases ]
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
    [ -n "$headers" ]
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
        --customize-hook="chroot \"\$1\" sh /tmp/tests/packages.sh inside amd64 $release built vnic" bookworm
}

# Makes the new system for the kernel of that release. A guest completes it, as its programs do not run here.
make_arm64() {
    wanted="$programs,libssl3 $release"
    [ "$(cat "$arm64/ready" 2>/dev/null)" != "$wanted" ] || return 0
    rm -rf "$arm64"
    mkdir -p "$arm64/headers"
    debootstrap --foreign --arch=arm64 --variant=minbase --include="$programs,libssl3" bookworm "$arm64/root" \
        http://deb.debian.org/debian >"$arm64/log" 2>&1 || { cat "$arm64/log"; exit 1; }
    tar -c -C "$arm64/root" -f "$arm64/first.tar" .
    rm -rf "$arm64/root"
    . tools/debian
    configure debian-security/bookworm-security arm64
    update
    common=${release%-arm64}
    (cd "$arm64/headers" && apt-get -qq download "linux-headers-$release:arm64" "linux-headers-$common-common" \
        "linux-kbuild-$common:arm64")
    $lab run --stock --arch arm64 --memory 4G --timeout 6000 -- tests/packages.sh complete
    rm "$arm64/first.tar"
    echo "$wanted" >"$arm64/ready"
}

# In a guest. Usage: unpack NAME-OF-THE-ARCHIVE
unpack() {
    new=/tmp/new
    mkdir $new
    mount -t tmpfs -o size=90% new $new
    tar -x -C $new -f "$arm64/$1"
}

# In a guest, once: Debian 12 with the kernel's headers and its own modules.
complete() {
    unpack first.tar
    echo "packages: a new Debian 12 for arm64, which takes ten minutes at first"
    chroot $new /debootstrap/debootstrap --second-stage >/tmp/log || { tail -n 50 /tmp/log; exit 1; }
    rm -rf $new/var/cache/apt/archives/*.deb
    for package in "$arm64"/headers/*.deb; do dpkg-deb -x "$package" /tmp/headers; done
    cp -r /tmp/headers/usr $new
    release=$(uname -r)
    mkdir -p "$new/lib/modules/$release"
    cp -r "/lib/modules/$release/kernel" "/lib/modules/$release"/modules.builtin* "/lib/modules/$release"/modules.order \
        "$new/lib/modules/$release"
    ln -s "/usr/src/linux-headers-$release" "$new/lib/modules/$release/build"
    chroot $new depmod "$release"
    tar -c -C $new --one-file-system -f "$arm64/root.tar" .
}

# In a guest.
guest() {
    unpack root.tar
    cp "$debs"/*_arm64.deb "$debs"/*_all.deb examples/c/stream.c $new/tmp
    mkdir $new/tmp/tests $new/tmp/kernel
    cp tests/packages.sh $new/tmp/tests
    cp kernel/Makefile $new/tmp/kernel
    for folder in proc sys dev; do mount --rbind /$folder $new/$folder; done
    chroot $new sh /tmp/tests/packages.sh inside arm64 "$(uname -r)" running rpmsg_eptfd rpmsg_netlink vcoproc vconv vnic
}

test_arm64() {
    built=$($lab build --stock --arch arm64 --json)
    release=$(echo "$built" | jq -r .release)
    make_arm64
    $lab run --stock --arch arm64 --memory 4G --timeout 6000 -- tests/packages.sh guest
}

# Usage: files ARCHITECTURE
files() {
    for package in "$debs"/*_"$1".deb; do dpkg-deb -c "$package"; done | awk '{ print $1, $6, $7, $8 }' |
        sed -E 's,(x86_64|aarch64)-linux-gnu|arm-linux-gnueabihf,TRIPLE,' | sort
}

test_armhf() {
    native=$(dpkg --print-architecture)
    [ -e "$debs/busbar_${version}_$native.deb" ] || { echo "there are no packages for $native to compare with" >&2; exit 1; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    files "$native" >"$work/native"
    files armhf >"$work/armhf"
    diff "$work/native" "$work/armhf"
    for package in "$debs"/*_armhf.deb; do dpkg-deb -x "$package" "$work/root"; done
    for file in "$work"/root/usr/bin/busbar "$work"/root/usr/lib/*/libbusbar.so.0.1 "$work"/root/usr/lib/*/SoapySDR/*/*.so; do
        readelf -h "$file" | grep -q 'Machine: *ARM$'
        # Stripped, and with nothing that another version of the C library may not have.
        if readelf -W -S --dyn-syms "$file" | grep -e ' \.symtab ' -e GLIBC_PRIVATE; then exit 1; fi
    done
    qemu-arm-static -L "$cache/packages" "$work/root/usr/bin/busbar" --version | grep -q "^busbar $version"
    rm -rf "$work"
}

case ${1-} in inside | complete | guest) "$@"; exit ;; esac
tools/deps packages
if [ $# = 0 ]; then
    for architecture in amd64 arm64 armhf; do
        [ ! -e "$debs/busbar_${version}_$architecture.deb" ] || set -- "$@" $architecture
    done
fi
for architecture; do
    case $architecture in
    amd64 | arm64 | armhf) ;;
    *) sed -n '7s/^# //p' "$0" >&2; exit 2 ;;
    esac
    [ -e "$debs/busbar_${version}_$architecture.deb" ] || { echo "no packages for $architecture: make packages" >&2; exit 1; }
    "test_$architecture"
    echo "packages: $architecture: passed"
done
