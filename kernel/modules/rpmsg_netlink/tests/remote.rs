//! A remote that crashes, sends wrong answers, or none.
//!
//! Here the test itself is the coprocessor. It sees each message that the driver sends, and
//! can answer anything.

// The coprocessor is this process, which a 32-bit program cannot be.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod client;

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use busbar::bulk::packet::{Control, Cutter, Event, Joiner, crc16};
use busbar_coprocessor::remoteproc::Coprocessor;
use busbar_coprocessor::service::Services;
use busbar_coprocessor::{Core, Options, Stop, StopHandle};
use busbar_uapi::rpmsg_netlink::{
    PART_MAX, TIMEOUT, WINDOW, block, channel as channel_attribute, command,
};
use client::{
    Attributes, BROADCAST_ERROR, Client, Note, coprocessor, noise, pattern, set_option, socket,
};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, move_into_link_name_space,
    set_capabilities, unshare_unsafe,
};
use support::messenger::Messenger;
use support::{modprobe, wait_until};

const CORE: &str = "/dev/vcoproc0";
/// Numbers of `errno.h`, as in messages.
const PROTO: u32 = 71;
const BADMSG: u32 = 74;
const PIPE: u32 = 32;
const NODATA: u32 = 61;
const OPNOTSUPP: u32 = 95;
const INTR: u32 = 4;
const TIMEDOUT: u32 = 110;

/// The coprocessor, controlled by the test.
struct Remote {
    came: Receiver<(u32, Vec<u8>)>,
    to_send: Sender<(u32, Vec<u8>)>,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    fn up() -> Self {
        modprobe(&["-a", "virtio_rpmsg_bus", "rpmsg_ns", "rpmsg_netlink", "vcoproc"]).unwrap();
        let (puppet, came, to_send) = Messenger::new("rpmsg-netlink");
        let stop = Stop::new().unwrap();
        let handle = stop.handle();
        let thread = thread::spawn(move || {
            let mut services = Services::default();
            services.add(puppet).unwrap();
            let core = Core::open(CORE).unwrap();
            let coprocessor = Coprocessor::find(Path::new(CORE)).unwrap();
            let remoteproc = Some(&coprocessor.remoteproc);
            let options = Options { stop: Some(&stop), remoteproc, ..Options::default() };
            core.run(&mut services, &options, &mut |_| {}).1.unwrap();
        });
        Self { came, to_send, stop: handle, thread: Some(thread) }
    }

    fn send(&self, to: u32, message: impl AsRef<[u8]>) {
        self.to_send.send((to, message.as_ref().to_vec())).unwrap();
    }

    fn next(&self) -> (u32, Vec<u8>) {
        self.came.recv_timeout(Duration::from_secs(60)).expect("a message of the driver")
    }

    /// Takes the next message, which has to be this packet without a block.
    fn control(&self) -> (u32, Control) {
        let (from, message) = self.next();
        let mut joiner = Joiner::new(1 << 20);
        let event = joiner.push(&message).next();
        let Some(Event::Control(control)) = event else { panic!("{event:?} from {from:#x}") };
        (from, control)
    }

    /// Answers the opening of a conversation, or a reset. Returns the sender's address.
    fn opening(&self) -> u32 {
        loop {
            let (from, message) = self.next();
            if let Some(Event::Control(Control::Reset { value })) =
                Joiner::new(1 << 20).push(&message).next()
            {
                self.send(from, &*Control::ResetDone { value }.encode());
                return from;
            }
        }
    }

    /// Answers all resets, until no message comes any more.
    fn settle(&self) {
        while let Ok((from, message)) = self.came.recv_timeout(Duration::from_millis(100)) {
            let event = Joiner::new(1 << 20).push(&message).next();
            if let Some(Event::Control(Control::Reset { value })) = event {
                self.send(from, &*Control::ResetDone { value }.encode());
            }
        }
    }

    /// Joins messages to a block.
    fn block(&self) -> Vec<u8> {
        let mut joiner = Joiner::new(1 << 24);
        loop {
            let (_, message) = self.next();
            if let Some(event) = joiner.push(&message).next() {
                let Event::Block(received) = event else { panic!("{event:?}") };
                return received.bytes;
            }
        }
    }
}

impl Drop for Remote {
    /// At once, without withdrawing the name, for which lockdep reports a fault of the bus
    /// (docs/endpoint.md).
    fn drop(&mut self) {
        self.stop.stop_at_once();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
        let coprocessor = Coprocessor::find(Path::new(CORE)).unwrap();
        let _ = coprocessor.remoteproc.stop();
    }
}

/// A conversation that has been opened.
struct Talk {
    remote: Remote,
    client: Client,
    channel: u32,
    /// The client's address.
    address: u32,
}

impl Talk {
    fn new() -> Self {
        let remote = Remote::up();
        let mut client = Client::new();
        let channel = client.channel();
        client.reset(channel).unwrap();
        // First the driver detects the kind of firmware.
        let own = default_address(&mut client);
        assert_eq!(remote.opening(), own);
        let address = remote.opening();
        assert_ne!(address, own);
        Self { remote, client, channel, address }
    }

    fn post(&mut self, bytes: &[u8]) {
        let part = Attributes::part(self.channel, bytes.len(), 0, bytes);
        self.client.request(command::SEND, &part).unwrap();
    }

    fn ask(&mut self, wanted: u32) {
        let wanted = Attributes::new().u32(block::CHANNEL, self.channel).u32(block::LENGTH, wanted);
        self.client.request(command::RECEIVE, &wanted).unwrap();
        let (_, control) = self.remote.control();
        assert!(matches!(control, Control::Receive { credit: WINDOW, .. }), "{control:?}");
    }

    fn say(&self, message: impl AsRef<[u8]>) {
        self.remote.send(self.address, message);
    }

    fn status(&self, length: u32, status: u32) {
        self.say(&*Control::Status { length, status }.encode());
    }

    /// After an invalid answer the driver starts again, and then everything works.
    fn recovers(&mut self) {
        assert_eq!(self.remote.opening(), self.address);
        self.works();
    }

    fn works(&mut self) {
        self.post(b"good");
        assert_eq!(self.remote.block(), b"good");
        self.say(10u16.to_le_bytes());
        assert_eq!(self.client.note().done(), (0, 4));
        self.ask(3);
        for message in packet(&[0, 1, 2]) {
            self.say(message);
        }
        assert_eq!(self.client.note().data(), [0, 1, 2]);
        assert_eq!(self.remote.next().1, 9u16.to_le_bytes());
        self.client.assert_silent();
    }

    /// Waits for the end of a request. The driver may still have waited for the answer of a reset when
    /// the message that should end it came.
    fn ended(&mut self) -> Note {
        loop {
            if let Some(note) = self.client.within(Duration::from_millis(300)) {
                return note.unwrap();
            }
            self.remote.settle();
            self.say(b"no packet either");
        }
    }

    fn data_status(&mut self) -> u32 {
        let note = self.client.note();
        assert_eq!(note.command, command::DATA_NTF);
        assert_eq!(note.data(), b"");
        note.u32(block::STATUS).unwrap()
    }
}

/// The messages of a block.
fn packet(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut cutter = Cutter::new(bytes, 496).unwrap();
    let mut messages = Vec::new();
    while let Some(piece) = cutter.piece() {
        let mut message = Vec::new();
        piece.write_to(&mut message);
        messages.push(message);
        cutter.advance();
    }
    messages
}

/// The bytes of the wire format.
#[test]
#[ignore = "needs the lab"]
fn the_wire_is_as_it_is_written() {
    let remote = Remote::up();
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(600, 1);
    let part = Attributes::part(channel, 600, 0, &bytes);
    client.request(command::SEND, &part).unwrap();
    let opened = || {
        let (address, first) = remote.next();
        assert_eq!((first, remote.next()), (vec![0], (address, vec![0])));
        let (from, reset) = remote.control();
        let Control::Reset { value } = reset else { panic!("{reset:?}") };
        assert_eq!(from, address);
        (address, value)
    };

    // The channel itself sends it, once; nothing else is sent before the answer.
    let (own, value) = opened();
    assert_eq!(own, default_address(&mut client));
    remote.send(own, &*Control::ResetDone { value: value ^ 1 }.encode());
    assert!(remote.came.recv_timeout(Duration::from_millis(200)).is_err());
    remote.send(own, &*Control::ResetDone { value }.encode());
    // The conversation.
    let (address, value) = opened();
    assert_ne!(address, own);
    // A message before the answer belongs to another client, even if it is valid.
    remote.send(address, 606u16.to_le_bytes());
    remote.send(address, &*Control::ResetDone { value: value ^ 1 }.encode());
    client.assert_silent();
    remote.send(address, &*Control::ResetDone { value }.encode());

    let mut whole = vec![0xcd, 0xab, 0x5e, 0x02];
    whole.extend(crc16(&bytes).to_le_bytes());
    whole.extend(&bytes);
    assert_eq!(remote.next(), (address, whole[..496].to_vec()));
    assert_eq!(remote.next(), (address, whole[496..].to_vec()));
    remote.send(address, 606u16.to_le_bytes());
    assert_eq!(client.note().done(), (0, 600));

    // The long header, and one message for the header and the bytes that fit behind it.
    for length in [0xabcd - 6, 65_530] {
        let bytes = noise(length, 2);
        let sender = thread::spawn(move || (client.send(channel, &bytes), client, bytes));
        let (_, first) = remote.next();
        assert_eq!((first.len(), &first[..4]), (496, &[0xcd, 0xab, 0, 0][..]));
        let long = u32::try_from(length).unwrap().to_le_bytes();
        assert_eq!(
            (&first[6..8], &first[8..12], &first[12..16]),
            (&[1, 0][..], &long[..], &[0; 4][..])
        );
        let mut joiner = Joiner::new(1 << 20);
        let mut message = first;
        let answer = loop {
            if let Some(event) = joiner.push(&message).next() {
                let Event::Block(received) = &event else { panic!("{event:?}") };
                break (event.answer().unwrap(), received.bytes.clone());
            }
            message = remote.next().1;
        };
        remote.send(address, &*answer.0);
        let (done, back, bytes) = sender.join().unwrap();
        client = back;
        assert_eq!(done, (0, u32::try_from(length).unwrap()));
        assert!(answer.1 == bytes);
    }
}

/// A request with a deadline.
fn within(attributes: Attributes, milliseconds: u32) -> Attributes {
    attributes.u32(block::TIMEOUT, milliseconds)
}

/// Waiting clients get `ETIMEDOUT`, once. A later answer is ignored.
#[test]
#[ignore = "needs the lab"]
fn a_silent_remote_is_told() {
    let mut talk = Talk::new();
    let of = Attributes::new().u32(block::CHANNEL, talk.channel);
    let part = within(Attributes::part(talk.channel, 4, 0, b"good"), 300);
    talk.client.request(command::SEND, &part).unwrap();
    assert_eq!(talk.remote.block(), b"good");
    assert_eq!(talk.client.note().done(), (TIMEDOUT, 0));
    talk.say(10u16.to_le_bytes());
    talk.client.assert_silent();
    talk.recovers();

    let wanted = within(Attributes(of.0.clone()).u32(block::LENGTH, 70_000), 300);
    talk.client.request(command::RECEIVE, &wanted).unwrap();
    talk.remote.control();
    assert_eq!(talk.data_status(), TIMEDOUT);
    talk.recovers();

    // In the middle of a block: the next part has a deadline of its own.
    talk.ask(70_000);
    for message in packet(&pattern(70_000)).into_iter().take(PART_MAX / 496 + 1) {
        talk.say(message);
    }
    assert_eq!(talk.client.note().data().len(), PART_MAX);
    talk.client.request(command::FETCH, &within(of, 300)).unwrap();
    assert_eq!(talk.data_status(), TIMEDOUT);
    let refusal = talk.client.fetch(talk.channel).unwrap_err();
    assert_eq!(refusal.errno, Errno::INVAL);
    // It has credit from before.
    assert!(matches!(talk.remote.control().1, Control::Credit { .. }));
    talk.recovers();
}

/// A remote that does not answer the first reset delays no client, and may answer later, also if the
/// reset was lost.
#[test]
#[ignore = "needs the lab"]
fn a_remote_that_never_answers_is_told() {
    let remote = Remote::up();
    let mut client = Client::new();
    let channel = client.channel();
    for _ in 0..2 {
        let part = within(Attributes::part(channel, 4, 0, b"lost"), 300);
        assert_eq!(client.part(&part).unwrap().done(), (TIMEDOUT, 0));
        let wanted = within(Attributes::new().u32(block::CHANNEL, channel), 300);
        client.request(command::RECEIVE, &wanted).unwrap();
        assert_eq!(client.note().u32(block::STATUS), Some(TIMEDOUT));
    }
    // It has received nothing: it is asked again after a request has timed out.
    while remote.came.recv_timeout(Duration::from_millis(300)).is_ok() {}
    let part = within(Attributes::part(channel, 4, 0, b"lost"), 300);
    assert_eq!(client.part(&part).unwrap().done(), (TIMEDOUT, 0));
    let own = default_address(&mut client);
    assert_eq!(remote.opening(), own);
    // Only the kind is asked; the conversation is opened once.
    let address = loop {
        let from = remote.opening();
        if from != own {
            break from;
        }
    };
    let mut talk = Talk { remote, client, channel, address };
    talk.works();
}

/// A remote may answer the reset after it was taken for the example's firmware.
#[test]
#[ignore = "needs the lab"]
fn a_late_answer_is_no_firmware() {
    let remote = Remote::up();
    let mut client = Client::new();
    let channel = client.channel();
    let wanted = Attributes::new().u32(block::CHANNEL, channel).u32(block::LENGTH, 3);
    client.request(command::RECEIVE, &wanted).unwrap();
    let own = default_address(&mut client);
    assert_eq!((remote.next(), remote.next()), ((own, vec![0]), (own, vec![0])));
    let (_, Control::Reset { value }) = remote.control() else { panic!("no question") };
    remote.send(own, [0, 0]);
    assert_eq!(client.note().u32(block::STATUS), Some(OPNOTSUPP));
    let refusal = client.request(command::RECEIVE, &wanted).unwrap_err();
    assert_eq!(refusal.errno, Errno::OPNOTSUPP);

    remote.send(own, &*Control::ResetDone { value }.encode());
    wait_until("the end of the error", || client.request(command::RECEIVE, &wanted).is_ok());
    let address = remote.opening();
    let (_, control) = remote.control();
    assert!(matches!(control, Control::Receive { length: 3, .. }), "{control:?}");
    let mut talk = Talk { remote, client, channel, address };
    for message in packet(&[0, 1, 2]) {
        talk.say(message);
    }
    assert_eq!(talk.client.note().data(), [0, 1, 2]);
    assert_eq!(talk.remote.next().1, 9u16.to_le_bytes());
    talk.works();
}

/// A request without room in the ring also ends in time, and the driver does not retry all the time.
#[test]
#[ignore = "needs the lab"]
fn a_stuck_remote_is_left_alone() {
    let side = coprocessor(&["bulk-netlink"]);
    let mut client = Client::new();
    let channel = client.channel();
    let bytes = noise(400_000, 4);
    assert_eq!(client.send(channel, b"opened"), (0, 6));
    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let mut offset = 0;
    let log = Tries::new();
    let note = loop {
        let part = &bytes[offset..offset + PART_MAX];
        let part = Attributes::part(channel, bytes.len(), offset, part);
        let part = within(part.u16(block::CRC, crc16(&bytes)), 3000);
        let note = client.part(&part).unwrap();
        if note.command == command::SEND_DONE_NTF {
            break note;
        }
        offset += PART_MAX;
    };
    assert_eq!(note.done(), (TIMEDOUT, 0));
    let tried = log.count();
    assert!((1..150).contains(&tried), "{tried} tries within three seconds");

    // No request waits for the pending reset: it is left to the next request.
    thread::sleep(Duration::from_secs(u64::from(TIMEOUT) / 1000 + 2));
    let before = log.count();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(log.count(), before, "tries with nobody waiting");
    drop(log);
    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    assert_eq!(client.send(channel, &bytes), (0, 400_000));
}

/// How often the driver has tried to send, by the kernel's own count.
struct Tries(&'static str);

impl Tries {
    const EVENT: &str = "/sys/kernel/tracing/events/workqueue/workqueue_execute_start/enable";
    const TRACE: &str = "/sys/kernel/tracing/trace";

    fn new() -> Self {
        if !Path::new(Self::TRACE).exists() {
            let mount = ["-t", "tracefs", "none", "/sys/kernel/tracing"];
            assert!(Command::new("mount").args(mount).status().unwrap().success());
        }
        fs::write(Self::TRACE, "").unwrap();
        fs::write(Self::EVENT, "1").unwrap();
        Self("chan_pump [rpmsg_netlink]")
    }

    fn count(&self) -> usize {
        let trace = fs::read_to_string(Self::TRACE).unwrap();
        trace.lines().filter(|line| line.contains(self.0)).count()
    }
}

impl Drop for Tries {
    fn drop(&mut self) {
        let _ = fs::write(Self::EVENT, "0");
    }
}

/// The remote's own error numbers reach the sender of the block.
#[test]
#[ignore = "needs the lab"]
fn a_refusal_is_told() {
    let mut talk = Talk::new();
    for (status, length) in [(BADMSG, 4), (90, 0), (PROTO, 2), (511, 0)] {
        talk.post(b"good");
        talk.remote.block();
        talk.status(length, status);
        assert_eq!(talk.client.note().done(), (status, length));
    }
    // Netlink never returns EINTR, and the others are internal to the kernel.
    for status in [INTR, 512, 517, 4095] {
        talk.post(b"good");
        talk.remote.block();
        talk.status(4, status);
        assert_eq!(talk.client.note().done(), (PROTO, 4));
    }
    // Between two parts, the next one is refused with the same error.
    let bytes = noise(PART_MAX + 4, 1);
    for (status, told) in [(NODATA, Errno::NODATA), (INTR, Errno::PROTO)] {
        let first = Attributes::part(talk.channel, bytes.len(), 0, &bytes[..PART_MAX]);
        let note = talk.client.part(&first.u16(block::CRC, crc16(&bytes))).unwrap();
        assert_eq!(note.command, command::SEND_NEXT_NTF);
        talk.status(0, status);
        assert_eq!(talk.remote.opening(), talk.address);
        let next = Attributes::part(talk.channel, bytes.len(), PART_MAX, &bytes[PART_MAX..]);
        let refusal = talk.client.request(command::SEND, &next).unwrap_err();
        assert_eq!((refusal.errno, &*refusal.message), (told, "the block has failed"));
    }
    talk.ask(0);
    talk.status(0, NODATA);
    assert_eq!(talk.data_status(), NODATA);
    talk.works();
}

/// Each is reported as `EPROTO`, and the conversation starts again.
#[test]
#[ignore = "needs the lab"]
fn a_wrong_answer_is_told() {
    let mut talk = Talk::new();
    let answers: [Vec<u8>; 8] = [
        11u16.to_le_bytes().to_vec(),
        5u16.to_le_bytes().to_vec(),
        Control::Status { length: 3, status: 0 }.encode().to_vec(),
        Control::Status { length: 4, status: 5000 }.encode().to_vec(),
        b"what is this?".to_vec(),
        packet(b"unasked").remove(0),
        Control::Receive { length: 0, credit: 9 }.encode().to_vec(),
        {
            let mut broken = Control::Status { length: 4, status: 0 }.encode().to_vec();
            broken[8] ^= 1;
            broken
        },
    ];
    for answer in answers {
        talk.post(b"good");
        talk.remote.block();
        talk.say(&answer);
        let (status, _) = talk.client.note().done();
        assert_eq!(status, PROTO, "{answer:02x?}");
        if answer[..] != (Control::Status { length: 4, status: 5000 }).encode()[..] {
            assert_eq!(talk.remote.opening(), talk.address);
        }
    }
    // A length of 0.
    for nothing in [&b""[..], b"x", b"12345"] {
        talk.say(nothing);
    }
    talk.works();
}

/// An answer to a block that was not sent completely.
#[test]
#[ignore = "needs the lab"]
fn an_answer_that_is_early_is_told() {
    let mut talk = Talk::new();
    let bytes = noise(3000, 1);
    for (status, expected) in [(0, Errno::PROTO), (90, Errno::MSGSIZE)] {
        let first = Attributes::part(talk.channel, 3000, 0, &bytes[..2000]);
        let note = talk.client.part(&first.u16(block::CRC, crc16(&bytes))).unwrap();
        assert_eq!(note.command, command::SEND_NEXT_NTF);
        talk.status(3000, status);
        assert_eq!(talk.remote.opening(), talk.address);
        let second = Attributes::part(talk.channel, 3000, 2000, &bytes[2000..]);
        let refusal = talk.client.request(command::SEND, &second).unwrap_err();
        assert_eq!(refusal.errno, expected);
        assert_eq!(refusal.message, "the block has failed");
        let refusal = talk.client.request(command::SEND, &second).unwrap_err();
        assert_eq!(refusal.errno, Errno::INVAL);
    }
    // Even if the client sends no further part, the next block simply begins.
    let first = Attributes::part(talk.channel, 3000, 0, &bytes[..2000]);
    talk.client.part(&first.u16(block::CRC, crc16(&bytes))).unwrap();
    talk.status(0, 90);
    talk.recovers();
}

/// A block that does not match its header.
#[test]
#[ignore = "needs the lab"]
fn a_block_that_is_not_right_is_told() {
    let mut talk = Talk::new();
    let whole = packet(&pattern(1200));
    let lies: [(&str, u32, Vec<Vec<u8>>); 7] = [
        ("another length than was asked for", 1201, whole.clone()),
        ("a message that is too short", 1200, vec![whole[0].clone(), whole[1][1..].to_vec()]),
        ("an empty message", 1200, vec![whole[0].clone(), Vec::new()]),
        ("a last message that is too long", 1200, {
            let mut lie = whole.clone();
            lie[2].push(0);
            lie
        }),
        ("a last message that is too short", 1200, {
            let mut lie = whole.clone();
            lie[2].pop();
            lie
        }),
        ("a first message that is too long", 3, {
            let mut lie = packet(&pattern(3));
            lie[0].push(3);
            lie
        }),
        (
            "a status of success",
            1200,
            vec![Control::Status { length: 1200, status: 0 }.encode().to_vec()],
        ),
    ];
    for (what, wanted, messages) in lies {
        talk.ask(wanted);
        for message in messages {
            talk.say(message);
        }
        assert_eq!(talk.data_status(), PROTO, "{what}");
        assert_eq!(talk.remote.opening(), talk.address, "{what}");
    }
    talk.works();
}

/// Messages of a block with the long header after those of the first window.
fn messages_left(length: usize) -> usize {
    (16 + length).div_ceil(496) - WINDOW as usize / 496
}

/// `EBADMSG` at both ends.
#[test]
#[ignore = "needs the lab"]
fn a_flipped_bit_is_found() {
    let mut talk = Talk::new();
    for (length, flipped) in [(1200, 700), (1200, 1205), (3, 4), (70_000, 69_000), (70_000, 4)] {
        let mut messages = packet(&pattern(length));
        messages[flipped / 496][flipped % 496] ^= 0x10;
        talk.ask(u32::try_from(length).unwrap());
        let mut messages = messages.into_iter();
        // As much as the credit of the first window permits.
        for message in messages.by_ref().take(WINDOW as usize / 496) {
            talk.say(message);
        }
        if length > PART_MAX {
            assert_eq!(talk.client.note().data().len(), PART_MAX);
            talk.client.fetch(talk.channel).unwrap();
            assert!(matches!(talk.remote.control().1, Control::Credit { .. }));
            // All except the last one, with the end of the block.
            for message in messages.by_ref().take(messages_left(length) - 1) {
                talk.say(message);
            }
            assert_eq!(talk.client.note().data().len(), PART_MAX);
            talk.client.fetch(talk.channel).unwrap();
        }
        messages.for_each(|message| talk.say(message));
        assert_eq!(talk.data_status(), BADMSG, "{length} bytes");
        let (_, answer) = talk.remote.control();
        let length = u32::try_from(length).unwrap();
        assert_eq!(answer, Control::Status { length, status: BADMSG });
    }
    talk.works();
}

/// More than the credit: nothing is written beyond the window.
#[test]
#[ignore = "needs the lab"]
fn a_remote_that_does_not_wait_for_credit_is_cut_off() {
    let mut talk = Talk::new();
    talk.ask(1 << 20);
    for message in packet(&pattern(1 << 20)).into_iter().take(200) {
        talk.say(message);
    }
    // The first part was valid; the client gets the error with the second one.
    let first = talk.client.note();
    assert_eq!(first.data().len(), PART_MAX);
    assert_eq!(talk.remote.opening(), talk.address);
    let refusal = talk.client.fetch(talk.channel).unwrap_err();
    assert_eq!((refusal.errno, &*refusal.message), (Errno::PROTO, "the block has failed"));
    talk.works();
}

/// For any number of unexpected messages the driver sends one reset, not one for each.
#[test]
#[ignore = "needs the lab"]
fn noise_is_not_answered_with_noise() {
    let mut talk = Talk::new();
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..500 {
        let mut message = noise(random.usize(..497), random.u64(..));
        if random.bool() && message.len() > 16 {
            message[..4].copy_from_slice(&[0xcd, 0xab, 0, 0]);
            message[6] = random.u8(..8);
            message[7] = 0;
        }
        talk.say(message);
    }
    talk.client.assert_silent();
    talk.recovers();
}

/// Random answers to random requests: each request gets exactly one notification.
#[test]
#[ignore = "needs the lab"]
fn every_request_has_its_end() {
    let rounds = support::rounds(150, 40);
    let mut talk = Talk::new();
    let mut random = fastrand::Rng::with_seed(5);
    let mut ends = HashMap::new();
    for _ in 0..rounds {
        if random.bool() {
            talk.post(&noise(random.usize(1..2000), 1));
        } else {
            let length = random.u32(..3000);
            let wanted = Attributes::new().u32(block::CHANNEL, talk.channel);
            let wanted = wanted.u32(block::LENGTH, length);
            talk.client.request(command::RECEIVE, &wanted).unwrap();
        }
        // One of these ends the request.
        let mut lies = packet(&pattern(random.usize(1..3000)));
        lies.push(
            Control::Status { length: random.u32(..), status: random.u32(..200) }.encode().to_vec(),
        );
        lies.push(b"no packet at all".to_vec());
        random.shuffle(&mut lies);
        lies.push(packet(b"unasked").remove(0));
        for lie in lies {
            talk.say(lie);
        }
        let note = talk.ended();
        *ends.entry((note.command, note.u32(block::STATUS))).or_insert(0) += 1;
        talk.client.reset(talk.channel).unwrap();
        talk.remote.settle();
        talk.client.assert_silent();
    }
    println!("{ends:?}");
    talk.works();
}

/// Waiting clients get `EPIPE`, later requests `ENODEV`.
#[test]
#[ignore = "needs the lab"]
fn a_crash_is_told() {
    let mut side = coprocessor(&["bulk-netlink+delay=60000"]);
    let mut sender = Client::new();
    let channel = sender.channel();
    let part = Attributes::part(channel, 4, 0, b"gone");
    let sent = sender.request(command::SEND, &part).unwrap();
    let mut reader = Client::new();
    let of = Attributes::new().u32(block::CHANNEL, channel);
    let wanted = Attributes(of.0.clone()).u32(block::LENGTH, 1 << 20);
    reader.request(command::RECEIVE, &wanted).unwrap();
    assert!(!reader.take_part(&mut Vec::new()).unwrap());
    let mut between = Client::new();
    let bytes = noise(100_000, 1);
    let first = Attributes::part(channel, 100_000, 0, &bytes[..PART_MAX]);
    between.part(&first.u16(block::CRC, crc16(&bytes))).unwrap();
    let mut idle = Client::new();
    idle.reset(channel).unwrap();
    sender.assert_silent();

    side.kill().unwrap();
    let note = sender.note();
    assert_eq!((note.sequence, note.done()), (sent, (PIPE, 0)));
    assert_eq!(reader.fetch(channel).unwrap_err().errno, Errno::NODEV);
    let next = Attributes::part(channel, 100_000, PART_MAX, &bytes[..PART_MAX]);
    assert_eq!(between.request(command::SEND, &next).unwrap_err().errno, Errno::NODEV);
    for (command, attributes) in
        [(command::SEND, &part), (command::RECEIVE, &of), (command::RESET, &of)]
    {
        assert_eq!(idle.request(command, attributes).unwrap_err().errno, Errno::NODEV);
    }
    for client in [&mut sender, &mut reader, &mut between, &mut idle] {
        client.assert_silent();
    }
    side.start().unwrap();
    let again = idle.channel();
    assert_ne!(again, channel);
    idle.reset(again).unwrap();
}

/// A socket that closes in the middle leaves nothing behind: the remote is reset, the address is free.
#[test]
#[ignore = "needs the lab"]
fn a_socket_may_close_at_any_time() {
    let _side = coprocessor(&["bulk-netlink"]);
    let channel = Client::new().channel();
    let bytes = noise(200_000, 1);
    for round in 0..40 {
        let mut client = Client::new();
        let of = Attributes::new().u32(block::CHANNEL, channel);
        match round % 4 {
            0 => {
                let part = Attributes::part(channel, 200_000, 0, &bytes[..PART_MAX]);
                client.post(command::SEND, 0, &part.u16(block::CRC, crc16(&bytes)));
            }
            1 => drop(client.post(command::SEND, 0, &Attributes::part(channel, 4, 0, b"gone"))),
            2 => {
                client.post(command::RECEIVE, 0, &of.u32(block::LENGTH, 1 << 20));
            }
            _ => {
                client.request(command::RECEIVE, &of.u32(block::LENGTH, 1 << 20)).unwrap();
                assert!(!client.take_part(&mut Vec::new()).unwrap());
            }
        }
    }
    let mut client = Client::new();
    assert_eq!(client.send(channel, &bytes), (0, 200_000));
    assert!(client.receive(channel, 0) == Ok(bytes));
}

/// The address of the channel itself, to which a remote may send at any time.
fn default_address(client: &mut Client) -> u32 {
    let device = client.channels()[0].text(channel_attribute::DEVICE).unwrap();
    let src = fs::read_to_string(Path::new("/sys/bus/rpmsg/devices").join(device).join("src"));
    u32::from_str_radix(src.unwrap().trim().trim_start_matches("0x"), 16).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn what_nobody_has_asked_for_goes_to_all_who_listen() {
    let mut talk = Talk::new();
    let to_all = default_address(&mut talk.client);
    let mut listeners = [Client::new(), Client::new()];
    for listener in &listeners {
        listener.join("messages").unwrap();
    }
    for message in [&b"news"[..], b"", &[7; 496]] {
        talk.remote.send(to_all, message);
        for listener in &mut listeners {
            let note = listener.note();
            assert_eq!((note.command, note.data()), (command::MESSAGE_NTF, message));
            assert_eq!(note.u32(block::CHANNEL), Some(talk.channel));
        }
    }
    talk.works();
}

/// In every network namespace, but only to clients that may use the coprocessor.
#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn what_nobody_has_asked_for_goes_to_all_networks() {
    let mut talk = Talk::new();
    let to_all = default_address(&mut talk.client);
    let elsewhere = || {
        // SAFETY: only the network namespace of this thread changes.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        let listener = Client::new();
        listener.join("messages").unwrap();
        listener
    };
    let mut listener = thread::spawn(elsewhere).join().unwrap();
    // The opener of the socket counts, not the process that joins.
    let unprivileged = || {
        let all = capabilities(None).unwrap();
        let mut fewer = all;
        fewer.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, fewer).unwrap();
        let socket = socket();
        set_capabilities(None, all).unwrap();
        let listener = Client::with(socket);
        listener.join("messages").unwrap();
        listener
    };
    let mut outsider = thread::spawn(unprivileged).join().unwrap();
    talk.remote.send(to_all, b"news");
    assert_eq!(listener.note().data(), b"news");
    outsider.assert_silent();
    talk.works();
}

/// A removed channel is reported in every network namespace, whatever a listener in another one does.
#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn channels_are_told_in_all_networks() {
    let mut talk = Talk::new();
    let to_all = default_address(&mut talk.client);
    let elsewhere = || {
        // SAFETY: only the network namespace of this thread changes.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        let listener = Client::new();
        listener.join("channels").unwrap();
        listener
    };
    let mut listener = thread::spawn(elsewhere).join().unwrap();
    // Its buffer is full, and it wants an error for that.
    let deaf = Client::new();
    set_option(&deaf, BROADCAST_ERROR, 1).unwrap();
    deaf.join("channels").unwrap();
    deaf.join("messages").unwrap();
    for _ in 0..600 {
        talk.remote.send(to_all, [7; 496]);
    }
    talk.works();
    let channel = talk.channel;
    drop(talk);
    let note = listener.note();
    assert_eq!(note.command, command::CHANNEL_DEL_NTF);
    assert_eq!(note.u32(channel_attribute::ID), Some(channel));
    listener.assert_silent();
}

/// Every user can create network namespaces in a user namespace of their own, in any number.
#[test]
#[ignore = "needs the lab"]
fn networks_of_other_users_hear_no_messages() {
    let mut talk = Talk::new();
    let to_all = default_address(&mut talk.client);
    let program = ["--user", "--net", "sleep", "1000"];
    let mut owner = Command::new("unshare").args(program).spawn().unwrap();
    let network = format!("/proc/{}/ns/net", owner.id());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    wait_until("the network", || fs::read_link(&network).unwrap() != own);
    let inside = || {
        let network = fs::File::open(&network).unwrap();
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let listener = Client::new();
        listener.join("messages").unwrap();
        listener.join("channels").unwrap();
        listener
    };
    let mut outsider = thread::scope(|scope| scope.spawn(inside).join().unwrap());
    let mut listener = Client::new();
    listener.join("messages").unwrap();
    talk.remote.send(to_all, b"news");
    assert_eq!(listener.note().data(), b"news");
    outsider.assert_silent();
    talk.works();

    drop(talk);
    assert_eq!(outsider.note().command, command::CHANNEL_DEL_NTF);
    owner.kill().unwrap();
    owner.wait().unwrap();
}

/// A network namespace ends with its last process, whatever its sockets had in progress, but not before the
/// driver is done with it.
#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn a_network_may_go_at_any_time() {
    let mut side = coprocessor(&["bulk-netlink+delay=60000"]);
    for round in 0..support::rounds(6, 3) {
        let channel = Client::new().channel();
        let elsewhere = move || {
            // SAFETY: only the network namespace of this thread changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            // Its other end is removed when this network namespace ends.
            let link = ["link", "add", "here", "type", "veth", "peer", "there", "netns", "1"];
            assert!(Command::new("ip").args(link).status().unwrap().success());
            let mut clients: Vec<_> = (0..8).map(|_| Client::new()).collect();
            for client in &mut clients {
                client.request(command::SEND, &Attributes::part(channel, 4, 0, b"gone")).unwrap();
            }
            clients
        };
        let clients = thread::spawn(elsewhere).join().unwrap();
        assert!(Path::new("/sys/class/net/there").exists());
        // The coprocessor may stop at the same time.
        thread::scope(|scope| {
            scope.spawn(move || drop(clients));
            if round % 2 == 0 {
                side.kill().unwrap();
                side.start().unwrap();
            }
        });
        wait_until("the end of the network", || !Path::new("/sys/class/net/there").exists());
    }
}

/// For a client that does not read its notifications, its socket reports a loss, and so
/// does the driver.
#[test]
#[ignore = "needs the lab"]
fn a_full_socket_is_told() {
    let mut talk = Talk::new();
    let to_all = default_address(&mut talk.client);
    talk.client.join("messages").unwrap();
    talk.ask(3);
    for _ in 0..600 {
        talk.remote.send(to_all, [7; 496]);
    }
    for message in packet(&[0, 1, 2]) {
        talk.say(message);
    }
    // The driver has noticed.
    assert_eq!(talk.remote.opening(), talk.address);
    let mut lost = 0;
    while let Some(result) = talk.client.within(Duration::from_secs(1)) {
        match result {
            Ok(note) => assert_eq!(note.command, command::MESSAGE_NTF),
            Err(errno) => {
                assert_eq!(errno, Errno::NOBUFS);
                lost += 1;
            }
        }
    }
    assert_ne!(lost, 0);
    let refusal = talk.client.fetch(talk.channel).unwrap_err();
    assert_eq!((refusal.errno, &*refusal.message), (Errno::NOBUFS, "the block has failed"));
    talk.works();
}

#[test]
#[ignore = "needs the lab"]
fn the_module_can_go_at_any_time() {
    let side = coprocessor(&["bulk-netlink+delay=60000"]);
    let mut client = Client::new();
    let channel = client.channel();
    client.request(command::SEND, &Attributes::part(channel, 4, 0, b"gone")).unwrap();
    modprobe(&["-r", "rpmsg_netlink"]).unwrap();
    assert_eq!(client.note().done(), (PIPE, 0));
    modprobe(&["rpmsg_netlink"]).unwrap();
    let mut anew = Client::new();
    let channel = anew.channel();
    anew.reset(channel).unwrap();
    drop((client, side, anew));
    modprobe(&["-r", "rpmsg_netlink"]).unwrap();
}
