#!/bin/sh
# Runs targets of make, two at a time, with the variables of this one, but not its options. Prints what each of them says
# when it has ended, and how long it has taken, which it appends to target/times. When one has failed, none is started.
#
# Usage: tests/pairs.sh TARGET…
set -eu
[ $# -gt 0 ] || { sed -n '5s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
# Each is a make of its own.
unset MAKEFLAGS MFLAGS MAKELEVEL
rm -rf target/pairs
mkdir -p target/pairs
# At the end, where it is looked for: of those that have failed, or had not ended when this was told to end.
last() {
    for log in target/pairs/*.log; do
        [ ! -e "$log" ] || { echo "== $log" && tail -n 20 "$log"; }
    done
}
trap 'last; exit 143' TERM
# To xargs, 255 means: stop.
status=0
printf '%s\n' "$@" | xargs -P 2 -I TARGET sh -c 'end=passed log=target/pairs/TARGET.log
    begun=$(date +%s)
    echo "TARGET: $log"
    make TARGET >$log 2>&1 || end=failed
    flock target/pairs cat $log
    echo "TARGET: $end after $(($(date +%s) - begun)) s" | tee -a target/times >&2
    [ $end = passed ] || exit 255
    mv $log target/pairs/TARGET.passed' || status=$?
last
exit "$status"
