#!/bin/sh
# Builds the selftests that the patches add to the kernel, and prints where the programs are.
# tests/guest.sh runs them.
set -eu
cd "$(dirname "$0")/.."
build=$(target/release/busbar lab build --json | jq -r .build)
source=$(readlink -f "$build/source")
out=$PWD/target/selftests
mkdir -p "$out"
make --silent -C "$source" O="$out/headers" headers >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }

tests=$source/tools/testing/selftests/filesystems/epoll
for name in epoll_batch_test epoll_pwait1_test; do
    gcc -O2 -Wall -D_GNU_SOURCE -isystem "$out/headers/usr/include" -o "$out/$name" \
        "$tests/$name.c" -lpthread >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
    echo "$out/$name"
done
