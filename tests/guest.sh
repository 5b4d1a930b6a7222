#!/bin/sh
# The guest's side of tests/lab.sh: runs each test program that the plan names.
set -u
plan=$1
# Programs are started often, and much faster from memory than over 9p.
busbar=/tmp/busbar
cp target/release/busbar "$busbar"
export BUSBAR_PROGRAM=$busbar
failed=""

while read -r name program; do
    echo "== $name"
    run="" skip=""
    case $name in
    # This suite runs against coprocessors that somebody else has set up.
    endpoint) run="$busbar lab stage --service echo,sink,source --" ;;
    # Takes minutes in the debug kernel: tests/lab.sh has the release kernel do it.
    bulk) skip="--skip sixteen_mebibytes" ;;
    esac
    cp "$program" /tmp/test
    # shellcheck disable=SC2086
    $run /tmp/test --ignored --test-threads=1 $skip </dev/null || failed="$failed $name"
done <"$plan"

for bench in endpoint bulk; do
    echo "== bench $bench --quick"
    "$busbar" bench $bench --quick --json >/dev/null || failed="$failed bench-$bench"
done

[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
