//! Blocks through the driver and back: all sizes, several clients, and flow control.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use busbar::bulk::packet::crc16;
use busbar_uapi::rpmsg_netlink::{PART_MAX, block, channel, command};
use client::{Attributes, Client, coprocessor, noise, pattern, socket};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

/// Sizes around every boundary: header, message, page, part, window, 16 bits.
const SIZES: [usize; 26] = [
    1,
    2,
    3,
    489,
    490,
    491,
    496,
    512,
    985,
    986,
    987,
    4095,
    4096,
    4097,
    8192,
    32767,
    32768,
    32769,
    0xabcd - 6,
    65519,
    65520,
    65529,
    65530,
    65536,
    65537,
    300_001,
];

#[test]
#[ignore = "needs the lab"]
fn blocks_of_every_size_go_there_and_back() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let bytes = noise(size, seed as u64);
        let length = u32::try_from(size).unwrap();
        assert_eq!(client.send(channel, &bytes), (0, length), "{size} bytes");
        assert!(client.receive(channel, 0) == Ok(bytes), "{size} bytes back");
        assert!(client.receive(channel, length) == Ok(pattern(size)), "{size} bytes of pattern");
    }
    client.assert_silent();
}

#[test]
#[ignore = "needs the lab"]
fn sixteen_megabytes_go_there_and_back() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(16 << 20, 16);
    assert_eq!(client.send(channel, &bytes), (0, 16 << 20));
    assert!(client.receive(channel, 0) == Ok(bytes));
}

#[test]
#[ignore = "needs the lab"]
fn a_block_of_no_bytes_is_a_block() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    assert_eq!(client.send(channel, &[]), (0, 0));
    assert_eq!(client.receive(channel, 0), Ok(Vec::new()));
}

/// Parts may have any length, and the next part fills up the last message of a part.
#[test]
#[ignore = "needs the lab"]
fn parts_may_be_cut_anywhere() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..20 {
        let bytes = noise(random.usize(2..6000), round);
        let mut offset = 0;
        while offset < bytes.len() {
            let end = bytes.len().min(offset + random.usize(1..1200));
            let part = Attributes::part(channel, bytes.len(), offset, &bytes[offset..end]);
            let note = client.part(&part.u16(block::CRC, crc16(&bytes))).unwrap();
            let expected = if end < bytes.len() { (5, end) } else { (6, 0) };
            let at = note.u32(block::OFFSET).unwrap_or(0) as usize;
            assert_eq!((note.command, at), expected);
            offset = end;
        }
        assert!(client.receive(channel, 0) == Ok(bytes), "round {round}");
    }
}

/// Each of several clients gets its own answers and its own block back, and no others.
#[test]
#[ignore = "needs the lab"]
fn clients_do_not_meet() {
    let _side = coprocessor(&["bulk-netlink"]);
    let channel = Client::new().channel();
    thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                let mut client = Client::new();
                for round in 0..12u64 {
                    let size = [100, 40_000, 7_000, 90_000][((round + number) % 4) as usize];
                    let bytes = noise(size, number << 8 | round);
                    let length = u32::try_from(size).unwrap();
                    assert_eq!(client.send(channel, &bytes), (0, length));
                    assert!(client.receive(channel, 0) == Ok(bytes), "{number}, round {round}");
                }
                client.assert_silent();
            });
        }
    });
}

/// While one transfers a large block, small blocks of another still make progress.
#[test]
#[ignore = "needs the lab"]
fn a_large_block_leaves_room_for_small_ones() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let large = thread::spawn(move || {
        let mut client = Client::new();
        let bytes = noise(1 << 20, 1);
        assert_eq!(client.send(channel, &bytes), (0, 1 << 20));
        Instant::now()
    });
    let mut small = 0;
    while !large.is_finished() {
        assert_eq!(client.send(channel, b"small"), (0, 5));
        small += 1;
    }
    large.join().unwrap();
    assert!(small >= 4, "{small} small blocks while 32 parts of a large one went");
}

/// With a remote that takes nothing, the ring fills, no task waits in the kernel, nothing is lost.
#[test]
#[ignore = "needs the lab"]
fn a_full_ring_pushes_back() {
    let side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    assert_eq!(client.send(channel, b"opened"), (0, 6));
    let bytes = noise(400_000, 4);

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let began = Instant::now();
    let mut offset = 0;
    let waits = loop {
        let end = offset + PART_MAX;
        let part = Attributes::part(channel, bytes.len(), offset, &bytes[offset..end]);
        client.request(command::SEND, &part.u16(block::CRC, crc16(&bytes))).unwrap();
        match client.within(Duration::from_secs(3)) {
            Some(note) => assert_eq!(note.unwrap().command, command::SEND_NEXT_NTF),
            None => break offset,
        }
        offset = end;
    };
    assert!(began.elapsed() < Duration::from_secs(20));
    // 256 messages of 496 bytes, and one part that is kept.
    assert!((80_000..130_000).contains(&waits), "{waits} bytes went");

    // One part at a time, and another client does not overtake.
    let next = Attributes::part(channel, bytes.len(), offset + PART_MAX, &bytes[..PART_MAX]);
    assert_eq!(client.request(command::SEND, &next).unwrap_err().errno, Errno::BUSY);
    let mut other = Client::new();
    let nowait = Attributes::part(channel, 3, 0, b"now").flag(block::NOWAIT);
    let refused = other.request(command::SEND, &nowait).unwrap_err();
    assert_eq!((refused.errno, &*refused.message), (Errno::AGAIN, "the ring of the bus is full"));
    // Other requests are not delayed by this.
    assert_eq!(other.channel(), channel);

    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    assert_eq!(client.note().command, command::SEND_NEXT_NTF);
    offset += PART_MAX;
    while offset < bytes.len() {
        let end = bytes.len().min(offset + PART_MAX);
        let part = Attributes::part(channel, bytes.len(), offset, &bytes[offset..end]);
        let note = client.part(&part).unwrap();
        if end == bytes.len() {
            assert_eq!(note.done(), (0, 400_000));
        }
        offset = end;
    }
    assert!(client.receive(channel, 0) == Ok(bytes));
    assert_eq!(other.send(channel, b"now"), (0, 3));
}

/// The driver accepts and reports the bytes that fit; the block continues from there.
#[test]
#[ignore = "needs the lab"]
fn nowait_takes_what_there_is_room_for() {
    let side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    assert_eq!(client.send(channel, b"opened"), (0, 6));
    let bytes = noise(200_000, 5);
    let part = |offset: usize| {
        let end = bytes.len().min(offset + PART_MAX);
        let part = Attributes::part(channel, bytes.len(), offset, &bytes[offset..end]);
        part.u16(block::CRC, crc16(&bytes)).flag(block::NOWAIT)
    };

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let mut offset = 0;
    let refused = loop {
        match client.part(&part(offset)) {
            Ok(note) => {
                assert_eq!(note.command, command::SEND_NEXT_NTF);
                let taken = note.u32(block::OFFSET).unwrap() as usize;
                assert!(taken > offset);
                offset = taken;
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.errno, Errno::AGAIN);
    assert!(!offset.is_multiple_of(PART_MAX) && offset > 100_000, "{offset} bytes went");
    client.assert_silent();

    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    while offset < bytes.len() {
        match client.part(&part(offset)) {
            Ok(note) if note.command == command::SEND_DONE_NTF => {
                assert_eq!(note.done(), (0, 200_000));
                break;
            }
            Ok(note) => offset = note.u32(block::OFFSET).unwrap() as usize,
            Err(refused) => assert_eq!(refused.errno, Errno::AGAIN),
        }
    }
    assert!(client.receive(channel, 0) == Ok(bytes));
}

/// A slow reader makes the remote wait; the kernel keeps a window, not a block.
#[test]
#[ignore = "needs the lab"]
fn a_slow_reader_pushes_back() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let wanted = Attributes::new().u32(block::CHANNEL, channel).u32(block::LENGTH, 1 << 20);
    client.request(command::RECEIVE, &wanted).unwrap();
    let mut bytes = Vec::new();
    while !client.take_part(&mut bytes).unwrap() {
        if bytes.len().is_multiple_of(1 << 18) {
            thread::sleep(Duration::from_millis(300));
            // Meanwhile the channel is free for others.
            assert_eq!(Client::new().send(channel, b"meanwhile"), (0, 9));
        }
        client.fetch(channel).unwrap();
    }
    assert!(bytes == pattern(1 << 20));
}

/// Several requests in one datagram, none of them with a request for acknowledgement.
#[test]
#[ignore = "needs the lab"]
fn a_small_block_takes_one_request_and_one_notification() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let sequence = client.post(command::SEND, 0, &Attributes::part(channel, 5, 0, b"block"));
    let note = client.note();
    assert_eq!((note.sequence, note.done()), (sequence, (0, 5)));
    let wanted = Attributes::new().u32(block::CHANNEL, channel);
    let sequence = client.post(command::RECEIVE, 0, &wanted);
    let note = client.note();
    assert_eq!((note.sequence, note.data()), (sequence, &b"block"[..]));
    client.assert_silent();
}

#[test]
#[ignore = "needs the lab"]
fn channels_have_numbers_that_are_not_used_again() {
    let mut listener = Client::with(socket());
    listener.join("channels").unwrap();
    let mut side = coprocessor(&["bulk-netlink", "echo"]);
    let mut client = Client::new();
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let id = client.channel();
        assert!(seen.insert(id), "{id} again");
        let one = client.ask(command::CHANNEL_GET, &Attributes::new().u32(channel::ID, id));
        let [all] = &client.channels()[..] else { panic!("one channel") };
        let added = listener.note();
        assert_eq!(added.command, command::CHANNEL_ADD_NTF);
        for answer in [&one.unwrap(), all, &added] {
            assert_eq!(answer.u32(channel::ID), Some(id));
            assert_eq!(answer.text(channel::NAME).as_deref(), Some("rpmsg-netlink"));
            assert_eq!(answer.u32(channel::ADDRESS), Some(0x400));
            assert_eq!(answer.u32(channel::MTU), Some(496));
            let device = answer.text(channel::DEVICE).unwrap();
            assert!(std::path::Path::new("/sys/bus/rpmsg/devices").join(device).exists());
        }
        side.kill().unwrap();
        let gone = listener.note();
        assert_eq!((gone.command, gone.u32(channel::ID)), (command::CHANNEL_DEL_NTF, Some(id)));
        side.start().unwrap();
    }
}
