//! Linux writes anything into rings, descriptors and resource table, at any time.
//!
//! Each turn has to end, and after any turn a new boot has to work.

#![no_main]

use std::time::Instant;

use arbitrary::Arbitrary;
use busbar_coprocessor::machine::Machine;
use busbar_coprocessor::mock::{BASE, Linux, RING_OFFSETS};
use busbar_coprocessor::service::{Bulk, Control, Echo, Services, Sink, Source};
use busbar_coprocessor::table::Image;
use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, GuestAddress};

const ECHO: u32 = 0x400;
/// A machine that takes more turns than this without new input hangs.
const MAX_TURNS: usize = 10_000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Sends a message as Linux does.
    Send { destination: u8, data: Vec<u8> },
    /// Takes the received messages, as Linux does.
    Receive,
    /// Makes a descriptor available, with any content.
    Offer { ring: bool, descriptor: u8, address: Address, length: u32, flags: u8, next: u8 },
    /// Writes a word anywhere in the first page of a ring, or around its used ring.
    Word { ring: bool, used: bool, at: u16, word: u16 },
    /// Writes anywhere in the shared memory.
    Bytes { at: u32, bytes: Vec<u8> },
    /// Writes into the resource table.
    Table { at: u8, bytes: [u8; 4] },
    /// Runs the core.
    Turn,
    /// Linux starts the core again.
    Boot,
    /// Linux releases the rings.
    Remove,
}

#[derive(Arbitrary, Debug)]
enum Address {
    Within(u32),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
struct Input {
    exponent: u8,
    event_index: bool,
    steps: Vec<Step>,
}

fuzz_target!(|input: Input| {
    let entries = 2 << (input.exponent % 8);
    let image = Image::default().entries(entries).unwrap().event_index(input.event_index);
    let mut linux = Linux::new(image);
    let shared = linux.shared();
    let mut services = services();
    let mut machine = Machine::new(&shared, &mut services);
    linux.probe();
    machine.start();
    // After hostile input, the mock itself is not expected to work.
    let mut sane = true;
    for step in input.steps {
        match step {
            Step::Send { destination, data } if sane && data.len() <= 496 => {
                let destination =
                    [53, 0x400, 0x401, 0x402, 0x403, 0x404, 0x405][usize::from(destination % 7)];
                linux.send(9, destination, &data);
            }
            Step::Receive if sane => while linux.receive().is_some() {},
            Step::Send { .. } | Step::Receive => {}
            Step::Offer { ring, descriptor, address, length, flags, next } => {
                sane = false;
                offer(&linux, entries, ring, descriptor, address, length, flags, next);
            }
            Step::Word { ring, used, at, word } => {
                sane = false;
                let used = if used { 4096 } else { 0 };
                let at = RING_OFFSETS[usize::from(ring)] + used + u64::from(at % 4096);
                let _ = linux.memory().write_obj(word, GuestAddress(BASE + at));
            }
            Step::Bytes { at, bytes } => {
                sane = false;
                let at = BASE + u64::from(at) % (512 * 1024);
                let _ = linux.memory().write(&bytes, GuestAddress(at));
            }
            Step::Table { at, bytes } => {
                sane = false;
                linux.write_table(usize::from(at % 100), &bytes);
            }
            Step::Turn => turns(&mut machine),
            Step::Boot => machine.start(),
            Step::Remove => linux.remove(),
        }
    }
    turns(&mut machine);

    machine.halt();
    linux.probe();
    machine.start();
    // There may be fewer buffers than announcements.
    turns(&mut machine);
    while linux.receive().is_some() {
        turns(&mut machine);
    }
    assert!(linux.send(9, ECHO, b"still there"));
    turns(&mut machine);
    assert_eq!(linux.receive().unwrap().1, b"still there");
});

fn services() -> Services {
    let mut services = Services::default();
    services.add(Echo::new("echo")).unwrap();
    services.add(Sink::new("sink")).unwrap();
    services.add(Source::new("source")).unwrap();
    services.add(Bulk::new("bulk")).unwrap();
    services.add(Control::new("control").gain(70)).unwrap();
    services
}

/// Turns until there is nothing to do; what a source has still to send may wait.
fn turns(machine: &mut Machine<'_>) {
    let now = Instant::now();
    for _ in 0..MAX_TURNS {
        let turn = machine.turn(now, &mut |_| {});
        if turn.crash.is_some() {
            machine.halt();
        }
        if !turn.busy {
            return;
        }
    }
    panic!("the machine hangs");
}

#[allow(clippy::too_many_arguments)]
fn offer(
    linux: &Linux,
    entries: u16,
    ring: bool,
    descriptor: u8,
    address: Address,
    length: u32,
    flags: u8,
    next: u8,
) {
    let memory = linux.memory();
    let entries = u64::from(entries);
    let ring = BASE + RING_OFFSETS[usize::from(ring)];
    let at = GuestAddress(ring + 16 * (u64::from(descriptor) % entries));
    let address = match address {
        Address::Within(offset) => BASE + u64::from(offset) % (512 * 1024),
        Address::Any(address) => address,
    };
    let bytes = [
        &address.to_le_bytes()[..],
        &length.to_le_bytes(),
        &u16::from(flags % 8).to_le_bytes(),
        &u16::from(next).to_le_bytes(),
    ];
    memory.write_slice(&bytes.concat(), at).unwrap();
    let avail = ring + 16 * entries;
    let index: u16 = memory.read_obj(GuestAddress(avail + 2)).unwrap();
    let slot = avail + 4 + 2 * (u64::from(index) % entries);
    memory.write_obj(u16::from(descriptor), GuestAddress(slot)).unwrap();
    memory.write_obj(index.wrapping_add(1), GuestAddress(avail + 2)).unwrap();
}
