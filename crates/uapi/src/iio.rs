//! Buffers of industrial I/O devices, DMABUFs as their blocks (`<linux/iio/buffer.h>`), and events
//! (`<linux/iio/events.h>`).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};

use crate::call::{self, Call};

/// The block is transmitted again and again (`IIO_BUFFER_DMABUF_CYCLIC`). Transmit buffers only.
pub const CYCLIC: u32 = 1;
/// [`dequeue`] returns the block once it has ended (`IIO_BUFFER_DMABUF_REPORT`). Kernels with Busbar's patches only.
pub const REPORT: u32 = 1 << 31;

/// Bytes of an event, `struct iio_event_data`: its code, then its time in nanoseconds, each of 64 bits.
pub const EVENT_LEN: usize = 16;

/// `struct iio_dmabuf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IioDmabuf {
    fd: u32,
    flags: u32,
    bytes_used: u64,
}

/// `struct iio_dmabuf_done`: a DMABUF whose transfer has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The number of its descriptor when it was enqueued.
    pub fd: u32,
    /// 0, or the negative errno of the transfer.
    pub error: i32,
    /// When it ended, on the monotonic clock.
    pub timestamp_ns: u64,
}

/// `struct iio_dmabuf_dequeue`.
#[repr(C)]
#[derive(Debug)]
struct IioDmabufDequeue {
    done: u64,
    count: u32,
    flags: u32,
}

const GET_EVENT_FD: Opcode = opcode::read::<i32>(b'i', 0x90);
const GET_FD: Opcode = opcode::read_write::<i32>(b'i', 0x91);
const ATTACH: Opcode = opcode::write::<i32>(b'i', 0x92);
const DETACH: Opcode = opcode::write::<i32>(b'i', 0x93);
const ENQUEUE: Opcode = opcode::write::<IioDmabuf>(b'i', 0x94);
const DEQUEUE: Opcode = opcode::write::<IioDmabufDequeue>(b'i', 0x9f);

/// `IIO_BUFFER_GET_FD_IOCTL`: buffer number `index` of a device, as a file of its own.
///
/// The buffer has one such file at a time. The file is for reading and writing, closed by `exec`,
/// and blocks until `O_NONBLOCK` is set on it.
///
/// # Errors
/// `EBUSY` while the buffer has a file already, `ENODEV` if there is no such buffer or the device
/// is gone.
pub fn buffer_fd(device: impl AsFd, index: i32) -> io::Result<OwnedFd> {
    let mut value = index;
    // SAFETY: the opcode is that of a call that updates an `int`.
    unsafe { ioctl(device, Updater::<GET_FD, i32>::new(&mut value)) }?;
    // SAFETY: after success this is a new descriptor that nobody else owns.
    unsafe { owned(value) }
}

/// `IIO_GET_EVENT_FD_IOCTL`: the events of a device from now on, as a file of its own, from which whole events
/// of [`EVENT_LEN`] bytes are read.
///
/// A device has one such file at a time. The kernel keeps 16 events that are not read, and drops those after them. The
/// file is for reading, closed by `exec`, and blocks until `O_NONBLOCK` is set on it. If the device goes, a read
/// fails with `ENODEV`, but nothing wakes who polls it.
///
/// # Errors
/// `EBUSY` while the device has such a file already, `ENODEV` if it has no events or is gone.
pub fn event_fd(device: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the opcode is that of a call that writes an `int`.
    let value = unsafe { ioctl(device, Getter::<GET_EVENT_FD, i32>::new()) }?;
    // SAFETY: after success this is a new descriptor that nobody else owns.
    unsafe { owned(value) }
}

/// # Safety
/// Nobody else owns the descriptor, if it is one.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `IIO_BUFFER_DMABUF_ATTACH_IOCTL`: lets `buffer` use a DMABUF.
///
/// # Errors
/// `EPERM` if the driver does not support it, `EBUSY` if it is attached already, if the buffer is enabled for
/// `read` and `write`, or if the DMABUF is locked (`O_NONBLOCK`); `EBADF` and `EINVAL` if it is none.
pub fn attach(buffer: impl AsFd, dmabuf: impl AsFd) -> io::Result<()> {
    let fd = dmabuf.as_fd().as_raw_fd();
    // SAFETY: the opcode is that of a call that reads an `int`.
    unsafe { ioctl(buffer, Setter::<ATTACH, i32>::new(fd)) }
}

/// `IIO_BUFFER_DMABUF_DETACH_IOCTL`: undoes [`attach`], when the block is done if it is queued.
///
/// # Errors
/// `EPERM` if it is not attached; `EBADF` and `EINVAL` if it is no DMABUF.
pub fn detach(buffer: impl AsFd, dmabuf: impl AsFd) -> io::Result<()> {
    let fd = dmabuf.as_fd().as_raw_fd();
    // SAFETY: the opcode is that of a call that reads an `int`.
    unsafe { ioctl(buffer, Setter::<DETACH, i32>::new(fd)) }
}

/// `IIO_BUFFER_DMABUF_ENQUEUE_IOCTL`: gives the first `bytes_used` bytes of an attached DMABUF to
/// the device, to be filled or to be transmitted. `flags` are of [`CYCLIC`] and [`REPORT`].
///
/// The end is a fence of the DMABUF. Without `O_NONBLOCK` the call waits up to 5 s for earlier ones.
///
/// # Errors
/// `EINVAL` for unknown flags, for a cyclic block on a receive buffer, and for a length of 0 or
/// beyond the DMABUF; `EPERM` if it is not attached or queued already; `EBUSY` if it has fences
/// that are not signalled, or the buffer is enabled for `read` and `write`; `EALREADY` if a report of it was asked
/// for before and not dequeued yet.
pub fn enqueue(
    buffer: impl AsFd,
    dmabuf: impl AsFd,
    bytes_used: u64,
    flags: u32,
) -> io::Result<()> {
    let fd = dmabuf.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the opcode is that of a call that reads a `struct iio_dmabuf`.
    unsafe { ioctl(buffer, Setter::<ENQUEUE, _>::new(IioDmabuf { fd, flags, bytes_used })) }
}

/// `IIO_BUFFER_DMABUF_DEQUEUE_IOCTL`: the blocks with [`REPORT`] that have ended, in the order of their ends, and how
/// many there are; never waits.
///
/// A DMABUF that is detached is not reported. With no room, the call only says whether the kernel has it.
///
/// # Errors
/// `EINVAL` if the kernel does not have it, `EPERM` if the driver does not support DMABUFs.
pub fn dequeue(buffer: impl AsFd, ended: &mut [Ended]) -> io::Result<usize> {
    let done = ended.as_mut_ptr().expose_provenance() as u64;
    let count = i32::try_from(ended.len()).unwrap_or(i32::MAX).cast_unsigned();
    // SAFETY: the opcode is that of a call that reads a `struct iio_dmabuf_dequeue`, and writes into the entries, which
    // are borrowed meanwhile.
    unsafe { ioctl(buffer, Call::<DEQUEUE, _>(IioDmabufDequeue { done, count, flags: 0 })) }
        .map(call::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!(size_of::<IioDmabuf>(), 16);
        assert_eq!(std::mem::offset_of!(IioDmabuf, flags), 4);
        assert_eq!(std::mem::offset_of!(IioDmabuf, bytes_used), 8);
        assert_eq!((size_of::<Ended>(), size_of::<IioDmabufDequeue>()), (16, 16));
        assert_eq!(std::mem::offset_of!(Ended, timestamp_ns), 8);
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        // As printed by a C program that includes it.
        assert_eq!(GET_EVENT_FD, 0x8004_6990);
        assert_eq!(GET_FD, 0xc004_6991);
        assert_eq!(ATTACH, 0x4004_6992);
        assert_eq!(DETACH, 0x4004_6993);
        assert_eq!(ENQUEUE, 0x4010_6994);
        assert_eq!(DEQUEUE, 0x4010_699f);
    }

    #[test]
    fn every_call_fails_on_a_file_that_does_not_know_it() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(buffer_fd(&null, 0).map(drop), Err(Errno::NOTTY));
        assert_eq!(attach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(detach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(enqueue(&null, &null, 1, 0), Err(Errno::NOTTY));
        assert_eq!(dequeue(&null, &mut []), Err(Errno::NOTTY));
    }
}
