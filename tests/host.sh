#!/bin/bash
# Runs Rust's tests that need no kernel of Busbar's, each as a process with a time limit (.config/nextest.toml). A test that
# fails runs once more, alone.
#
# Usage: tests/host.sh [ARGUMENT-OF-NEXTEST…]    default: all
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
# One at a time. Where it is there, this asks no server.
mkdir -p target
exec 9>"$tools.lock"
flock 9
[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check --require-hashes -r tests/nextest.txt
exec 9>&-
PATH=$tools/bin:$PATH
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run() { cargo nextest run --workspace --all-features --locked --color never --no-fail-fast --hide-progress-bar "$@"; }

status=0
run "$@" 2>&1 | tee "$log" || status=$?
# 100: some tests have failed.
[ $status = 100 ] || exit $status
# At the end it names each test that has failed: `FAIL [ 0.1s] PROGRAM TEST`, or another word after a signal.
failed=$(sed -n '/^ *Summary \[/,$s/^ *[A-Z+ ]* \[ *[0-9.]*s\] \(([0-9/ ]*) \)\?\([^ ]*\) \([^ ]*\)$/\2 \3/p' "$log" | sort -u)
filter=$(sed 's/^\(.*\) \(.*\)$/(binary_id(=\1) \& test(=\2))/' <<<"$failed" | paste -s -d '|')
run --test-threads 1 -E "$filter"
sed 's/^/unstable: /' <<<"$failed"
