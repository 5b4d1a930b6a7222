#!/bin/sh
# Runs the kernel's own tests for drivers of NICs over vnic, unmodified: those of
# tools/testing/selftests/drivers/net and net that a virtual NIC can pass, and devmem of our patches. The
# result of each case has to agree with kernel/modules/vnic/tests/drvnet/expected.
#
# Usage: tests/drvnet.sh build              on the host: builds the programs of the tests
#        tests/drvnet.sh [--full] [TEST…]   in the lab: runs all tests, or some, such as csum
#   --full    also rss_ctx with all its cases: more than half an hour
set -eu
built=$PWD/target/selftests/drvnet
ncdevmem=$PWD/target/selftests
here=$PWD/kernel/modules/vnic/tests/drvnet
tests="ping queues stats csum gro toeplitz devmem"

# Installs the kernel's tests. gro and toeplitz are built separately, because the kernel installs them only
# together with all others of net.
build() (
    tree=$(target/release/busbar lab build --json | jq -r .build)
    source=$(readlink -f "$tree/source")
    selftests=$source/tools/testing/selftests
    rm -rf "$built"
    mkdir -p "$built/tests/net"
    exec 3>&1 >"$built/log" 2>&1
    trap '[ $? = 0 ] || cat "$built/log" >&3' EXIT

    make --silent -C "$source" O="$built/headers" headers
    include="-isystem $built/headers/usr/include"
    make --silent -C "$selftests" O="$built/objects" KHDR_INCLUDES="$include" FORCE_TARGETS=1 \
        TARGETS="drivers/net drivers/net/hw" INSTALL_PATH="$built/tests" install
    cp "$selftests/net/gro.sh" "$selftests/net/setup_veth.sh" "$built/tests/net"
    for program in gro toeplitz; do
        # shellcheck disable=SC2086
        gcc -O2 -w $include "$selftests/net/$program.c" -o "$built/tests/net/$program"
    done
    tests/ncdevmem.sh
    cp "$ncdevmem/ncdevmem" "$built/tests/net"
)

# The settings that the tests' README.rst describes: a NIC, and its peer in a network namespace.
export NETIF=nic0 LOCAL_V4=192.0.2.1 LOCAL_V6=2001:db8::1
export REMOTE_NETIF=vnic0 REMOTE_V4=192.0.2.2 REMOTE_V6=2001:db8::2
export REMOTE_TYPE=netns REMOTE_ARGS=drvnet
export LEAVE_OUT=test_rss_context32

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
    cd "$tmp/tests/net"
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
# script itself needs a NIC with loopback; here the frames come from the peer.
toeplitz() {
    pair
    key=$(ethtool -x "$NETIF" | sed -n '/^RSS hash key/{ n; p }')
    count=0
    for case in 4-tcp-$LOCAL_V4 4-udp-$LOCAL_V4 6-tcp-$LOCAL_V6 6-udp-$LOCAL_V6; do
        IFS=- read -r version protocol address <<END
$case
END
        ip netns exec "$REMOTE_ARGS" bash -c \
            "while sleep 0.01; do echo frame >/dev/$protocol/$address/8000; done" 2>/dev/null &
        frames=$!
        not=""
        "$tmp/tests/net/toeplitz" "-$version" "--$protocol" -i "$NETIF" -d 8000 -k "$key" -T 4000 -s -v ||
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
    python3 "$here/run.py" "$(find "$tmp/tests/drivers" -name "$1.py")"
    unpair
}

run() {
    case $1 in
    gro | toeplitz | devmem) "$1" ;;
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
if [ "${1-}" = --full ]; then
    LEAVE_OUT=
    tests="$tests rss_ctx"
    shift
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r "$built/tests" "$tmp"
# Debian's Python has the modules that the tests import.
PATH=$here/bin:/usr/sbin:/usr/bin:/sbin:/bin
modprobe vnic

# Writes the expected results of a test, without the cases that are left out, to $tmp/expected. A case that may
# have any result gets "any" in $tmp/results, too.
expected() {
    sed -n "s/ *#.*//; / $1\./p" "$here/expected" | grep -vwF "${LEAVE_OUT:-nothing}" >"$tmp/expected"
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
for test in ${*:-$tests}; do
    # Tried twice, because the tests have time limits that a busy host may exceed.
    if passes "$test" || { cat "$tmp/diff" && passes "$test"; }; then
        echo "$test: $(wc -l <"$tmp/results") cases, as expected"
    else
        cat "$tmp/diff" "$tmp/log"
        status=1
    fi
done
exit "$status"
