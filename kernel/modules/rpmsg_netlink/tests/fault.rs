//! Every allocation for a request fails once, and remotes crash under load: nothing may
//! be left behind, and no client may wait for ever.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use busbar::bulk::packet::crc16;
use busbar_uapi::rpmsg_netlink::{PART_MAX, block, command};
use client::{Attributes, Client, coprocessor, noise, pattern};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use support::fault::{FailNth, arm};
use support::{modprobe, open_descriptors, wait_until};

/// The end of a request: it was refused, or accepted and then reported.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The request did not reach the driver, or its refusal did not reach the client.
    Lost(Errno),
    Refused(Errno),
    Told(u32),
}

/// Makes a request by a single system call, and waits for its end.
fn end(
    client: &mut Client,
    nth: &FailNth,
    n: u32,
    command: u8,
    attributes: &Attributes,
) -> (End, bool) {
    let message = client.message(command, 0, attributes);
    let (sent, hit) = nth.run(n, || client.try_post_raw(&message));
    if let Err(errno) = sent {
        return (End::Lost(errno), hit);
    }
    match client.outcome(Duration::from_secs(2)) {
        Some(Ok(note)) => (End::Told(note.u32(block::STATUS).unwrap_or(0)), hit),
        Some(Err(errno)) => (End::Refused(errno), hit),
        None => (End::Lost(Errno::NOMSG), hit),
    }
}

/// The same with the first, the second … allocation failing; returns their number.
fn each_fault(
    channel: u32,
    command: u8,
    attributes: &Attributes,
    mut prepare: impl FnMut(&mut Client),
) -> u32 {
    let nth = FailNth::open();
    let mut told = 0;
    for fault in 1..200 {
        let mut client = Client::new();
        prepare(&mut client);
        let (end, hit) = end(&mut client, &nth, fault, command, attributes);
        match end {
            End::Told(0) => told += 1,
            End::Refused(errno) | End::Lost(errno) => {
                let expected = [Errno::NOMEM, Errno::FAULT, Errno::NOBUFS, Errno::NOMSG];
                assert!(hit && expected.contains(&errno), "fault {fault}: {errno}");
            }
            End::Told(status) => panic!("fault {fault}: status {status}"),
        }
        // Whatever failed, the next request works.
        client.drain();
        client.reset(channel).unwrap();
        client.drain();
        assert_eq!(client.send(channel, b"after"), (0, 5), "fault {fault}");
        if !hit {
            assert_ne!(told, 0, "never told");
            return fault - 1;
        }
    }
    panic!("the request never got through");
}

#[test]
#[ignore = "needs the lab"]
fn each_request_undoes_what_it_has_begun() {
    arm();
    let _side = coprocessor(&["bulk-netlink"]);
    let channel = Client::new().channel();
    let descriptors = open_descriptors();
    let of = || Attributes::new().u32(block::CHANNEL, channel);

    // The first request also creates client, conversation and endpoint.
    let part = Attributes::part(channel, 1000, 0, &noise(1000, 1));
    let faults = each_fault(channel, command::SEND, &part, |_| {});
    assert!(faults >= 6, "send: only {faults} faults were possible");
    let faults = each_fault(channel, command::RECEIVE, &of().u32(block::LENGTH, 50_000), |_| {});
    assert!(faults >= 15, "receive: only {faults} faults were possible");
    let faults = each_fault(channel, command::FETCH, &of(), |client| {
        client.request(command::RECEIVE, &of().u32(block::LENGTH, 200_000)).unwrap();
        assert!(!client.take_part(&mut Vec::new()).unwrap());
    });
    assert!(faults >= 2, "fetch: only {faults} faults were possible");
    assert_eq!(open_descriptors(), descriptors);
}

/// A part without room in the ring has to be stored. If that fails, it is reported; and no byte of
/// it is ever taken for another block.
#[test]
#[ignore = "needs the lab"]
fn a_part_that_finds_no_room_is_kept_or_refused() {
    const NOMEM: u32 = 12;
    arm();
    let side = coprocessor(&["bulk-netlink"]);
    let nth = FailNth::open();
    let bytes = noise(200_000, 1);
    for fault in 1.. {
        assert!(fault < 40, "the request never got through");
        let mut client = Client::new();
        let channel = client.channel();
        assert_eq!(client.send(channel, b"opened"), (0, 6));
        kill_process(side.process().unwrap(), Signal::STOP).unwrap();
        let part = |offset: usize| {
            let part = &bytes[offset..offset + PART_MAX];
            Attributes::part(channel, bytes.len(), offset, part).u16(block::CRC, crc16(&bytes))
        };
        let mut offset = 0;
        while offset < 3 * PART_MAX {
            assert_eq!(client.part(&part(offset)).unwrap().command, command::SEND_NEXT_NTF);
            offset += PART_MAX;
        }
        // The ring has room for most of this one; the rest is not taken yet.
        let (end, hit) = end(&mut client, &nth, fault, command::SEND, &part(offset));
        let taken = end == End::Lost(Errno::NOMSG);
        let refused = [Errno::NOMEM, Errno::FAULT, Errno::NOBUFS];
        let refused =
            refused.iter().any(|why| [End::Refused(*why), End::Lost(*why)].contains(&end));
        assert!(taken || hit && (refused || end == End::Told(NOMEM)), "fault {fault}: {end:?}");
        kill_process(side.process().unwrap(), Signal::CONT).unwrap();
        client.drain();
        client.reset(channel).unwrap();
        client.drain();
        assert_eq!(client.send(channel, &bytes), (0, 200_000), "fault {fault}");
        if !hit {
            break;
        }
    }
}

/// Crashes while several clients transfer blocks.
#[test]
#[ignore = "needs the lab"]
fn crashes_under_load() {
    let rounds = support::rounds(5, 2);
    let mut side = coprocessor(&["bulk-netlink"]);
    let descriptors = open_descriptors();
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..5 {
            let (done, moved) = (&done, &moved);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number);
                let mut client = Client::new();
                while !done.load(Ordering::Relaxed) {
                    if random.u8(..8) == 0 {
                        client = Client::new();
                    }
                    if exchange(&mut client, &mut random).is_some() {
                        moved.fetch_add(1, Ordering::Relaxed);
                    } else {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let progress = || {
            let before = moved.load(Ordering::Relaxed);
            wait_until("a block", || moved.load(Ordering::Relaxed) > before + 5);
        };
        for round in 0..rounds {
            progress();
            side.kill().unwrap_or_else(|why| panic!("round {round}: {why}"));
            side.start().unwrap_or_else(|why| panic!("round {round}: {why}"));
        }
        progress();
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(open_descriptors(), descriptors);
    modprobe(&["-r", "rpmsg_netlink"]).unwrap();
    println!("{rounds} crashes, {moved:?} blocks moved");
}

/// Sends and receives one block; `None` if the coprocessor went away.
fn exchange(client: &mut Client, random: &mut fastrand::Rng) -> Option<()> {
    let channel = client.channels().first()?.u32(1)?;
    client.drain();
    let bytes = noise(random.usize(1..80_000), random.u64(..));
    let status = client.try_send(channel, &bytes)?;
    if status != 0 {
        // EPIPE, or messages to the previous coprocessor reached the next one.
        assert_eq!(status, 32);
        return None;
    }
    if random.u8(..4) == 0 {
        let length = random.u32(1..200_000);
        let back = client.try_receive(channel, length)?;
        assert!(back == pattern(length as usize));
    }
    Some(())
}
