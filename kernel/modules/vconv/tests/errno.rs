//! Every errno of the calls of a converter's buffer.
//!
//! Not tested here: `ENOMEM`; `EBUSY` of ATTACH for a DMABUF that is locked at that moment; and
//! `EBUSY` of ENQUEUE in `read` mode, which needs an attached DMABUF, and then there is no such mode.

mod converter;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use busbar_uapi::iio::{self, CYCLIC, Ended, REPORT};
use converter::{
    Block, Converter, Device, RX_VOLTAGES, TX_VOLTAGES, attached, enqueue_all, non_blocking,
    outcome, transfer,
};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags};
use support::{BAD_POINTER, Mapping, modprobe, raw_ioctl};

const LEN: usize = 4096;

/// A descriptor that is not open.
fn closed() -> BorrowedFd<'static> {
    // SAFETY: the number of no open file; the kernel refuses it.
    #[allow(unsafe_code)]
    unsafe {
        BorrowedFd::borrow_raw(1 << 20)
    }
}

fn errno(result: std::io::Result<impl Sized>) -> Result<(), Errno> {
    result.map(drop).map_err(|why| Errno::from_io_error(&why).expect("an errno"))
}

#[test]
#[ignore = "needs the lab"]
fn get_fd() {
    const GET_FD: Opcode = opcode::read_write::<i32>(b'i', 0x91);
    let converter = Converter::new();
    let device = converter.rx.open();
    assert_eq!(raw_ioctl(&device, GET_FD, BAD_POINTER), Err(Errno::FAULT));
    for index in [1, 2, i32::MAX, -1] {
        assert_eq!(iio::buffer_fd(&device, index).map(drop), Err(Errno::NODEV), "{index}");
    }
    let first = iio::buffer_fd(&device, 0).unwrap();
    assert_eq!(iio::buffer_fd(&device, 0).map(drop), Err(Errno::BUSY));
    drop(first);
    let _again = iio::buffer_fd(&device, 0).unwrap();
    drop(iio::buffer_fd(converter.tx.open(), 0).expect("the other device's is another"));
    converter.remove().unwrap();
    assert_eq!(iio::buffer_fd(&device, 0).map(drop), Err(Errno::NODEV));
}

#[test]
#[ignore = "needs the lab"]
fn attach() {
    const ATTACH: Opcode = opcode::write::<i32>(b'i', 0x92);
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        let buffer = device.buffer();
        assert_eq!(raw_ioctl(&buffer, ATTACH, BAD_POINTER), Err(Errno::FAULT));
        assert_eq!(iio::attach(&buffer, closed()), Err(Errno::BADF));
        assert_eq!(iio::attach(&buffer, File::open("/dev/null").unwrap()), Err(Errno::INVAL));
        assert_eq!(iio::attach(&buffer, &buffer), Err(Errno::INVAL));
        let block = Block::new(LEN);
        assert_eq!(iio::attach(&buffer, &block), Ok(()));
        assert_eq!(iio::attach(&buffer, &block), Err(Errno::BUSY), "attached already");
        assert_eq!(iio::detach(&buffer, &block), Ok(()));
        assert_eq!(iio::attach(&buffer, &block), Ok(()));
    }
    // Refused for as long as the buffer is enabled for `read`.
    let rx = &converter.rx;
    let buffer = rx.buffer();
    rx.channels(&RX_VOLTAGES);
    rx.enable();
    assert_eq!(iio::attach(&buffer, Block::new(LEN)), Err(Errno::BUSY));
    rx.disable();
    assert_eq!(iio::attach(&buffer, Block::new(LEN)), Ok(()));
    converter.remove().unwrap();
    assert_eq!(iio::attach(&buffer, Block::new(LEN)), Err(Errno::NODEV));
}

#[test]
#[ignore = "needs the lab"]
fn attach_to_a_driver_without_dmabufs() {
    modprobe(&["iio_dummy"]).unwrap();
    converter::load();
    let folder = std::path::Path::new("/sys/kernel/config/iio/devices/dummy/errno");
    std::fs::create_dir(folder).unwrap();
    let dummy = Device::find("errno").unwrap();
    assert_eq!(iio::attach(dummy.buffer(), Block::new(LEN)), Err(Errno::PERM));
    assert_eq!(iio::dequeue(dummy.buffer(), &mut []), Err(Errno::PERM));
    // It stays: this driver leaks memory when such a device is removed.
}

#[test]
#[ignore = "needs the lab"]
fn detach() {
    const DETACH: Opcode = opcode::write::<i32>(b'i', 0x93);
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        let buffer = device.buffer();
        assert_eq!(raw_ioctl(&buffer, DETACH, BAD_POINTER), Err(Errno::FAULT));
        assert_eq!(iio::detach(&buffer, closed()), Err(Errno::BADF));
        assert_eq!(iio::detach(&buffer, File::open("/dev/null").unwrap()), Err(Errno::INVAL));
        let block = Block::new(LEN);
        assert_eq!(iio::detach(&buffer, &block), Err(Errno::PERM), "not attached");
        iio::attach(&buffer, &block).unwrap();
        assert_eq!(iio::detach(&buffer, &block), Ok(()));
        assert_eq!(iio::detach(&buffer, &block), Err(Errno::PERM));
    }
    let buffer = converter.rx.buffer();
    let blocks = attached(&buffer, 1, LEN);
    converter.remove().unwrap();
    assert_eq!(iio::detach(&buffer, &blocks[0]), Ok(()), "also of a device that is gone");
}

#[test]
#[ignore = "needs the lab"]
fn enqueue() {
    const ENQUEUE: Opcode = opcode::write::<[u64; 2]>(b'i', 0x94);
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        let buffer = device.buffer();
        assert_eq!(raw_ioctl(&buffer, ENQUEUE, BAD_POINTER), Err(Errno::FAULT));
        let block = Block::new(LEN);
        assert_eq!(iio::enqueue(&buffer, &block, 4096, 0), Err(Errno::PERM), "not attached");
        iio::attach(&buffer, &block).unwrap();
        assert_eq!(iio::enqueue(&buffer, closed(), 4096, 0), Err(Errno::BADF));
        let null = File::open("/dev/null").unwrap();
        assert_eq!(iio::enqueue(&buffer, &null, 4096, 0), Err(Errno::INVAL));
        for flags in [2, 3, 1 << 30, u32::MAX] {
            let result = iio::enqueue(&buffer, &block, 4096, flags);
            assert_eq!(result, Err(Errno::INVAL), "{flags:x}");
        }
        for len in [0, 4097, u64::MAX] {
            assert_eq!(iio::enqueue(&buffer, &block, len, 0), Err(Errno::INVAL), "{len}");
        }
        iio::detach(&buffer, &block).unwrap();
        assert_eq!(iio::enqueue(&buffer, &block, 4096, 0), Err(Errno::PERM), "detached");
    }
    let (rx, tx) = (converter.rx.buffer(), converter.tx.buffer());
    let block = &attached(&rx, 1, LEN)[0];
    assert_eq!(iio::enqueue(&rx, block, 4096, CYCLIC), Err(Errno::INVAL), "cyclic receiving");
    assert_eq!(iio::enqueue(&tx, block, 4096, 0), Err(Errno::PERM), "attached to another");
    converter.remove().unwrap();
    assert_eq!(iio::enqueue(&rx, block, 4096, 0), Err(Errno::NODEV));
    assert!(block.done_within(Duration::from_secs(60)), "what was refused leaves nothing behind");
}

#[test]
#[ignore = "needs the lab"]
fn enqueue_twice() {
    let converter = Converter::new();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.channels(&RX_VOLTAGES);
    tx.channels(&TX_VOLTAGES);
    // A receiver will write: no other access is permitted.
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    iio::enqueue(&buffer, block, 4096, 0).unwrap();
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Err(Errno::BUSY));
    non_blocking(&buffer, false);
    let start = Instant::now();
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Err(Errno::BUSY));
    assert!(start.elapsed() >= Duration::from_millis(4900), "a blocking one waits for 5 s");
    rx.enable();
    assert!(block.done_within(Duration::from_secs(60)));
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Ok(()), "now it is free");
    rx.disable();

    // A transmitter only reads, so the block itself is busy.
    let buffer = tx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    iio::enqueue(&buffer, block, 4096, CYCLIC).unwrap();
    let fences = block.fences();
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Err(Errno::PERM), "queued already");
    assert!(!block.done_within(Duration::ZERO), "patch 0043: the second call hides the first");
    tx.enable();
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Err(Errno::BUSY), "being transmitted");
    assert!(!block.done_within(Duration::ZERO), "patch 0043: the second call hides the first");
    tx.disable();
    assert_eq!(outcome(&fences), Err(Errno::INTR));
    assert_eq!(iio::enqueue(&buffer, block, 4096, 0), Ok(()));
    tx.enable();
    assert!(block.done_within(Duration::from_secs(60)));
}

const DEQUEUE: Opcode = opcode::write::<[u64; 2]>(b'i', 0x9f);

/// `IIO_BUFFER_DMABUF_DEQUEUE_IOCTL` with `[address, count and flags]`.
fn dequeue_at(buffer: impl AsFd, room: [u64; 2]) -> Result<(), Errno> {
    raw_ioctl(buffer, DEQUEUE, room.as_ptr().expose_provenance())
}

#[test]
#[ignore = "needs the lab"]
fn dequeue() {
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        let buffer = device.buffer();
        assert_eq!(raw_ioctl(&buffer, DEQUEUE, BAD_POINTER), Err(Errno::FAULT));
        let bad = BAD_POINTER as u64;
        assert_eq!(dequeue_at(&buffer, [bad, 1 << 32]), Err(Errno::INVAL), "flags");
        assert_eq!(dequeue_at(&buffer, [bad, 1 << 31]), Err(Errno::INVAL), "too many for an int");
        assert_eq!(dequeue_at(&buffer, [bad, 7]), Ok(()), "there are none");
        assert_eq!(iio::dequeue(&buffer, &mut []), Ok(0));
        assert_eq!(iio::dequeue(&buffer, &mut [Ended::default(); 3]), Ok(0));
    }
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 2, LEN);
    enqueue_all(&buffer, &blocks, 4096, REPORT);
    rx.enable();
    assert!(blocks[1].done_within(Duration::from_secs(60)));
    // A bad address loses no report. The second entry of two is on a page that cannot be written.
    assert_eq!(dequeue_at(&buffer, [BAD_POINTER as u64, 2]), Err(Errno::FAULT));
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let pages = Mapping::new(File::open("/dev/zero").unwrap(), 8192, access, flags, 0).unwrap();
    // SAFETY: our own mapping, whose second page is unmapped.
    #[allow(unsafe_code)]
    let last = unsafe {
        let second = pages.base.add(4096);
        rustix::mm::mprotect(second.cast(), 4096, rustix::mm::MprotectFlags::empty()).unwrap();
        std::slice::from_raw_parts(second.sub(size_of::<Ended>()), size_of::<Ended>())
    };
    assert_eq!(dequeue_at(&buffer, [last.as_ptr().expose_provenance() as u64, 2]), Ok(()));
    assert_eq!(last[..8], u64::from(blocks[0].number()).to_le_bytes(), "without an error");
    // The second one is there, a moment after its block is done, and was not told.
    support::wait_until("the second report", || {
        dequeue_at(&buffer, [BAD_POINTER as u64, 1]) == Err(Errno::FAULT)
    });
    assert_eq!(iio::enqueue(&buffer, &blocks[0], 4096, REPORT), Ok(()));
    assert_eq!(iio::enqueue(&buffer, &blocks[1], 4096, REPORT), Err(Errno::ALREADY));
    assert_eq!(iio::enqueue(&buffer, &blocks[1], 4096, 0), Ok(()), "without another report");
    assert!(blocks[1].done_within(Duration::from_secs(60)));
    let mut ended = [Ended::default(); 3];
    assert_eq!(iio::dequeue(&buffer, &mut ended), Ok(2));
    assert_eq!([ended[0].fd, ended[1].fd], [blocks[1].number(), blocks[0].number()]);
    assert_eq!(iio::enqueue(&buffer, &blocks[1], 4096, REPORT), Ok(()));
    converter.remove().unwrap();
    assert_eq!(iio::dequeue(&buffer, &mut ended), Ok(1), "also of a device that is gone");
    // What was refused is not reported.
    assert_eq!(iio::enqueue(&buffer, &blocks[0], 4096, REPORT), Err(Errno::NODEV));
    assert_eq!(iio::dequeue(&buffer, &mut ended), Ok(0));
}

#[test]
#[ignore = "needs the lab"]
fn other_calls() {
    let converter = Converter::new();
    let buffer = converter.rx.buffer();
    assert_eq!(raw_ioctl(&buffer, opcode::none(b'i', 0x95), 0), Err(Errno::INVAL));
    let device = converter.rx.open();
    assert!(raw_ioctl(&device, opcode::none(b'i', 0x95), 0).is_err());
}

#[test]
#[ignore = "needs the lab"]
fn read() {
    let converter = Converter::new();
    let rx = &converter.rx;
    let mut file = rx.open_with(OFlags::NONBLOCK);
    let mut bytes = [0; 64];
    assert_eq!(errno((&file).write(&bytes)), Err(Errno::PERM), "a receiver");
    assert_eq!(file.read(&mut bytes).unwrap(), 0, "nothing was ever enabled");
    rx.channels(&RX_VOLTAGES);
    rx.set("sampling_frequency", 1);
    rx.enable();
    assert_eq!(errno(file.read(&mut bytes)), Err(Errno::AGAIN));
    rx.disable();
    rx.set("sampling_frequency", 0);
    rx.enable();
    assert_eq!(errno(file.read(&mut bytes[..7])), Err(Errno::INVAL), "less than a sample");
    support::wait_until("samples", || file.read(&mut bytes).is_ok_and(|len| len == 64));
    converter::assert_counter(&bytes, 0);

    // A bad address loses no sample, and partly mapped memory is filled in part.
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let pages = Mapping::new(File::open("/dev/zero").unwrap(), 8192, access, flags, 0).unwrap();
    assert_eq!(read_at(&file, BAD_POINTER, 64), Err(Errno::FAULT));
    // SAFETY: our own mapping, whose second page is unmapped.
    #[allow(unsafe_code)]
    unsafe {
        rustix::mm::mprotect(pages.base.add(4096).cast(), 4096, rustix::mm::MprotectFlags::empty())
    }
    .unwrap();
    let base = pages.base.expose_provenance();
    assert_eq!(read_at(&file, base + 4096, 64), Err(Errno::FAULT));
    assert_eq!(read_at(&file, base + 4096 - 7, 64), Err(Errno::FAULT));
    assert_eq!(read_at(&file, base + 4096 - 36, 64), Ok(32));
    assert_eq!(file.read(&mut bytes).unwrap(), 64);
    converter::assert_counter(&bytes, 12);

    // With DMABUFs attached, `read` fails.
    rx.disable();
    let buffer = iio::buffer_fd(&file, 0).unwrap();
    non_blocking(&buffer, true);
    let blocks = attached(&buffer, 1, LEN);
    rx.enable();
    assert_eq!(errno(file.read(&mut bytes)), Err(Errno::BUSY), "the file of the buffer is open");
    assert_eq!(rustix::io::read(&buffer, &mut bytes), Err(Errno::BUSY));
    assert_eq!(transfer(&buffer, &blocks[0], LEN), Ok(()));
    assert_eq!(rustix::io::read(&buffer, &mut bytes), Err(Errno::BUSY));
    converter.remove().unwrap();
    assert_eq!(rustix::io::read(&buffer, &mut bytes), Err(Errno::NODEV));
}

#[test]
#[ignore = "needs the lab"]
fn read_touches_nothing_beyond_what_it_returns() {
    const ROOM: usize = 64 << 10;
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("buffer/length", 128);
    rx.enable();
    let device = rx.open();
    // Each page is copied when it is first written.
    let file = memfd_create("bytes", MemfdFlags::CLOEXEC).unwrap();
    File::from(file.try_clone().unwrap()).write_all(&vec![0xaa; ROOM]).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let pages = Mapping::new(file, ROOM as u64, access, flags, 0).unwrap();
    for (at, first) in [(0, 0), (ROOM / 2 - 7, 64)] {
        let len = read_at(&device, pages.base.expose_provenance() + at, ROOM - at).unwrap();
        assert_eq!(len, 512, "one block");
        // SAFETY: within the mapping, to which nothing writes now.
        #[allow(unsafe_code)]
        let bytes = unsafe { std::slice::from_raw_parts(pages.base.add(at), ROOM - at) };
        converter::assert_counter(&bytes[..len], first);
        let touched = bytes[len..].iter().filter(|&&byte| byte != 0xaa).count();
        assert_eq!(touched, 0, "bytes from {at} on that are none of the {len}");
    }
}

fn read_at(file: &File, address: usize, len: usize) -> Result<usize, Errno> {
    // SAFETY: memory of this test alone, or none.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::read(file.as_fd().as_raw_fd(), std::ptr::with_exposed_provenance_mut(address), len)
    };
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
}

#[test]
#[ignore = "needs the lab"]
fn write() {
    let converter = Converter::new();
    let tx = &converter.tx;
    tx.channels(&TX_VOLTAGES);
    tx.set("buffer/length", 16);
    tx.set("sampling_frequency", 1);
    let mut file = tx.open_with(OFlags::NONBLOCK);
    let mut bytes = [0; 256];
    assert_eq!(errno(file.read(&mut bytes)), Err(Errno::PERM), "a transmitter");
    tx.enable();
    assert_eq!(errno(file.write(&bytes[..7])), Err(Errno::INVAL), "less than a sample");
    assert_eq!(errno(file.write(&bytes[..11])), Err(Errno::INVAL), "and a part of the next");
    assert_eq!(file.write(&bytes).unwrap(), 120, "two blocks of eight, less the one before");
    assert_eq!(errno(file.write(&bytes)), Err(Errno::AGAIN));
    converter.remove().unwrap();
    assert_eq!(errno(file.write(&bytes)), Err(Errno::NODEV));
}
