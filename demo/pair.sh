#!/bin/sh
# Turns the pair nic0 and vnic0 into two hosts by moving vnic0 to the network namespace far. Used as root by
# demo/pipeline.sh and tests/soak.sh, after: ip link add nic0 address 02:00:00:00:57:01 type vnic
set -eu
ip link set vnic0 address 02:00:00:00:57:02
ip netns add far
ip link set vnic0 netns far
ip addr add 198.18.57.1/24 dev nic0
ip link set nic0 up
ip -n far addr add 198.18.57.2/24 dev vnic0
ip -n far link set vnic0 up
