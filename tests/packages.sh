#!/bin/sh
# Installs the Debian packages in a fresh Debian 12, uses and purges them. The modules are built there for a
# kernel of Debian's, of which only the headers are there. No file may be left.
set -eu
cd "$(dirname "$0")/.."
cache=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/boards
tools/kernels >/dev/null
debs=$PWD/target/packages
version=$(sed -n 's/^VERSION := //p' kernel/Makefile)
headers=$(find "$cache/root/usr/src" -maxdepth 1 -name 'linux-headers-6.12.*+deb12-amd64' -printf '%f\n' | sort -V | tail -n 1)
release=${headers#linux-headers-}
common=${release%-amd64}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# In the new system, after the installation.
cat >"$work/use" <<EOF
set -eu
busbar --version | grep -q '^busbar $version'
busbar doctor >/dev/null
getent group busbar >/dev/null
grep -q 'GROUP="busbar"' /lib/udev/rules.d/70-busbar.rules /usr/lib/udev/rules.d/70-busbar.rules 2>/dev/null
for file in man/man1/busbar-stream.1.gz man/man2/epoll_pwait1.2.gz bash-completion/completions/busbar \
    zsh/vendor-completions/_busbar fish/vendor_completions.d/busbar.fish; do test -s /usr/share/\$file; done
# A C program runs with the shared library and with the static one.
test -s /usr/include/busbar/linux/rpmsg_eptfd.h
gcc-12 -o /tmp/stream /tmp/stream.c -lbusbar -lm
gcc-12 -o /tmp/stream.static /tmp/stream.c -l:libbusbar.a -lm
for program in stream stream.static; do
    { sleep 1; echo; } | /tmp/\$program 'synth:sine?rate=1M' voltage0_i | grep -q 'block 1: 32768 samples, rms '
done
pkg-config --exists 'busbar = $version'
SoapySDRUtil --check=busbar >/dev/null
SoapySDRUtil --probe='driver=busbar,uri=synth:sine' | grep -q 'Native format: CS16'
# vnic is the only module that this kernel can have.
[ -e /var/lib/dkms/busbar-vnic/$version/$release ] || cat /var/lib/dkms/busbar-vnic/$version/build/make.log
built=\$(find /lib/modules/$release -name '*.ko*' -exec basename {} \; | sed 's/\.ko.*//')
[ "\$built" = vnic ] || { echo "built: \$built; expected: vnic"; exit 1; }
apt-get purge -y -qq busbar busbar-dkms libbusbar0.1 libbusbar-dev soapysdr0.8-module-busbar >/dev/null
[ ! -e /usr/bin/busbar ]
left=\$(find / -xdev \( -iname '*busbar*' -o -name 'rpmsg_eptfd*' -o -name 'vnic.ko*' \) ! -path '/tmp/*' ! -path '/proc/*')
[ -z "\$left" ] || { echo "left: \$left"; exit 1; }
EOF
# With headers in place, the packages' own script builds the modules.
cat >"$work/prepare" <<EOF
set -eu
mkdir -p "\$1/usr/src" "\$1/usr/lib" "\$1/lib/modules/$release"
cp -a "$cache/root/usr/src/$headers" "$cache/root/usr/src/linux-headers-$common-common" "\$1/usr/src"
cp -a "$cache/root/usr/lib/linux-kbuild-$common" "\$1/usr/lib"
ln -s "/usr/src/$headers" "\$1/lib/modules/$release/build"
EOF
mmdebstrap --quiet --mode=root --variant=apt --aptopt='APT::Sandbox::User "root"' --format=null \
    --include=gcc-12,make,libc6-dev,libelf1,pahole,dkms,pkg-config,soapysdr-tools \
    --customize-hook="sh $work/prepare \"\$1\"" \
    --customize-hook="copy-in $(echo "$debs"/*.deb) examples/c/stream.c $work/use /tmp" \
    --customize-hook='chroot "$1" sh -c "apt-get install -y -qq --no-install-recommends /tmp/*.deb"' \
    --customize-hook='chroot "$1" sh /tmp/use' bookworm
echo "packages: installed, used and purged"
