# shellcheck shell=sh disable=SC2034
# Read by the scripts that build the kernel's own tests. Sets source, the source of the lab's kernel; selftests, its
# tests; out, the folder for what is built; and include, options of the compiler for the kernel's headers, which are
# made here.
built=$(target/release/busbar lab build --json)
source=$(readlink -f "$(echo "$built" | jq -r .build)/source")
selftests=$source/tools/testing/selftests
out=$PWD/target/selftests
# A folder for each series, because make goes by dates.
headers=$out/headers-$(echo "$built" | jq -r .series)
include="-isystem $headers/usr/include -I$selftests"
mkdir -p "$out"
make --silent -C "$source" O="$headers" headers >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
