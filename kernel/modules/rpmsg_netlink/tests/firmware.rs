//! The firmware of the `rpmsg-netlink` example for the STM32MP1, which only answers lengths.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::process::Command;
use std::thread;

use busbar::bulk::packet::crc16;
use busbar_lab::stage::Side;
use busbar_uapi::rpmsg_netlink::{PLAIN_MAX, block, command};
use client::{Attributes, Client, Note, coprocessor, noise};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use support::busbar;

const LONGEST: usize = PLAIN_MAX as usize;
/// Numbers of `errno.h`, as in messages.
const BUSY: u32 = 16;
const MSGSIZE: u32 = 90;
const OPNOTSUPP: u32 = 95;
const TIMEDOUT: u32 = 110;
const CANCELED: u32 = 125;

fn firmware() -> Side {
    coprocessor(&["stm32mp1"])
}

fn status(note: &Note) -> u32 {
    note.u32(block::STATUS).unwrap()
}

fn of(channel: u32) -> Attributes {
    Attributes::new().u32(block::CHANNEL, channel)
}

fn part(channel: u32, bytes: &[u8], offset: usize, end: usize) -> Attributes {
    Attributes::part(channel, bytes.len(), offset, &bytes[offset..end])
        .u16(block::CRC, crc16(bytes))
}

/// As [`Client::send`], repeated while the firmware has another client's block.
fn send_in_turn(client: &mut Client, channel: u32, bytes: &[u8]) {
    let whole = Attributes::part(channel, bytes.len(), 0, bytes);
    loop {
        let busy = match client.part(&whole) {
            Ok(note) => match note.done() {
                (BUSY, _) => true,
                done => {
                    assert_eq!(done, (0, u32::try_from(bytes.len()).unwrap()));
                    false
                }
            },
            Err(refusal) => {
                assert_eq!(refusal.errno, Errno::BUSY);
                true
            }
        };
        if !busy {
            return;
        }
        thread::yield_now();
    }
}

#[test]
#[ignore = "needs the lab"]
fn blocks_of_every_size_are_taken() {
    let _firmware = firmware();
    let mut client = Client::new();
    let channel = client.channel();
    for (seed, size) in
        [5, 0, 1, 2, 489, 490, 491, 506, 986, 4096, 16384, 32756, LONGEST].into_iter().enumerate()
    {
        let bytes = noise(size, seed as u64);
        assert_eq!(client.send(channel, &bytes), (0, u32::try_from(size).unwrap()), "{size} bytes");
    }
    // The sizes of the example are those of packets.
    for size in [512, 1024, 2048, 4096, 8192, 16384, 32768] {
        let bytes = noise(size - 6, 1);
        let length = u32::try_from(size - 6).unwrap();
        assert_eq!(client.send(channel, &bytes), (0, length), "{size} bytes with the header");
    }
    client.assert_silent();
}

#[test]
#[ignore = "needs the lab"]
fn a_block_may_come_in_parts() {
    let _firmware = firmware();
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(3000, 1);
    for cut in [1, 489, 490, 491, 2999] {
        let note = client.part(&part(channel, &bytes, 0, cut)).unwrap();
        assert_eq!(note.command, command::SEND_NEXT_NTF);
        assert_eq!(client.part(&part(channel, &bytes, cut, 3000)).unwrap().done(), (0, 3000));
    }
}

/// All its answers go to one address, and each is given to the right client.
#[test]
#[ignore = "needs the lab"]
fn clients_take_turns() {
    let _firmware = firmware();
    let channel = Client::new().channel();
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let mut client = Client::new();
                for round in 0..8 {
                    send_in_turn(&mut client, channel, &noise(700 + number * 1300 + round, 1));
                }
                client.assert_silent();
            });
        }
    });
}

/// `EOPNOTSUPP`, `EMSGSIZE` and `EBUSY`, at once; nothing is sent to the firmware.
#[test]
#[ignore = "needs the lab"]
fn what_it_cannot_do_is_refused() {
    let _firmware = firmware();
    let mut client = Client::new();
    let channel = client.channel();
    assert_eq!(client.send(channel, b"opened"), (0, 6));

    let refusal = client.request(command::RECEIVE, &of(channel)).unwrap_err();
    assert_eq!(
        (refusal.errno, &*refusal.message),
        (Errno::OPNOTSUPP, "the firmware cannot send blocks")
    );
    let long = noise(LONGEST + 1, 1);
    let refusal = client.request(command::SEND, &part(channel, &long, 0, 1000)).unwrap_err();
    assert_eq!(
        (refusal.errno, &*refusal.message),
        (Errno::MSGSIZE, "the block is too long for the firmware")
    );
    assert!(refusal.offset.is_some());

    let bytes = noise(3000, 1);
    client.part(&part(channel, &bytes, 0, 1000)).unwrap();
    let mut other = Client::new();
    let whole = Attributes::part(channel, 4, 0, b"more");
    let refusal = other.request(command::SEND, &whole).unwrap_err();
    assert_eq!(
        (refusal.errno, &*refusal.message),
        (Errno::BUSY, "the firmware is receiving another client's block")
    );
    assert_eq!(client.part(&part(channel, &bytes, 1000, 3000)).unwrap().done(), (0, 3000));
    assert_eq!(other.send(channel, b"more"), (0, 4));
    other.assert_silent();
}

/// The first requests are accepted before the kind of firmware is known.
#[test]
#[ignore = "needs the lab"]
fn what_it_cannot_do_is_found_out_by_the_first_requests() {
    let firmware = firmware();
    let channel = Client::new().channel();
    kill_process(firmware.process().unwrap(), Signal::STOP).unwrap();
    let mut reader = Client::new();
    let asked = reader.request(command::RECEIVE, &of(channel)).unwrap();
    let mut long = Client::new();
    let bytes = noise(LONGEST + 1, 1);
    let first = part(channel, &bytes, 0, LONGEST);
    long.request(command::SEND, &first).unwrap();
    let mut impatient = Client::new();
    let nowait = Attributes::part(channel, 3, 0, b"now").flag(block::NOWAIT);
    let refusal = impatient.request(command::SEND, &nowait).unwrap_err();
    assert_eq!(
        (refusal.errno, &*refusal.message),
        (Errno::AGAIN, "the coprocessor has not answered yet")
    );
    let mut senders: Vec<_> = (0..2).map(|_| Client::new()).collect();
    for sender in &mut senders {
        sender.request(command::SEND, &Attributes::part(channel, 5, 0, b"early")).unwrap();
    }
    kill_process(firmware.process().unwrap(), Signal::CONT).unwrap();

    let note = reader.note();
    assert_eq!((note.command, note.sequence), (command::DATA_NTF, asked));
    assert_eq!(status(&note), OPNOTSUPP);
    assert_eq!(long.note().done(), (MSGSIZE, 0));
    // One of them is first.
    let ends: Vec<_> = senders.iter_mut().map(|sender| sender.note().done()).collect();
    assert!(ends.contains(&(0, 5)), "{ends:?}");
    assert!(ends.iter().all(|end| [(0, 5), (BUSY, 0)].contains(end)), "{ends:?}");
    for sender in &mut senders {
        send_in_turn(sender, channel, b"later");
    }
}

/// The firmware waits for the rest of a block, even if its client is gone.
#[test]
#[ignore = "needs the lab"]
fn a_block_that_is_given_up_harms_nobody() {
    let firmware = firmware();
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(20_000, 1);
    for cut in [1, 10, 490, 5000, 19_999] {
        // By a client that closes its socket,
        let mut other = Client::new();
        other.part(&part(channel, &bytes, 0, cut)).unwrap();
        drop(other);
        assert_eq!(client.send(channel, b"after"), (0, 5), "closed after {cut} bytes");
        // or that resets the block.
        client.part(&part(channel, &bytes, 0, cut)).unwrap();
        client.reset(channel).unwrap();
        assert_eq!(client.send(channel, b"after"), (0, 5), "reset after {cut} bytes");
    }
    // Its answer comes too late.
    for late in [CANCELED, TIMEDOUT] {
        kill_process(firmware.process().unwrap(), Signal::STOP).unwrap();
        let whole = Attributes::part(channel, bytes.len(), 0, &bytes);
        let whole = if late == TIMEDOUT { whole.u32(block::TIMEOUT, 300) } else { whole };
        client.request(command::SEND, &whole).unwrap();
        if late == CANCELED {
            client.reset(channel).unwrap();
        }
        assert_eq!(client.note().done(), (late, 0));
        kill_process(firmware.process().unwrap(), Signal::CONT).unwrap();
        assert_eq!(client.send(channel, &bytes), (0, 20_000));
    }
    client.assert_silent();
}

/// A crash ends it, and the kind of firmware is detected again.
#[test]
#[ignore = "needs the lab"]
fn it_may_crash() {
    let mut firmware = firmware();
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(3000, 1);
    client.part(&part(channel, &bytes, 0, 1000)).unwrap();
    firmware.kill().unwrap();
    let refusal = client.request(command::SEND, &part(channel, &bytes, 1000, 3000)).unwrap_err();
    assert_eq!(refusal.errno, Errno::NODEV);
    firmware.start().unwrap();
    let channel = client.channel();
    assert_eq!(client.send(channel, &bytes), (0, 3000));
}

#[test]
#[ignore = "needs the lab"]
fn the_command_sends_to_it() {
    let firmware = firmware();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("block");
    std::fs::write(&file, noise(10_000, 1)).unwrap();
    let bulk = |verb: &str| {
        let mut command = Command::new(busbar());
        command.args(["bulk", verb]).arg(&file).args(["--transport", "netlink", "--timeout", "60"]);
        command.arg("--controller").arg(firmware.controller()).output().unwrap()
    };
    let sent = bulk("send");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let received = bulk("receive");
    let said = String::from_utf8_lossy(&received.stderr);
    assert!(
        !received.status.success() && said.contains("receives blocks and sends none"),
        "{said}"
    );
}
