#!/bin/bash
# Runs the unit tests of the crates, and all host tests of the library, as programs for armv7: built by clang against
# Debian 12's libraries, emulated by QEMU. Runs as root.
#
# Usage: tests/armv7.sh [CARGO-TEST-ARGUMENT…]    default: all
set -euo pipefail
cd "$(dirname "$0")/.."
root=${BUSBAR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/busbar}/root/armhf-build
tools/root armhf "$root" libc6-dev libgcc-12-dev
. tools/cross
cross armhf "$root"
export CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_RUNNER="qemu-arm-static -L $root"

# QEMU answers a call that it does not know with ENOSYS, where Linux knows the file and answers otherwise; it has
# neither seccomp, nor epoll_pwait2, nor zero-copy sends, nor some protocols of netlink; it passes on descriptors
# wrongly if there are more than expected; and it executes no other programs, as some tests do with their own.
skip=(
    every_call_fails_on_a_file what_is_no_socket_is_refused a_file_that_is_no_
    the_pair_as_in_c_is_there a_device_without_queues requests_end_once_and_in_their_order
    policies_tell_the_attributes each_send_is_completed_once more_descriptors_than_expected
    a_message_that_is_longer_than_any_buffer denied another_error_of_a_wait too_many_open_files
    without_timers_the_better_call pwait2::no_timeout_ends_early a_stream_that_is_watched_without_descriptors
    connections_without_a_hello_do_not_use_up whoever_waits_beside_a_queue_of_errors_sleeps
    # Slower than the samples that it has to take.
    a_pipeline_opens_it_again
)
run() { cargo test --locked --no-fail-fast --target "$triple" "$@" -- "${skip[@]/#/--skip=}"; }
if [ $# -gt 0 ]; then
    run "$@"
else
    run -p busbar -p busbar-uapi --all-features --lib --tests
    # The command's own tests execute it. busbar-fuzz-kernel knows the calls of 64-bit processors.
    for crate in busbar-coprocessor busbar-cli busbar-c busbar-bench busbar-lab; do
        run -p $crate --lib --bins
    done
    run -p busbar-dev --bins
fi
echo "armv7: passed"
