#!/bin/bash
# Runs what `make test` leaves out for boards, as root, and writes the results into the table of docs/board.md. A part
# that has passed is not run again while the sources are the same; the texts do not count.
#
# Usage: tests/boards.sh [--again] [PART…]    default: all
#   --again       also parts that have passed
#   builds        modules and patches for Debian's kernels (tests/builds.sh)
#   programs      host tests as programs for armv7 (tests/armv7.sh)
#   kvm           the lab with KVM, in a guest to which QEMU gives one
#   armv7, arm64  the lab's tests in a guest with this processor (tests/lab.sh)
#   linux-7.3     the lab's tests in Linux 7.3 on x86-64, after its source is fetched (tests/lab.sh, tools/source)
set -euo pipefail
cd "$(dirname "$0")/.."
unset BUSBAR_LINUX
busbar=target/release/busbar
parts="builds programs kvm armv7 arm64 linux-7.3"
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
again=""
if [ "${1-}" = --again ]; then again=1; shift; fi
for part; do
    case " $parts " in *" $part "*) ;; *) sed -n '5,11s/^# //p' "$0" >&2; exit 2 ;; esac
done

# The hash of all files, new ones included, without texts, and without the packages, which no part makes.
sources() (
    GIT_INDEX_FILE=$(mktemp -u)
    export GIT_INDEX_FILE
    trap 'rm -f "$GIT_INDEX_FILE"' EXIT
    git add --all
    git rm -r -q --cached docs '*.md' packages tools/packages tests/packages.sh
    git write-tree
)
state=$(sources)
results=target/boards/$state
mkdir -p "$results"

# Starts a guest, and loads each module. Usage: boot OPTION-OF-THE-LAB…
boot() {
    # shellcheck disable=SC2016,SC2086
    "$busbar" lab run "$@" --timeout 600 -- sh -c 'echo "boots: $(uname -r)"
        for module; do modprobe "$module" && echo "loads: $module"; done' sh $modules
}

# Usage: run PART
run() {
    case $1 in
    builds) tests/builds.sh ;;
    programs) tests/armv7.sh ;;
    kvm) make -s test-kvm ;;
    linux-*) tools/source "${1#*-}" && boot --linux "${1#*-}" && tests/lab.sh --linux "${1#*-}" ;;
    *) boot --arch "$1" && tests/lab.sh "--$1" ;;
    esac
}

# Tests of a part. A program without tests of this part does not count. Usage: passed PART
passed() {
    sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$results/$1.log" | awk '
        { passed += $1; all += $1 + $2; programs += ($1 + $2 > 0) }
        END { printf "%d of %d; programs: %d", passed, all, programs }'
}

# Usage: version EMULATOR
version() { "$1" --version | sed -n '1s/.*version \([0-9.]*\).*/QEMU \1/p'; }

# Rows of the table. Usage: rows PART
rows() {
    log=$results/$1.log
    if [ ! -e "$results/$1.date" ]; then
        echo "| $1: not run for these sources | | | | | | |"
        return
    fi
    date=$(cat "$results/$1.date")
    case $1 in
    builds)
        # A dash is a module that the kernel's configuration does not allow.
        awk -v date="$date" '/^[0-9]/ {
            builds = all = 0
            for (i = 2; i <= NF; i++) { builds += ($i == "builds"); all += ($i != "-") }
            if (all) printf "| Debian | %s | %d of %d | – | – | – | %s |\n", $1, builds, all, date
        }' "$log"
        ;;
    programs) echo "| armv7, programs | $(version qemu-arm-static), of the host | – | – | – | $(passed "$1") | $date |" ;;
    kvm) echo "| x86-64 with KVM, the lab itself | $(version qemu-system-x86_64) | – | – | – | $(passed "$1") | $date |" ;;
    *)
        emulator=$(version "qemu-system-$(case $1 in linux-*) echo x86_64 ;; arm64) echo aarch64 ;; *) echo arm ;; esac)")
        release=$(sed -n 's/^boots: //p' "$log")
        all=$(echo "$modules" | wc -w)
        if [ "$release" ]; then
            echo "| $1 in the lab | $release, $emulator | $all of $all | yes | $(grep -c '^loads: ' "$log") of $all | $(
                passed "$1") | $date |"
        else
            echo "| $1 in the lab | $emulator | – | no | – | – | $date |"
        fi
        ;;
    esac
}

table() {
    echo "| target | kernel, emulator | builds | boots | modules load | tests passed | run |"
    echo "|---|---|---|---|---|---|---|"
    for one in $parts; do rows "$one"; done
}

# Replaces what is between the marks.
write() {
    table >"$results/table"
    awk -v table="$results/table" '
        /^<!-- end boards -->/ { inside = 0 }
        !inside { print }
        /^<!-- boards/ { inside = 1; while ((getline line <table) > 0) print line }' docs/board.md >"$results/board.md"
    cat "$results/board.md" >docs/board.md
}

failed=""
for part in ${*:-$parts}; do
    if [ -e "$results/$part.passed" ] && [ ! "$again" ]; then
        echo "boards: $part: passed before"
        continue
    fi
    echo "boards: $part: $results/$part.log"
    rm -f "$results/$part.passed"
    if run "$part" >"$results/$part.log" 2>&1; then
        [ "$(sources)" = "$state" ] || { echo "boards: the sources have changed meanwhile" >&2; exit 1; }
        touch "$results/$part.passed"
    else
        failed="$failed $part"
    fi
    date +%F >"$results/$part.date"
    write
done
write
[ -z "$failed" ] || { echo "boards: failed:$failed" >&2; exit 1; }
echo "boards: passed"
