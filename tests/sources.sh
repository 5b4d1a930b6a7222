# shellcheck shell=sh disable=SC2034
# Read by the scripts that build the kernel's own tests, for another processor if they set `architecture`. Sets built, what
# the lab says of its kernel; source, the source of that; selftests, its tests; out, the folder for what is built; and
# include, options of the compiler for the kernel's headers.
built=$(target/release/busbar lab build ${SOURCES_KERNEL---debug} ${architecture:+--arch "$architecture"} --json)
source=$(readlink -f "$(echo "$built" | jq -r .build)/source")
selftests=$source/tools/testing/selftests
out=$PWD/target/selftests${architecture:+/$architecture}
mkdir -p "$out"

# Makes the kernel's headers, for another architecture of the kernel's if it is named, and prints their folder.
# Usage: headers [ARCHITECTURE]
headers() {
    # A folder for each series, because make goes by dates.
    folder=$out/headers-$(echo "$built" | jq -r .series)${1:+-$1}
    make --silent -C "$source" ${1:+"ARCH=$1" LLVM=1} O="$folder" headers >"$out/log" 2>&1 ||
        { cat "$out/log" >&2; exit 1; }
    echo "$folder"
}
include="-isystem $(headers ${architecture:+"$architecture"})/usr/include -I$selftests"
