//! Linux's side of the rings on ordinary memory, for tests and fuzzing.
//!
//! Does what `remoteproc_virtio.c`, `virtio_ring.c` and `virtio_rpmsg_bus.c` do: lays out two
//! vrings and their buffers, fills in the resource table, and suppresses kicks the same way.

// A mock that does not work is a test that fails.
#![allow(clippy::missing_panics_doc)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

use crate::buffer::{Area, Window};
use crate::machine::Shared;
use crate::message::{self, BUFFER_SIZE, Header, Message};
use crate::name_service::Announcement;
use crate::table::{self, Image, STATUS_DRIVER_OK};

/// Device address of the shared memory.
pub const BASE: u64 = 0x1000_0000;
/// Bytes of the shared memory.
pub const SIZE: usize = 512 * 1024;
/// Offset of the rings, one after the other, in the shared memory.
pub const RING_OFFSETS: [u64; 2] = [0, 0x4000];
const BUFFERS_OFFSET: u64 = 0x8000;
const ALIGN: u64 = 4096;
const TABLE_SIZE: usize = 4096;
/// Offset of the rpmsg device in the image.
const DEVICE_AT: usize = 20;

/// `ACKNOWLEDGE` and `DRIVER`
const DRIVER: u8 = 3;

const DESC_WRITE: u16 = 2;
const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// The driver side of a vring, like `virtio_ring.c`.
#[derive(Debug)]
struct DriverRing {
    memory: GuestMemoryMmap,
    address: u64,
    entries: u16,
    event_index: bool,
    free: Vec<u16>,
    buffers: Vec<u64>,
    avail: u16,
    kicked: u16,
    used: u16,
    interrupts: bool,
}

impl DriverRing {
    fn new(memory: &GuestMemoryMmap, address: u64, entries: u16, event_index: bool) -> Self {
        let zeroes = vec![0; 0x4000];
        memory.write_slice(&zeroes, GuestAddress(address)).unwrap();
        Self {
            memory: memory.clone(),
            address,
            entries,
            event_index,
            free: (0..entries).rev().collect(),
            buffers: vec![0; usize::from(entries)],
            avail: 0,
            kicked: 0,
            used: 0,
            interrupts: true,
        }
    }

    fn avail_at(&self) -> u64 {
        self.address + 16 * u64::from(self.entries)
    }

    fn used_at(&self) -> u64 {
        (self.avail_at() + 6 + 2 * u64::from(self.entries)).next_multiple_of(ALIGN)
    }

    fn load(&self, at: u64, order: Ordering) -> u16 {
        self.memory.load(GuestAddress(at), order).unwrap()
    }

    fn store(&self, value: u16, at: u64, order: Ordering) {
        self.memory.store(value, GuestAddress(at), order).unwrap();
    }

    fn add(&mut self, buffer: u64, length: u32, writable: bool) {
        let index = self.free.pop().expect("a free descriptor");
        let flags = if writable { DESC_WRITE } else { 0 };
        let descriptor = [
            &buffer.to_le_bytes()[..],
            &length.to_le_bytes(),
            &flags.to_le_bytes(),
            &0u16.to_le_bytes(),
        ];
        let at = GuestAddress(self.address + 16 * u64::from(index));
        self.memory.write_slice(&descriptor.concat(), at).unwrap();
        self.buffers[usize::from(index)] = buffer;
        let slot = self.avail_at() + 4 + 2 * u64::from(self.avail % self.entries);
        self.store(index, slot, Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
        self.store(self.avail, self.avail_at() + 2, Ordering::Release);
    }

    /// `virtqueue_kick_prepare()`
    fn needs_kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let (old, new) = (self.kicked, self.avail);
        self.kicked = new;
        if self.event_index {
            let event_at = self.used_at() + 4 + 8 * u64::from(self.entries);
            let event = self.load(event_at, Ordering::Relaxed);
            return new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
        }
        self.load(self.used_at(), Ordering::Relaxed) & USED_NO_NOTIFY == 0
    }

    /// `virtqueue_get_buf()`: the buffer and how much of it is written.
    fn take(&mut self) -> Option<(u64, usize)> {
        if self.load(self.used_at() + 2, Ordering::Acquire) == self.used {
            return None;
        }
        let slot = self.used_at() + 4 + 8 * u64::from(self.used % self.entries);
        let [index, length]: [u32; 2] =
            [0, 4].map(|at| self.memory.read_obj(GuestAddress(slot + at)).unwrap());
        self.used = self.used.wrapping_add(1);
        let index = u16::try_from(index).unwrap();
        assert!(index < self.entries && !self.free.contains(&index), "buffer {index} is in use");
        self.free.push(index);
        if self.interrupts {
            self.ask_for_interrupt();
        }
        Some((self.buffers[usize::from(index)], length as usize))
    }

    fn ask_for_interrupt(&self) {
        if self.event_index {
            let event_at = self.avail_at() + 4 + 2 * u64::from(self.entries);
            self.store(self.used, event_at, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// `virtqueue_enable_cb()` and `virtqueue_disable_cb()`
    fn set_interrupts(&mut self, on: bool) {
        self.interrupts = on;
        if !self.event_index {
            let flags = if on { 0 } else { AVAIL_NO_INTERRUPT };
            self.store(flags, self.avail_at(), Ordering::Relaxed);
            fence(Ordering::SeqCst);
        } else if on {
            self.ask_for_interrupt();
        }
    }
}

/// Address of the first shared buffer.
pub const BUFFERS: u64 = 1 << 40;
/// Distance of the addresses of two buffers.
const BUFFER_ROOM: u64 = 1 << 40;

/// Memory that Linux shares: a file for each buffer, empty while the coprocessor may not touch it.
#[derive(Clone, Debug, Default)]
pub struct Dmabufs(Arc<Mutex<Vec<Arc<File>>>>);

impl Dmabufs {
    /// Adds a buffer that is not given yet; returns its device address.
    #[must_use]
    pub fn add(&self) -> u64 {
        let memfd = rustix::fs::memfd_create("dmabuf", MemfdFlags::CLOEXEC).unwrap();
        let mut files = self.0.lock().unwrap();
        files.push(Arc::new(memfd.into()));
        BUFFERS + BUFFER_ROOM * (files.len() as u64 - 1)
    }

    fn file(&self, address: u64) -> Option<Arc<File>> {
        let index = address.checked_sub(BUFFERS)? / BUFFER_ROOM;
        self.0.lock().unwrap().get(usize::try_from(index).ok()?).cloned()
    }

    /// Gives the buffer at `address` with these bytes.
    pub fn give(&self, address: u64, bytes: &[u8]) {
        self.file(address).unwrap().write_all_at(bytes, 0).unwrap();
    }

    /// The first `length` bytes of the buffer.
    #[must_use]
    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file(address).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Takes the buffer back: an access raises `SIGBUS`.
    pub fn take_back(&self, address: u64) {
        self.file(address).unwrap().set_len(0).unwrap();
    }
}

impl Window for Dmabufs {
    fn map(&self, address: u64, length: usize) -> io::Result<Area> {
        let file = self.file(address).ok_or(Errno::FAULT)?;
        Area::new(&*file, (address - BUFFERS) % BUFFER_ROOM, length)
    }
}

/// Linux: rpmsg bus, rings, and the memory that it shares with a coprocessor.
#[derive(Debug)]
pub struct Linux {
    memory: GuestMemoryMmap,
    table: Arc<MmapRegion>,
    image: Vec<u8>,
    entries: u16,
    event_index: bool,
    receive: DriverRing,
    transmit: DriverRing,
    unsent: Vec<u64>,
    dmabufs: Dmabufs,
}

impl Linux {
    /// Loads an image; the driver comes with [`Self::probe`].
    #[must_use]
    pub fn new(image: Image) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), SIZE)]).unwrap();
        let table = Arc::new(MmapRegion::new(TABLE_SIZE).unwrap());
        let (entries, image) = (image.count(), image.build());
        table.as_volatile_slice().write_slice(&image, 0).unwrap();
        let offered = table::parse(&image).unwrap().offered;
        let event_index = offered & table::FEATURE_EVENT_INDEX != 0;
        let ring = |index: usize| {
            DriverRing::new(&memory, BASE + RING_OFFSETS[index], entries, event_index)
        };
        let (receive, transmit) = (ring(table::RECEIVE), ring(table::TRANSMIT));
        let (unsent, dmabufs) = Default::default();
        Self { memory, table, image, entries, event_index, receive, transmit, unsent, dmabufs }
    }

    /// The memory that the coprocessor sees.
    #[must_use]
    pub fn shared(&self) -> Shared {
        Shared::new(self.memory.clone(), Arc::clone(&self.table)).with_window(self.dmabufs.clone())
    }

    /// The shared buffers.
    #[must_use]
    pub fn dmabufs(&self) -> &Dmabufs {
        &self.dmabufs
    }

    /// The shared memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Writes to the resource table.
    pub fn write_table(&self, at: usize, bytes: &[u8]) {
        self.table.as_volatile_slice().write_slice(bytes, at).unwrap();
    }

    /// Loads the image again, then does what `rpmsg_probe()` does: sets up rings and buffers, and
    /// says so. A kick on vring 0 follows.
    pub fn probe(&mut self) {
        self.write_table(0, &self.image);
        let ring = |index: usize| {
            DriverRing::new(
                &self.memory,
                BASE + RING_OFFSETS[index],
                self.entries,
                self.event_index,
            )
        };
        (self.receive, self.transmit) = (ring(table::RECEIVE), ring(table::TRANSMIT));
        let buffer = |index: u16| BASE + BUFFERS_OFFSET + BUFFER_SIZE as u64 * u64::from(index);
        for index in 0..self.entries {
            self.receive.add(buffer(index), 512, true);
        }
        self.unsent = (self.entries..2 * self.entries).map(buffer).collect();
        self.transmit.set_interrupts(false);
        for (vring, offset) in (0u32..).zip(RING_OFFSETS) {
            let at = DEVICE_AT + 28 + 20 * vring as usize;
            let address = u32::try_from(BASE + offset).unwrap();
            self.write_table(at, &address.to_le_bytes());
            self.write_table(at + 12, &vring.to_le_bytes());
        }
        let granted = table::FEATURE_NAME_SERVICE
            | if self.event_index { table::FEATURE_EVENT_INDEX } else { 0 };
        self.write_table(DEVICE_AT + 16, &granted.to_le_bytes());
        self.set_status(DRIVER | STATUS_DRIVER_OK);
    }

    /// `rpmsg_remove()`: releases the rings.
    pub fn remove(&mut self) {
        self.set_status(0);
    }

    fn set_status(&self, status: u8) {
        self.table.as_volatile_slice().store(status, DEVICE_AT + 24, Ordering::Release).unwrap();
    }

    /// Sends a message; false if all buffers are in use. [`Self::kicks`] has to be called next.
    pub fn send(&mut self, source: u32, destination: u32, data: &[u8]) -> bool {
        let reused = |ring: &mut DriverRing| ring.take().map(|(buffer, _)| buffer);
        let Some(buffer) = self.unsent.pop().or_else(|| reused(&mut self.transmit)) else {
            return false;
        };
        let message = Message::new(source, destination, data).unwrap();
        self.memory.write_slice(message.as_bytes(), GuestAddress(buffer)).unwrap();
        let length = u32::try_from(message.as_bytes().len()).unwrap();
        self.transmit.add(buffer, length, false);
        true
    }

    /// Announces a channel of Linux's own.
    pub fn announce(&mut self, announcement: &Announcement) -> bool {
        self.send(0x400, crate::name_service::ADDRESS, &announcement.encode())
    }

    /// The next message to Linux; its buffer is returned. [`Self::kicks`] has to be called next.
    pub fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let (buffer, length) = self.receive.take()?;
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(buffer)).unwrap();
        self.receive.add(buffer, 512, true);
        let (header, data) = message::parse(&bytes).unwrap();
        Some((header, data.to_vec()))
    }

    /// The vrings that the coprocessor has to be kicked on.
    pub fn kicks(&mut self) -> u32 {
        u32::from(self.receive.needs_kick()) | u32::from(self.transmit.needs_kick()) << 1
    }

    /// Whether the coprocessor is to kick when it has read a message.
    pub fn want_transmit_interrupts(&mut self, on: bool) {
        self.transmit.set_interrupts(on);
    }
}
