//! Each errno that a request can return, and the kernel's message for it.
//!
//! Random requests must do no harm. `ENOMEM` is in `fault.rs`, and errors caused by a remote are in
//! `remote.rs`.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::thread;

use busbar::bulk::packet::crc16;
use busbar_uapi::rpmsg_netlink::{PART_MAX, block, channel, command};
use client::{Attributes, Client, Refusal, coprocessor, noise, socket};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities, unshare_unsafe};

/// The attribute of the request that a refusal points at.
fn blamed(refusal: &Refusal, attributes: &Attributes) -> Option<u16> {
    let at = refusal.offset? as usize - 20;
    Some(u16::from_ne_bytes(attributes.0[at + 2..at + 4].try_into().unwrap()))
}

/// Makes a request that must be refused with this error, because of this attribute.
fn refuse(
    client: &mut Client,
    command: u8,
    attributes: &Attributes,
    errno: Errno,
    attribute: Option<u16>,
    said: &str,
) {
    let refusal = client.request(command, attributes).expect_err(said);
    assert_eq!((refusal.errno, &*refusal.message), (errno, said));
    assert_eq!(blamed(&refusal, attributes), attribute, "{said}");
}

fn of(channel: u32) -> Attributes {
    Attributes::new().u32(block::CHANNEL, channel)
}

#[test]
#[ignore = "needs the lab"]
fn requests_need_a_channel() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let data = Attributes::new().u32(block::LENGTH, 1).bytes(block::DATA, b"x");
    let nothing = Attributes::new();
    for (command, without) in [
        (command::SEND, &data),
        (command::RECEIVE, &nothing),
        (command::FETCH, &nothing),
        (command::RESET, &nothing),
        (command::CHANNEL_GET, &nothing),
    ] {
        let refusal = client.request(command, without).unwrap_err();
        assert_eq!((refusal.errno, &*refusal.message), (Errno::INVAL, "the channel is missing"));
        assert_eq!(refusal.missing, Some(block::CHANNEL.into()));

        let none = Attributes(without.0.clone()).u32(block::CHANNEL, 0x7fff_0000);
        let said = "there is no such channel";
        refuse(&mut client, command, &none, Errno::NODEV, Some(block::CHANNEL), said);

        let zero = Attributes(without.0.clone()).u32(block::CHANNEL, 0);
        let refusal = client.request(command, &zero).unwrap_err();
        assert_eq!(refusal.errno, Errno::RANGE);
        assert_eq!(blamed(&refusal, &zero), Some(block::CHANNEL));
    }
    assert_eq!(channel::ID, block::CHANNEL);
}

#[test]
#[ignore = "needs the lab"]
fn attributes_have_their_form() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    // Too short, too long, of another command, of none.
    for (command, bad, errno) in [
        (command::SEND, of(channel).bytes(block::LENGTH, b"x"), Errno::INVAL),
        (command::SEND, of(channel).u32(block::CRC, 0), Errno::INVAL),
        (command::SEND, of(channel).u32(block::NOWAIT, 0), Errno::RANGE),
        (command::SEND, of(channel).u32(block::TIMEOUT, 0), Errno::RANGE),
        (command::RECEIVE, of(channel).u32(block::TIMEOUT, 0), Errno::RANGE),
        (command::FETCH, of(channel).u32(block::TIMEOUT, 0), Errno::RANGE),
        (command::RESET, of(channel).u32(block::TIMEOUT, 1), Errno::INVAL),
        (command::SEND, of(channel).u32(block::STATUS, 0), Errno::INVAL),
        (command::SEND, of(channel).u32(99, 0), Errno::INVAL),
        (command::RECEIVE, of(channel).u32(block::OFFSET, 0), Errno::INVAL),
        (command::FETCH, of(channel).u32(block::LENGTH, 0), Errno::INVAL),
        (command::RESET, of(channel).u32(block::LENGTH, 0), Errno::INVAL),
        (command::CHANNEL_GET, of(channel).u32(channel::MTU, 0), Errno::INVAL),
    ] {
        let refusal = client.request(command, &bad).unwrap_err();
        assert_eq!(refusal.errno, errno, "{command}: {refusal:?}");
        assert!(!refusal.message.is_empty(), "{command}");
    }
    for command in [0, 2, 5, 6, 9, 11, 12, 255] {
        let refusal = client.request(command, &of(channel)).unwrap_err();
        assert_eq!(refusal.errno, Errno::OPNOTSUPP, "command {command}");
    }
    client.assert_silent();
}

#[test]
#[ignore = "needs the lab"]
fn parts_that_do_not_fit_are_refused() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(3000, 1);
    let mut refuse = |attributes: &Attributes, errno, attribute, said| {
        refuse(&mut client, command::SEND, attributes, errno, attribute, said);
    };
    let part = |length, offset, data: &[u8]| Attributes::part(channel, length, offset, data);

    let data = Some(block::DATA);
    refuse(
        &of(channel).bytes(block::DATA, b"x"),
        Errno::INVAL,
        None,
        "the length of the block is missing",
    );
    refuse(&of(channel).u32(block::LENGTH, 1), Errno::INVAL, None, "the data is missing");
    refuse(&part(5, 0, b""), Errno::INVAL, data, "the part is empty");
    for (length, offset, data_len) in [(1, 0, 2), (10, 9, 2), (10, 11, 1), (0, 0, 1)] {
        let part = part(length, offset, &bytes[..data_len]);
        refuse(&part, Errno::INVAL, data, "the part extends beyond the block");
    }
    let part_max = vec![0; PART_MAX + 1];
    let said = "the part is too long";
    refuse(&part(PART_MAX + 1, 0, &part_max), Errno::MSGSIZE, data, said);
    refuse(
        &part(3000, 0, &bytes[..9]),
        Errno::INVAL,
        None,
        "the first part of several needs the block's checksum",
    );
    let said = "no block is being sent";
    refuse(&part(3000, 9, &bytes[..9]), Errno::INVAL, Some(block::OFFSET), said);

    // A block continues at its position, with its length and checksum. No refusal ends it.
    let sealed = |part: Attributes| part.u16(block::CRC, crc16(&bytes));
    let note = client.part(&sealed(part(3000, 0, &bytes[..1000]))).unwrap();
    assert_eq!(note.command, command::SEND_NEXT_NTF);
    let mut refuse = |attributes: &Attributes, errno, attribute, said| {
        refuse_in(&mut client, attributes, errno, attribute, said);
    };
    let (at, length) = (Some(block::OFFSET), Some(block::LENGTH));
    refuse(
        &part(3000, 999, &bytes[..9]),
        Errno::INVAL,
        at,
        "the part does not follow the previous one",
    );
    refuse(
        &part(3001, 1000, &bytes[..9]),
        Errno::INVAL,
        length,
        "the length differs from that of the first part",
    );
    let other = part(3000, 1000, &bytes[..9]).u16(block::CRC, !crc16(&bytes));
    let said = "the checksum differs from that of the first part";
    refuse(&other, Errno::INVAL, Some(block::CRC), said);
    let said = "another block is in progress";
    refuse(&sealed(part(3000, 0, &bytes[..9])), Errno::BUSY, Some(block::CHANNEL), said);
    assert_eq!(client.request(command::RECEIVE, &of(channel)).unwrap_err().errno, Errno::BUSY);
    let under_way = "another block, or the previous part, is in progress";
    let fetched = client.fetch(channel).unwrap_err();
    assert_eq!((fetched.errno, &*fetched.message), (Errno::BUSY, under_way));

    let note = client.part(&part(3000, 1000, &bytes[1000..])).unwrap();
    assert_eq!(note.done(), (0, 3000));
    assert!(client.receive(channel, 0) == Ok(bytes));
}

fn refuse_in(
    client: &mut Client,
    attributes: &Attributes,
    errno: Errno,
    attribute: Option<u16>,
    said: &str,
) {
    refuse(client, command::SEND, attributes, errno, attribute, said);
}

/// `EBADMSG`: the coprocessor detects it, and keeps its last block.
#[test]
#[ignore = "needs the lab"]
fn a_wrong_check_sum_is_told() {
    let _side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let good = noise(700, 1);
    assert_eq!(client.send(channel, &good), (0, 700));
    let bad = noise(3000, 2);
    let wrong = !crc16(&bad);
    let refused = (Errno::BADMSG.raw_os_error().unsigned_abs(), 3000);

    let whole = Attributes::part(channel, 3000, 0, &bad).u16(block::CRC, wrong);
    assert_eq!(client.part(&whole).unwrap().done(), refused);
    assert!(client.receive(channel, 0) == Ok(good.clone()));

    for cut in [1000, 2504, 2989, 2999] {
        let first = Attributes::part(channel, 3000, 0, &bad[..cut]).u16(block::CRC, wrong);
        assert_eq!(client.part(&first).unwrap().command, command::SEND_NEXT_NTF);
        let second = Attributes::part(channel, 3000, cut, &bad[cut..]);
        assert_eq!(client.part(&second).unwrap().done(), refused, "cut at {cut}");
        assert!(client.receive(channel, 0) == Ok(good.clone()), "cut at {cut}");
        // The next one works at once.
        assert_eq!(client.send(channel, &good), (0, 700));
    }
    client.assert_silent();
}

#[test]
#[ignore = "needs the lab"]
fn one_block_at_a_time() {
    let side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let taken = Some(block::CHANNEL);
    assert_eq!(client.send(channel, b"opened"), (0, 6));

    let none = "no block is being received";
    refuse(&mut client, command::FETCH, &of(channel), Errno::INVAL, taken, none);

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let part = Attributes::part(channel, 5, 0, b"first");
    client.request(command::SEND, &part).unwrap();
    let said = "another block is in progress";
    refuse(&mut client, command::SEND, &part, Errno::BUSY, taken, said);
    refuse(&mut client, command::RECEIVE, &of(channel), Errno::BUSY, taken, said);
    let later = Attributes::part(channel, 5, 4, b"t");
    let under_way = "another block, or the previous part, is in progress";
    refuse(&mut client, command::SEND, &later, Errno::BUSY, taken, under_way);
    refuse(&mut client, command::FETCH, &of(channel), Errno::BUSY, taken, under_way);
    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    assert_eq!(client.note().done(), (0, 5));

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    client.request(command::RECEIVE, &of(channel)).unwrap();
    refuse(&mut client, command::SEND, &part, Errno::BUSY, taken, said);
    refuse(&mut client, command::RECEIVE, &of(channel), Errno::BUSY, taken, said);
    refuse(&mut client, command::FETCH, &of(channel), Errno::BUSY, taken, under_way);
    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    assert_eq!(client.note().data(), b"first");
}

/// Waiting clients get `ECANCELED`; then everything starts again.
#[test]
#[ignore = "needs the lab"]
fn reset_ends_what_is_under_way() {
    const CANCELED: u32 = 125;
    let side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    client.reset(channel).unwrap();
    assert_eq!(client.send(channel, b"opened"), (0, 6));

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let sent = client.request(command::SEND, &Attributes::part(channel, 5, 0, b"first")).unwrap();
    client.reset(channel).unwrap();
    let note = client.note();
    assert_eq!((note.sequence, note.done()), (sent, (CANCELED, 0)));
    let asked = client.request(command::RECEIVE, &of(channel).u32(block::LENGTH, 9)).unwrap();
    client.reset(channel).unwrap();
    let note = client.note();
    assert_eq!((note.command, note.sequence), (command::DATA_NTF, asked));
    assert_eq!(note.u32(block::STATUS), Some(CANCELED));
    kill_process(side.process().unwrap(), Signal::CONT).unwrap();

    // In the middle of sending a block, and of receiving one.
    let bytes = noise(100_000, 1);
    let part = Attributes::part(channel, 100_000, 0, &bytes[..PART_MAX]);
    client.part(&part.u16(block::CRC, crc16(&bytes))).unwrap();
    client.reset(channel).unwrap();
    assert_eq!(client.send(channel, &bytes), (0, 100_000));
    client.request(command::RECEIVE, &of(channel)).unwrap();
    assert!(!client.take_part(&mut Vec::new()).unwrap());
    client.reset(channel).unwrap();
    assert_eq!(client.fetch(channel).unwrap_err().errno, Errno::INVAL);
    assert_eq!(client.send(channel, b"again"), (0, 5));
    assert_eq!(client.receive(channel, 0), Ok(b"again".to_vec()));
    client.assert_silent();
}

/// `EPERM`: every user can list channels, and only the administrator can use them.
#[test]
#[ignore = "needs the lab"]
fn using_a_channel_needs_cap_net_admin() {
    let _side = coprocessor(&["bulk-netlink"]);
    let channel = Client::new().channel();
    let unprivileged = move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        let mut client = Client::with(socket());
        assert_eq!(client.channel(), channel);
        assert_eq!(client.join("channels"), Ok(()));
        assert_eq!(client.join("messages"), Err(Errno::PERM));
        let part = Attributes::part(channel, 1, 0, b"x");
        for (command, attributes) in [
            (command::SEND, &part),
            (command::RECEIVE, &of(channel)),
            (command::FETCH, &of(channel)),
            (command::RESET, &of(channel)),
        ] {
            assert_eq!(client.request(command, attributes).unwrap_err().errno, Errno::PERM);
        }
    };
    thread::spawn(unprivileged).join().unwrap();
}

/// A socket in another network namespace works as well.
#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn a_client_may_be_in_a_network_of_its_own() {
    let _side = coprocessor(&["bulk-netlink"]);
    let elsewhere = || {
        // SAFETY: only the network namespace of this thread changes.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        let mut client = Client::new();
        let channel = client.channel();
        let bytes = noise(70_000, 1);
        assert_eq!(client.send(channel, &bytes), (0, 70_000));
        assert!(client.receive(channel, 0) == Ok(bytes));
    };
    thread::spawn(elsewhere).join().unwrap();
}

/// A request to the right family with random content.
fn mangled(client: &mut Client, channel: u32, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut attributes = Attributes::new();
    for _ in 0..random.usize(..7) {
        let kind = random.u16(..10) | [0, 0, 0, 0x4000, 0x8000][random.usize(..5)];
        attributes = match random.u8(..4) {
            0 => attributes.u32(block::CHANNEL, channel),
            1 => attributes.u32(kind, [0, 1, 100, u32::MAX, random.u32(..)][random.usize(..5)]),
            2 => attributes.bytes(kind, &noise(random.usize(..200), random.u64(..))),
            _ => attributes.bytes(block::DATA, &noise(random.usize(..2000), random.u64(..))),
        };
    }
    let flags = [0, 0, 0x004, 0x300, 0x304][random.usize(..5)];
    let mut message = client.message(random.u8(..14), flags, &attributes);
    // The family stays, or the request would go to another one.
    for _ in 0..random.usize(..4) {
        let at = random.usize(16..message.len());
        message[at] = random.u8(..);
    }
    match random.u8(..8) {
        0 => message.truncate(random.usize(16..=message.len())),
        1 => message[..2].copy_from_slice(&random.u16(..).to_ne_bytes()),
        _ => {}
    }
    message
}

#[test]
#[ignore = "needs the lab"]
fn noise_does_no_harm() {
    let _side = coprocessor(&["bulk-netlink"]);
    let channel = Client::new().channel();
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..100 {
        // A new socket each time: the buffer of this one is full of answers.
        let mut client = Client::new();
        for _ in 0..20 {
            let message = mangled(&mut client, channel, &mut random);
            let _ = client.try_post_raw(&message);
        }
    }
    let mut client = Client::new();
    let good = noise(5000, 1);
    assert_eq!(client.send(channel, &good), (0, 5000));
    assert!(client.receive(channel, 0) == Ok(good));
    client.assert_silent();
}
