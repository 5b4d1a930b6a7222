#!/bin/sh
# Endpoints that are descriptors and blocks that are not copied, on a coprocessor that is a process.
# Runs in the lab, as root: make demo.
set -eu
busbar=$PWD/target/release/busbar
remoteproc=/sys/class/vcoproc/vcoproc0/device/remoteproc/remoteproc0

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '\033[2m$ %s\033[0m\n' "$*" | sed "s|$PWD/||"; }
run() { show "$@"; "$@"; }
coprocessor() {
    show "$busbar" coprocessor run --service echo,bulk,sink '&'
    "$busbar" coprocessor run --device /dev/vcoproc0 --service echo,bulk,sink >/dev/null &
    until_ready sink
}
until_ready() { until "$busbar" endpoint list | grep -q "$1"; do sleep 0.1; done; }

say "A real kernel: Linux $(uname -r), and a coprocessor whose core is a process."
modprobe virtio_rpmsg_bus
modprobe rpmsg_ns
run modprobe rpmsg_eptfd replace=1
run modprobe vcoproc
coprocessor
run "$busbar" endpoint list

say "Messages to it, through an endpoint that is nothing but a file descriptor:"
run "$busbar" endpoint ping echo -c 5 -i 0.2 --implementation fd

say "A megabyte to it: cut into messages, and as a buffer that changes hands and is not copied:"
head -c 1M /dev/urandom >/tmp/block
run "$busbar" bulk send /tmp/block
run "$busbar" bulk send /tmp/block --transport buffer

say "The coprocessor's process is killed; the kernel takes its channels away."
run pkill -KILL -f 'coprocessor run'
until ! "$busbar" endpoint list | grep -q sink; do sleep 0.1; done
run cat $remoteproc/state
show 'dmesg | grep remoteproc0 | tail -n 5'
dmesg --color=never | grep remoteproc0 | tail -n 5

say "Another process takes its place, and everything is announced again:"
coprocessor
run "$busbar" endpoint ping echo -c 3 -i 0.2 --implementation fd
pkill -TERM -f 'coprocessor run'
wait
modprobe -r rpmsg_eptfd

say "The usual way, a device node for each endpoint, and Busbar's, in turn:"
run "$busbar" bench endpoint --quick
