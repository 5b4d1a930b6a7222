//! Tokens that another thread returns before `recvmsg()` has delivered them: each fragment is returned
//! once in the end, and no memory is leaked.

#[path = "../../../crates/busbar/tests/pair/mod.rs"]
mod pair;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use busbar::receive::{Connection, Queues, ReceiveSetup, Tokens};
use busbar_uapi::devmem::{self, CONTROL_SPACE, Control, Range};
use pair::{Pair, Place, send, wait_until};
use rustix::io::Errno;

const LEN: usize = 4 << 20;
const SENT: u64 = 16 << 20;
/// Number of tokens held all the time: with the next ones that a call reserves, the kernel's table
/// needs one more node, for which it releases its lock.
const HELD: u32 = 52;
/// The tokens that are guessed.
const GUESSED: Range = Range { start: HELD + 1, count: 40 };
/// Fragments of one call: more than the kernel puts into one piece of its account.
const FRAGMENTS: usize = 20;

/// Until this is dropped, allocations that must not wait fail, in threads that ask for it.
struct Scarce;

impl Scarce {
    fn new() -> Self {
        for (what, value) in [
            ("ignore-gfp-wait", "Y"),
            ("task-filter", "Y"),
            ("verbose", "0"),
            ("times", "-1"),
            ("probability", "100"),
        ] {
            Self::set(what, value);
        }
        Self
    }

    fn set(what: &str, value: &str) {
        let fault = Path::new("/sys/kernel/debug/failslab");
        fs::write(fault.join(what), value).expect("a debug kernel");
    }

    /// Makes them fail in this thread during a call.
    fn want<T>(call: impl FnOnce() -> T) -> T {
        let fail = |value| fs::write("/proc/thread-self/make-it-fail", value).unwrap();
        fail("1");
        let result = call();
        fail("0");
        result
    }
}

impl Drop for Scarce {
    fn drop(&mut self) {
        Self::set("probability", "0");
        Self::set("task-filter", "N");
    }
}

/// The tokens of one call; none at the end of the stream.
fn receive(connection: &Connection, control: &mut [u8]) -> Vec<u32> {
    let mut bytes = vec![0; FRAGMENTS * 4096];
    let mut got = Err(Errno::AGAIN);
    wait_until("data", || {
        got = Scarce::want(|| devmem::receive(connection.socket(), &mut bytes, control));
        got != Err(Errno::AGAIN)
    });
    let token = |control| match control {
        Ok(Control::Device(fragment)) => fragment.token,
        other => panic!("{other:?}"),
    };
    devmem::controls(&control[..got.unwrap().control_len]).map(token).collect()
}

fn put(connection: &Connection, range: Range) -> usize {
    devmem::dont_need(connection.socket(), &[range]).unwrap() as usize
}

#[test]
#[ignore = "needs the lab"]
fn what_is_returned_too_early_is_not_lost() {
    let pair = Pair::with(ReceiveSetup::new().queues(Queues::Count(1)).tokens(Tokens::Autorelease));
    let receiver = pair.receiver(LEN);
    let (connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, SENT);
    let (_scarce, done) = (Scarce::new(), AtomicBool::new(false));
    let (mut given, mut returned, mut control) = (0, 0, vec![0; FRAGMENTS * CONTROL_SPACE]);
    while given < HELD as usize {
        given += receive(&connection, &mut control).len();
    }
    thread::scope(|scope| {
        let guessing = scope.spawn(|| {
            let mut returned = 0;
            while !done.load(Ordering::Relaxed) {
                returned += put(&connection, GUESSED);
            }
            returned
        });
        loop {
            let tokens = receive(&connection, &mut control);
            if tokens.is_empty() {
                break;
            }
            given += tokens.len();
        }
        done.store(true, Ordering::Relaxed);
        returned += guessing.join().unwrap();
    });
    sending.join().unwrap();
    returned +=
        (0..4).map(|n| put(&connection, Range { start: n * 1024, count: 1024 })).sum::<usize>();
    assert_eq!(returned, given);
}
