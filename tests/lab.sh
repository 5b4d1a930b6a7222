#!/bin/bash
# Runs every test that is marked "needs the lab". Those that attack the kernel's parts (faults, stress, hostile
# peers, memory that is shared) run in one boot of the debug kernel; the others run in one boot of the release
# kernel, together with a quick run of each benchmark.
# Tests that need an IOMMU, or an otherwise idle machine, run in separate boots.
#
# Usage: tests/lab.sh [--linux SERIES] [--modules | --library | --attacks | --patches | --selftests | --full | --race |
#                     --arm64 | --armv7] [TEST-PROGRAM…]
#   TEST-PROGRAM…  names as cargo prints them, or selftests, python, drvnet; default all
#   --linux   in kernels of this series, such as 7.3; default 6.12
#   --modules the modules' own tests, in Debian's own kernel
#   --library the library over the modules, in Debian's own kernel
#   --attacks the modules in the debug kernel: faults, hostile programs, unit tests
#   --patches the same of the patches
#   --selftests the kernel's own tests of the patches, in the debug kernel
#   --full    all tests in the debug kernel, except those that take too long there; five times as many crashes; blocks of
#             16 MiB; all cases of the kernel's tests for NICs
#   --race    tests of the kernel's parts, in the race kernel (KCSAN), which cannot inject faults
#   --arm64   in kernels for arm64: tests that need no compiler and no Python package
#   --armv7   the same in the release kernel for armv7, without those that need a coprocessor, and without selftests
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/cross
busbar=target/release/busbar
# What is generated is compared on the host, by `tests/run checkpatch`, as it needs no kernel.
full="" quick="env BUSBAR_QUICK=1" skip="--skip sixteen_me --skip what_is_generated" always=""
kernels="debug release" foreign="" arch="" target=target/release crates="--workspace --all-features" emulator=""
# Two tests of programs that run in the release kernel as well need the debug kernel.
without_debug="--skip a_stuck_remote --skip long_frames_take_no_long"
# Debian's own kernel has no patches of Busbar's, and no sample drivers of Linux. Without patch 0009, memory that is held when
# its device goes is unmapped by a device that is no more: an oops, now and then.
stock="--skip blocks_are_reported_in_order_with_their_times --skip blocks_of_a_disabled_buffer_are_reported
    --skip a_block_that_is_detached_is_not_reported --skip reports_end_with_the_file_of_the_buffer --skip enqueue_twice
    --skip attach_to_a_driver_without_dmabufs --skip dequeue --skip rpmsg_client_sample_gets_its_hundred_answers
    --skip an_error_of_a_transmitter_is_told --skip a_cable_that_comes_back_has_lost_no_block
    --skip a_driver_without_dmabufs_is_read --skip views_outlive_the_module
    --skip a_device_that_goes_is_an_error_and_no_more"
# A variable of tests/sources.sh.
unset architecture
usage() { sed -n '7,/^set/s/^# //p' "$0" >&2; exit 2; }
if [ "${1-}" = --linux ]; then
    case ${2-} in "" | -*) usage ;; esac
    export BUSBAR_LINUX="$2"
    shift 2
fi
case ${1-} in
--full) full=1 quick="" skip=""; shift ;;
--race) kernels=race; shift ;;
--modules | --library) kernels=${1#--} skip="$skip $without_debug $stock"; shift ;;
--attacks | --patches | --selftests) kernels=${1#--}; shift ;;
--arm64 | --armv7)
    foreign=${1#--} kernels=foreign
    # These compile a program in the guest, which has no compiler.
    always="--skip a_32_bit_program --skip ip_describes_the_other_end --skip user_memory_that_cannot"
    # Three have a coprocessor, which needs a 64-bit program. Linux on armv7 asks no
    # driver for a debugger, and has no huge pages without LPAE.
    if [ "$foreign" = armv7 ]; then
        always="$always $without_debug --skip huge"
        always="$always --skip a_coprocessor --skip a_gate_opens_on --skip every_source_reaches --skip a_debugger_can"
    fi
    skip="$skip $always"
    shift
    ;;
esac
case ${1-} in -*) usage ;; esac
named=$# names=" $* "

# Whether the program, or the part of this name, is to run. Usage: is_asked NAME
is_asked() { [ "$named" = 0 ] || [[ $names == *" $1 "* ]]; }

# Programs for another processor, which are listed here and executed in the guest.
prepare() {
    case $foreign in arm64) emulator=qemu-aarch64-static ;; armv7) emulator=qemu-arm-static ;; esac
    command -v $emulator >/dev/null || { echo "apt-get install qemu-user-static" >&2; exit 1; }
    arch="--arch $foreign"
    # shellcheck disable=SC2086
    built=$("$busbar" lab build $arch --json)
    root=$(echo "$built" | jq -r .root)
    emulator="$emulator -L $root"
    cross "$foreign" "$root"
    target=target/$triple/debug
    crates="-p busbar -p busbar-uapi -p busbar-coprocessor -p busbar-cli --all-features --target $triple"
    # It knows the calls of 64-bit processors.
    if [ "$foreign" = arm64 ]; then crates="$crates -p busbar-fuzz-kernel"; fi
    cargo build --locked -p busbar-cli -p busbar-dev --target "$triple"
}
if [ "$foreign" ]; then
    prepare
    quick="$quick BUSBAR_TARGET=$target"
fi

# Prints the kernels for a test program. Blocks of 16 MiB, the suite over all of bulk's transports, and Python
# (ncdevmem uses one of the kernel's Python tools) take too long in the debug kernel.
kernel_of() {
    case $foreign:$1 in
    :*) ;;
    # They need a compiler or Python.
    *:clients | *:examples | *:servers | *:vcoproc_openamp | *:vnic_ncdevmem | *:rpmsg_netlink_spec) return ;;
    arm64:*) ;;
    *_bounce | *_fault | *_iommu | *:devmem_guess) return ;;
    # Almost all of their tests need a coprocessor.
    *:bulk | *:command | *:endpoint | *:rpmsg_* | *:shared | *:vcoproc_clients | *:vcoproc_hostile) return ;;
    *:receive | *:receive_device | *:run | *:stream_net) echo lowmem; return ;;
    *) echo release; return ;;
    esac
    if [ "$kernels" = race ]; then
        case $1:$2 in
        *_bounce:* | vnic_iommu:* | rpmsg_eptfd_fault:* | rpmsg_netlink_fault:*) ;;
        *:*/kernel/modules/*) echo race ;;
        esac
        return
    fi
    case $kernels:$2:$1 in
    # They need the debug kernel, an IOMMU, bounce buffers, or programs of others or of the kernel's source.
    modules:*_bounce | modules:*_fault | modules:*_iommu | modules:*_stress | modules:*:vnic_ncdevmem | \
        modules:*:rpmsg_netlink_spec) return ;;
    modules:*/kernel/modules/*) echo stock; return ;;
    modules:*) return ;;
    library:*/kernel/* | library:*_stress | library:*_faults | library:*:clients | library:*:c_lab | library:*:iiod_events | \
        library:*:usb | library:*:wait | library:*:servers | library:*:busbar_uapi | library:*:kunit) return ;;
    library:*) echo stock; return ;;
    attacks:*:kunit | attacks:*_fault | attacks:*_hostile | attacks:*_stress | attacks:*_dmabuf | attacks:*_ends | \
        attacks:*_remote | attacks:*:vcoproc_iommu | attacks:*:vnic_memory)
        case $2 in */kernel/modules/* | */kunit.rs) echo debug ;; esac
        return
        ;;
    attacks:*) return ;;
    patches:*/kernel/patches/* | patches:*:wait | patches:*:servers | patches:*:busbar_uapi | patches:*:vconv_errno | \
        patches:*:iiod_events) echo debug; return ;;
    patches:* | selftests:*) return ;;
    esac
    case $1 in
    vnic_iommu | *_bounce) echo "${1##*_}"; return ;;
    # They need Python.
    vnic_ncdevmem | clients) echo release; return ;;
    # Debian's own server, in Debian's own kernel.
    *_faults) echo stock; return ;;
    # Some of these need what only the debug kernel has, such as tracing.
    kunit | *_fault | *_hostile | *_stress | fuzz_kernel | devmem_guess | rpmsg_ctrl | rpmsg_eptfd_dmabuf | \
        rpmsg_eptfd_ends | rpmsg_netlink_remote | vcoproc_iommu | vnic_memory) echo debug; return ;;
    esac
    case $kernels:$1 in
    *:bulk | *:rpmsg_netlink_spec) echo release ;;
    *:rpmsg_netlink_blocks | *:vnic_link | *:vnic_settings | *:vnic_tools) echo "release${full:+ debug}" ;;
    *) if [ "$full" ]; then echo debug; else echo release; fi ;;
    esac
}

# shellcheck disable=SC2086
programs=$(cargo test $crates --no-run --locked --message-format=json |
    jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable != null)
           | "\(.target.name) \(.target.src_path) \(.executable)"')
plan=$(mktemp target/lab-tests.XXXXXX)
trap 'rm -f "$plan" "$plan".*' EXIT
echo "$programs" | while read -r name source program; do
    # The lab's own tests boot kernels and run on the host.
    if [ "$name" = lab ]; then continue; fi
    is_asked "$name" || continue
    # shellcheck disable=SC2086
    tests=$($emulator "$program" --ignored --list 2>/dev/null) || { echo "$program does not list its tests" >&2; exit 1; }
    if grep -q ': test$' <<<"$tests"; then
        for kernel in $(kernel_of "$name" "$source"); do
            echo "$name $program" >>"$plan.$kernel"
        done
    fi
done
if grep -qs '^vnic_ncdevmem ' "$plan".*; then tests/ncdevmem.sh; fi
if grep -qs '^clients ' "$plan".*; then tests/python.sh install; fi
# Its C programs are compiled here, since a compiler takes long under emulation.
for program in $(sed -n 's/^c_lab //p' "$plan".* 2>/dev/null); do "$program" --quiet; done
if [[ " race modules library attacks patches " != *" $kernels "* ]] && [ "$foreign" != armv7 ] && is_asked selftests; then
    selftests=$(tests/selftests.sh ${full:+--all} ${foreign:+--$foreign})
    for program in $selftests; do
        case $kernels:$full:$program in
        "debug release::"*/devmem_tokens | foreign::*/devmem_tokens | *:*/epoll_wakeup_test) kernel=release ;;
        *) kernel=debug ;;
        esac
        echo "selftest:$(basename "$program") $program" >>"$plan.$kernel"
    done
fi
# The Python package's.
if [ "$kernels" = "debug release" ] && is_asked python; then
    echo "selftest:python tests/python.sh" >>"$plan.release"
fi
# The kernel's own tests for drivers of NICs run in the release kernel, as Python takes too long in the debug
# kernel. They run alone, because with two guests at a time they exceed their time limits, such as 2 s for
# csum.py's receiver.
if [ "$kernels" = "debug release" ] && is_asked drvnet; then
    tests/drvnet.sh build
    echo "selftest:drvnet tests/drvnet.sh" >>"$plan.alone"
fi
if [ "$kernels" = "debug release" ] && [ $# = 0 ]; then
    for bench in endpoint bulk wait stream receive languages iiod; do
        echo "bench:$bench $busbar"
    done >>"$plan.release"
fi
if grep -qs '^selftest:python \|^bench:languages ' "$plan".*; then tests/python.sh build; fi

for name; do
    case $name in selftests) line=selftest: ;; python | drvnet) line="selftest:$name " ;; *) line="$name " ;; esac
    grep -qs "^$line" "$plan".* || { echo "$name: no test of this name runs in these kernels" >&2; exit 1; }
done

# If an allocation fails in the checks of DMA mappings, these switch themselves off. So programs that inject
# such failures come last. fuzz_kernel is the very last: blocks that it has queued in a disabled buffer of vconv0
# keep the module, and vconv_fault removes it.
if [ -s "$plan.debug" ]; then
    faulty="^[^ ]*fault "
    {
        grep -Ev "$faulty|^fuzz_kernel " "$plan.debug"
        grep -E "$faulty" "$plan.debug"
        grep "^fuzz_kernel " "$plan.debug"
    } >"$plan.log" || true
    mv "$plan.log" "$plan.debug"
fi

in_lab() {
    # shellcheck disable=SC2046,SC2086
    "$busbar" lab run $arch $(sed '/^#/d; /^$/d; s/^/--known /' tests/known-reports) "$@" | tee -a "$plan.out"
}

# The kernels are built one after the other. The guests run at the same time, as most tests keep only one
# CPU busy.
# shellcheck disable=SC2086
if [ -s "$plan.debug" ]; then "$busbar" lab build $arch --debug; fi
# shellcheck disable=SC2086
if [ -s "$plan.release" ]; then "$busbar" lab build $arch; fi
limit=7200 release=""
if [ -s "$plan.release" ]; then
    # shellcheck disable=SC2086
    in_lab --timeout "$limit" -- $quick tests/guest.sh "$plan.release" $skip >"$plan.log" 2>&1 &
    release=$!
fi
status=0
# 75, a fault of QEMU's, lets tests/run repeat this: but not where something else has failed.
note() { local code=$?; [ "$code" = 75 ] && [ "$status" != 0 ] || status=$code; }
if [ -s "$plan.debug" ]; then
    # rpmsg_char warns, too, if an allocation fails while it makes an endpoint (kernel/patches/README.md).
    known=""
    if grep -q "^fuzz_kernel " "$plan.debug"; then known="--known rpmsg_chrdev_eptdev_add+"; fi
    # shellcheck disable=SC2086
    in_lab --debug $known --timeout "$limit" -- $quick tests/guest.sh "$plan.debug" --skip sixteen_me $always || note
fi
if [ -s "$plan.stock" ]; then
    # shellcheck disable=SC2086
    in_lab --stock --timeout "$limit" -- $quick tests/guest.sh "$plan.stock" $skip || note
fi
# More boots of the debug kernel: on a machine with an IOMMU, and with bounce buffers for each device's DMA.
for boot in iommu bounce; do
    [ -s "$plan.$boot" ] || continue
    case $boot in iommu) option=--iommu ;; bounce) option="--kernel-option swiotlb=force" ;; esac
    # shellcheck disable=SC2086
    "$busbar" lab build $arch --debug
    # shellcheck disable=SC2086
    in_lab --debug $option --timeout 900 -- $quick tests/guest.sh "$plan.$boot" || note
done
# What is received piece by piece on armv7. DMA is not coherent there: for each piece Linux synchronises the caches of the
# whole block, and with high memory it maps each page for that, which takes four times as long.
if [ -s "$plan.lowmem" ]; then
    # shellcheck disable=SC2086
    in_lab --memory 700M --timeout "$limit" -- $quick tests/guest.sh "$plan.lowmem" $skip || note
fi
if [ -s "$plan.race" ]; then
    "$busbar" lab build --race
    in_lab --race --timeout 2700 -- $quick tests/guest.sh "$plan.race" --skip sixteen_me \
        --skip long_frames_take_no_long --skip that_can_never_be_written_or_read || note
fi
if [ "$release" ]; then
    wait "$release" || note
    cat "$plan.log"
fi
if [ -s "$plan.alone" ]; then
    "$busbar" lab build
    # shellcheck disable=SC2086
    in_lab --timeout 2700 -- $quick tests/guest.sh "$plan.alone" || note
fi
# Again at the end, where it is looked for.
grep -s -B 1 "^== out of time, or killed: " "$plan.out" || true
grep -s "^failed:" "$plan.out" || true
# A selftest that lacks what it needs skips its tests, and ends like one that has passed.
! grep -s "^# Totals:.* skip:[1-9]" "$plan.out" || status=1
exit "$status"
