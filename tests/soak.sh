#!/bin/bash
# Runs all parts together for a long time, with random faults. A coprocessor controls a converter, whose
# samples go over a virtual NIC to device memory of another host, which verifies each of them. A second
# converter is removed and created again. A USB device streams to its host. Processes are killed and ended, links go down,
# the cable is pulled, the clock is set.
# In the end every sample must have been correct or reported as lost, and no resource may be left in the
# kernel.
#
# Runs in the lab, as root: make soak. Usage: tests/soak.sh SECONDS [SEED] [RATE]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:?how many seconds}
seed=${2:-$RANDOM}
rate=${3:-50000}
RANDOM=$seed
folder=/tmp/busbar-soak
logs=$folder/logs
mkdir -p $logs
# Copied, because starting a program from memory is much faster than over 9p.
busbar=$folder/busbar
cp target/release/busbar $busbar
configfs=/sys/kernel/config/iio/devices/vconv/soak
# The processes that run pipelines, and the coprocessor.
pipelines="receiver sender comer device host"
kinds="core $pipelines"
# In the debug kernel the coprocessor is never ended in order: withdrawing a channel makes lockdep report the
# in-tree rpmsg bus.
debug=""
[ ! -e /sys/kernel/debug/kmemleak ] || debug=1

# Seconds since boot, as this script does not set that clock.
now() { read -r up _ </proc/uptime; echo "${up%.*}"; }
say() { echo "soak: $(now) s: $*"; }
fail() {
    say "FAILED: $*"
    [ ! -s $folder/unload ] || cat $folder/unload
    for kind in $kinds; do
        [ ! -e "${log[$kind]-}.err" ] || tail -n 5 "${log[$kind]}".err | sed "s/^/$kind: /"
        [ ! -e "${log[$kind]-}.json" ] || tail -n 2 "${log[$kind]}".json | cut -c1-2000
    done
    exit 1
}
# Waits up to a minute for COMMAND to succeed. Usage: until_true FAILURE COMMAND…
until_true() {
    local what=$1 end=$(($(now) + 60))
    shift
    until "$@"; do
        [ "$(now)" -lt $end ] || fail "$what"
        sleep 0.2
    done
}
# Sleeps a random number of milliseconds. Must not run in a subshell, which would repeat the random numbers.
# Usage: pause LEAST MOST
pause() {
    local time=$(($1 + RANDOM % ($2 - $1 + 1)))
    sleep "$((time / 1000)).$(printf %03d $((time % 1000)))"
}

cat >$folder/receiver.toml <<END
[pipeline]
drain = "60s"
[source.net]
from = "receive:vnic0:198.18.57.2:4950"
block-len = "64K"
[stage.tenth]
input = "net"
do = "decimate"
by = 10
[sink.right]
input = "net"
to = "verify:counter"
[sink.nothing]
input = "net"
to = "null:"
when-full = "drop-newest"
[sink.file]
input = "tenth"
to = "file:$folder/samples-NUMBER"
END
# The gate's samples are verified on this host, because triggers are not sent to the other one.
cat >$folder/sender.toml <<END
[pipeline]
drain = "60s"
[source.adc]
from = "iio:vconv0"
block-len = "16K"
channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
[stage.sum]
input = "adc"
do = "checksum"
[stage.gate]
input = "adc"
do = "gate"
control = "core"
open-on = "trigger"
samples = 5000
[sink.net]
input = "sum"
to = "tcp:198.18.57.2:4950"
queue = 8
[sink.triggered]
input = "gate"
to = "verify:counter"
[control.core]
endpoint = "control"
sources = ["adc"]
deadline = "20ms"
on.overload = ["set adc in_voltage0_i_hardwaregain 0.5"]
END
cat >$folder/comer.toml <<END
[source.soak]
from = "iio:soak"
block-len = "16K"
channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
[sink.again]
input = "soak"
to = "verify:counter"
[sink.nothing]
input = "soak"
to = "null:"
END

cat >$folder/device.toml <<END
[pipeline]
drain = "60s"
[source.made]
from = "synth:counter?rate=$rate"
block-len = "16K"
[sink.usb]
input = "made"
to = "usb:"
END
cat >$folder/host.toml <<END
[pipeline]
drain = "60s"
[source.usb]
from = "usb:1209:0001"
[sink.verified]
input = "usb"
to = "verify:counter"
END

# By kind of process: its PID, its log, and how often it was started, killed and ended.
declare -A pid log starts killed ended
for kind in $kinds; do
    starts[$kind]=0 killed[$kind]=0 ended[$kind]=0
done
links=0 cables=0 clocks=0 converters=0

# Usage: start KIND
start() {
    local kind=$1 file=$folder/$1.toml
    local number=${starts[$kind]}
    starts[$kind]=$((number + 1))
    log[$kind]=$logs/$kind-$number
    set -- $busbar run "$file" --json --journal "${log[$kind]}.journal"
    case $kind in
    core) set -- $busbar coprocessor run --device /dev/vcoproc0 --service control+gain=70+trigger=300+overload=700 ;;
    receiver)
        sed "s/NUMBER/$number/" "$file" >$folder/receiver-now.toml
        set -- ip netns exec far $busbar run $folder/receiver-now.toml --json --journal "${log[$kind]}.journal"
        ;;
    esac
    "$@" >"${log[$kind]}.json" 2>"${log[$kind]}.err" &
    pid[$kind]=$!
}
# Usage: crash KIND
crash() {
    local code=0
    kill -KILL "${pid[$1]}" 2>/dev/null || true
    wait "${pid[$1]}" 2>/dev/null || code=$?
    [ $code = 137 ] || fail "$1 had ended by itself with $code"
    killed[$1]=$((killed[$1] + 1))
    forget "$1" crashed
}
# Removes the files of a process that has ended, and keeps its last report. Usage: forget KIND HOW
forget() {
    [ "$1" = receiver ] && rm -f $folder/samples-*
    if [ "$1" != core ]; then
        # The last report of its counters.
        grep '"sinks"' "${log[$1]}.json" | tail -n 1 >"${log[$1]}.$2" || true
        [ -s "${log[$1]}.$2" ] || rm -f "${log[$1]}.$2"
        rm -f "${log[$1]}".journal
    fi
    return 0
}
# Usage: end KIND
end() {
    # Before it has set up its signal handler, SIGTERM would kill it.
    [ "$1" = core ] || until_true "$1 does not start" [ -e "${log[$1]}.journal" ]
    kill -TERM "${pid[$1]}" 2>/dev/null || true
    ended_well "$1"
}
# Waits until a process ends by itself, and expects success.
ended_well() {
    local code=0 limit=$(($(now) + 120))
    while kill -0 "${pid[$1]}" 2>/dev/null; do
        [ "$(now)" -lt $limit ] || fail "$1 does not end"
        sleep 0.1
    done
    wait "${pid[$1]}" || code=$?
    [ $code = 0 ] || fail "$1 ended with $code"
    ended[$1]=$((ended[$1] + 1))
    [ "$1" = core ] || grep -q '"what":"summary"' "${log[$1]}.journal" || fail "$1: no summary in the journal"
    forget "$1" ended
}
descriptors() { find "/proc/${pid[$1]}/fd" -mindepth 1 | wc -l; }
memory_of() { awk '/^VmRSS/{print $2}' "/proc/${pid[$1]}/status"; }
# Prints the number of blocks that a sink has delivered. Usage: blocks KIND SINK
blocks() {
    grep '"event":"progress"' "${log[$1]}.json" | tail -n 1 |
        jq --arg sink "$2" '.sinks[] | select(.name == $sink) | .blocks' || true
}
delivers() { [ "$(blocks "$1" "$2")" -gt "$3" ] 2>/dev/null; }
delivers_again() {
    local before
    before=$(blocks "$1" "$2")
    until_true "nothing comes through $1" delivers "$1" "$2" "${before:-0}"
}
all_deliver() {
    delivers_again sender net
    delivers_again receiver right
    delivers_again comer again
    delivers_again device usb
    delivers_again host verified
}
all_there() {
    for kind in $kinds; do
        kill -0 "${pid[$kind]}" 2>/dev/null || {
            wait "${pid[$kind]}" && fail "$kind ended by itself"
            fail "$kind ended by itself with $?"
        }
    done
}

# Prints the folder of a converter's attributes. Usage: device NAME
device() { dirname "$(grep -lx "$1" /sys/bus/iio/devices/iio:device*/name)"; }
make_converter() {
    # The process is stopped meanwhile: once it has opened the converter, the rate cannot be set.
    [ -z "${pid[comer]-}" ] || kill -STOP "${pid[comer]}"
    mkdir $configfs
    echo $((rate / 2)) >"$(device soak)/sampling_frequency"
    [ -z "${pid[comer]-}" ] || kill -CONT "${pid[comer]}"
}

set_up() {
    modprobe -a vcoproc vconv vnic
    modprobe dummy_hcd is_super_speed=1
    modprobe rpmsg_eptfd replace=1
    ip link add nic0 address 02:00:00:00:57:01 type vnic
    demo/pair.sh
    echo counter >"$(device vconv0)/pattern"
    echo "$rate" >"$(device vconv0)/sampling_frequency"
    make_converter
}
# Ends a sender. The receiver ends with the stream, unless no block was ever sent. Usage: end_stream SENDER SINK RECEIVER
end_stream() {
    end "$1"
    if [ "$(jq --arg sink "$2" '.sinks[] | select(.name == $sink) | .blocks' "${log[$1]}.ended")" = 0 ]; then
        end "$3"
    else
        ended_well "$3"
    fi
}
end_net() { end_stream sender net receiver; }
# The virtual controller does not enumerate a device that comes right after another one has left.
end_usb() {
    end_stream device usb host
    sleep 0.5
}
take_down() {
    end_net
    end_usb
    end comer
    if [ "$debug" ]; then crash core; else end core; fi
}
unload() { modprobe -r vnic vconv vcoproc rpmsg_eptfd dummy_hcd usb_f_fs 2>$folder/unload; }
start_all() {
    start receiver
    start core
    start sender
    start comer
    start device
    start host
}
# Prints MemAvailable and slabs in KiB, after caches are dropped.
memory() {
    sync
    sleep 1
    echo 3 >/proc/sys/vm/drop_caches
    sleep 1
    awk '/^MemAvailable/{a = $2} /^Slab/{s = $2} END{print a, s}' /proc/meminfo
}

# -- Faults --
link() {
    links=$((links + 1))
    if [ "$1" = far ]; then set -- ip -n far link set vnic0; else set -- ip link set nic0; fi
    "$@" down
    pause 50 2500
    "$@" up
}
clock() {
    clocks=$((clocks + 1))
    local steps=(1 -1 7 -7 61 -61 3600 -3600 20000 -20000)
    date -s "@$(($(date +%s) + steps[RANDOM % 10]))" >/dev/null
}
cable() {
    local vendor device
    cables=$((cables + 1))
    vendor=$(grep -lx 1209 /sys/bus/usb/devices/*/idVendor) || return 0
    device=$(dirname "$vendor")
    echo 0 >"$device/authorized"
    pause 0 500
    echo 1 >"$device/authorized"
}
converter() {
    converters=$((converters + 1))
    rmdir $configfs
    pause 0 1500
    make_converter
}
step() {
    case $((RANDOM % 15)) in
    0) crash core; start core ;;
    1) crash receiver; start receiver ;;
    2) crash sender; start sender ;;
    3) if [ "$debug" ]; then crash core; else end core; fi; start core ;;
    4) end receiver; start receiver ;;
    5) end_net; start receiver; start sender ;;
    6) link near ;;
    7) link far ;;
    8) clock ;;
    9) converter ;;
    10) crash device; sleep 0.5; start device ;;
    11) crash host; start host ;;
    12) end host; start host ;;
    13) end_usb; start device; start host ;;
    14) cable ;;
    esac
}

say "$seconds s with seed $seed on $(uname -r)${debug:+, a debug kernel}"
set_up
# A first run, so that one-time allocations do not count as leaks.
start_all
all_deliver
take_down
read -r available slab <<<"$(memory)"
cp /proc/meminfo $folder/meminfo-before
start_all
all_deliver
declare -A descriptors_before
for kind in $pipelines; do descriptors_before[$kind]=$(descriptors "$kind"); done
rss_before=$(memory_of comer)

begin=$(now) told=$(now)
while [ $(($(now) - begin)) -lt "$seconds" ]; do
    pause 1000 5000
    all_there
    step
    if [ $(($(now) - told)) -ge 60 ]; then
        told=$(now)
        say "core ${starts[core]}, receiver ${starts[receiver]}, sender ${starts[sender]}, device ${starts[device]}, host ${starts[host]} starts," \
            "$links links, $cables cables, $clocks clocks, $converters converters"
    fi
done
# After all faults, all parts must still run and deliver samples.
all_there
all_deliver
all_deliver
same_descriptors() { [ "$(descriptors "$1")" -le "$2" ]; }
for kind in $pipelines; do
    before=${descriptors_before[$kind]}
    until_true "$kind has more descriptors than $before" same_descriptors "$kind" "$before"
done
rss_after=$(memory_of comer)
take_down

# A process that has ended must have delivered each sample of its source to each sink, or reported it as
# lost. The samples of a process that was killed were correct until then, because verify: ends a pipeline at
# the first wrong sample.
check='
def told: .samples + .lost;
.sources[0] as $from
| .sinks[] | (if .name == "file" then 10 else 1 end) as $by
| select(
    ($from.unknown == 0 and (.unknown > 0 or told != ((($from | told) + $by - 1) / $by | floor)))
    or ($from.unknown > 0 and .unknown == 0)
    or (.name | IN("right", "again", "triggered", "verified")) and .verified != .samples)'
for file in "$logs"/*.ended; do
    wrong=$(jq -c "$check" "$file")
    [ -z "$wrong" ] || { cat "$file"; fail "${file##*/}: $wrong"; }
    left=$(jq -c '.remaining // {} | select(. != {})' "$file")
    [ -z "$left" ] || fail "${file##*/}: not delivered: $left"
done
if grep -l 'cannot verify' "$logs"/*.err "$logs"/*.json; then fail "a wrong sample"; fi
if grep -l panicked "$logs"/*.err; then fail "a panic"; fi
# A loss of unknown length is allowed only after a crash of the process that sends, or after the converter was
# removed.
unknown() { cat "$logs/$1"-*.ended "$logs/$1"-*.crashed 2>/dev/null | jq -s 'map(.sources[0].unknown) | add // 0'; }
for limit in "sender 0" "receiver ${killed[sender]}" "comer $converters" "device 0" "host ${killed[device]}"; do
    read -r kind most <<<"$limit"
    [ "$(unknown "$kind")" -le "$most" ] || fail "$kind: $(unknown "$kind") losses of unknown length, and $most reasons"
done
sums=$(cat "$logs"/*.ended "$logs"/*.crashed 2>/dev/null | jq -rs '
    def sum(f): map(f) | add;
    [.[].sinks[] | select(.name == "right")] as $right | [.[].sinks[] | select(.name == "net")] as $net
    | [.[].sinks[] | select(.name == "usb")] as $usb | [.[].sinks[] | select(.name == "verified")] as $verified
    | "\($net | sum(.samples)) samples sent, \($net | sum(.lost)) lost, "
    + "\($net | sum(.reconnects)) reconnects, \($net | sum(.resent)) blocks sent again; "
    + "\($right | sum(.samples)) received, \($right | sum(.lost)) lost, "
    + "\($right | sum(.unknown)) losses of unknown length, \($right | sum(.verified)) verified; "
    + "over USB \($usb | sum(.samples)) sent, \($usb | sum(.reconnects)) reconnects, \($usb | sum(.resent)) blocks sent again, "
    + "\($verified | sum(.verified)) verified"')
orderly=$(find "$logs" -name '*.ended' | wc -l)
rm -rf "$logs" $folder/samples-*

rmdir $configfs
# In the debug kernel KASAN delays freeing, and kmemleak finds leaks instead. A closed connection keeps unsent
# data for minutes, so the check is repeated.
memory_is_back() {
    read -r available_after slab_after <<<"$(memory)"
    [ "$debug" ] || { [ $((available - available_after)) -lt 24576 ] && [ $((slab_after - slab)) -lt 8192 ]; }
}
tries=0
until memory_is_back; do
    tries=$((tries + 1))
    [ $tries -lt 13 ] || {
        diff -y $folder/meminfo-before /proc/meminfo || true
        ss -tan
        ip netns exec far ss -tan
        fail "memory: available $available to $available_after KiB, slabs $slab to $slab_after KiB"
    }
    sleep 10
done
memory="available $available to $available_after KiB, slabs $slab to $slab_after KiB, the longest process $rss_before to $rss_after KiB"
[ $((rss_after - rss_before)) -lt 8192 ] || fail "memory: $memory"
ip link del nic0
ip netns del far
until_true "modules stay" unload

echo "soak: $(($(now) - begin)) s, seed $seed: killed core ${killed[core]}, receiver ${killed[receiver]}, sender ${killed[sender]}, device ${killed[device]}, host ${killed[host]};" \
    "ended core ${ended[core]}, receiver ${ended[receiver]}, sender ${ended[sender]}, device ${ended[device]}, host ${ended[host]};" \
    "$links links, $cables cables, $clocks clock steps, $converters converters gone"
echo "soak: $sums; $orderly orderly ends, each exact"
echo "soak: descriptors of the longest process ${descriptors_before[comer]}; $memory; modules unloaded"
