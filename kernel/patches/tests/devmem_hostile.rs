//! Random tokens and random bind messages: tokens that were not given are ignored, invalid input is refused,
//! and the receiver goes on working.

#[path = "../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Queues, ReceiveSetup, Receiver, Tokens};
use busbar_uapi::devmem::{self, CONTROL_SPACE, Control, MAX_RANGES, MAX_TOKENS, Range};
use busbar_uapi::dmabuf::udmabuf_create_list;
use busbar_uapi::netdev::{command, dmabuf, queue};
use fastrand::Rng;
use pair::{Check, DEVICE, Pair, Place, send, take_all, wait_until};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send as send_to,
    socket_with,
};
use support::rounds;

const LEN: usize = 2 << 20;
/// Most fragments that are held.
const HELD: usize = 200;
/// Bits of an index token (`net/core/devmem.h` of the patched kernel).
const INDEX: u32 = 1 << 31;
const RESERVED: u32 = 7 << 28;

fn receiver(queue: u32, tokens: Tokens) -> Receiver {
    let block = Block::with(LEN, &Memory::Pages).unwrap();
    let setup = ReceiveSetup::new().queues(Queues::These(vec![queue])).tokens(tokens);
    Receiver::open(DEVICE, block, &setup).unwrap()
}

/// The tokens of fragments that wait in the socket, and stay there.
fn give(connection: &Connection, most: usize) -> Vec<u32> {
    let (mut bytes, mut control) = (vec![0; most * 4096], vec![0; most * CONTROL_SPACE]);
    let Ok(got) = devmem::peek(connection.socket(), &mut bytes, &mut control) else {
        return Vec::new();
    };
    let token = |control| match control {
        Ok(Control::Device(fragment)) => fragment.token,
        other => panic!("{other:?}"),
    };
    devmem::controls(&control[..got.control_len]).map(token).collect()
}

/// How many times each token was given and not returned.
#[derive(Default)]
struct Account(HashMap<u32, u32>);

impl Account {
    fn give(&mut self, tokens: &[u32]) {
        for token in tokens {
            *self.0.entry(*token).or_default() += 1;
        }
    }

    /// The result that a call must have, by `Documentation/networking/devmem.rst`.
    fn take(&mut self, ranges: &[Range]) -> Result<u32, Errno> {
        let is_reserved = |range: &Range| range.start & INDEX != 0 && range.start & RESERVED != 0;
        if ranges.is_empty() || ranges.len() > MAX_RANGES || ranges.iter().any(is_reserved) {
            return Err(Errno::INVAL);
        }
        let all = ranges.iter().flat_map(|range| {
            // No range exceeds the limit of a call.
            (0..range.count.min(2000)).map(|index| range.start.wrapping_add(index))
        });
        let mut taken = 0;
        for token in all.take(MAX_TOKENS) {
            if let Some(count) = self.0.get_mut(&token).filter(|count| **count > 0) {
                *count -= 1;
                taken += 1;
            }
        }
        Ok(taken)
    }

    fn left(&self) -> Vec<u32> {
        let repeated = |(token, count): (&u32, &u32)| vec![*token; *count as usize];
        self.0.iter().flat_map(repeated).collect()
    }
}

/// A value near a valid one.
fn any_range(random: &mut Rng, given: &[u32]) -> Range {
    let near = |random: &mut Rng| random.choice(given).copied().unwrap_or(1);
    let start = match random.u8(..8) {
        0 => random.u32(..),
        1 => near(random) ^ (1 << random.u32(..32)),
        2 => near(random).wrapping_add(random.u32(..5)).wrapping_sub(2),
        _ => near(random),
    };
    // Mostly without ranges that make the whole call fail.
    let start = if random.u8(..4) == 0 || start & INDEX == 0 { start } else { start & !RESERVED };
    let count = match random.u8(..8) {
        0 => random.u32(..),
        1 => random.u32(..2000),
        2 => 0,
        _ => random.u32(1..4),
    };
    Range { start, count }
}

fn any_tokens(tokens: Tokens) {
    let pair = Pair::new();
    let (ours, theirs) = (receiver(14, tokens), receiver(15, tokens));
    let (mut connection, sender) = pair.connect(&ours);
    let (other, other_sender) = pair.connect(&theirs);
    let sending = [send(sender, 1, 2 << 20), send(other_sender, 2, 64 << 10)];
    // Another socket's tokens, none of which may be accepted.
    let mut foreign = Vec::new();
    wait_until("their fragments", || {
        foreign.extend(give(&other, 8));
        foreign.len() >= 8
    });

    let mut random = Rng::with_seed(6);
    let mut account = Account::default();
    for round in 0..rounds(20_000, 300) {
        let mut given = account.left();
        if given.len() < HELD {
            account.give(&give(&connection, random.usize(1..20)));
        }
        given.extend(&foreign);
        let count = if random.u8(..50) == 0 { random.usize(100..200) } else { random.usize(0..6) };
        let ranges: Vec<_> = (0..count).map(|_| any_range(&mut random, &given)).collect();
        let expected = account.take(&ranges);
        let answer = devmem::dont_need(connection.socket(), &ranges);
        assert_eq!(answer, expected, "{tokens}, round {round}: {ranges:x?} of {given:x?}");
    }
    let left = |tokens: &[u32]| -> Vec<_> {
        tokens.iter().map(|start| Range { start: *start, count: 1 }).collect()
    };
    let mut returned = 0;
    for some in left(&account.left()).chunks(MAX_RANGES) {
        returned += devmem::dont_need(connection.socket(), some).unwrap() as usize;
    }
    assert_eq!(returned, account.left().len());
    let taken = devmem::dont_need(other.socket(), &left(&foreign[..8])).unwrap();
    assert_eq!(taken, 8, "the other socket's own");
    // No memory and no data is missing.
    drop(other);
    take_all(&mut connection, &mut Check::new(1));
    let [first, second] = sending;
    first.join().unwrap();
    let _ = second.join();
}

#[test]
#[ignore = "needs the lab"]
fn any_index_tokens_are_taken_once_or_not_at_all() {
    any_tokens(Tokens::Index);
}

#[test]
#[ignore = "needs the lab"]
fn any_autorelease_tokens_are_taken_once_or_not_at_all() {
    any_tokens(Tokens::Autorelease);
}

/// A connection, its tokens, and its sender.
struct Guest {
    connection: Connection,
    account: Account,
    sending: std::thread::JoinHandle<()>,
}

impl Guest {
    fn new(pair: &Pair, receiver: &Receiver) -> Self {
        let (connection, sender) = pair.connect(receiver);
        let sending = send(sender, 1, 512 << 10);
        Self { connection, account: Account::default(), sending }
    }

    /// Closes without returning anything.
    fn leave(self) {
        drop(self.connection);
        // The sender is told to end.
        let _ = self.sending.join();
    }

    fn act(&mut self, random: &mut Rng) {
        if self.account.left().len() < HELD {
            self.account.give(&give(&self.connection, random.usize(1..20)));
        }
        let given = self.account.left();
        let ranges: Vec<_> = (0..random.usize(1..4)).map(|_| any_range(random, &given)).collect();
        let expected = self.account.take(&ranges);
        let answer = devmem::dont_need(self.connection.socket(), &ranges);
        assert_eq!(answer, expected, "{ranges:x?} of {given:x?}");
    }
}

/// A closed receiver keeps nothing, however often receivers come and go.
fn any_closes(tokens: Tokens) {
    let pair = Pair::new();
    let ours = receiver(14, tokens);
    let mut random = Rng::with_seed(8);
    let mut guests: Vec<_> = (0..3).map(|_| Guest::new(&pair, &ours)).collect();
    for _ in 0..rounds(5_000, 100) {
        let at = random.usize(..guests.len());
        if random.u8(..8) == 0 {
            guests.swap_remove(at).leave();
            guests.push(Guest::new(&pair, &ours));
        } else {
            guests[at].act(&mut random);
        }
    }
    guests.into_iter().for_each(Guest::leave);
    let (mut connection, sender) = pair.connect(&ours);
    let sending = send(sender, 2, 2 * LEN as u64);
    take_all(&mut connection, &mut Check::new(2));
    sending.join().unwrap();
}

#[test]
#[ignore = "needs the lab"]
fn who_closes_returns_all_index_tokens() {
    any_closes(Tokens::Index);
}

#[test]
#[ignore = "needs the lab"]
fn who_closes_returns_all_autorelease_tokens() {
    any_closes(Tokens::Autorelease);
}

// -- DMABUFs

/// A DMABUF of one page, which it has many times.
fn one_page<const TIMES: usize>() -> Block {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("one-page", flags).unwrap();
    rustix::fs::ftruncate(&memfd, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK).unwrap();
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/udmabuf").unwrap();
    let fd = udmabuf_create_list(&device, &memfd, [(0, 4096); TIMES]).unwrap();
    Block::try_from(fd).unwrap()
}

/// Without patch 0038 the kernel stops with a `BUG()`.
#[test]
#[ignore = "needs the lab"]
fn a_page_that_a_dmabuf_has_twice_is_freed_once_for_each() {
    let pair = Pair::new();
    for tokens in [Tokens::Index, Tokens::Autorelease] {
        let setup = ReceiveSetup::new().queues(Queues::These(vec![14])).tokens(tokens);
        let ours = Receiver::open(DEVICE, one_page::<512>(), &setup).unwrap();
        let mut guest = Guest::new(&pair, &ours);
        // What arrives overwrites itself, so only the fragments are looked at.
        wait_until("fragments", || {
            guest.account.give(&give(&guest.connection, 20));
            guest.account.left().len() >= 20
        });
        guest.leave();
        drop(ours);
    }
    // The kernel frees the binding, and goes on.
    let ours = receiver(14, Tokens::Index);
    let (mut connection, sender) = pair.connect(&ours);
    let sending = send(sender, 2, LEN as u64);
    take_all(&mut connection, &mut Check::new(2));
    sending.join().unwrap();
}

// -- Bind messages

/// `struct nlattr` and what belongs to it.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Makes a request to a family; returns the answer with its error code.
fn ask(family: u16, command: u8, attributes: &[u8]) -> (OwnedFd, Result<Vec<u8>, i32>) {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))
            .unwrap();
    connect(&socket, &SocketAddrNetlink::new(0, 0)).unwrap();
    let len = u32::try_from(20 + attributes.len()).unwrap();
    let mut message = len.to_ne_bytes().to_vec();
    // NLM_F_REQUEST, sequence number 1, port 0; the header of generic netlink.
    message.extend([family.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
    message.extend([1u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat());
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    send_to(&socket, &message, SendFlags::empty()).unwrap();
    let mut answer = vec![0; 65536];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
    answer.truncate(len);
    let word = |at: usize| i32::from_ne_bytes(answer[at..at + 4].try_into().unwrap());
    // NLMSG_ERROR
    let result = if answer[4..6] == 2u16.to_ne_bytes() { Err(-word(16)) } else { Ok(()) };
    (socket, result.map(|()| answer))
}

fn family(name: &str) -> u16 {
    let name = [name.as_bytes(), &[0]].concat();
    // CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME
    let (_, answer) = ask(16, 3, &attribute(2, &name));
    let answer = answer.unwrap();
    let mut rest = &answer[20..];
    loop {
        let [len, kind] = [0, 2].map(|at| u16::from_ne_bytes([rest[at], rest[at + 1]]));
        // CTRL_ATTR_FAMILY_ID
        if kind == 1 {
            return u16::from_ne_bytes([rest[4], rest[5]]);
        }
        rest = &rest[usize::from(len).next_multiple_of(4)..];
    }
}

fn any_number(random: &mut Rng, sensible: &[u32]) -> Vec<u8> {
    let number = match random.u8(..4) {
        0 => random.u32(..),
        _ => *random.choice(sensible).unwrap(),
    };
    let mut bytes = number.to_ne_bytes().to_vec();
    if random.u8(..16) == 0 {
        bytes.resize(random.usize(..12), 7);
    }
    bytes
}

fn any_queue(random: &mut Rng) -> Vec<u8> {
    if random.u8(..4) != 0 {
        let id = attribute(queue::ID, &any_number(random, &[0, 13, 14, 15]));
        return [id, attribute(queue::TYPE, &any_number(random, &[queue::RX]))].concat();
    }
    let mut nest = Vec::new();
    for _ in 0..random.usize(..4) {
        let kind = random.choice([queue::ID, queue::TYPE, 7]).unwrap();
        nest.extend(attribute(kind, &any_number(random, &[0, 1, 13, 14, 15, 16])));
    }
    nest
}

fn any_bind(random: &mut Rng, device: u32, block: u32) -> Vec<u8> {
    let mut message = Vec::new();
    for kind in
        [dmabuf::IFINDEX, dmabuf::FD, dmabuf::QUEUES, dmabuf::QUEUES, dmabuf::AUTORELEASE, 0]
    {
        let kind = if random.u8(..12) == 0 { random.u16(..12) } else { kind };
        let value = match kind {
            dmabuf::IFINDEX => any_number(random, &[device, device, device, 1, 0]),
            dmabuf::FD => any_number(random, &[block, block, block, 0, u32::MAX]),
            dmabuf::QUEUES => any_queue(random),
            dmabuf::AUTORELEASE if random.u8(..4) != 0 => Vec::new(),
            _ => vec![0; random.usize(..6)],
        };
        // NLA_F_NESTED
        let nested = if kind == dmabuf::QUEUES && random.u8(..16) != 0 { 1 << 15 } else { 0 };
        if random.u8(..8) != 0 {
            message.extend(attribute(kind | nested, &value));
        }
    }
    if random.u8(..8) == 0 {
        // Truncated, or with a wrong length.
        let at = random.usize(..=message.len());
        message.truncate(at / 4 * 4);
        if let Some(byte) = message.get_mut(at / 8 * 4) {
            *byte = random.u8(..);
        }
    }
    message
}

#[test]
#[ignore = "needs the lab"]
fn any_bind_message_is_done_or_refused() {
    let pair = Pair::new();
    // A binding that works once headers are split.
    drop(receiver(15, Tokens::Index));
    let keeps_split = receiver(12, Tokens::Autorelease);
    let free = Receiver::offered(DEVICE).unwrap();
    let block = Block::with(64 * 4096, &Memory::Pages).unwrap();
    let fd = block.as_fd().as_raw_fd().cast_unsigned();
    let index = std::fs::read_to_string(format!("/sys/class/net/{DEVICE}/ifindex")).unwrap();
    let index = index.trim().parse().unwrap();
    let netdev = family("netdev");
    let mut random = Rng::with_seed(7);
    let mut outcomes = HashMap::<i32, u32>::new();
    let wanted = [0, Errno::INVAL.raw_os_error(), Errno::BADF.raw_os_error()];
    let least = rounds(20_000, 400);
    for round in 0..20_000 {
        // Few messages are right, and each width of `usize` has a sequence of its own.
        if round >= least && wanted.iter().all(|errno| outcomes.contains_key(errno)) {
            break;
        }
        let message = any_bind(&mut random, index, fd);
        // Memory stays bound until the socket is closed.
        let (_socket, answer) = ask(netdev, command::BIND_RX, &message);
        *outcomes.entry(answer.err().unwrap_or(0)).or_default() += 1;
    }
    assert_eq!(Receiver::offered(DEVICE).unwrap(), free, "{outcomes:?}");
    for errno in wanted {
        assert!(outcomes.contains_key(&errno), "no {errno} in {outcomes:?}");
    }
    drop(keeps_split);
    let receiver = pair.receiver(LEN);
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 3, 1 << 20);
    take_all(&mut connection, &mut Check::new(3));
    sending.join().unwrap();
}
