#!/bin/sh
# Boots Debian's own kernel for arm64, loads each module and uses each path: messages and blocks for a coprocessor, then
# the demonstration. Compiles the commands for it, where rustup can add the target; without, it only loads the modules.
#
# Usage: tests/arm64.sh
set -eu
cd "$(dirname "$0")/.."
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
which="--stock --arch arm64"

# In the guest, with two coprocessors.
staged() {
    block=/tmp/block
    head -c 300000 /dev/urandom >"$block"
    for implementation in fd node; do
        case $implementation in
        fd) controller=$BUSBAR_TEST_CTRL_FD transports="fd buffer netlink tty" ;;
        node) controller=$BUSBAR_TEST_CTRL_NODE transports="node netlink tty" ;;
        esac
        $busbar endpoint ping echo --controller "$controller" --implementation $implementation -c 20 -i 0 -s 496 --json
        for transport in $transports; do
            # The last block comes back in no buffer, as its length is not known.
            case $transport in buffer) back=fd ;; *) back=$transport ;; esac
            for way in "send $block --transport $transport" "receive $block.copy --transport $back"; do
                # shellcheck disable=SC2086
                $busbar bulk $way --controller "$controller" --timeout 120
            done
            cmp "$block" "$block.copy"
            rm "$block.copy"
        done
    done
}

# In the guest.
guest() {
    [ "$(uname -m)" = aarch64 ]
    case $(uname -r) in *+deb*-arm64) ;; *) echo "not Debian's kernel: $(uname -r)" >&2; exit 1 ;; esac
    echo "boots: $(uname -r)"
    for module in $modules; do
        modprobe "$module"
        echo "loads: $module"
    done
    [ "${BUSBAR_TARGET-}" ] || return 0
    # Copied, because starting a program from memory is much faster than over 9p.
    cp "$BUSBAR_TARGET/busbar" "$BUSBAR_TARGET/busbar-dev" /tmp
    $busbar lab stage --service echo,bulk,bulk-netlink,bulk-tty -- tests/arm64.sh staged
    # The demonstration loads them itself, with a parameter.
    modprobe -r rpmsg_eptfd rpmsg_ctrl rpmsg_char
    echo "These commands are not optimized: the figures do not count."
    demo/pipeline.sh 2 /tmp/picture.png
}

busbar=/tmp/busbar
case ${1-} in guest | staged) "$1"; exit ;; esac

unset BUSBAR_LINUX
own=target/release/busbar
# shellcheck disable=SC2086
root=$($own lab build $which --json | jq -r .root)
if command -v rustup >/dev/null; then
    . tools/cross
    cross arm64 "$root"
    cargo build --locked -p busbar-cli -p busbar-dev --target "$triple"
    export BUSBAR_TARGET="target/$triple/debug"
else
    echo "arm64: there is no rustup: only the modules are tried"
fi
# The usual way polls an endpoint that ends, which sometimes makes Linux 6.12 warn: see tests/lab.sh.
# shellcheck disable=SC2086
$own lab run $which --known 'rpmsg_eptdev_poll+' --timeout 900 -- tests/arm64.sh guest
echo "arm64: passed"
