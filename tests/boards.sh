#!/bin/bash
# Runs what `make test` leaves out for boards, as root, and writes the results into the table of docs/board.md. A part
# that has passed is not run again while the sources that it depends on are the same. tests/boards has for each part the
# hash of these, and its rows of the table, so that other machines know it as well. Different parts may run at the same time.
#
# Usage: tests/boards.sh [--again] [PART…]    default: all
#   --again       also parts that have passed
#   builds        modules and patches for Debian's kernels (tests/builds.sh)
#   programs      host tests as programs for armv7 (tests/armv7.sh)
#   kvm           the lab with KVM (make test-kvm)
#   guests        the lab's own tests of guests for arm64 and armv7 (make test-lab-itself)
#   debian-arm64  each path in Debian's own kernel for arm64 (tests/arm64.sh)
#   armv7, arm64  the lab's tests in a guest with this processor (tests/lab.sh)
#   linux-7.3     the lab's tests in Linux 7.3 on x86-64, after its source is fetched (tests/lab.sh, tools/source)
#   x86-64        what make test has no time for, in Linux 6.12 (make test-rest)
#   packages      the Debian packages for amd64, arm64 and armhf (make test-packages)
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'exit 130' INT TERM
unset BUSBAR_LINUX MAKEFLAGS MFLAGS MAKELEVEL
busbar=target/release/busbar
parts="builds programs kvm guests debian-arm64 armv7 arm64 linux-7.3 x86-64 packages"
modules=$(sed -n 's/^ALL := //p' kernel/Makefile)
again=""
if [ "${1-}" = --again ]; then again=1; shift; fi
for part; do
    case " $parts " in *" $part "*) ;; *) sed -n '6,16s/^# //p' "$0" >&2; exit 2 ;; esac
done
mkdir -p target/boards tests/boards

# Files that not every part uses. Usage: own PART
own() {
    case $1 in
    builds) echo tests/builds.sh tools/kernels ;;
    programs) echo tests/armv7.sh docs/measuring.md ;;
    kvm) echo Makefile crates/dev/tests/lab.rs ;;
    guests) echo Makefile crates/dev/tests/lab.rs kernel/lab/armv7.config ;;
    debian-arm64) echo tests/arm64.sh ;;
    packages) echo Makefile crates/python packages tests/packages.sh tools/packages ;;
    x86-64) echo Makefile "$(own linux-)" ;;
    armv7) echo tests/lab.sh tests/known-reports crates/cli/tests kernel/lab/armv7.config ;;
    arm64) echo tests/lab.sh tests/known-reports tests/selftests.sh crates/cli/tests ;;
    linux-*) echo "$(own arm64)" crates/python tests/python.sh ;;
    esac
}

# The hash of the files that a part's result depends on, new ones included: all files except texts, what no part uses, and
# what only other parts use. Tests compile the program in docs/endpoint.md, and compare docs/measuring.md. Usage: sources PART
sources() (
    set -e
    GIT_INDEX_FILE=$(mktemp -u)
    export GIT_INDEX_FILE
    trap 'rm -f "$GIT_INDEX_FILE"' EXIT
    git add --all
    git rm -r -q --cached -- docs '*.md' ':!docs/endpoint.md' ':!docs/measuring.md' .ci tests/boards \
        tests/boards.sh tests/dkms.sh tests/install.sh tests/pairs.sh tests/yocto.sh tools/deps \
        tools/checkpatch tools/kernel-style tools/kernel-style.known tools/upstream
    # This part runs no program of ours.
    if [ "$1" = builds ]; then
        git rm -r -q --cached -- . ':!kernel/Makefile' ':!kernel/'{compat,modules,patches,uapi} ':!tools' ':!tests/builds.sh'
        git rm -r -q --cached -- 'kernel/*/tests/*'
    fi
    own=" $(own "$1") "
    for file in $(for one in $parts; do own "$one"; done); do
        case $own in *" $file "*) ;; *) git rm -r -q --cached --ignore-unmatch "$file" ;; esac
    done
    git write-tree
)

# Whether the last result is of the present sources. Usage: is_current PART
is_current() { [ -e "tests/boards/$1" ] && [ "$(head -n 1 "tests/boards/$1")" = "$(sources "$1")" ]; }

# Starts a guest, and loads each module. Usage: boot OPTION-OF-THE-LAB…
boot() {
    # shellcheck disable=SC2016,SC2086
    "$busbar" lab run "$@" --timeout 600 -- sh -ec 'echo "boots: $(uname -r)"
        for module; do modprobe "$module"; echo "loads: $module"; done' sh $modules
}

# Usage: run PART
run() {
    case $1 in
    programs | debian-arm64 | armv7 | arm64 | packages)
        command -v rustup >/dev/null || { echo "there is no rustup, which adds Rust's targets" >&2; return 1; }
        ;;
    esac
    case $1 in
    builds) tests/builds.sh --all ;;
    programs) tests/armv7.sh ;;
    kvm) make -s test-kvm ;;
    guests) make -s test-lab-itself LAB_TESTS=a_guest_for_ ;;
    debian-arm64) tests/arm64.sh ;;
    linux-*) tools/source "${1#*-}" && boot --linux "${1#*-}" && tests/lab.sh --linux "${1#*-}" ;;
    x86-64) boot && make -s test-rest ;;
    packages) make -s test-packages PACKAGES="amd64 arm64 armhf" ;;
    *) boot --arch "$1" && tests/lab.sh "--$1" ;;
    esac
}

# Usage: emulator PART
emulator() {
    case $1 in
    builds) return ;;
    programs) emulator=qemu-arm-static ;;
    armv7) emulator=qemu-system-arm ;;
    guests | packages | *arm64) emulator=qemu-system-aarch64 ;;
    *) emulator=qemu-system-x86_64 ;;
    esac
    "$emulator" --version | sed -n '1s/.*version \([0-9.]*\).*/QEMU \1/p'
}

# Tests of a part, by Rust's harness and by the kernel's. A program without tests of this part does not count.
# Usage: tests LOG
tests() {
    sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p
        s/^# Totals: pass:\([0-9]*\) fail:\([0-9]*\) .* error:\([0-9]*\).*/\1 \2 \3/p' "$1" | awk '
        { passed += $1; all += $1 + $2 + $3; programs += ($1 + $2 + $3 > 0) }
        END { printf "%d of %d; programs: %d", passed, all, programs }'
}

# Rows of the table, of the run that has ended. Usage: rows PART END
rows() {
    log=target/boards/$1.log
    emulator=$(emulator "$1")
    end=$2
    # No harness counts the tests of these two parts.
    case $1:$end in
    debian-*:passed*) passed="each path" ;;
    packages:passed*) passed="amd64, arm64, armhf" ;;
    debian-*:* | packages:*) passed=– ;;
    *) passed=$(tests "$log") ;;
    esac
    case $1 in
    builds)
        # A dash is a module that the kernel's configuration does not allow.
        sort -V "$log" | awk -v end="$end" '/^[0-9.]+\+deb/ {
            split($1, number, "."); dash = index($1, "-"); version = substr($1, 1, dash - 1)
            key = number[1] "." number[2] " " substr($1, dash + 1)
            if (!(key in kernels)) { order[++keys] = key; first[key] = version }
            last[key] = version; kernels[key]++
            for (i = 2; i <= NF; i++) { builds[key] += ($i == "builds"); all[key] += ($i != "-") }
        }
        END { for (k = 1; k <= keys; k++) { key = order[k]; split(key, name, " ")
            printf "| Debian, %s | %s to %s, kernels: %d | %d of %d | – | – | – | %s |\n",
                name[2], first[key], last[key], kernels[key], builds[key], all[key], end } }'
        ;;
    programs) without_modules "armv7, programs" "$emulator, of the host" ;;
    guests) without_modules "arm64 and armv7, the lab itself" "$emulator" ;;
    kvm) without_modules "x86-64 with KVM, the lab itself" "$emulator" ;;
    packages) without_modules "Debian packages" "$emulator" ;;
    debian-*) with_modules "$1" ;;
    *) with_modules "$1 in the lab" ;;
    esac
}

# For rows. Usage: without_modules TARGET EMULATOR
without_modules() { echo "| $1 | $2 | – | – | – | $passed | $end |"; }

# For rows: what a guest has loaded. Usage: with_modules TARGET
with_modules() {
    release=$(sed -n 's/^boots: //p' "$log")
    all=$(echo "$modules" | wc -w)
    loaded=$(grep -c '^loads: ' "$log" || true)
    if [ "$release" ]; then
        # The lab starts no guest before it has built each module.
        echo "| $1 | $release, $emulator | $all of $all | yes | $loaded of $all | $passed | $end |"
    else
        echo "| $1 | $emulator | – | no | – | – | $end |"
    fi
}

table() {
    echo "| target | kernel, emulator | builds | boots | modules load | tests passed | result |"
    echo "|---|---|---|---|---|---|---|"
    for one in $parts; do
        if is_current "$one"; then
            sed 1d "tests/boards/$one"
        elif [ -e "tests/boards/$one" ]; then
            sed '1d; s/ |$/, earlier sources |/' "tests/boards/$one"
        else
            echo "| $one | | | | | | not run |"
        fi
    done
}

# Replaces what is between the marks. Other parts may be running.
write() (
    exec 8>target/boards/table.lock
    flock 8
    [ "$(grep -c -e '^<!-- boards' -e '^<!-- end boards -->' docs/board.md)" = 2 ]
    table >target/boards/table
    awk '
        /^<!-- end boards -->/ { inside = 0 }
        !inside { print }
        /^<!-- boards/ { inside = 1; while ((getline line <"target/boards/table") > 0) print line }' \
        docs/board.md >target/boards/board.md
    cat target/boards/board.md >docs/board.md
)

# Whether the part has passed, and has run tests. Usage: check PART
check() {
    run "$1" >"target/boards/$1.log" 2>&1 || return 1
    case $1:$(tests "target/boards/$1.log") in builds:* | debian-* | packages:*) ;; *:*" of 0;"*) return 1 ;; esac
}

failed=""
for part in ${*:-$parts}; do
    exec 9>"target/boards/$part.lock"
    flock -n 9 || { echo "boards: $part: another run is under way" >&2; exit 1; }
    if [ ! "$again" ] && is_current "$part" && grep -q '| passed, ' "tests/boards/$part"; then
        echo "boards: $part: passed before"
        continue
    fi
    make -s build
    hash=$(sources "$part")
    echo "boards: $part: target/boards/$part.log"
    end=failed
    if check "$part"; then end=passed; else failed="$failed $part"; fi
    [ "$(sources "$part")" = "$hash" ] || { echo "boards: the sources have changed meanwhile" >&2; exit 1; }
    { echo "$hash" && rows "$part" "$end, $(date +%F)"; } >"target/boards/$part.rows"
    cat "target/boards/$part.rows" >"tests/boards/$part"
    write
done
write
[ -z "$failed" ] || { echo "boards: failed:$failed" >&2; exit 1; }
echo "boards: passed"
