//! The device side of a split vring, over any guest memory.
//!
//! Linux lays a vring out like `vring_init()`: descriptors, available ring behind them, used
//! ring at the next multiple of the alignment. What Linux writes is never trusted:
//! invalid addresses, lengths, flags and indices are counted and dropped, and an available
//! index that runs ahead is an error, after which nothing in the ring can be trusted.
//!
//! Kicks are suppressed both ways, by event indices where they are granted and otherwise by
//! flags. `virtio-queue` supports all of this except `VRING_AVAIL_F_NO_INTERRUPT`, which is here.

use std::io;
use std::sync::atomic::Ordering;

use busbar::{Error, Result};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use crate::table::Vring;

/// Most parts of a chain that are followed; Linux's bus makes chains of one.
const MAX_PARTS: usize = 16;
/// `VRING_AVAIL_F_NO_INTERRUPT`
const NO_INTERRUPT: u16 = 1;

const DESCRIPTOR_SIZE: u64 = 16;
/// Flags and index before the entries, the event index behind them.
const AVAIL_SIZE: u64 = 6;
const AVAIL_ENTRY: u64 = 2;
const USED_SIZE: u64 = 6;
const USED_ENTRY: u64 = 8;

/// A part of a buffer.
#[derive(Clone, Copy)]
struct Part {
    address: GuestAddress,
    length: usize,
}

/// Direction of the data of a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// The device side of one vring.
#[derive(Debug)]
pub struct Ring<M> {
    queue: Queue,
    memory: M,
    notify_id: u32,
    mask: u32,
    /// Buffers were given back since it was last asked whether Linux wants a kick.
    unsignalled: bool,
    /// Linux has been asked not to kick.
    muted: bool,
    malformed: u64,
}

impl<M: GuestMemory> Ring<M> {
    /// Takes over a vring that Linux has set up, and of which no entry was used yet.
    ///
    /// `event_index` says whether event indices are granted. Fails where the vring does not lie
    /// in `memory`.
    pub fn new(memory: M, vring: &Vring, event_index: bool) -> Result<Self> {
        let [descriptors, avail, used] = layout(&memory, vring)?;
        let setup = || -> Result<Queue, virtio_queue::Error> {
            let mut queue = Queue::new(vring.entries)?;
            queue.try_set_desc_table_address(descriptors)?;
            queue.try_set_avail_ring_address(avail)?;
            queue.try_set_used_ring_address(used)?;
            queue.set_event_idx(event_index);
            queue.set_ready(true);
            Ok(queue)
        };
        let queue = setup().map_err(|error| broken("set up", vring.notify_id, error))?;
        let notify_id = vring.notify_id;
        let mask = 1u32
            .checked_shl(notify_id)
            .ok_or_else(|| Error::invalid("notify id of a vring", notify_id, "0 to 31"))?;
        Ok(Self { queue, memory, notify_id, mask, unsignalled: false, muted: false, malformed: 0 })
    }

    /// The bit of a kick mask that stands for this vring.
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Buffers that were dropped for invalid descriptors since the last call.
    pub fn take_malformed(&mut self) -> u64 {
        std::mem::take(&mut self.malformed)
    }

    /// Takes the next message from Linux into `buffer` and gives Linux its buffer back.
    ///
    /// A buffer that is malformed, not readable or longer than `buffer` is counted, given back
    /// and skipped. Returns the bytes of the message or nothing if Linux has sent no more.
    pub fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        while let Some((head, parts)) = self.next_buffer(Access::Read)? {
            let length = parts.and_then(|parts| copy_in(&self.memory, parts.as_slice(), buffer));
            self.give_back(head, 0)?;
            match length {
                Some(length) => return Ok(Some(&buffer[..length])),
                None => self.malformed += 1,
            }
        }
        Ok(None)
    }

    /// Puts `message` into the next buffer of Linux; false if there is none.
    ///
    /// A buffer that is malformed, not writable or shorter than `message` is counted and never
    /// given back: Linux's bus would take what lies in it for a message.
    pub fn send(&mut self, message: &[u8]) -> Result<bool> {
        while let Some((head, parts)) = self.next_buffer(Access::Write)? {
            let written = parts.and_then(|parts| copy_out(&self.memory, parts.as_slice(), message));
            match written {
                Some(length) => {
                    self.give_back(head, length)?;
                    return Ok(true);
                }
                None => self.malformed += 1,
            }
        }
        Ok(false)
    }

    /// Whether Linux is to be kicked for the buffers that were given back since the last call.
    pub fn needs_kick(&mut self) -> Result<bool> {
        if !std::mem::take(&mut self.unsignalled) {
            return Ok(false);
        }
        // Also orders the writes to the used ring before the read of Linux's wish for kicks.
        let wanted = self.queue.needs_notification(&self.memory);
        if !wanted.map_err(|error| self.broken("look at the events of", error))? {
            return Ok(false);
        }
        Ok(self.queue.event_idx_enabled() || self.avail_flags()? & NO_INTERRUPT == 0)
    }

    /// Asks Linux not to kick for new buffers.
    pub fn mute(&mut self) -> Result<()> {
        if !self.muted {
            let result = self.queue.disable_notification(&self.memory);
            result.map_err(|error| self.broken("mute", error))?;
            self.muted = true;
        }
        Ok(())
    }

    /// Asks Linux to kick for new buffers; true if some were added before it could see this.
    pub fn listen(&mut self) -> Result<bool> {
        let more = self.queue.enable_notification(&self.memory);
        self.muted = false;
        more.map_err(|error| self.broken("listen to", error))
    }

    /// Whether this is still the ring that was taken over.
    ///
    /// Linux's driver can release the rings and set them up again without a stop of the core.
    /// Then the used index, which only this side advances, is back at its start.
    pub fn is_current(&self) -> Result<bool> {
        let used = self.queue.used_idx(&self.memory, Ordering::Relaxed);
        let used = used.map_err(|error| self.broken("read the used index of", error))?;
        Ok(used.0 == self.queue.next_used())
    }

    /// The next available buffer: its head and, where the chain is right, its parts.
    fn next_buffer(&mut self, access: Access) -> Result<Option<(u16, Option<Parts>)>> {
        let notify_id = self.notify_id;
        let mut available = self
            .queue
            .iter(&self.memory)
            .map_err(|error| broken("read the available index of", notify_id, error))?;
        let Some(chain) = available.next() else { return Ok(None) };
        let head = chain.head_index();
        Ok(Some((head, Parts::collect(chain, access))))
    }

    fn give_back(&mut self, head: u16, written: u32) -> Result<()> {
        // Such a head names no buffer, there is nothing to give back.
        if head >= self.queue.size() {
            return Ok(());
        }
        let result = self.queue.add_used(&self.memory, head, written);
        self.unsignalled = true;
        result.map_err(|error| self.broken("write the used ring of", error))
    }

    fn avail_flags(&self) -> Result<u16> {
        let flags = self.memory.load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        let flags = flags.map_err(|error| self.broken("read the flags of", error))?;
        Ok(u16::from_le(flags))
    }

    fn broken(&self, tried: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        broken(tried, self.notify_id, error)
    }
}

/// The parts of one buffer.
struct Parts {
    parts: [Part; MAX_PARTS],
    used: usize,
}

impl Parts {
    /// `None` if the chain is empty, incomplete, too long or not entirely for `access`.
    fn collect<M: GuestMemory>(chain: DescriptorChain<&M>, access: Access) -> Option<Self> {
        let mut parts = [Part { address: GuestAddress(0), length: 0 }; MAX_PARTS];
        let mut used = 0;
        let mut ended = false;
        for descriptor in chain.take(MAX_PARTS) {
            parts[used] = part(&descriptor, access)?;
            used += 1;
            ended = !descriptor.has_next();
        }
        ended.then_some(Self { parts, used })
    }

    fn as_slice(&self) -> &[Part] {
        &self.parts[..self.used]
    }
}

fn part(descriptor: &Descriptor, access: Access) -> Option<Part> {
    let writable = descriptor.is_write_only();
    let length = usize::try_from(descriptor.len()).ok()?;
    (writable == (access == Access::Write)).then_some(Part { address: descriptor.addr(), length })
}

/// `None` if the parts are longer than `buffer` or not in memory.
fn copy_in<M: GuestMemory>(memory: &M, parts: &[Part], buffer: &mut [u8]) -> Option<usize> {
    let mut at = 0usize;
    for part in parts {
        let end = at.checked_add(part.length)?;
        memory.read_slice(buffer.get_mut(at..end)?, part.address).ok()?;
        at = end;
    }
    Some(at)
}

/// `None` if the parts are shorter than `message` or not in memory; then nothing was written.
fn copy_out<M: GuestMemory>(memory: &M, parts: &[Part], message: &[u8]) -> Option<u32> {
    let in_memory = parts.iter().all(|part| memory.check_range(part.address, part.length));
    let room = parts.iter().try_fold(0usize, |room, part| room.checked_add(part.length))?;
    if !in_memory || room < message.len() {
        return None;
    }
    let mut rest = message;
    for part in parts {
        let (now, later) = rest.split_at(part.length.min(rest.len()));
        memory.write_slice(now, part.address).ok()?;
        rest = later;
    }
    u32::try_from(message.len()).ok()
}

/// Addresses of descriptors, available ring and used ring.
fn layout<M: GuestMemory>(memory: &M, vring: &Vring) -> Result<[GuestAddress; 3]> {
    let entries = u64::from(vring.entries);
    if !vring.align.is_power_of_two() {
        return Err(Error::invalid("alignment of a vring", vring.align, "a power of two"));
    }
    let align = u64::from(vring.align);
    let descriptors = u64::from(vring.address);
    let avail = descriptors + DESCRIPTOR_SIZE * entries;
    let used = (avail + AVAIL_SIZE + AVAIL_ENTRY * entries).next_multiple_of(align);
    let end = used + USED_SIZE + USED_ENTRY * entries;
    let size = usize::try_from(end - descriptors).unwrap_or(usize::MAX);
    if !memory.check_range(GuestAddress(descriptors), size) {
        let field = format!("address of vring {}", vring.notify_id);
        let value = format!("{descriptors:#x}..{end:#x}");
        return Err(Error::invalid(field, value, "a range in the shared memory"));
    }
    Ok([descriptors, avail, used].map(GuestAddress))
}

fn broken(
    tried: &str,
    notify_id: u32,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    let why = io::Error::new(io::ErrorKind::InvalidData, error);
    Error::new(tried, format!("vring {notify_id}"), why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vm_memory::GuestMemoryMmap;

    use super::*;

    const BASE: u32 = 0x1_0000;
    const BUFFERS: u64 = 0x1_4000;
    const MEMORY: usize = 0x8000;
    const ENTRIES: u16 = 4;
    const AVAIL: u64 = BASE as u64 + 16 * ENTRIES as u64;
    const USED: u64 = BASE as u64 + 0x1000;
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;

    /// Address, length, flags and next.
    type Descriptor = (u64, u32, u16, u16);

    /// A ring whose driver writes whatever the test wants.
    struct Raw {
        memory: GuestMemoryMmap,
        ring: Ring<GuestMemoryMmap>,
    }

    impl Raw {
        fn new(event_index: bool) -> Self {
            let ranges = [(GuestAddress(BASE.into()), MEMORY)];
            let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
            let ring = Ring::new(memory.clone(), &vring(), event_index).unwrap();
            Self { memory, ring }
        }

        fn word(&self, at: u64) -> u16 {
            self.memory.read_obj(GuestAddress(at)).unwrap()
        }

        fn set_word(&self, at: u64, word: u16) {
            self.memory.write_obj(word, GuestAddress(at)).unwrap();
        }

        fn descriptor(&self, index: u64, address: u64, length: u32, flags: u16, next: u16) {
            let at = u64::from(BASE) + 16 * index;
            self.memory.write_obj(address, GuestAddress(at)).unwrap();
            self.memory.write_obj(length, GuestAddress(at + 8)).unwrap();
            self.set_word(at + 12, flags);
            self.set_word(at + 14, next);
        }

        /// Makes `heads` available, as the only ones so far.
        fn offer(&self, heads: &[u16]) {
            for (slot, head) in (0..).zip(heads) {
                self.set_word(AVAIL + 4 + 2 * slot, *head);
            }
            self.set_word(AVAIL + 2, u16::try_from(heads.len()).unwrap());
        }

        fn used(&self) -> Vec<(u32, u32)> {
            let entry = |slot: u16| {
                let at = USED + 4 + 8 * u64::from(slot);
                let half = |at| self.memory.read_obj(GuestAddress(at)).unwrap();
                (half(at), half(at + 4))
            };
            (0..self.word(USED + 2)).map(entry).collect()
        }

        fn receive(&mut self) -> Option<Vec<u8>> {
            let mut buffer = [0; 32];
            self.ring.receive(&mut buffer).unwrap().map(<[u8]>::to_vec)
        }
    }

    fn vring() -> Vring {
        Vring { address: BASE, align: 4096, entries: ENTRIES, notify_id: 1 }
    }

    #[test]
    fn a_message_is_received_and_its_buffer_given_back() {
        let mut raw = Raw::new(false);
        raw.memory.write_slice(b"hello, ring", GuestAddress(BUFFERS)).unwrap();
        raw.descriptor(2, BUFFERS, 11, 0, 0);
        raw.offer(&[2]);
        assert_eq!(raw.receive().unwrap(), b"hello, ring");
        assert_eq!(raw.receive(), None);
        assert_eq!(raw.used(), [(2, 0)]);
        assert_eq!(raw.ring.take_malformed(), 0);
    }

    #[test]
    fn the_parts_of_a_chain_are_joined() {
        let mut raw = Raw::new(false);
        raw.memory.write_slice(b"hello, ring", GuestAddress(BUFFERS)).unwrap();
        raw.descriptor(0, BUFFERS + 7, 4, NEXT, 3);
        raw.descriptor(3, BUFFERS, 5, 0, 0);
        raw.offer(&[0]);
        assert_eq!(raw.receive().unwrap(), b"ringhello");
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_given_back() {
        let end = u64::from(BASE) + MEMORY as u64;
        let cases: [(&str, [Descriptor; 2]); 10] = [
            ("writable", [(BUFFERS, 8, WRITE, 0); 2]),
            ("before the memory", [(0, 8, 0, 0); 2]),
            ("behind the memory", [(end, 8, 0, 0); 2]),
            ("across the end", [(end - 4, 8, 0, 0); 2]),
            ("across the end of the address space", [(u64::MAX - 3, 8, 0, 0); 2]),
            ("longer than the buffer", [(BUFFERS, 33, 0, 0); 2]),
            ("as long as can be", [(BUFFERS, u32::MAX, 0, 0); 2]),
            ("an endless loop", [(BUFFERS, 1, NEXT, 0); 2]),
            ("a next one that is none", [(BUFFERS, 1, NEXT, ENTRIES); 2]),
            ("an indirect table of odd size", [(BUFFERS, 17, INDIRECT, 0); 2]),
        ];
        for (what, descriptors) in cases {
            let mut raw = Raw::new(false);
            for (index, (address, length, flags, next)) in (0..).zip(descriptors) {
                raw.descriptor(index, address, length, flags, next);
            }
            raw.descriptor(3, BUFFERS, 5, 0, 0);
            raw.offer(&[0, 3]);
            assert_eq!(raw.receive().unwrap().len(), 5, "{what}");
            assert_eq!(raw.ring.take_malformed(), 1, "{what}");
            assert_eq!(raw.used(), [(0, 0), (3, 0)], "{what}");
        }
    }

    #[test]
    fn a_head_that_names_no_descriptor_is_counted() {
        let mut raw = Raw::new(false);
        raw.descriptor(3, BUFFERS, 5, 0, 0);
        raw.offer(&[ENTRIES, u16::MAX, 3]);
        assert_eq!(raw.receive().unwrap().len(), 5);
        assert_eq!(raw.ring.take_malformed(), 2);
        assert_eq!(raw.used(), [(3, 0)]);
    }

    #[test]
    fn an_index_that_runs_is_an_error() {
        for index in [ENTRIES + 1, u16::MAX] {
            let mut raw = Raw::new(false);
            raw.set_word(AVAIL + 2, index);
            let error = raw.ring.receive(&mut [0; 32]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("vring 1"), "{error}");
            assert!(raw.ring.send(b"x").is_err());
        }
    }

    #[test]
    fn a_message_is_sent_into_all_parts_of_a_buffer() {
        let mut raw = Raw::new(false);
        raw.descriptor(0, BUFFERS, 3, NEXT | WRITE, 1);
        raw.descriptor(1, BUFFERS + 100, 8, WRITE, 0);
        raw.offer(&[0]);
        assert!(raw.ring.send(b"hello").unwrap());
        assert!(!raw.ring.send(b"hello").unwrap());
        let mut parts = [[0; 3]; 2];
        raw.memory.read_slice(&mut parts[0], GuestAddress(BUFFERS)).unwrap();
        raw.memory.read_slice(&mut parts[1], GuestAddress(BUFFERS + 100)).unwrap();
        assert_eq!(parts, [*b"hel", *b"lo\0"]);
        assert_eq!(raw.used(), [(0, 5)]);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_never_given_back() {
        let mut raw = Raw::new(false);
        raw.descriptor(0, BUFFERS, 512, 0, 0);
        raw.descriptor(1, BUFFERS, 4, WRITE, 0);
        raw.descriptor(2, u64::from(BASE) + MEMORY as u64 - 2, 8, WRITE, 0);
        raw.descriptor(3, BUFFERS, 8, WRITE, 0);
        raw.offer(&[0, 1, 2, 3]);
        assert!(raw.ring.send(b"hello").unwrap());
        assert_eq!(raw.ring.take_malformed(), 3);
        assert_eq!(raw.used(), [(3, 5)]);
    }

    #[test]
    fn kicks_follow_the_flag_of_linux_and_come_once_a_batch() {
        let mut raw = Raw::new(false);
        for index in 0..4 {
            raw.descriptor(index, BUFFERS, 8, 0, 0);
        }
        assert!(!raw.ring.needs_kick().unwrap());
        raw.offer(&[0, 1]);
        while raw.receive().is_some() {}
        assert!(raw.ring.needs_kick().unwrap());
        assert!(!raw.ring.needs_kick().unwrap());
        raw.set_word(AVAIL, NO_INTERRUPT);
        raw.offer(&[0, 1, 2]);
        assert!(raw.receive().is_some());
        assert!(!raw.ring.needs_kick().unwrap());
    }

    #[test]
    fn kicks_follow_the_event_index_of_linux() {
        let mut raw = Raw::new(true);
        let event = AVAIL + 4 + 2 * u64::from(ENTRIES);
        for index in 0..4 {
            raw.descriptor(index, BUFFERS, 8, 0, 0);
        }
        // The flag has no meaning here; the second entry is waited for.
        raw.set_word(AVAIL, NO_INTERRUPT);
        raw.set_word(event, 1);
        raw.offer(&[0]);
        assert!(raw.receive().is_some());
        assert!(!raw.ring.needs_kick().unwrap());
        raw.offer(&[0, 1, 2]);
        while raw.receive().is_some() {}
        assert!(raw.ring.needs_kick().unwrap());
    }

    #[test]
    fn linux_is_told_when_to_kick() {
        let mut flags = Raw::new(false);
        flags.ring.mute().unwrap();
        assert_eq!(flags.word(USED), 1);
        assert!(!flags.ring.listen().unwrap());
        assert_eq!(flags.word(USED), 0);
        flags.offer(&[0]);
        assert!(flags.ring.listen().unwrap());

        let mut events = Raw::new(true);
        events.descriptor(0, BUFFERS, 8, 0, 0);
        events.offer(&[0]);
        assert!(events.receive().is_some());
        assert!(!events.ring.listen().unwrap());
        assert_eq!(events.word(USED + 4 + 8 * u64::from(ENTRIES)), 1);
    }

    #[test]
    fn a_ring_that_was_set_up_anew_is_noticed() {
        let mut raw = Raw::new(false);
        raw.descriptor(0, BUFFERS, 8, 0, 0);
        raw.offer(&[0]);
        assert!(raw.receive().is_some());
        assert!(raw.ring.is_current().unwrap());
        raw.set_word(USED + 2, 0);
        assert!(!raw.ring.is_current().unwrap());
    }

    #[test]
    fn a_ring_that_cannot_be_is_refused() {
        let memory = Raw::new(false).memory;
        let size = 0x1000 + 6 + 8 * u32::from(ENTRIES);
        let last = BASE + u32::try_from(MEMORY).unwrap() - size.next_multiple_of(16);
        let make = |vring: Vring| Ring::new(memory.clone(), &vring, false);
        assert!(make(Vring { align: 16, address: BASE + 0x7f80, ..vring() }).is_ok());
        for bad in [
            Vring { address: BASE - 16, ..vring() },
            Vring { address: last + 0x1000, ..vring() },
            Vring { address: u32::MAX - 15, ..vring() },
            Vring { address: BASE + 8, ..vring() },
            Vring { align: 0, ..vring() },
            Vring { align: 3, ..vring() },
            Vring { entries: 0, ..vring() },
            Vring { entries: 3, ..vring() },
            Vring { entries: 1 << 15, ..vring() },
            Vring { notify_id: 32, ..vring() },
        ] {
            assert!(make(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_rings_end_and_stay_within_memory(
            descriptors in prop::collection::vec(
                (
                    prop_oneof![Just(BUFFERS), any::<u64>(), 0x1_0000u64..0x1_8100],
                    prop_oneof![0u32..64, any::<u32>()],
                    any::<u16>(),
                    0u16..6,
                ),
                4,
            ),
            avail: [u16; 4],
            flags: u16,
            index in prop_oneof![0u16..6, any::<u16>()],
            event_index: bool,
        ) {
            let mut raw = Raw::new(event_index);
            for (at, (address, length, flags, next)) in (0..).zip(descriptors) {
                raw.descriptor(at, address, length, flags, next);
            }
            raw.offer(&avail.map(|head| head % 6));
            raw.set_word(AVAIL, flags);
            raw.set_word(AVAIL + 2, index);
            let mut taken = 0;
            while let Ok(Some(message)) = raw.ring.receive(&mut [0; 32]) {
                prop_assert!(message.len() <= 32);
                taken += 1;
                // Buffers that it reads may overlap the used ring, but not its index.
                prop_assert!(taken <= ENTRIES);
            }
            let _ = (raw.ring.send(b"hello").is_ok(), raw.ring.needs_kick().is_ok());
        }
    }
}
