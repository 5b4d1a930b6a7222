#!/bin/sh
# Runs targets of make, two at a time, with the variables of this one, but not its options. Prints what each of them says
# when it has ended.
#
# Usage: tests/pairs.sh TARGET…
set -eu
[ $# -gt 0 ] || { sed -n '5s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
# Each is a make of its own.
unset MAKEFLAGS MFLAGS MAKELEVEL
mkdir -p target/pairs
printf '%s\n' "$@" | xargs -P 2 -I TARGET sh -c 'status=0
    echo "TARGET: target/pairs/TARGET.log"
    make TARGET >target/pairs/TARGET.log 2>&1 || status=$?
    flock target/pairs cat target/pairs/TARGET.log
    [ $status = 0 ] || { echo "failed: TARGET" >&2; exit 1; }'
