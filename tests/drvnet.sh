#!/bin/sh
# The kernel's own tests for drivers of NICs, unmodified, and devmem of the patches, over vnic: those of
# tools/testing/selftests/drivers/net and net that a NIC without hardware can pass. The result of each
# case has to be the one that kernel/modules/vnic/tests/drvnet/expected says.
#
# Usage: tests/drvnet.sh build                on the host: builds what they need
#        tests/drvnet.sh [--full] [TEST…]     in the lab: runs all, or some, such as csum
#   --full    also the cases that take a quarter of an hour each
set -eu
built=$PWD/target/selftests/drvnet
ncdevmem=$PWD/target/selftests
here=$PWD/kernel/modules/vnic/tests/drvnet
tests="ping queues stats csum gro toeplitz devmem rss_ctx"

# As the kernel installs its tests, and two that it installs with much else only.
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

# What the tests' README.rst asks for: a NIC, and the other end of its wire in a namespace.
export NETIF=nic0 LOCAL_V4=192.0.2.1 LOCAL_V6=2001:db8::1
export REMOTE_NETIF=vnic0 REMOTE_V4=192.0.2.2 REMOTE_V6=2001:db8::2
export REMOTE_TYPE=netns REMOTE_ARGS=drvnet
export LEAVE_OUT=test_rss_context32

# Each test has a pair of its own, so that what one leaves behind does no harm to the next.
# It has up to 72 queues, or as many as are named, 8 of them in use.
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

# One case at a time, which gro.sh makes a pair for: its exit status is the result.
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

# toeplitz.sh needs a NIC that can loop back: here its program gets frames from the other end. It
# computes the hash of each, with the NIC's key.
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

# Its program calls ethtool as Debian 12's cannot be called, and takes it that there are no more queues.
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

# pass, fail, skip or xfail, and the name, of each case.
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
    shift
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r "$built/tests" "$tmp"
# Debian's own Python has what they import.
PATH=$here/bin:/usr/sbin:/usr/bin:/sbin:/bin
modprobe vnic

# The lines of a test, without what is left out. What may end in any way ends so in the results, too.
expected() {
    sed -n "s/ *#.*//; / $1\./p" "$here/expected" | grep -vwF "${LEAVE_OUT:-nothing}" >"$tmp/expected"
    sed -n 's/^any //p' "$tmp/expected" | while read -r name; do
        sed -i "s/^[a-z]* $name\$/any $name/" "$tmp/results"
    done
}

# Runs a test, and leaves what differs from what is expected in $tmp/diff. False if anything does.
passes() {
    run "$1" >"$tmp/log" 2>&1 || echo "$1: exit status $?" >>"$tmp/log"
    results <"$tmp/log" >"$tmp/results"
    expected "$1"
    diff -u --label expected --label found "$tmp/expected" "$tmp/results" >"$tmp/diff"
}

status=0
for test in ${*:-$tests}; do
    # They set themselves limits of time, which a busy host may not keep.
    if passes "$test" || { cat "$tmp/diff" && passes "$test"; }; then
        echo "$test: $(wc -l <"$tmp/results") cases, as expected"
    else
        cat "$tmp/diff" "$tmp/log"
        status=1
    fi
done
exit "$status"
