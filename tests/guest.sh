#!/bin/sh
# The guest's side of tests/lab.sh: runs each program of a plan.
#
# Usage: tests/guest.sh PLAN [ARGUMENT-OF-EACH-TEST-PROGRAM…]
set -u
plan=$1
shift
arguments=$*
# Copied, because starting a program from memory is much faster than over 9p.
busbar=/tmp/busbar
# Programs for another processor are in another folder, without the C library.
target=${BUSBAR_TARGET:-target/release}
cp "$target/busbar" "$target/busbar-dev" /tmp
[ "${BUSBAR_TARGET-target/release}" != target/release ] || cp target/release/libbusbar_c.so /tmp
export BUSBAR_PROGRAM=$busbar
# For `busbar bench languages`.
export BUSBAR_PYTHON="$PWD/target/python/bin/python"
failed=""
# A program that hangs is ended, so that its name is reported and the others still run. A full run has programs that
# take longer: 0 is no limit.
limit=0
[ -z "${BUSBAR_QUICK-}" ] || limit=1200
# PyUSB finds its library in the linker's cache, which the root file system for another processor lacks.
[ -e /etc/ld.so.cache ] || ldconfig
# So does the link by which `ip netns` and its programs find one folder.
[ -L /var/run ] || { rmdir /var/run && ln -s /run /var/run; }
# Of udevd's rules only the one that loads drivers. The others cost a third of the processors' time in the debug kernel, make
# udevd come seconds late, and give NICs that once had the same name the same address.
rules=/usr/lib/udev/rules.d
mkdir -p /run/udev/few
cp $rules/80-drivers.rules /run/udev/few
mount --bind /run/udev/few $rules
udevadm control --reload
# The lab searches for leaks at the end. So each of the searches in between, which take minutes in all, is one too many.
[ ! -e /sys/kernel/debug/kmemleak ] || echo scan=off >/sys/kernel/debug/kmemleak

mkfifo /tmp/pipe
# Runs the program, and sets its exit code. Usage: execute ARGUMENT…
execute() {
    tee /tmp/output </tmp/pipe &
    copy=$!
    # shellcheck disable=SC2086
    timeout --kill-after=20 "$limit" $run /tmp/test "$@" </dev/null >/tmp/pipe 2>&1
    code=$?
    # The copy ends with the pipe, unless a process that the program has left behind keeps that open.
    timeout 20 tail -f -s 0.1 --pid="$copy" /dev/null || kill "$copy"
}

# Runs those tests of Rust's harness that have failed once more, each alone. It fails if one fails again.
again() {
    tests=$(sed -n '/^failures:$/,/^test result:/s/^    \([A-Za-z0-9_:]*\)$/\1/p' /tmp/output)
    [ -n "$tests" ] || return 1
    for test in $tests; do
        echo "== $name: again: $test"
        execute --ignored --test-threads=1 --exact "$test"
        [ "$code" = 0 ] || return 1
        echo "unstable: $name $test"
    done
}

while read -r name program; do
    # With the guest's uptime, which shows what takes long.
    echo "== $name ($(cut -d. -f1 /proc/uptime) s)"
    run=""
    # shellcheck disable=SC2086
    set -- --ignored --test-threads=1 $arguments
    case $name in
    # This suite needs coprocessors that are set up before.
    endpoint) run="$busbar lab stage --service echo,sink,source --" ;;
    selftest:devmem_tokens*)
        modprobe vnic
        ip link show nic0 >/dev/null 2>&1 || ip link add nic0 type vnic
        run="env NETIF=nic0 REMOTE_NETIF=vnic0 bash $(dirname "$program")/devmem_tokens.sh"
        # In the debug kernel each takes a minute.
        case ${BUSBAR_QUICK:+quick}$(uname -r) in
        quick*debug) set -- -V index_v6 ;;
        quick*) set -- -V index_v6 -V autorelease ;;
        *) set -- ;;
        esac ;;
    # This one loads it with two controllers.
    selftest:ffs_dmabuf_test) modprobe -rq dummy_hcd; set -- ;;
    selftest:drvnet) if [ "${BUSBAR_QUICK-}" ]; then set --; else set -- --full; fi ;;
    selftest:python) set -- lab ;;
    selftest:*) set -- ;;
    bench:*) set -- bench "${name#bench:}" --quick ;;
    esac
    cp "$program" /tmp/test
    execute "$@"
    case $code in
    0) ;;
    # The line before names the test.
    124 | 137) printf '\n== out of time, or killed: %s\n' "$name"; failed="$failed $name" ;;
    # Of Rust's harness.
    101) again || failed="$failed $name" ;;
    *) failed="$failed $name" ;;
    esac
    case $name in
    # Python's tests add a NIC of this name.
    selftest:devmem_tokens) ip link del nic0 ;;
    selftest:ffs_dmabuf_test) modprobe -rq dummy_hcd ;;
    esac
done <"$plan"

[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
