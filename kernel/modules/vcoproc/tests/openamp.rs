//! A core by the rules of `OpenAMP`'s device role, which no test of Busbar's own firmware covers.
//!
//! `OpenAMP` (lib/remoteproc, lib/virtio/virtqueue.c) writes the notify ids that it has read back to
//! the resource table, does not write to descriptors and available ring, and never moves the event index
//! of the used ring: with `VIRTIO_RING_F_EVENT_IDX` granted, Linux kicks it once and not again.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

#[path = "../../rpmsg_eptfd/tests/remote/view.rs"]
mod view;

use std::fs::File;
use std::thread::{JoinHandle, spawn};

use busbar_coprocessor::table::{self, FEATURE_NAME_SERVICE, RECEIVE, TRANSMIT};
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use busbar_uapi::vcoproc::{self, EVENT_KICK, EVENT_STOP};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use support::eptfd;
use view::View;

const HEADER: usize = 16;
const SERVICE: u32 = 0x400;
/// Offsets of the vrings' notify ids in the table.
const NOTIFY_IDS: [u64; 2] = [20 + 4 + 24 + 12, 20 + 4 + 24 + 20 + 12];

/// A vring, by offset in the shared memory, and the number of entries processed.
struct Ring {
    descriptors: u64,
    avail: u64,
    used: u64,
    entries: u16,
    taken: u16,
}

/// The firmware: it sends each message to its address back.
struct Firmware {
    core: File,
    base: u64,
    rings: [Ring; 2],
}

impl Firmware {
    /// `remoteproc_set_rsc_table()` and `rpmsg_init_vdev()`.
    fn new(core: File) -> Self {
        let info = vcoproc::info(&core).unwrap();
        let view = View::new(&core, info.table_offset, info.table_size);
        for at in NOTIFY_IDS {
            let id = View::new(&core, info.table_offset + at, 4);
            id.write(&id.read().unwrap()).expect("the table takes a notify id");
        }
        let device = table::parse(&view.read().unwrap()).expect("a table");
        assert!(device.is_ready() && device.has(FEATURE_NAME_SERVICE));
        let rings = [RECEIVE, TRANSMIT].map(|index| {
            let vring = device.vring(index).unwrap();
            let descriptors = u64::from(vring.address) - info.device_address;
            let avail = descriptors + 16 * u64::from(vring.entries);
            let end = avail + 6 + 2 * u64::from(vring.entries);
            let used = end.next_multiple_of(vring.align.into());
            Ring { descriptors, avail, used, entries: vring.entries, taken: 0 }
        });
        Self { core, base: info.device_address, rings }
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        View::new(&self.core, at, N as u64).read().unwrap().try_into().unwrap()
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        View::new(&self.core, at, bytes.len() as u64).write(bytes).unwrap();
    }

    /// `virtqueue_get_available_buffer()`: the number of a buffer, and its address.
    fn take(&mut self, index: usize) -> Option<(u16, u64)> {
        let ring = &self.rings[index];
        if u16::from_ne_bytes(self.get(ring.avail + 2)) == ring.taken {
            return None;
        }
        let slot = ring.avail + 4 + 2 * u64::from(ring.taken % ring.entries);
        let head = u16::from_ne_bytes(self.get(slot));
        let address = u64::from_ne_bytes(self.get(ring.descriptors + 16 * u64::from(head)));
        self.rings[index].taken = ring.taken.wrapping_add(1);
        Some((head, address - self.base))
    }

    /// `virtqueue_add_consumed_buffer()`, without a change to the flags of the used ring.
    fn give_back(&self, index: usize, head: u16, length: u32) {
        let ring = &self.rings[index];
        let used = u16::from_ne_bytes(self.get(ring.used + 2));
        let slot = ring.used + 4 + 8 * u64::from(used % ring.entries);
        self.put(slot, &[u32::from(head).to_ne_bytes(), length.to_ne_bytes()].concat());
        self.put(ring.used + 2, &used.wrapping_add(1).to_ne_bytes());
    }

    /// `rproc_virtio_virtqueue_notified()`
    fn answer_all(&mut self) {
        while let Some((head, from)) = self.take(TRANSMIT) {
            let mut header = self.get::<HEADER>(from);
            let length = u16::from_ne_bytes([header[12], header[13]]);
            let data = View::new(&self.core, from + 16, length.into()).read().unwrap();
            self.give_back(TRANSMIT, head, 0);
            let (answer, to) = self.take(RECEIVE).expect("a buffer for the answer");
            let (source, destination) = header[..8].split_at_mut(4);
            source.swap_with_slice(destination);
            self.put(to, &[&header[..], &data].concat());
            self.give_back(RECEIVE, answer, u32::from(length) + 16);
            vcoproc::kick(&self.core, 3).unwrap();
        }
    }

    fn run(mut self) {
        loop {
            let event = vcoproc::read_event(&self.core).expect("an event");
            if event.events & EVENT_STOP != 0 {
                vcoproc::stopped(&self.core).unwrap();
                return;
            }
            self.answer_all();
        }
    }
}

/// Takes the core over from Busbar's own process, once Linux has set up the rings.
fn firmware(side: &mut busbar_lab::stage::Side) -> JoinHandle<()> {
    side.kill().unwrap();
    let core = File::options().read(true).write(true).open(side.core()).unwrap();
    while vcoproc::read_event(&core).unwrap().events & EVENT_KICK == 0 {}
    let firmware = Firmware::new(core);
    spawn(move || firmware.run())
}

#[test]
#[ignore = "needs the lab"]
fn firmware_without_event_indices_misses_no_message() {
    let mut side = eptfd(&["echo"]);
    let firmware = firmware(&mut side);
    side.bind().unwrap();
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
    let info =
        EndpointFdInfo { name: [b'o'; NAME_SIZE], src: ADDR_ANY, dst: SERVICE, flags, fd: -1 };
    let endpoint = rpmsg::create_ept_fd(&control, info).expect("an endpoint");
    for message in 0..30u32 {
        write(&endpoint, &message.to_le_bytes()).unwrap();
        let mut fds = [PollFd::new(&endpoint, PollFlags::IN)];
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "an answer to message {message}");
        let mut answer = [0; 16];
        assert_eq!(read(&endpoint, &mut answer), Ok(4));
        assert_eq!(answer[..4], message.to_le_bytes());
    }
    assert_eq!(read(&endpoint, &mut [0; 16]), Err(Errno::AGAIN));
    std::fs::write(side.remoteproc().join("state"), "stop").expect("a stop that is answered");
    firmware.join().unwrap();
}
