//! Every allocation and every copy of a bind, a receive, a return and a close fails once: nothing
//! stays bound, no data is lost or duplicated, no memory is leaked.

#[path = "../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Queues, ReceiveSetup, Receiver, Tokens};
use busbar_uapi::devmem::{self, CONTROL_SPACE, Control, Fragment, Range};
use pair::{DEVICE, Pair, Place, pattern, send, settings, wait_until};
use rustix::io::Errno;
use support::fault::{FailNth, arm};
use support::rounds;

const LEN: usize = 4 << 20;
/// Fragments of one call: more than the kernel puts into one piece of its account.
const FRAGMENTS: usize = 20;

#[test]
#[ignore = "needs the lab"]
fn a_bind_that_fails_leaves_nothing() {
    arm();
    let nth = FailNth::open();
    let _pair = Pair::new();
    let (before, free) = (settings(), Receiver::offered(DEVICE).unwrap());
    let mut failures = 0;
    // Each round takes a second in the emulated debug kernel.
    let step = usize::try_from(rounds(1, 4)).unwrap();
    for fault in (1..5_000).step_by(step) {
        let block = Block::with(64 * 4096, &Memory::Pages).unwrap();
        let (opened, hit) =
            nth.run(fault, || Receiver::open(DEVICE, block, &ReceiveSetup::default()));
        failures += u32::from(opened.is_err());
        if opened.is_ok() && !hit {
            assert!(failures > 20, "only {failures} of {fault} faults were noticed");
            drop(opened);
            assert_eq!((settings(), Receiver::offered(DEVICE).unwrap()), (before, free));
            return;
        }
        assert!(opened.is_ok() || hit, "fault {fault}: {opened:?}");
        drop(opened);
        assert_eq!(Receiver::offered(DEVICE).unwrap(), free, "fault {fault}");
    }
    panic!("it never got through");
}

/// The result of one call that does not fail.
fn receive(connection: &Connection, control: &mut [u8]) -> Result<Vec<Fragment>, Errno> {
    let mut bytes = vec![0; FRAGMENTS * 4096];
    let got = devmem::receive(connection.socket(), &mut bytes, control)?;
    let fragment = |control| match control {
        Ok(Control::Device(fragment)) => fragment,
        other => panic!("{other:?}"),
    };
    let fragments: Vec<_> = devmem::controls(&control[..got.control_len]).map(fragment).collect();
    assert_eq!(fragments.iter().map(|it| it.size as usize).sum::<usize>(), got.len);
    Ok(fragments)
}

fn check(receiver: &Receiver, fragments: &[Fragment], at: &mut u64) {
    let block = receiver.block().read().unwrap();
    for fragment in fragments {
        let (from, len) = (usize::try_from(fragment.offset).unwrap(), fragment.size as usize);
        let found = block.bytes().slice(from..from + len);
        assert!(found == pattern(1, *at, len)[..], "{len} bytes at {at}");
        *at += len as u64;
    }
}

fn a_failed_call_loses_nothing(tokens: Tokens) {
    arm();
    let nth = FailNth::open();
    let pair = Pair::with(ReceiveSetup::new().queues(Queues::Count(1)).tokens(tokens));
    let receiver = pair.receiver(LEN);
    let (connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, 64 << 20);
    let (mut at, mut control) = (0, vec![0; FRAGMENTS * CONTROL_SPACE]);
    let mut is_through = [false; 2];
    for fault in 1..2_000 {
        let mut answer = (Err(Errno::AGAIN), false);
        wait_until("data", || {
            answer = nth.run(fault, || receive(&connection, &mut control));
            !matches!(answer.0, Err(Errno::AGAIN))
        });
        let (fragments, hit) = answer;
        let fragments = match fragments {
            Ok(fragments) => fragments,
            Err(Errno::FAULT | Errno::NOMEM) if hit => Vec::new(),
            other => panic!("fault {fault}: {other:?}"),
        };
        check(&receiver, &fragments, &mut at);
        if fragments.is_empty() {
            continue;
        }
        is_through[0] |= !hit;

        let range = |it: &Fragment| Range { start: it.token, count: 1 };
        let ranges: Vec<_> = fragments.iter().map(range).collect();
        let (taken, hit) = nth.run(fault, || devmem::dont_need(connection.socket(), &ranges));
        match taken {
            Ok(taken) => assert_eq!(taken as usize, ranges.len(), "fault {fault}"),
            Err(Errno::FAULT | Errno::NOMEM) if hit => {
                let again = devmem::dont_need(connection.socket(), &ranges);
                assert_eq!(again.map(|taken| taken as usize), Ok(ranges.len()), "fault {fault}");
            }
            other => panic!("fault {fault}: {other:?}"),
        }
        is_through[1] |= !hit;
        if is_through == [true; 2] {
            drop((connection, receiver));
            // The sender is told to end.
            let _ = sending.join();
            return;
        }
    }
    panic!("it never got through: {is_through:?}");
}

#[test]
#[ignore = "needs the lab"]
fn a_failed_call_loses_nothing_with_index_tokens() {
    a_failed_call_loses_nothing(Tokens::Index);
}

#[test]
#[ignore = "needs the lab"]
fn a_failed_call_loses_nothing_with_autorelease_tokens() {
    a_failed_call_loses_nothing(Tokens::Autorelease);
}

/// Each connection holds a quarter of the memory when it is closed, so that it is used up soon if some of it
/// is not released.
fn a_close_gives_back_all(tokens: Tokens) {
    arm();
    let nth = FailNth::open();
    let pair = Pair::with(ReceiveSetup::new().queues(Queues::Count(1)).tokens(tokens));
    let receiver = pair.receiver(LEN);
    let mut control = vec![0; FRAGMENTS * CONTROL_SPACE];
    let mut unharmed = 0;
    for fault in 1..2_000 {
        let (connection, sender) = pair.connect(&receiver);
        let sending = send(sender, 1, LEN as u64);
        let mut at = 0;
        while at < LEN as u64 / 4 {
            wait_until("data", || {
                let fragments = match receive(&connection, &mut control) {
                    Err(Errno::AGAIN) => return false,
                    answer => answer.unwrap(),
                };
                check(&receiver, &fragments, &mut at);
                true
            });
        }
        let ((), hit) = nth.run(fault, || drop(connection));
        // The sender is told to end.
        let _ = sending.join();
        unharmed += u32::from(!hit);
        if unharmed > 8 {
            return;
        }
    }
    panic!("it never got through");
}

#[test]
#[ignore = "needs the lab"]
fn a_close_gives_back_all_index_tokens() {
    a_close_gives_back_all(Tokens::Index);
}

#[test]
#[ignore = "needs the lab"]
fn a_close_gives_back_all_autorelease_tokens() {
    a_close_gives_back_all(Tokens::Autorelease);
}
