use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use busbar::bulk::packet::{Direction, Kind};
use rustix::fs::MemfdFlags;

use super::*;
use crate::mock::{BUFFERS, Dmabufs};

const PAGE: usize = 4096;

fn message(address: u64, offset: u64, length: u64) -> BufferMessage {
    let (kind, direction) = (Kind::Given, Direction::ToRemote);
    BufferMessage { kind, direction, cookie: 1, address, offset, length, status: 0 }
}

struct Bench {
    dmabufs: Dmabufs,
    buffers: Buffers,
}

impl Bench {
    fn new() -> Self {
        let dmabufs = Dmabufs::default();
        let buffers = Buffers::new(Some(Arc::new(dmabufs.clone())));
        Self { dmabufs, buffers }
    }

    fn part(&mut self, address: u64, offset: usize, length: usize) -> Part {
        self.buffers.part(&message(address, offset as u64, length as u64)).unwrap()
    }
}

fn read(part: &Part) -> Result<Vec<u8>> {
    let mut bytes = vec![1];
    part.append_to(&mut bytes, 0, part.len())?;
    let mut same = vec![0; part.len()];
    part.read(0, &mut same)?;
    assert_eq!(bytes[1..], same);
    Ok(same)
}

#[test]
fn a_part_is_read_and_filled_in_place() {
    let mut bench = Bench::new();
    let address = bench.dmabufs.add();
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| at.to_le_bytes()[0] ^ 3).collect();
    bench.dmabufs.give(address, &bytes);
    for (offset, length) in [(0, 3 * PAGE), (5, 1), (PAGE - 1, 2), (2 * PAGE, PAGE), (100, 5000)] {
        let part = bench.part(address, offset, length);
        assert_eq!((part.len(), part.is_empty()), (length, false));
        assert_eq!(read(&part).unwrap(), bytes[offset..offset + length]);
    }
    let part = bench.part(address, PAGE - 2, 6);
    part.write(1, b"four").unwrap();
    assert_eq!(bench.dmabufs.bytes(address, 3 * PAGE)[PAGE - 1..PAGE + 3], *b"four");
    for (from, length) in [(0, 7), (6, 1), (7, 0), (1, usize::MAX)] {
        assert!(part.range(from, length).is_err());
    }
    assert!(bench.part(address, 0, 0).is_empty());
}

#[test]
fn what_is_taken_back_is_an_error_and_no_signal() {
    let mut bench = Bench::new();
    let address = bench.dmabufs.add();
    let never_given = bench.part(address, 0, 10);
    assert_eq!(read(&never_given).unwrap_err().errno(), Some(Errno::FAULT));
    assert_eq!(never_given.write(0, &[1]).unwrap_err().errno(), Some(Errno::FAULT));
    for turn in 0..3 {
        bench.dmabufs.give(address, &[turn; 3 * PAGE]);
        let part = bench.part(address, 0, 3 * PAGE);
        assert_eq!(read(&part).unwrap(), [turn; 3 * PAGE]);
        bench.dmabufs.take_back(address);
        assert_eq!(read(&part).unwrap_err().errno(), Some(Errno::FAULT));
        // Also after it was given again: the failed access has replaced the mapping.
        bench.dmabufs.give(address, &[turn; 3 * PAGE]);
        assert_eq!(part.write(0, &[9]).unwrap_err().errno(), Some(Errno::FAULT));
        assert_eq!(bench.dmabufs.bytes(address, 1), [turn]);
    }
    assert_eq!(bench.buffers.mapped.len(), 1);
}

#[test]
fn many_threads_fault_at_a_time() {
    let threads = (0..8u8).map(|number| {
        std::thread::spawn(move || {
            let mut bench = Bench::new();
            let address = bench.dmabufs.add();
            for _ in 0..200 {
                bench.dmabufs.give(address, &[number; PAGE]);
                let part = bench.part(address, 0, PAGE);
                assert_eq!(read(&part).unwrap(), [number; PAGE]);
                bench.dmabufs.take_back(address);
                assert!(read(&part).is_err());
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_buffer_has_one_mapping_that_grows_with_its_parts() {
    let mut bench = Bench::new();
    let address = bench.dmabufs.add();
    bench.dmabufs.give(address, &vec![7; 10 * PAGE]);
    for page in [5, 7, 2] {
        bench.part(address, page * PAGE, PAGE);
    }
    assert_eq!(bench.buffers.mapped.len(), 1);
    let pages = |page: u64| address + page * PAGE as u64;
    assert_eq!(bench.buffers.mapped[0].range, pages(2)..pages(8));
    let area = Arc::clone(&bench.buffers.mapped[0].area);
    let part = bench.part(address, 3 * PAGE + 1, 3 * PAGE);
    assert!(Arc::ptr_eq(&part.area, &area));
    bench.buffers.clear();
    assert_eq!(read(&part).unwrap(), [7; 3 * PAGE]);
}

#[test]
fn the_mapping_that_was_not_used_the_longest_goes_first() {
    let mut bench = Bench::new();
    let addresses: Vec<_> = (0..=MAX_AREAS).map(|_| bench.dmabufs.add()).collect();
    for address in &addresses[..MAX_AREAS] {
        bench.part(*address, 0, 1);
    }
    bench.part(addresses[0], 0, 1);
    bench.part(addresses[MAX_AREAS], 0, 1);
    let mapped: Vec<_> = bench.buffers.mapped.iter().map(|mapped| mapped.buffer).collect();
    assert_eq!(mapped.len(), MAX_AREAS);
    assert!(mapped.contains(&addresses[0]) && !mapped.contains(&addresses[1]));
}

#[test]
fn what_cannot_be_mapped_is_an_error() {
    let mut bench = Bench::new();
    let address = bench.dmabufs.add();
    for (address, offset, length) in [
        (0, 0, 1),
        (BUFFERS - 1, 0, 1),
        (u64::MAX, 0, 1),
        (address, u64::MAX, 1),
        (address, 1, u64::MAX),
        (address, 0, u64::MAX - address),
        (address, u64::MAX - address - 1, 1),
        (1, u64::MAX - 1, 0),
    ] {
        assert!(bench.buffers.part(&message(address, offset, length)).is_err());
    }
    let error = Buffers::default().part(&message(address, 0, 1)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::OPNOTSUPP));
    // A distant part does not replace the existing mapping.
    bench.dmabufs.give(address, b"here");
    bench.part(address, 0, 4);
    let _ = bench.buffers.part(&message(address, 1 << 39, 1 << 30));
    assert_eq!(read(&bench.part(address, 0, 4)).unwrap(), b"here");
}

/// Maps this many bytes, for any request.
#[derive(Debug)]
struct Fixed(File, usize);

impl Window for Fixed {
    fn map(&self, _address: u64, _length: usize) -> io::Result<Area> {
        Area::new(&self.0, 0, self.1)
    }
}

#[test]
fn an_area_that_is_shorter_than_asked_for_is_refused() {
    let given = message(1 << 40, 0, 3 * PAGE as u64);
    for (pages, is_enough) in [(1, false), (2, false), (3, true), (4, true)] {
        let file = File::from(rustix::fs::memfd_create("fixed", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(4 * PAGE as u64).unwrap();
        let mut buffers = Buffers::new(Some(Arc::new(Fixed(file, pages * PAGE))));
        let part = buffers.part(&given);
        assert_eq!(part.is_ok(), is_enough, "{pages} pages: {part:?}");
        if let Ok(part) = part {
            part.write(3 * PAGE - 8, &[7; 8]).unwrap();
            assert!(part.is(3 * PAGE - 8, &[7; 8]).unwrap());
        } else {
            assert_eq!(buffers.mapped.len(), 0);
        }
    }
}

/// Is killed by a `SIGBUS` that no [`Part`] has caused, in a process of its own.
#[test]
fn any_other_bus_error_still_ends_the_process() {
    const CHILD: &str = "BUSBAR_TEST_BUS_ERROR";
    if std::env::var_os(CHILD).is_some() {
        let memfd = rustix::fs::memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
        let area = Area::new(&memfd, 0, PAGE).unwrap();
        // SAFETY: mapped; the SIGBUS of the access is the purpose of this test.
        let byte = unsafe { area.base.as_ptr().read_volatile() };
        unreachable!("{byte} was read");
    }
    let test = "buffer::tests::any_other_bus_error_still_ends_the_process";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn an_area_that_no_address_space_has_is_bad_input() {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let error = Area::new(&file, 0, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
}
