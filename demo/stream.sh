#!/bin/sh
# Streams a sine from a converter by DMABUF to another host (a network namespace), records it, and draws
# a picture of it. In the lab: busbar lab run -- demo/stream.sh [OUT.png]
set -eu
picture=$(realpath -m "${1:-target/stream.png}")
busbar=target/release/busbar
folder=$(mktemp -d)
trap 'ip netns del there 2>/dev/null; rm -rf "$folder"' EXIT

modprobe vconv
device=/sys/bus/iio/devices/iio:device0
echo sine >$device/pattern
echo 1000 >$device/sine_frequency
echo 48000 >$device/sampling_frequency
ip netns add there
ip link add here type veth peer name there netns there
ip addr add 198.18.0.1/24 dev here
ip link set here up
ip -n there addr add 198.18.0.2/24 dev there
ip -n there link set there up

ip netns exec there $busbar stream tcp-listen:4950 "file:$folder/sine" &
$busbar stream iio:vconv0 tcp:198.18.0.2:4950 --block-len 4K --blocks 16 --seconds 1
wait
$busbar stream picture "$folder/sine.sigmf-meta" "$picture" --samples 480
