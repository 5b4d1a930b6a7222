//! Rings and messages with hostile content, from the process's side, against the in-tree bus.
//!
//! The kernel may do anything with them (docs/endpoint.md), as long as it reports
//! nothing, does not hang, and works again after the recovery.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::thread::{sleep, spawn};
use std::time::Duration;

use busbar_lab::stage::Side;
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use busbar_uapi::vcoproc::{self, EVENT_KICK};
use fastrand::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags};
use support::{Mapping, eptfd, wait_until};

const RING: usize = 256;
const BUFFER: usize = 512;
/// Bytes of a descriptor, and the offset of its flags.
const DESCRIPTOR: usize = 16;
const FLAGS: usize = 12;
const NEXT: u16 = 1;

/// The shared memory of a core, and the parts of the receiving ring in it.
struct Memory {
    mapping: Mapping,
    size: usize,
    device_address: u64,
    descriptors: usize,
    used: usize,
}

#[allow(unsafe_code)]
impl Memory {
    fn map(core: &File) -> Self {
        let info = vcoproc::info(core).unwrap();
        let size = usize::try_from(info.memory_size).unwrap();
        let (read, write) = (ProtFlags::READ, ProtFlags::WRITE);
        let shared = MapFlags::SHARED;
        let mapping = Mapping::new(core, info.memory_size, read | write, shared, 0).unwrap();
        let table = Mapping::new(core, info.table_size, read, shared, info.table_offset).unwrap();
        // `da` of the first vring: after the header, the offset, the type and the device.
        // SAFETY: within the mapping.
        let da =
            std::array::from_fn(|i| unsafe { table.base.add(20 + 4 + 24 + i).read_volatile() });
        let da = u64::from(u32::from_ne_bytes(da));
        let ring = usize::try_from(da - info.device_address).unwrap();
        let used = (ring + DESCRIPTOR * RING + 6 + 2 * RING).next_multiple_of(4096);
        Self { mapping, size, device_address: info.device_address, descriptors: ring, used }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = (at + index) % self.size;
            // SAFETY: within the mapping.
            unsafe { self.mapping.base.add(at).write_volatile(*byte) }
        }
    }

    /// Lets the kernel write, which fails where an instruction would raise `SIGBUS`.
    fn try_put(&self, at: usize, bytes: &[u8]) -> Result<usize, Errno> {
        assert!(at + bytes.len() <= self.size);
        let scratch = memfd_create("scratch", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(pwrite(&scratch, bytes, 0), Ok(bytes.len()));
        // SAFETY: within the mapping. Only the kernel gets this address, and it checks each access.
        let to = unsafe { self.mapping.base.add(at) };
        // SAFETY: as above.
        pread(&scratch, unsafe { std::slice::from_raw_parts_mut(to, bytes.len()) }, 0)
    }

    /// Lets the kernel read, which fails where an instruction would raise `SIGBUS`.
    fn try_get(&self, at: usize) -> Result<[u8; 2], Errno> {
        let scratch = memfd_create("scratch", MemfdFlags::CLOEXEC).unwrap();
        let mut bytes = [0; 2];
        assert!(at + bytes.len() <= self.size);
        // SAFETY: within the mapping. Only the kernel gets this address, and it checks each access.
        let from = unsafe { self.mapping.base.add(at) };
        // SAFETY: as above.
        pwrite(&scratch, unsafe { std::slice::from_raw_parts(from, bytes.len()) }, 0)?;
        assert_eq!(pread(&scratch, &mut bytes, 0), Ok(bytes.len()));
        Ok(bytes)
    }

    /// Marks every buffer as used, with a message to an address without an endpoint.
    fn fill_used(&self) {
        for index in 0..RING {
            let at = DESCRIPTOR * index + self.descriptors;
            let buffer = u64::from_ne_bytes(self.get(at)) - self.device_address;
            let mut message = [0; 20];
            message[4..8].copy_from_slice(&0x1234_5678u32.to_le_bytes());
            message[12] = 4;
            self.put(usize::try_from(buffer).unwrap(), &message);
            let slot = self.used + 4 + 8 * index;
            self.put(slot, &u32::try_from(index).unwrap().to_le_bytes());
            self.put(slot + 4, &20u32.to_le_bytes());
        }
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: within the mapping.
        std::array::from_fn(|i| unsafe {
            self.mapping.base.add((at + i) % self.size).read_volatile()
        })
    }
}

/// Another descriptor, or an entry of the available ring, which Linux writes and trusts.
fn lie_about_descriptors(memory: &Memory, random: &mut Rng) {
    let mut bytes = [0; DESCRIPTOR];
    random.fill(&mut bytes);
    bytes[FLAGS] = random.u8(..8);
    let at = memory.descriptors + 2 * random.usize(..DESCRIPTOR * RING / 2 + RING - 8);
    assert_eq!(memory.try_put(at, &bytes), Err(Errno::FAULT), "{at:#x}");
}

/// One round of invalid content for the ring in which Linux receives.
fn lie(memory: &Memory, random: &mut Rng, index: &mut u16) {
    lie_about_descriptors(memory, random);
    let descriptor = random.usize(..RING + 8);
    let at = memory.descriptors + DESCRIPTOR * (descriptor % RING);
    let address = u64::from_ne_bytes(memory.get(at));
    let buffer = usize::try_from(address.wrapping_sub(memory.device_address)).unwrap_or(0);

    let addresses = [0, 53, 1024, 1025, random.u32(..), u32::MAX];
    let source: u32 = addresses[random.usize(..6)];
    let destination: u32 = addresses[random.usize(..6)];
    let payload: u16 = [0, 1, 40, 39, 41, 496, 497, 0xffff][random.usize(..8)];
    let mut message = [0; BUFFER];
    message[..4].copy_from_slice(&source.to_le_bytes());
    message[4..8].copy_from_slice(&destination.to_le_bytes());
    message[12..14].copy_from_slice(&payload.to_le_bytes());
    message[16..48].fill(random.u8(b'a'..b'e'));
    message[48..52].copy_from_slice(&random.u32(..2000).to_le_bytes());
    message[52..56].copy_from_slice(&random.u32(..3).to_le_bytes());
    memory.put(buffer, &message);

    let length: u32 = [0, 1, 15, 16, 17, 511, 512, 513, 0xffff, u32::MAX][random.usize(..10)];
    let slot = memory.used + 4 + 8 * (usize::from(*index) % RING);
    memory.put(slot, &u32::try_from(descriptor).unwrap().to_le_bytes());
    memory.put(slot + 4, &length.to_le_bytes());
    let step = if random.u8(..50) == 0 { random.u16(..) } else { 1 };
    *index = index.wrapping_add(step);
    memory.put(memory.used + 2, &index.to_le_bytes());
}

/// This process as the core of the coprocessor, once Linux has set up the rings.
fn become_core(side: &mut Side) -> File {
    side.kill().unwrap();
    let core = File::options().read(true).write(true).open(side.core()).unwrap();
    while vcoproc::read_event(&core).unwrap().events & EVENT_KICK == 0 {}
    core
}

#[test]
#[ignore = "needs the lab"]
fn descriptors_cannot_be_made_to_lead_in_a_circle() {
    let mut side = eptfd(&["echo"]);
    let core = become_core(&mut side);
    let memory = Memory::map(&core);
    memory.fill_used();
    for index in 0..RING {
        let flags = memory.descriptors + DESCRIPTOR * index + FLAGS;
        assert_eq!(memory.try_put(flags, &NEXT.to_le_bytes()), Err(Errno::FAULT), "{index}");
    }
    memory.put(memory.used + 2, &1u16.to_le_bytes());
    vcoproc::kick(&core, 1).unwrap();
    drop((memory, core));
    side.start().expect("an honest process is served again");
}

#[test]
#[ignore = "needs the lab"]
fn process_that_never_lets_up_does_not_hold_up_a_stop() {
    let mut side = eptfd(&["echo"]);
    let core = become_core(&mut side);
    let busy = spawn(move || {
        let memory = Memory::map(&core);
        memory.fill_used();
        // Linux gives each buffer back at once, which shows its progress: it is always behind by
        // thousands. This ends when the kernel unmaps the memory.
        let avail = memory.descriptors + DESCRIPTOR * RING + 2;
        while let Ok(given) = memory.try_get(avail) {
            let ahead = u16::from_ne_bytes(given).wrapping_add(0x7f00);
            let _ = memory.try_put(memory.used + 2, &ahead.to_ne_bytes());
            let _ = vcoproc::kick(&core, 1);
        }
    });
    sleep(Duration::from_secs(1));
    let state = side.remoteproc().join("state");
    let stopper = spawn(move || fs::write(state, "stop"));
    wait_until("the stop", || stopper.is_finished());
    stopper.join().unwrap().unwrap();
    busy.join().unwrap();
    side.start().expect("an honest process is served again");
}

#[test]
#[ignore = "needs the lab"]
fn kernel_survives_a_hostile_process() {
    let rounds = support::rounds(60, 8);
    let mut side = eptfd(&["echo"]);
    for round in 0..rounds {
        let core = become_core(&mut side);
        side.bind().unwrap();
        let victim = victim(&side);
        let memory = Memory::map(&core);
        let mut rng = Rng::with_seed(round);
        let mut index = 0;
        for _ in 0..200 {
            lie(&memory, &mut rng, &mut index);
            vcoproc::kick(&core, rng.u32(1..4)).unwrap();
        }
        drain(&victim);
        drop(core);
    }
    fs::write(side.remoteproc().join("recovery"), "enabled").unwrap();
    side.start().expect("an honest process is served again");
    let victim = victim(&side);
    rustix::io::write(&victim, b"sane").unwrap();
    let mut answer = [0; 8];
    wait_until("an answer", || rustix::io::read(&victim, &mut answer).is_ok_and(|len| len == 4));
}

/// An endpoint at the address to which most of the invalid messages are sent.
fn victim(side: &Side) -> OwnedFd {
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    let name = [b'v'; NAME_SIZE];
    let info = EndpointFdInfo { name, src: ADDR_ANY, dst: 0x400, flags, fd: -1 };
    rpmsg::create_ept_fd(&control, info).expect("an endpoint")
}

/// Reads all messages: none is longer than a message, whatever the ring contains.
fn drain(victim: &OwnedFd) {
    let mut fds = [PollFd::new(victim, PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut fds, Some(&patience)).unwrap();
    let mut buffer = vec![0; 1 << 17];
    while let Ok(len) = rustix::io::read(victim, &mut buffer) {
        assert!(len <= 0xffff);
    }
    sleep(Duration::from_millis(5));
}
