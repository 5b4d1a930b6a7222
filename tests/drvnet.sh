#!/bin/sh
# Runs the kernel's own tests for drivers of NICs over vnic, unmodified: those of
# tools/testing/selftests/drivers/net and net that a virtual NIC can pass, and devmem with our patches. Tests and
# cases, and the result that each has to have, are in kernel/modules/vnic/tests/drvnet/expected-SERIES.
#
# Usage: tests/drvnet.sh build              on the host: builds the programs of the tests
#        tests/drvnet.sh [--full] [TEST…]   in the lab: runs all tests, or some, such as csum
#   --full    also ntuple, and rss_ctx with all its cases: more than half an hour
set -eu
ncdevmem=$PWD/target/selftests
tree=$ncdevmem/drvnet
here=$PWD/kernel/modules/vnic/tests/drvnet

# Copies the tests and what they need, to the folders that the source has, and builds the programs beside their
# sources: `make install` would build all others, and write into the source. What a series lacks is left out.
build() (
    tests/ncdevmem.sh
    # It runs in the release kernel.
SOURCES_KERNEL=
. tests/sources.sh
    rm -rf "$tree"
    mkdir "$tree"
    cd "$source"
    below=tools/testing/selftests
    cp -r --parents Documentation/netlink/specs tools/net/ynl $below/net/lib $below/drivers/net/*.py \
        $below/drivers/net/lib $below/drivers/net/hw "$tree"
    find $below/net -maxdepth 1 '(' -name gro.sh -o -name setup_veth.sh ')' -exec cp --parents -t "$tree" {} +
    for program in csum gro toeplitz ncdevmem xdp_helper napi_id_helper; do
        code=$(find $below/net $below/drivers/net -name $program.c)
        [ "$code" ] || continue
        # shellcheck disable=SC2086
        gcc -O2 -w $include -Itools/net/ynl/lib -I"$out/ynl" "$code" "$out"/ynl/*.o -o "$tree/${code%.c}"
    done
)

# The settings that the tests' README.rst describes: a NIC, and its peer in a network namespace.
export NETIF=nic0 LOCAL_V4=192.0.2.1 LOCAL_V6=2001:db8::1
export REMOTE_NETIF=vnic0 REMOTE_V4=192.0.2.2 REMOTE_V6=2001:db8::2
export REMOTE_TYPE=netns REMOTE_ARGS=drvnet

# Each test gets a new pair, so that no state of another test remains. The pair has up to 72 queues, or the
# given number, 8 of them in use.
pair() {
    ip link add "$NETIF" numrxqueues "${1:-72}" numtxqueues "${1:-72}" type vnic
    ethtool -L "$NETIF" combined 8
    ip netns add "$REMOTE_ARGS"
    ip link set "$REMOTE_NETIF" netns "$REMOTE_ARGS"
    ip -batch - <<END
addr add $LOCAL_V4/24 dev $NETIF
addr add $LOCAL_V6/64 dev $NETIF nodad
link set $NETIF up
END
    ip -n "$REMOTE_ARGS" -batch - <<END
addr add $REMOTE_V4/24 dev $REMOTE_NETIF
addr add $REMOTE_V6/64 dev $REMOTE_NETIF nodad
link set $REMOTE_NETIF up
END
}
unpair() {
    ip link del "$NETIF"
    ip netns del "$REMOTE_ARGS"
}

# Runs one case at a time. gro.sh creates its pair, and its exit status is the result.
gro() (
    cd "$tests/net"
    count=0
    for protocol in ipv4 ipv6; do
        for case in data ack flags tcp ip large; do
            count=$((count + 1))
            if ./gro.sh -p "$protocol" -t "$case"; then not=""; else not="not "; fi
            echo "${not}ok $count gro.${protocol}_$case"
        done
    done
)

# Runs the program of toeplitz.sh, which computes the hash of each received frame with the NIC's key. The
# script itself needs a NIC with loopback; here the frames come from the peer. In newer series it is a test in
# Python, which starts three programs for each frame: in an emulated machine, those are too few frames in 4 s.
toeplitz() {
    pair
    key=$(ethtool -x "$NETIF" | sed -n '/^RSS hash key/{ n; p }')
    program=$(find "$tests" -type f -name toeplitz)
    count=0
    for case in 4-tcp-$LOCAL_V4 4-udp-$LOCAL_V4 6-tcp-$LOCAL_V6 6-udp-$LOCAL_V6; do
        IFS=- read -r version protocol address <<END
$case
END
        ip netns exec "$REMOTE_ARGS" bash -c \
            "while sleep 0.01; do echo frame >/dev/$protocol/$address/8000; done" 2>/dev/null &
        frames=$!
        not=""
        "$program" "-$version" "--$protocol" -i "$NETIF" -d 8000 -k "$key" -T 20000 -s -v ||
            not="not "
        kill "$frames"
        count=$((count + 1))
        echo "${not}ok $count toeplitz.ipv${version}_$protocol"
    done
    unpair
}

# Its program uses options that ethtool of Debian 12 lacks, and needs a NIC whose queues are all in use.
devmem() (
    PATH=$ncdevmem/ncdevmem-path:$PATH
    run_python devmem 8
)

# Usage: run_python TEST [QUEUES]
run_python() {
    pair "${2-}"
    LEAVE_OUT="$skip $(sed -n "s/^out $1\.\([^ ]*\).*/\1/p" "$expected")" \
        python3 "$here/run.py" "$(find "$tests/drivers" -name "$1.py")"
    unpair
}

run() {
    case $1 in
    toeplitz | devmem) "$1" ;;
    # Newer series have gro.py.
    gro) if [ -e "$tests/net/gro.sh" ]; then gro; else run_python gro; fi ;;
    *) run_python "$1" ;;
    esac
}

# Prints pass, fail, skip or xfail, and the name, for each case.
results() {
    sed -nE 's/^ok [0-9]+ ([^ ]+) # (SKIP|XFAIL).*/\L\2\E \1/p
             s/^ok [0-9]+ ([^ ]+).*/pass \1/p
             s/^not ok [0-9]+ ([^ ]+).*/fail \1/p'
}

if [ "${1-}" = build ]; then
    build
    exit
fi
expected=$here/expected-$(uname -r | cut -d. -f1,2)
all=$(sed -n 's/^[a-z]* \([a-z_]*\)\..*/\1/p' "$expected" | uniq)
skip=test_rss_context32
if [ "${1-}" = --full ]; then
    skip=""
    shift
else
    all=$(echo "$all" | grep -vxe ntuple -e rss_ctx)
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r "$tree" "$tmp/tree"
tests=$tmp/tree/tools/testing/selftests
# Debian's Python has the modules that the tests import.
PATH=$here/bin:/usr/sbin:/usr/bin:/sbin:/bin
modprobe vnic

# Writes the expected results of a test, without the cases that are left out, to $tmp/expected. A case that may
# have any result gets "any" in $tmp/results, too.
expected() {
    sed -n "/^out /d; s/ *#.*//; / $1\./p" "$expected" | grep -vwF "${skip:-nothing}" >"$tmp/expected"
    sed -n 's/^any //p' "$tmp/expected" | while read -r name; do
        sed -i "s/^[a-z]* $name\$/any $name/" "$tmp/results"
    done
}

# Runs a test and writes the differences from the expected results to $tmp/diff. Fails if there are any.
passes() {
    run "$1" >"$tmp/log" 2>&1 || echo "$1: exit status $?" >>"$tmp/log"
    results <"$tmp/log" >"$tmp/results"
    expected "$1"
    diff -u --label expected --label found "$tmp/expected" "$tmp/results" >"$tmp/diff"
}

status=0
for test in ${*:-$all}; do
    # Tried twice, because the tests have time limits that a busy host may exceed.
    if passes "$test" || { cat "$tmp/diff" && passes "$test"; }; then
        echo "$test: $(wc -l <"$tmp/results") cases, as expected"
    else
        cat "$tmp/diff" "$tmp/log"
        status=1
    fi
done
exit "$status"
