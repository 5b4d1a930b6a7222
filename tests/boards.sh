#!/bin/bash
# Runs what `make test` leaves out for boards, as root, and writes the results into the table of docs/board.md. A part
# that has passed is not run again while the sources that it depends on are the same.
#
# Usage: tests/boards.sh [--again] [PART…]    default: all
#   --again       also parts that have passed
#   builds        modules and patches for Debian's kernels (tests/builds.sh)
#   programs      host tests as programs for armv7 (tests/armv7.sh)
#   kvm           the lab with KVM (make test-kvm)
#   armv7, arm64  the lab's tests in a guest with this processor (tests/lab.sh)
#   selftests     those of the patches in guests for arm64 (tests/selftests_arm64.sh)
#   linux-7.3     the lab's tests in Linux 7.3 on x86-64, after its source is fetched (tests/lab.sh, tools/source)
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'exit 130' INT TERM
unset BUSBAR_LINUX MAKEFLAGS MFLAGS MAKELEVEL
busbar=target/release/busbar
parts="builds programs kvm armv7 arm64 selftests linux-7.3"
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
again=""
if [ "${1-}" = --again ]; then again=1; shift; fi
for part; do
    case " $parts " in *" $part "*) ;; *) sed -n '5,12s/^# //p' "$0" >&2; exit 2 ;; esac
done
mkdir -p target/boards
exec 9>target/boards/lock
flock -n 9 || { echo "boards: another run is under way" >&2; exit 1; }

# Files that not every part uses. Usage: own PART
own() {
    case $1 in
    builds) echo tests/builds.sh tools/kernels ;;
    programs) echo tests/armv7.sh ;;
    selftests) echo tests/selftests_arm64.sh ;;
    kvm) echo Makefile crates/dev/tests/lab.rs ;;
    armv7) echo tests/lab.sh crates/cli/tests kernel/lab/armv7.config ;;
    *) echo tests/lab.sh crates/cli/tests ;;
    esac
}

# The hash of the files that a part's result depends on, new ones included: all files except texts, what no part uses, and
# what only other parts use. A test compiles the program in docs/endpoint.md. Usage: sources PART
sources() (
    set -e
    GIT_INDEX_FILE=$(mktemp -u)
    export GIT_INDEX_FILE
    trap 'rm -f "$GIT_INDEX_FILE"' EXIT
    git add --all
    git rm -r -q --cached -- docs '*.md' ':!docs/endpoint.md' .ci demo packages tests/boards.sh tests/dkms.sh \
        tests/install.sh tests/packages.sh tests/pairs.sh tests/yocto.sh tools/deps tools/packages
    own=" $(own "$1") "
    for file in $(for one in $parts; do own "$one"; done); do
        case $own in *" $file "*) ;; *) git rm -r -q --cached --ignore-unmatch "$file" ;; esac
    done
    git write-tree
)

# Results of the present sources. Usage: results PART
results() {
    hash=$(sources "$1") || exit 1
    echo "target/boards/$1-$hash"
}

# Starts a guest, and loads each module. Usage: boot OPTION-OF-THE-LAB…
boot() {
    # shellcheck disable=SC2016,SC2086
    "$busbar" lab run "$@" --timeout 600 -- sh -ec 'echo "boots: $(uname -r)"
        for module; do modprobe "$module"; echo "loads: $module"; done' sh $modules
}

# Usage: run PART
run() {
    case $1 in
    programs | armv7 | arm64 | selftests)
        command -v rustup >/dev/null || { echo "there is no rustup, which adds Rust's targets" >&2; return 1; }
        ;;
    esac
    case $1 in
    builds) tests/builds.sh --all ;;
    programs) tests/armv7.sh ;;
    selftests) tests/selftests_arm64.sh ;;
    kvm) make -s test-kvm ;;
    linux-*) tools/source "${1#*-}" && boot --linux "${1#*-}" && tests/lab.sh --linux "${1#*-}" ;;
    *) boot --arch "$1" && tests/lab.sh "--$1" ;;
    esac
}

# Usage: emulator PART
emulator() {
    case $1 in
    builds) return ;;
    programs) emulator=qemu-arm-static ;;
    armv7) emulator=qemu-system-arm ;;
    arm64 | selftests) emulator=qemu-system-aarch64 ;;
    *) emulator=qemu-system-x86_64 ;;
    esac
    "$emulator" --version | sed -n '1s/.*version \([0-9.]*\).*/QEMU \1/p'
}

# Tests of a part, by Rust's harness and by the kernel's. A program without tests of this part does not count.
# Usage: tests FOLDER
tests() {
    sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p
        s/^# Totals: pass:\([0-9]*\) fail:\([0-9]*\) .* error:\([0-9]*\).*/\1 \2 \3/p' "$1/log" | awk '
        { passed += $1; all += $1 + $2 + $3; programs += ($1 + $2 + $3 > 0) }
        END { printf "%d of %d; programs: %d", passed, all, programs }'
}

# Rows of the table, of the last run. Usage: rows PART
rows() {
    folder=$(results "$1")
    now=$folder
    [ -e "$folder/date" ] || folder=$(dirname "$(find target/boards -path "target/boards/$1-*/date" -printf '%T@ %p\n' |
        sort -n | tail -n 1 | cut -d ' ' -f 2)")
    log=$folder/log
    if [ ! -e "$folder/date" ]; then
        echo "| $1 | | | | | | not run |"
        return
    fi
    emulator=$(cat "$folder/emulator")
    end="$([ -e "$folder/passed" ] && echo passed || echo failed), $(cat "$folder/date")"
    [ "$folder" = "$now" ] || end="$end, earlier sources"
    case $1 in
    builds)
        # A dash is a module that the kernel's configuration does not allow.
        sort -V "$log" | awk -v end="$end" '/^[0-9.]+\+deb/ {
            split($1, number, "."); split($1, name, "-"); key = number[1] "." number[2] " " name[2]
            if (!(key in kernels)) { order[++keys] = key; first[key] = name[1] }
            last[key] = name[1]; kernels[key]++
            for (i = 2; i <= NF; i++) { builds[key] += ($i == "builds"); all[key] += ($i != "-") }
        }
        END { for (k = 1; k <= keys; k++) { key = order[k]; split(key, name, " ")
            printf "| Debian, %s | %s to %s, kernels: %d | %d of %d | – | – | – | %s |\n",
                name[2], first[key], last[key], kernels[key], builds[key], all[key], end } }'
        ;;
    selftests) echo "| arm64, selftests of the patches | $emulator | – | – | – | $(tests "$folder") | $end |" ;;
    programs) echo "| armv7, programs | $emulator, of the host | – | – | – | $(tests "$folder") | $end |" ;;
    kvm) echo "| x86-64 with KVM, the lab itself | $emulator | – | – | – | $(tests "$folder") | $end |" ;;
    *)
        release=$(sed -n 's/^boots: //p' "$log")
        all=$(echo "$modules" | wc -w)
        if [ "$release" ]; then
            # The lab starts no guest before it has built each module.
            echo "| $1 in the lab | $release, $emulator | $all of $all | yes | $(grep -c '^loads: ' "$log") of $all | $(
                tests "$folder") | $end |"
        else
            echo "| $1 in the lab | $emulator | – | no | – | – | $end |"
        fi
        ;;
    esac
}

table() {
    echo "| target | kernel, emulator | builds | boots | modules load | tests passed | result |"
    echo "|---|---|---|---|---|---|---|"
    for one in $parts; do rows "$one"; done
}

# Replaces what is between the marks.
write() {
    [ "$(grep -c -e '^<!-- boards' -e '^<!-- end boards -->' docs/board.md)" = 2 ]
    table >target/boards/table
    awk '
        /^<!-- end boards -->/ { inside = 0 }
        !inside { print }
        /^<!-- boards/ { inside = 1; while ((getline line <"target/boards/table") > 0) print line }' \
        docs/board.md >target/boards/board.md
    cat target/boards/board.md >docs/board.md
}

# Whether the part has passed, and has run tests. Usage: check PART FOLDER
check() {
    make -s build >"$2/log" 2>&1 && run "$1" >>"$2/log" 2>&1 || return 1
    case $1:$(tests "$2") in builds:*) ;; *:*" of 0;"*) return 1 ;; esac
}

failed=""
for part in ${*:-$parts}; do
    folder=$(results "$part")
    if [ -e "$folder/passed" ] && [ ! "$again" ]; then
        echo "boards: $part: passed before"
        continue
    fi
    version=$(emulator "$part")
    echo "boards: $part: $folder/log"
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "$version" >"$folder/emulator"
    passed=""
    if check "$part" "$folder"; then passed=1; fi
    [ "$(results "$part")" = "$folder" ] || { echo "boards: the sources have changed meanwhile" >&2; exit 1; }
    date +%F >"$folder/date"
    if [ "$passed" ]; then touch "$folder/passed"; else failed="$failed $part"; fi
    write
done
write
[ -z "$failed" ] || { echo "boards: failed:$failed" >&2; exit 1; }
echo "boards: passed"
