//! The IOMMU of `/dev/vcoprocN`: what the process can access of Linux's buffers, and when.
//!
//! `rpmsg_eptfd` is the driver that shares them.

// The coprocessor is this process, which a 32-bit program cannot be.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

#[path = "../../rpmsg_eptfd/tests/remote/mod.rs"]
mod remote;

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use busbar_uapi::dmabuf::{self, FROM_REMOTE, TO_REMOTE};
use busbar_uapi::vcoproc::BUFFERS;
use remote::*;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags, mprotect, mremap_fixed};
use support::Mapping;

const MEGABYTE: u64 = 1 << 20;

/// An endpoint with a buffer.
struct Shared {
    bench: Bench,
    endpoint: OwnedFd,
    buffer: OwnedFd,
}

impl Shared {
    fn new(buffer: OwnedFd) -> Self {
        let bench = Bench::new();
        let endpoint = bench.endpoint();
        dmabuf::attach(&endpoint, &buffer).expect("attach");
        Self { bench, endpoint, buffer }
    }

    fn give(&self, flags: u32, offset: u64, length: u64) -> (u32, Message) {
        self.bench.give(&self.endpoint, &self.buffer, flags, offset, length)
    }

    fn take(&self, from: u32, part: &Message) {
        self.bench.remote.give_back(from, part);
        assert_eq!(answer(&self.endpoint), part.done(part.length, 0).read());
    }

    /// Pages of the buffer as the process sees it.
    fn view(&self, part: &Message, first: u64, count: u64) -> View {
        View::new(self.bench.remote.core(), part.address + first * PAGE, count * PAGE)
    }
}

#[test]
#[ignore = "needs the lab"]
fn any_range_can_be_mapped_and_nothing_is_there() {
    let bench = Bench::new();
    let (rw, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    let core = bench.remote.core();
    for address in [BUFFERS, BUFFERS + PAGE, 1 << 50, (1 << 63) - 2 * PAGE] {
        View::new(core, address, 2 * PAGE).assert_gone();
    }
    let private = Mapping::new(core, PAGE, rw, MapFlags::PRIVATE, BUFFERS);
    assert_eq!(private.err(), Some(Errno::INVAL));
    let below = Mapping::new(core, PAGE, rw, shared, BUFFERS - PAGE);
    assert_eq!(below.err(), Some(Errno::INVAL));
}

#[test]
#[ignore = "needs the lab"]
fn exactly_the_pages_of_a_part_are_there() {
    // Pages that are scattered in memory, and contiguous pages.
    for buffer in [pages(64 * PAGE, MemfdFlags::empty()), heap(64 * PAGE)] {
        let shared = Shared::new(buffer);
        // Before the first mapping, there is no range that can be mapped.
        dmabuf::attach(&shared.endpoint, heap(PAGE)).unwrap();
        dmabuf::detach(&shared.endpoint, &shared.buffer).unwrap();
        dmabuf::attach(&shared.endpoint, &shared.buffer).unwrap();
        let bytes = pattern(1, 64 * PAGE);
        fill(&shared.buffer, 0, &bytes);
        for (flags, offset, length) in [
            (TO_REMOTE, 7 * PAGE, PAGE),
            (FROM_REMOTE, 7 * PAGE + 1, 1),
            (TO_REMOTE, 8 * PAGE - 1, 2),
            (FROM_REMOTE, 3 * PAGE + 5, 40 * PAGE),
            (TO_REMOTE, 0, 64 * PAGE),
            (FROM_REMOTE, 63 * PAGE, PAGE),
        ] {
            let (from, part) = shared.give(flags, offset, length);
            // The middle first, as fault-around might insert its neighbours with it.
            let all = shared.view(&part, 0, 64);
            let pages: Vec<_> = (32..64).chain(0..32).collect();
            for page in pages {
                let inside = offset / PAGE <= page && page <= (offset + length - 1) / PAGE;
                let at = usize::try_from(page * PAGE).unwrap();
                let one = shared.view(&part, page, 1);
                let read = one.read();
                assert_eq!(read.is_ok(), inside, "{offset:#x} {length:#x}: page {page}");
                assert!(read.is_err() || read.unwrap() == bytes[at..at + 4096], "page {page}");
                let written = one.write(&bytes[at..at + 4096]);
                let writable = inside && flags == FROM_REMOTE;
                assert_eq!(written.is_ok(), writable, "{offset:#x} {length:#x}: page {page}");
            }
            assert_eq!(all.read().is_ok(), length == 64 * PAGE);
            // A page before and a page after, which belong to no buffer.
            shared.view(&part, 64, 1).assert_gone();
            View::new(shared.bench.remote.core(), part.address - PAGE, PAGE).assert_gone();
            shared.take(from, &part);
            all.assert_gone();
        }
    }
}

/// Until this is dropped, entries of scatterlists are not merged, as behind swiotlb.
struct Unmerged;

const MERGE: &str = "/sys/module/vcoproc/parameters/merge";

impl Unmerged {
    fn new() -> Self {
        std::fs::write(MERGE, "N").expect("vcoproc's parameter");
        Self
    }
}

impl Drop for Unmerged {
    fn drop(&mut self) {
        let _ = std::fs::write(MERGE, "Y");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_part_of_many_entries_is_synchronized_entry_by_entry() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let _unmerged = Unmerged::new();
    // Entries of a page each, and of 16 pages each.
    for buffer in [pages(64 * PAGE, MemfdFlags::empty()), heap(64 * PAGE)] {
        dmabuf::attach(&endpoint, &buffer).expect("addresses that follow each other");
        let bytes = pattern(3, 64 * PAGE);
        fill(&buffer, 0, &bytes);
        for (offset, length) in [
            (0, 64 * PAGE),
            (PAGE - 1, 2),
            (16 * PAGE - 7, 14),
            (3 * PAGE + 5, 40 * PAGE),
            (63 * PAGE, PAGE),
            (20 * PAGE + 1, 1),
        ] {
            let at = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
            let (from, part) = bench.give(&endpoint, &buffer, TO_REMOTE, offset, length);
            let view = bench.remote.map(&part);
            assert!(view.read() == Ok(bytes[at].to_vec()), "{length} bytes at {offset:#x}");
            bench.remote.give_back(from, &part);
            answer(&endpoint);
            let first = part.address + offset / PAGE * PAGE;
            for page in (first..part.address + offset + length).step_by(4096) {
                View::new(bench.remote.core(), page, PAGE).assert_gone();
            }
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn what_was_read_before_can_be_written_when_that_is_granted() {
    let shared = Shared::new(heap(PAGE));
    let (from, read) = shared.give(TO_REMOTE, 0, 10);
    let view = shared.view(&read, 0, 1);
    view.read().unwrap();
    assert_eq!(view.write(b"x"), Err(Errno::FAULT));
    // The page is in the page table, for reading.
    let (_, write) = shared.give(FROM_REMOTE, 10, 10);
    view.write(b"x").unwrap();
    shared.take(from, &write);
    assert_eq!(view.write(b"y"), Err(Errno::FAULT));
    assert_eq!(view.read().unwrap()[0], b'x');
    shared.take(from, &read);
    view.assert_gone();
}

#[test]
#[ignore = "needs the lab"]
fn addresses_are_never_used_again() {
    let shared = Shared::new(heap(4 * PAGE));
    let mut addresses = Vec::new();
    for _ in 0..5 {
        let (from, part) = shared.give(TO_REMOTE, 0, 1);
        shared.take(from, &part);
        addresses.push(part.address);
        dmabuf::detach(&shared.endpoint, &shared.buffer).unwrap();
        dmabuf::attach(&shared.endpoint, &shared.buffer).unwrap();
    }
    assert!(addresses.is_sorted_by(|a, b| a + 4 * PAGE < *b), "{addresses:x?}");
    assert!(addresses[0] >= BUFFERS);
}

#[test]
#[ignore = "needs the lab"]
fn a_large_buffer_is_one_range() {
    let size = 48 * MEGABYTE;
    for buffer in [pages(size, MemfdFlags::empty()), huge_pages(size), heap(size)] {
        let shared = Shared::new(buffer);
        let marks: Vec<_> = (0..48).map(|each| each * MEGABYTE + 77 * each).collect();
        for at in &marks {
            fill(&shared.buffer, *at, &at.to_le_bytes());
        }
        let (from, part) = shared.give(TO_REMOTE, 0, size);
        for at in &marks {
            let view = View::new(shared.bench.remote.core(), part.address + at, 8);
            assert_eq!(view.read().unwrap(), at.to_le_bytes(), "{at:#x}");
        }
        // So large that faults need page tables of their own. If these were allocated with the IOMMU locked,
        // they could wait for a fence that needs the lock: lockdep sees it here.
        let whole = View::new(shared.bench.remote.core(), part.address, size);
        for at in &marks {
            let byte = whole.base().wrapping_add(usize::try_from(*at).unwrap());
            assert_eq!(readable(byte.cast()), Ok(1), "{at:#x}");
        }
        shared.take(from, &part);
    }
}

/// Whether the kernel can read a byte of this process.
#[allow(unsafe_code)]
fn readable(at: *mut c_void) -> Result<usize, Errno> {
    let scratch = rustix::fs::memfd_create("scratch", MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: only the kernel gets this address, and it checks each access.
    rustix::io::write(&scratch, unsafe { std::slice::from_raw_parts(at.cast(), 1) })
}

#[test]
#[ignore = "needs the lab"]
#[allow(unsafe_code)]
fn the_process_cannot_keep_what_it_has_mapped() {
    let shared = Shared::new(heap(4 * PAGE));
    let (from, part) = shared.give(FROM_REMOTE, 0, 4 * PAGE);
    let view = shared.view(&part, 0, 4);
    view.write(&[7; 4096]).unwrap();

    // Access is not kept by a pin: no call can pin the pages.
    let mut byte = [0];
    let memory = File::open("/proc/self/mem").unwrap();
    let address = u64::try_from(view.base().addr()).unwrap();
    assert!(memory.read_at(&mut byte, address).is_err());
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: only the kernel gets this address, and it checks each access.
    let bytes = unsafe { std::slice::from_raw_parts(view.base(), 4096) };
    let gifts = [rustix::pipe::IoSliceRaw::from_slice(bytes)];
    // SAFETY: as above; the pages are not gifted.
    let spliced =
        unsafe { rustix::pipe::vmsplice(&writer, &gifts, rustix::pipe::SpliceFlags::NONBLOCK) };
    assert_eq!(spliced, Err(Errno::FAULT));
    writer.write_all(b"x").unwrap();

    // It is not kept by moving the mapping either, or by changing its protection and back.
    let page = usize::try_from(PAGE).unwrap();
    let elsewhere = Mapping::new(
        shared.bench.remote.core(),
        4 * PAGE,
        ProtFlags::READ,
        MapFlags::SHARED,
        BUFFERS + (1 << 30),
    )
    .unwrap();
    let target = elsewhere.base.cast();
    // SAFETY: both are mappings of this test, without references to them.
    unsafe {
        let old = view.base().cast();
        mremap_fixed(old, page, page, MremapFlags::MAYMOVE, target).expect("move a page");
        assert_eq!(readable(target), Ok(1));
        mprotect(target, page, MprotectFlags::empty()).unwrap();
        assert_eq!(readable(target), Err(Errno::FAULT));
        mprotect(target, page, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        assert_eq!(readable(target), Ok(1));
    }
    shared.take(from, &part);
    assert_eq!(readable(target), Err(Errno::FAULT));
    // Access for reading does not make it writable.
    let (from, part) = shared.give(TO_REMOTE, 0, PAGE);
    let view = shared.view(&part, 0, 1);
    view.read().unwrap();
    // SAFETY: as above.
    unsafe {
        mprotect(view.base().cast(), page, MprotectFlags::READ).unwrap();
        mprotect(view.base().cast(), page, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
    }
    assert_eq!(view.write(b"x"), Err(Errno::FAULT));
    shared.take(from, &part);
}

#[test]
#[ignore = "needs the lab"]
fn another_coprocessor_sees_nothing() {
    let shared = Shared::new(heap(PAGE));
    let (from, part) = shared.give(FROM_REMOTE, 0, PAGE);
    let view = shared.view(&part, 0, 1);
    view.read().unwrap();
    let other = File::options().read(true).write(true).open("/dev/vcoproc1").unwrap();
    View::new(&other, part.address, PAGE).assert_gone();
    shared.take(from, &part);
}

#[test]
#[ignore = "needs the lab"]
fn a_stop_takes_all_away() {
    let shared = Shared::new(heap(PAGE));
    let (_, part) = shared.give(FROM_REMOTE, 0, PAGE);
    let view = shared.view(&part, 0, 1);
    view.read().unwrap();
    let state = shared.bench.side.remoteproc().join("state");
    std::fs::write(&state, "stop").unwrap();
    view.assert_gone();
    std::fs::write(&state, "start").unwrap();
    view.assert_gone();
}
