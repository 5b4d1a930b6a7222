#!/bin/sh
# Runs every test that is marked "needs the lab" in one boot of the debug kernel, and what takes too
# long there in one of the release kernel.
#
# Usage: tests/lab.sh [TEST-PROGRAM…]    names as cargo prints them, default all
set -eu
cd "$(dirname "$0")/.."
busbar=target/release/busbar

programs=$(cargo test --workspace --all-features --no-run --locked --message-format=json |
    jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable != null)
           | "\(.target.name) \(.executable)"')
plan=$(mktemp target/lab-tests.XXXXXX)
trap 'rm -f "$plan" "$plan.debug" "$plan.release"' EXIT
echo "$programs" | while read -r name program; do
    # The lab's own tests boot kernels and run on the host.
    if [ "$name" = lab ]; then continue; fi
    [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    if "$program" --ignored --list 2>/dev/null | grep -q ': test$'; then
        echo "$name $program"
    fi
done >"$plan"
if [ $# = 0 ] || [ "$*" = selftests ]; then
    selftests=$(tests/selftests.sh)
    for program in $selftests; do
        echo "selftest:$(basename "$program") $program"
    done >>"$plan"
fi

# Two faults of in-tree drivers that tests come across: rpmsg_char warns when an endpoint ends while
# somebody polls it (kernel/modules/rpmsg_eptfd/README.md), and the bus when a blocking send finds
# its ring full (docs/endpoint.md).
#
# Blocks of 16 MiB, the suite over all of bulk's transports, and the kernel's Python tools take too
# long in the debug kernel.
grep -vE '^(bulk|rpmsg_netlink_spec) ' "$plan" >"$plan.debug" || true
grep -E '^(bulk|rpmsg_netlink_(blocks|spec)) ' "$plan" >"$plan.release" || true
if [ -s "$plan.debug" ]; then
    "$busbar" lab run --debug --timeout 2400 --known 'rpmsg_eptdev_poll+' \
        --known 'virtio_rpmsg_announce_create+' -- tests/guest.sh "$plan.debug" --skip sixteen_me
fi
if [ -s "$plan.release" ]; then
    "$busbar" lab run --timeout 1200 -- tests/guest.sh "$plan.release"
fi
