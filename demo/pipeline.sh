#!/bin/sh
# Sends samples of a converter, which a coprocessor controls, to another host that verifies and records them:
# in the usual way and with Busbar, in turn (A B A B). In each turn the coprocessor is killed in the middle.
# Runs in the lab, as root: make demo. Usage: demo/pipeline.sh [SECONDS-OF-A-TURN] [PAGE.html]
# PAGE.svg is then the page's picture.
set -eu
seconds=${1:-5}
page=$(realpath -m "${2:-target/demo.html}")
cd "$(dirname "$0")/.."
folder=/tmp/busbar-demo
rm -rf $folder
mkdir -p $folder
# Copied, because starting a program from memory is much faster than over 9p.
busbar=$folder/busbar
# Programs for another processor are in another folder.
target=${BUSBAR_TARGET:-target/release}
cp "$target/busbar" "$target/busbar-dev" $folder
converter=/sys/bus/iio/devices/iio:device0

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# Each command is shown once, in the first two turns.
show() { [ "$turn" = 2 ] || printf '\033[2m$ %s\033[0m\n' "$*" | sed "s|$folder/||g"; }
run() { show "$@"; "$@"; }
far() { ip netns exec far "$@"; }

coprocessor() {
    show "$busbar coprocessor run --service control+gain=70+trigger=500 &"
    $busbar coprocessor run --device /dev/vcoproc0 --service control+gain=70+trigger=500 >/dev/null &
    core=$!
}
until_ready() {
    timeout 120 sh -c "until $busbar endpoint list | grep -q 'running *control'; do sleep 0.1; done" || {
        echo "no coprocessor announces control after 120 s: $($busbar endpoint list)" >&2
        exit 1
    }
}
stop_coprocessor() {
    kill -TERM $core
    wait $core 2>/dev/null || true
}
until_heard() {
    timeout 60 sh -c "until ip netns exec far ss -Hltn 'sport = :4950' | grep -q .; do sleep 0.1; done" || {
        echo "the receiver does not listen on port 4950 after 60 s" >&2
        exit 1
    }
}
# Kills the coprocessor in the middle of the run and starts another one. The shell's report is suppressed.
crash() {
    sleep "$((seconds / 2))"
    show 'pkill -KILL -f "coprocessor run"'
    kill -KILL $core
    wait $core 2>/dev/null || true
    coprocessor
}
# Busy time of all CPUs since boot, in hundredths of a second.
busy() { awk '/^cpu /{print $2 + $3 + $4 + $7 + $8}' /proc/stat; }
# Prints the host's counters, which the lab provides.
host() { cat /run/busbar/host 2>/dev/null || echo null; }
begin() {
    before=$(busy)
    host_before=$(host)
}
# end WAY: records the processor time of the machine in this turn.
end() {
    echo "{\"busy\": $(($(busy) - before)), \"before\": $host_before, \"after\": $(host)}" >>"$folder/$1-machine.json"
}

usual() {
    run modprobe -a rpmsg_ctrl rpmsg_char
    coprocessor
    until_ready
    begin
    far $busbar bench usual-receive 198.18.57.2:4950 $folder/usual >>$folder/usual-receiver.json &
    receiver=$!
    until_heard
    $busbar bench usual-send 198.18.57.2:4950 --seconds "$seconds" >>$folder/usual-sender.json &
    sender=$!
    crash
    wait $sender
    wait $receiver
    end usual
    rm $folder/usual
    stop_coprocessor
    run modprobe -r rpmsg_ctrl rpmsg_char
}

ours() {
    run modprobe rpmsg_eptfd replace=1
    coprocessor
    until_ready
    begin
    show "ip netns exec far $busbar run demo/receiver.toml &"
    far $busbar run demo/receiver.toml --json >$folder/receiver.jsonl &
    receiver=$!
    until_heard
    show "$busbar run demo/sender.toml --seconds $seconds &"
    $busbar run demo/sender.toml --seconds "$seconds" --json >$folder/sender.jsonl &
    sender=$!
    crash
    wait $sender
    wait $receiver
    end busbar
    cat $folder/receiver.jsonl >>$folder/receivers.jsonl
    cat $folder/sender.jsonl >>$folder/senders.jsonl
    rm $folder/samples.*
}
# Prints the sender's events of the coprocessor.
events() {
    jq -r 'select(.node == "core" and .event != "event") | "busbar: `\(.node)` \(.event): \(.text)"' $folder/sender.jsonl |
        sed 's/: $//; s/ (.*//'
}

turn=1
say "Linux $(uname -r): a coprocessor (a process), a converter, and a NIC connected to another host."
# rpmsg_ctrl and rpmsg_char run first and rpmsg_eptfd later: udev must not load the former when a coprocessor
# restarts.
cat >/etc/modprobe.d/busbar.conf <<END
blacklist rpmsg_ctrl
blacklist rpmsg_char
END
udevadm control --reload
run modprobe -a vcoproc vconv vnic
run ip link add nic0 address 02:00:00:00:57:01 type vnic
demo/pair.sh
echo counter >$converter/pattern

say "The usual way, for $seconds s: a device node, read(), write(), epoll_ctl one by one."
usual
say "Busbar, for $seconds s: an endpoint that is a descriptor, DMABUFs, sendfile, device-memory TCP."
ours
events
stop_coprocessor
modprobe -r rpmsg_eptfd

say "Both again, in the same order, as the load of the machine varies."
turn=2
usual
ours
turn=3

say "A sine by the same sender and receiver. The coprocessor is killed, too:"
echo sine >$converter/pattern
echo 1000 >$converter/sine_frequency
echo 48000 >$converter/sampling_frequency
# The converter's own count, which tells what is lost, is not recorded.
sed 's/verify:counter/null:/; s/"decimate"/"select"/; s/by = 64/channels = ["voltage0_i", "voltage0_q"]/' \
    demo/receiver.toml >$folder/sine.toml
sed 's/256K/8K/; s/"voltage1_i", "voltage1_q"/"count0"/' demo/sender.toml >$folder/sender.toml
until_ready
far $busbar run $folder/sine.toml >$folder/sine.log 2>&1 &
receiver=$!
until_heard
$busbar run $folder/sender.toml --seconds 3 >>$folder/sine.log 2>&1 &
sender=$!
sleep 1.5
killed=$(date +%s.%N)
kill -KILL $core
wait $core 2>/dev/null || true
coprocessor
{ wait $sender && wait $receiver; } || {
    cat $folder/sine.log >&2
    exit 1
}

say "Both ways, side by side:"
table() {
    jq -rn --slurpfile us $folder/usual-sender.json --slurpfile ur $folder/usual-receiver.json \
        --slurpfile bs $folder/senders.jsonl --slurpfile br $folder/receivers.jsonl \
        --slurpfile um $folder/usual-machine.json --slurpfile bm $folder/busbar-machine.json \
        --arg killed "$killed" --arg machine "Linux $(uname -r), $(nproc) processors, emulated: ${BUSBAR_ACCELERATOR:-unknown}" \
        --arg form "$1" -f demo/table.jq
}
table text
table json >$folder/demo.json
for output in "$page" "${page%.html}.svg"; do
    $busbar report --demo $folder/demo.json --recording $folder/samples --output "$output"
done
printf '\nThe signal when the coprocessor was killed, and both ways as bars: %s\n' "${page#"$PWD"/}"
