//! A client of the family that builds each byte: it can also send what no library would.

#![allow(dead_code)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use busbar::bulk::packet::crc16;
use busbar_lab::stage::{Driver, Side};
use busbar_uapi::rpmsg_netlink::{FAMILY, PART_MAX, block, channel, command};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::support::{busbar, wait_until};

/// The message type of the family that describes the others.
const CONTROL: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;
/// In an error message: the request is not repeated, attributes follow.
const CAPPED: u16 = 0x100;

/// `NETLINK_ADD_MEMBERSHIP`, `NETLINK_BROADCAST_ERROR`, `NETLINK_CAP_ACK` and `NETLINK_EXT_ACK`.
const ADD_MEMBERSHIP: i32 = 1;
pub const BROADCAST_ERROR: i32 = 4;
const CAP_ACK: i32 = 10;
const EXT_ACK: i32 = 11;

/// Long enough for an emulated debug kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first coprocessor, with these services, and the driver loaded.
pub fn coprocessor(services: &[&str]) -> Side {
    Side::up(0, Driver::Eptfd, &busbar(), services).expect("a coprocessor")
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub errno: Errno,
    /// The kernel's message.
    pub message: String,
    /// The offset of the attribute that is wrong.
    pub offset: Option<u32>,
    /// The attribute that is missing.
    pub missing: Option<u32>,
}

/// A notification or an answer.
#[derive(Clone, Debug)]
pub struct Note {
    pub command: u8,
    pub sequence: u32,
    /// Bytes of the whole message.
    pub size: usize,
    attributes: HashMap<u16, Vec<u8>>,
}

impl Note {
    fn parse(message: &[u8]) -> Self {
        Self {
            command: message[16],
            sequence: u32_at(message, 8),
            size: message.len(),
            attributes: attributes(&message[20..]),
        }
    }

    pub fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32_at(self.attributes.get(&kind)?, 0))
    }

    pub fn text(&self, kind: u16) -> Option<String> {
        let (_, text) = self.attributes.get(&kind)?.split_last()?;
        Some(String::from_utf8(text.to_vec()).unwrap())
    }

    pub fn data(&self) -> &[u8] {
        self.attributes.get(&block::DATA).map_or(&[], Vec::as_slice)
    }

    /// The result of a block: its status, and the length that belongs to it.
    pub fn done(&self) -> (u32, u32) {
        assert_eq!(self.command, command::SEND_DONE_NTF, "{self:?}");
        (self.u32(block::STATUS).unwrap(), self.u32(block::LENGTH).unwrap())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn attributes(mut rest: &[u8]) -> HashMap<u16, Vec<u8>> {
    let mut all = HashMap::new();
    while rest.len() >= 4 {
        let length = usize::from(u16_at(rest, 0));
        all.insert(u16_at(rest, 2) & 0x3fff, rest[4..length].to_vec());
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// A buffer of attributes.
#[derive(Clone, Debug, Default)]
pub struct Attributes(pub Vec<u8>);

impl Attributes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(mut self, kind: u16, bytes: &[u8]) -> Self {
        let length = u16::try_from(4 + bytes.len()).unwrap();
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub fn u16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub fn flag(self, kind: u16) -> Self {
        self.bytes(kind, &[])
    }

    /// A part of a block.
    pub fn part(channel: u32, length: usize, offset: usize, data: &[u8]) -> Self {
        Self::new()
            .u32(block::CHANNEL, channel)
            .u32(block::LENGTH, u32::try_from(length).unwrap())
            .u32(block::OFFSET, u32::try_from(offset).unwrap())
            .bytes(block::DATA, data)
    }
}

/// A socket.
pub struct Client {
    pub socket: OwnedFd,
    family: u16,
    groups: HashMap<String, u32>,
    sequence: u32,
    /// Notifications that came before they were waited for.
    early: VecDeque<Note>,
    buffer: Vec<u8>,
}

impl Client {
    pub fn new() -> Self {
        Self::with(socket())
    }

    /// A client on a socket of the caller.
    pub fn with(socket: OwnedFd) -> Self {
        set_option(&socket, CAP_ACK, 1).unwrap();
        set_option(&socket, EXT_ACK, 1).unwrap();
        let mut client = Self {
            socket,
            family: CONTROL,
            groups: HashMap::new(),
            sequence: 0,
            early: VecDeque::new(),
            buffer: vec![0; 1 << 17],
        };
        client.find_family();
        client
    }

    fn find_family(&mut self) {
        const GET_FAMILY: u8 = 3;
        const ID: u16 = 1;
        const NAME: u16 = 2;
        const GROUPS: u16 = 7;
        let name = [FAMILY.as_bytes(), &[0]].concat();
        let answer = self.ask(GET_FAMILY, &Attributes::new().bytes(NAME, &name)).expect(FAMILY);
        self.family = u16_at(&answer.attributes[&ID], 0);
        for group in attributes(&answer.attributes[&GROUPS]).values() {
            let group = attributes(group);
            let (name, _) = group[&1].split_last().map(|(end, name)| (name, end)).unwrap();
            let name = String::from_utf8(name.to_vec()).unwrap();
            self.groups.insert(name, u32_at(&group[&2], 0));
        }
    }

    /// Joins a multicast group.
    pub fn join(&self, group: &str) -> Result<(), Errno> {
        set_option(&self.socket, ADD_MEMBERSHIP, self.groups[group])
    }

    /// A request, ready to be sent.
    pub fn message(&mut self, command: u8, flags: u16, attributes: &Attributes) -> Vec<u8> {
        self.sequence += 1;
        let length = u32::try_from(20 + attributes.0.len()).unwrap();
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(self.family.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend([command, 1, 0, 0]);
        message.extend(&attributes.0);
        message
    }

    /// Sends a request unchanged, without waiting; returns its number.
    pub fn post(&mut self, command: u8, flags: u16, attributes: &Attributes) -> u32 {
        let message = self.message(command, flags, attributes);
        self.post_raw(&message);
        self.sequence
    }

    pub fn post_raw(&self, bytes: &[u8]) {
        self.try_post_raw(bytes).expect("send");
    }

    pub fn try_post_raw(&self, bytes: &[u8]) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, bytes, SendFlags::empty(), &kernel).map(drop)
    }

    /// The messages of one datagram, or `None` after the timeout.
    fn datagram(&mut self, patience: Duration) -> Option<Result<Vec<Vec<u8>>, Errno>> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec::try_from(patience).unwrap();
        if poll(&mut fds, Some(&patience)).unwrap() == 0 {
            return None;
        }
        let length = match recv(&self.socket, &mut self.buffer, RecvFlags::TRUNC) {
            Ok((_, length)) => length,
            Err(errno) => return Some(Err(errno)),
        };
        assert!(length <= self.buffer.len(), "a message of {length} bytes");
        let (mut rest, mut messages) = (&self.buffer[..length], Vec::new());
        while rest.len() >= 16 {
            let length = u32_at(rest, 0) as usize;
            messages.push(rest[..length].to_vec());
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(Ok(messages))
    }

    /// Makes a request and waits until the kernel has accepted or refused it.
    pub fn request(&mut self, command: u8, attributes: &Attributes) -> Result<u32, Refusal> {
        let sequence = self.post(command, ACK, attributes);
        self.acknowledged(sequence)?;
        Ok(sequence)
    }

    /// Waits for the end of the request; keeps other messages.
    pub fn acknowledged(&mut self, sequence: u32) -> Result<(), Refusal> {
        loop {
            let messages = self.datagram(PATIENCE).expect("an acknowledgement").expect("recv");
            let mut end = None;
            for message in messages {
                match u16_at(&message, 4) {
                    ERROR if u32_at(&message, 8) == sequence => end = Some(outcome(&message)),
                    DONE => end = Some(Ok(())),
                    _ => self.early.push_back(Note::parse(&message)),
                }
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// A request with an answer of its own.
    pub fn ask(&mut self, command: u8, attributes: &Attributes) -> Result<Note, Refusal> {
        let sequence = self.request(command, attributes)?;
        let found = self.early.iter().position(|note| note.sequence == sequence);
        Ok(self.early.remove(found.expect("an answer")).unwrap())
    }

    /// All channels.
    pub fn channels(&mut self) -> Vec<Note> {
        let sequence = self.post(command::CHANNEL_GET, DUMP, &Attributes::new());
        self.acknowledged(sequence).expect("dump");
        let all = std::mem::take(&mut self.early).into_iter();
        let (answers, others) = all.partition(|note| note.command == command::CHANNEL_GET);
        self.early = others;
        Vec::from(answers)
    }

    /// Waits for the channel of the first coprocessor.
    pub fn channel(&mut self) -> u32 {
        let mut found = None;
        wait_until("a channel", || {
            found = self.channels().first().and_then(|note| note.u32(channel::ID));
            found.is_some()
        });
        found.unwrap()
    }

    /// The next notification, the error of reading from the socket, or `None` after the timeout.
    pub fn within(&mut self, patience: Duration) -> Option<Result<Note, Errno>> {
        if let Some(note) = self.early.pop_front() {
            return Some(Ok(note));
        }
        let messages = match self.datagram(patience)? {
            Ok(messages) => messages,
            Err(errno) => return Some(Err(errno)),
        };
        for message in messages {
            assert_ne!(u16_at(&message, 4), ERROR, "{:?}", outcome(&message));
            self.early.push_back(Note::parse(&message));
        }
        self.early.pop_front().map(Ok)
    }

    /// The next notification.
    pub fn note(&mut self) -> Note {
        self.within(PATIENCE).expect("a notification").expect("recv")
    }

    /// The end of a request that asked for no acknowledgement: a notification, or why not. `None`
    /// if neither comes in time.
    pub fn outcome(&mut self, patience: Duration) -> Option<Result<Note, Errno>> {
        loop {
            let messages = match self.datagram(patience)? {
                Ok(messages) => messages,
                Err(errno) => return Some(Err(errno)),
            };
            let own = messages.iter().find(|message| u32_at(message, 8) == self.sequence);
            if let Some(message) = own {
                return Some(match u16_at(message, 4) {
                    ERROR => Err(outcome(message).expect_err("no acknowledgement").errno),
                    _ => Ok(Note::parse(message)),
                });
            }
        }
    }

    /// Discards all messages that have arrived.
    pub fn drain(&mut self) {
        self.early.clear();
        while self.datagram(Duration::from_millis(20)).is_some() {}
    }

    /// As [`Self::send`], to a remote that may go away at any time: the status, or `None`.
    pub fn try_send(&mut self, channel: u32, bytes: &[u8]) -> Option<u32> {
        let crc = crc16(bytes);
        for (index, data) in bytes.chunks(PART_MAX).enumerate() {
            let part = Attributes::part(channel, bytes.len(), index * PART_MAX, data);
            self.request(command::SEND, &part.u16(block::CRC, crc)).ok()?;
            let note = self.note();
            if note.command == command::SEND_DONE_NTF {
                return note.u32(block::STATUS);
            }
        }
        panic!("the last part has no end")
    }

    /// As [`Self::receive`], from a remote that may go away at any time.
    pub fn try_receive(&mut self, channel: u32, wanted: u32) -> Option<Vec<u8>> {
        let attributes = Attributes::new().u32(block::CHANNEL, channel);
        self.request(command::RECEIVE, &attributes.u32(block::LENGTH, wanted)).ok()?;
        let mut bytes = Vec::new();
        while !self.take_part(&mut bytes).ok()? {
            self.fetch(channel).ok()?;
        }
        Some(bytes)
    }

    /// Asserts that no message comes.
    pub fn assert_silent(&mut self) {
        let came = self.within(Duration::from_millis(200));
        assert!(came.is_none(), "{came:?}");
    }

    /// Sends a part; returns the notification that follows.
    pub fn part(&mut self, part: &Attributes) -> Result<Note, Refusal> {
        let sequence = self.request(command::SEND, part)?;
        let note = self.note();
        assert_eq!(note.sequence, sequence, "{note:?}");
        Ok(note)
    }

    /// Sends a block, and returns the result: status and length.
    pub fn send(&mut self, channel: u32, bytes: &[u8]) -> (u32, u32) {
        let mut offset = 0;
        loop {
            let end = bytes.len().min(offset + PART_MAX);
            let mut part = Attributes::part(channel, bytes.len(), offset, &bytes[offset..end]);
            if bytes.len() > PART_MAX {
                part = part.u16(block::CRC, crc16(bytes));
            }
            let note = self.part(&part).expect("a part");
            if note.command == command::SEND_DONE_NTF {
                return note.done();
            }
            assert_eq!(note.command, command::SEND_NEXT_NTF);
            assert_eq!(note.u32(block::OFFSET), Some(u32::try_from(end).unwrap()));
            offset = end;
        }
    }

    /// Receives a block, or returns the status that ends it.
    pub fn receive(&mut self, channel: u32, wanted: u32) -> Result<Vec<u8>, u32> {
        let attributes = Attributes::new().u32(block::CHANNEL, channel);
        self.request(command::RECEIVE, &attributes.u32(block::LENGTH, wanted)).expect("receive");
        let mut bytes = Vec::new();
        loop {
            if self.take_part(&mut bytes)? {
                return Ok(bytes);
            }
            self.fetch(channel).expect("fetch");
        }
    }

    /// Takes a part; returns whether it is the last.
    pub fn take_part(&mut self, bytes: &mut Vec<u8>) -> Result<bool, u32> {
        let note = self.note();
        assert_eq!(note.command, command::DATA_NTF, "{note:?}");
        match note.u32(block::STATUS).unwrap() {
            0 => {}
            status => return Err(status),
        }
        assert_eq!(note.u32(block::OFFSET), Some(u32::try_from(bytes.len()).unwrap()));
        bytes.extend(note.data());
        let length = note.u32(block::LENGTH).unwrap() as usize;
        assert!(note.data().len() == PART_MAX || bytes.len() == length, "{} bytes", bytes.len());
        // Checks that a reader finds the bytes, and only padding behind them.
        assert_eq!(note.size, 56 + note.data().len().next_multiple_of(4));
        Ok(bytes.len() == length)
    }

    pub fn fetch(&mut self, channel: u32) -> Result<u32, Refusal> {
        self.request(command::FETCH, &Attributes::new().u32(block::CHANNEL, channel))
    }

    pub fn reset(&mut self, channel: u32) -> Result<u32, Refusal> {
        self.request(command::RESET, &Attributes::new().u32(block::CHANNEL, channel))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses an error message; 0 is an acknowledgement.
fn outcome(message: &[u8]) -> Result<(), Refusal> {
    const MESSAGE: u16 = 1;
    const OFFSET: u16 = 2;
    const MISSING: u16 = 5;
    let number = u32_at(message, 16).cast_signed();
    if number == 0 {
        return Ok(());
    }
    assert_ne!(u16_at(message, 6) & CAPPED, 0, "the request is repeated");
    let said = attributes(&message[36..]);
    let text = said.get(&MESSAGE).map(|text| String::from_utf8_lossy(text).into_owned());
    let number_of = |kind| said.get(&kind).map(|bytes| u32_at(bytes, 0));
    Err(Refusal {
        errno: Errno::from_raw_os_error(-number),
        message: text.unwrap_or_default().trim_end_matches('\0').to_owned(),
        offset: number_of(OFFSET),
        missing: number_of(MISSING),
    })
}

pub fn socket() -> OwnedFd {
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    socket_with(kind.0, kind.1, kind.2, Some(GENERIC)).expect("a socket")
}

/// Sets an option of netlink sockets with an integer value.
#[allow(unsafe_code)]
pub fn set_option(socket: impl AsFd, option: i32, value: u32) -> Result<(), Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the four bytes of `value`.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_NETLINK, option, (&raw const value).cast(), 4) };
    if result == 0 {
        return Ok(());
    }
    let number = std::io::Error::last_os_error().raw_os_error().unwrap();
    Err(Errno::from_raw_os_error(number))
}

/// Bytes without repetition, some of which look like a header.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    for at in (0..length.saturating_sub(6)).step_by(490) {
        bytes[at..at + 2].copy_from_slice(&[0xcd, 0xab]);
    }
    bytes
}

/// The bytes that [`Client::receive`] gets for a length.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..=255).cycle().take(length).collect()
}
