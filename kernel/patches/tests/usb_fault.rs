//! Allocations that fail in the gadget, in its host and in the controller between them: a call that fails has done nothing,
//! a stream goes on or ends with an error, and no memory is leaked.

#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use busbar::block::{Block, Memory};
use busbar_uapi::functionfs;
use nusb::transfer::Buffer;
use rustix::io::Errno;
use support::fault::{FailNth, arm, spare_the_guests_files};
use support::rounds;
use support::usb::{Device, HOST, Stream, both_end, host, load, unplugged};

const LEN: usize = 64 << 10;
const LONG: Duration = Duration::from_secs(60);

fn pattern(seed: u8) -> Vec<u8> {
    (0..=u8::MAX).cycle().map(|byte| byte.wrapping_mul(3).wrapping_add(seed)).take(LEN).collect()
}

fn fill(block: &mut Block, seed: u8) {
    block.wait_unused().unwrap();
    block.write().unwrap().bytes_mut().slice(..LEN).copy_from(&pattern(seed));
}

/// Has the first, second, … allocation of a call fail, until it has no more. `call` returns whether one failed.
fn until_unharmed(mut call: impl FnMut(u32) -> bool) {
    assert!((1..1000).any(|fault| !call(fault)), "it never got through");
}

#[test]
#[ignore = "needs the lab"]
fn a_call_that_fails_has_done_nothing() {
    arm();
    let nth = FailNth::open();
    load();
    let device = Device::new((0xff, 0, 0));
    let mut host = host();
    let to = &device.to;
    let mut block = Block::with(LEN, &Memory::Heap("system".into())).unwrap();
    let expected = |fault, errno| {
        assert!(matches!(errno, Errno::NOMEM | Errno::FAULT), "fault {fault}: {errno}");
    };

    let mut failed = 0;
    until_unharmed(|fault| {
        let (attached, hit) = nth.run(fault, || functionfs::attach(to, &block));
        match attached {
            Ok(()) => functionfs::detach(to, &block).unwrap(),
            Err(errno) => {
                expected(fault, errno);
                assert_eq!(functionfs::detach(to, &block), Err(Errno::PERM), "fault {fault}");
                failed += 1;
            }
        }
        hit
    });
    assert!(failed > 2, "only {failed} faults were noticed");

    functionfs::attach(to, &block).unwrap();
    let (mut failed, mut sent) = (0, 0);
    fill(&mut block, sent);
    until_unharmed(|fault| {
        let (queued, hit) = nth.run(fault, || functionfs::transfer(to, &block, LEN as u64));
        match queued {
            Ok(()) => {
                let done = host.transfer_blocking(Buffer::new(LEN), LONG);
                done.status.unwrap();
                assert!(done.buffer[..] == pattern(sent), "fault {fault}");
                sent += 1;
                fill(&mut block, sent);
            }
            Err(errno) => {
                expected(fault, errno);
                failed += 1;
            }
        }
        hit
    });
    assert!(failed > 2 && sent > 0, "only {failed} faults were noticed");

    until_unharmed(|fault| {
        let (detached, hit) = nth.run(fault, || functionfs::detach(to, &block));
        match detached {
            Ok(()) => functionfs::attach(to, &block).unwrap(),
            // It is still attached.
            Err(errno) => {
                expected(fault, errno);
                assert_eq!(functionfs::transfer(to, &block, 0), Err(Errno::INVAL));
            }
        }
        hit
    });
    drop((host, device));
    unplugged();
}

/// Lets a part of the allocations of a process fail, or none.
fn harm(streams: &[&Stream], percent: u64) {
    let faults = Path::new("/sys/kernel/debug/failslab");
    fs::write(faults.join("task-filter"), "Y").unwrap();
    fs::write(faults.join("times"), "-1").unwrap();
    for stream in streams {
        let threads = format!("/proc/{}/task", stream.child.id());
        for thread in fs::read_dir(threads).into_iter().flatten().flatten() {
            // It may have ended.
            let _ = fs::write(thread.path().join("make-it-fail"), "1");
        }
    }
    fs::write(faults.join("probability"), percent.to_string()).unwrap();
}

#[test]
#[ignore = "needs the lab"]
fn a_stream_without_memory_goes_on_or_ends_with_an_error() {
    arm();
    spare_the_guests_files();
    load();
    for (from, to) in [("usb:", HOST), (HOST, "usb:")] {
        // One that fails ends the other soon.
        let start = |from, to| Stream::with_patience(from, to, 30);
        let begin = || (start("synth:counter", from), start(to, "verify:counter"));
        // Its last report may be from before its failure, so each is asked twice after that.
        let go_on = |(mut sender, mut receiver): (Stream, Stream)| {
            let goes_on = [sender.grows_or_ends(), receiver.grows_or_ends()];
            if goes_on == [true; 2] {
                return (sender, receiver);
            }
            for (stream, goes_on) in [sender, receiver].into_iter().zip(goes_on) {
                if goes_on { stream.kill() } else { stream.has_failed() }
            }
            unplugged();
            let (mut sender, mut receiver) = begin();
            receiver.grows();
            sender.grows();
            (sender, receiver)
        };
        let mut streams = begin();
        for round in 0..rounds(20, 5) {
            streams = go_on(streams);
            harm(&[&streams.0, &streams.1], 1 + round % 5);
            sleep(Duration::from_millis(500));
            harm(&[], 0);
            streams = go_on(streams);
        }
        let (sender, receiver) = go_on(streams);
        both_end(sender, receiver);
    }
}
