//! DMABUFs: heaps, `udmabuf`, access by the processor, fences, and endpoints that send them
//! (`<linux/dma-buf.h>`, `<linux/dma-heap.h>`, `<linux/udmabuf.h>`, `<linux/sync_file.h>`,
//! `kernel/uapi/linux/rpmsg_eptfd.h`).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

use crate::call::Call;

/// What the processor is about to do, or has done, with a DMABUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    fn bits(self) -> u64 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::ReadWrite => 3,
        }
    }
}

const SYNC_END: u64 = 4;
const SYNC: Opcode = opcode::write::<u64>(b'b', 0);

/// `DMA_BUF_IOCTL_SYNC` with `DMA_BUF_SYNC_START`: waits until no device conflicts with the access.
pub fn begin(buffer: impl AsFd, access: Access) -> io::Result<()> {
    // SAFETY: the opcode is that of a call that reads a `struct dma_buf_sync`, one 64-bit number.
    unsafe { ioctl(buffer, Setter::<SYNC, u64>::new(access.bits())) }
}

/// `DMA_BUF_IOCTL_SYNC` with `DMA_BUF_SYNC_END`.
pub fn end(buffer: impl AsFd, access: Access) -> io::Result<()> {
    // SAFETY: as for `begin`.
    unsafe { ioctl(buffer, Setter::<SYNC, u64>::new(access.bits() | SYNC_END)) }
}

/// `struct dma_buf_export_sync_file`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ExportSyncFile {
    flags: u32,
    fd: i32,
}

/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE`: the fences for which `access` has to wait now, as a file.
///
/// It is readable when they are signalled; [`sync_file_status`] then returns how they ended.
pub fn export_sync_file(buffer: impl AsFd, access: Access) -> io::Result<OwnedFd> {
    const EXPORT: Opcode = opcode::read_write::<ExportSyncFile>(b'b', 2);
    let flags = u32::try_from(access.bits()).map_err(|_| Errno::INVAL)?;
    let mut data = ExportSyncFile { flags, fd: -1 };
    // SAFETY: the opcode is that of a call that updates a `struct dma_buf_export_sync_file`.
    unsafe { ioctl(buffer, Updater::<EXPORT, _>::new(&mut data)) }?;
    if data.fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: after success this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(data.fd) })
}

/// `struct sync_file_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SyncFileInfo {
    name: [u8; 32],
    status: i32,
    flags: u32,
    num_fences: u32,
    pad: u32,
    sync_fence_info: u64,
}

/// `struct sync_fence_info`: one of the fences of a sync file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// The name of the fence's timeline, ended by a NUL byte.
    pub obj_name: [u8; 32],
    /// The name of the driver, ended by a NUL byte.
    pub driver_name: [u8; 32],
    /// 0 while it is not signalled, 1 afterwards, or the negative errno that it was signalled with.
    pub status: i32,
    /// 0.
    pub flags: u32,
    /// When it was signalled, in nanoseconds of `CLOCK_MONOTONIC`.
    pub timestamp_ns: u64,
}

/// `SYNC_IOC_FILE_INFO`: the number of fences of a sync file, and their status: `None` while one is not
/// signalled, then success of all of them, or the errno of one that failed.
pub fn sync_file_status(file: impl AsFd) -> io::Result<(u32, Option<Result<(), Errno>>)> {
    let mut info = SyncFileInfo::default();
    sync_file_info(file, &mut info)?;
    let status = match info.status {
        0 => None,
        1.. => Some(Ok(())),
        error => Some(Err(Errno::from_raw_os_error(-error))),
    };
    Ok((info.num_fences, status))
}

/// `SYNC_IOC_FILE_INFO`: fills `fences` with the fences of a sync file, as many as there is room
/// for; returns their number.
pub fn sync_file_fences(file: impl AsFd, fences: &mut [Fence]) -> io::Result<usize> {
    let num_fences = u32::try_from(fences.len()).unwrap_or(u32::MAX);
    let sync_fence_info = fences.as_mut_ptr().expose_provenance() as u64;
    let mut info = SyncFileInfo { num_fences, sync_fence_info, ..SyncFileInfo::default() };
    sync_file_info(file, &mut info)?;
    Ok(usize::try_from(info.num_fences).map_or(fences.len(), |count| count.min(fences.len())))
}

fn sync_file_info(file: impl AsFd, info: &mut SyncFileInfo) -> io::Result<()> {
    const INFO: Opcode = opcode::read_write::<SyncFileInfo>(b'>', 4);
    // SAFETY: the opcode is that of a call that updates a `struct sync_file_info`, and fills as
    // many fences as that says are at the address in it.
    unsafe { ioctl(file, Updater::<INFO, _>::new(info)) }
}

/// `struct dma_heap_allocation_data`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct HeapAllocation {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// Flags of a new descriptor: `O_RDWR | O_CLOEXEC`.
const FD_FLAGS: u32 = 0o2 | 0o2_000_000;

/// `DMA_HEAP_IOCTL_ALLOC`: `len` bytes of a heap, rounded up to pages.
pub fn heap_alloc(heap: impl AsFd, len: u64) -> io::Result<OwnedFd> {
    const ALLOC: Opcode = opcode::read_write::<HeapAllocation>(b'H', 0);
    let mut data = HeapAllocation { len, fd_flags: FD_FLAGS, ..HeapAllocation::default() };
    // SAFETY: the opcode is that of a call that updates a `struct dma_heap_allocation_data`.
    unsafe { ioctl(heap, Updater::<ALLOC, _>::new(&mut data)) }?;
    let fd = i32::try_from(data.fd).map_err(|_| Errno::BADF)?;
    // SAFETY: after success this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const UDMABUF_CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: a DMABUF of the pages of a memfd that is sealed against shrinking.
///
/// `offset` and `size` are in bytes, multiples of the page size.
pub fn udmabuf_create(
    device: impl AsFd,
    memfd: impl AsFd,
    offset: u64,
    size: u64,
) -> io::Result<OwnedFd> {
    const CREATE: Opcode = opcode::write::<UdmabufCreate>(b'u', 0x42);
    let memfd = memfd.as_fd().as_raw_fd().cast_unsigned();
    let create = UdmabufCreate { memfd, flags: UDMABUF_CLOEXEC, offset, size };
    // SAFETY: the opcode is that of a call that reads a `struct udmabuf_create`.
    let fd = unsafe { ioctl(device, Call::<CREATE, _>(create)) }?;
    // SAFETY: after success this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct udmabuf_create_item`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UdmabufCreateItem {
    memfd: u32,
    pad: u32,
    offset: u64,
    size: u64,
}

/// `struct udmabuf_create_list`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UdmabufCreateList<const N: usize> {
    flags: u32,
    count: u32,
    list: [UdmabufCreateItem; N],
}

/// `UDMABUF_CREATE_LIST`: a DMABUF of parts of a memfd, each an offset and a size, in this order.
///
/// A part can be there more than once. Otherwise as [`udmabuf_create`].
pub fn udmabuf_create_list<const N: usize>(
    device: impl AsFd,
    memfd: impl AsFd,
    parts: [(u64, u64); N],
) -> io::Result<OwnedFd> {
    const CREATE: Opcode = opcode::write::<UdmabufCreateList<0>>(b'u', 0x43);
    let memfd = memfd.as_fd().as_raw_fd().cast_unsigned();
    let list = parts.map(|(offset, size)| UdmabufCreateItem { memfd, pad: 0, offset, size });
    let count = u32::try_from(N).map_err(|_| Errno::INVAL)?;
    let create = UdmabufCreateList { flags: UDMABUF_CLOEXEC, count, list };
    // SAFETY: the opcode is that of a call that reads a `struct udmabuf_create_list` of `count` items.
    let fd = unsafe { ioctl(device, Call::<CREATE, _>(create)) }?;
    // SAFETY: after success this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The remote reads the part (`RPMSG_DMABUF_TO_REMOTE`).
pub const TO_REMOTE: u32 = 1;
/// The remote fills the part (`RPMSG_DMABUF_FROM_REMOTE`).
pub const FROM_REMOTE: u32 = 2;

/// `struct rpmsg_dmabuf_attach`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpmsgDmabufAttach {
    /// Descriptor of the DMABUF.
    pub fd: i32,
    /// 0.
    pub flags: u32,
    /// 0.
    pub reserved: [u64; 3],
}

/// `RPMSG_DMABUF_ATTACH_IOCTL`.
pub const ATTACH: Opcode = opcode::write::<RpmsgDmabufAttach>(0xb5, 0xc);
/// `RPMSG_DMABUF_DETACH_IOCTL`.
pub const DETACH: Opcode = opcode::write::<RpmsgDmabufAttach>(0xb5, 0xd);
/// `RPMSG_DMABUF_SEND_IOCTL`.
pub const SEND: Opcode = opcode::read_write::<RpmsgDmabuf>(0xb5, 0xe);

/// `struct rpmsg_dmabuf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpmsgDmabuf {
    /// Descriptor of the DMABUF.
    pub fd: i32,
    /// [`TO_REMOTE`] or [`FROM_REMOTE`].
    pub flags: u32,
    /// Offset of the part.
    pub offset: u64,
    /// Length of the part, at least 1.
    pub length: u64,
    /// Returned: identifies this use; the answer has the same.
    pub cookie: u64,
    /// 0.
    pub reserved: [u64; 4],
}

/// `RPMSG_DMABUF_ATTACH_IOCTL`: lets `endpoint` send `buffer`.
pub fn attach(endpoint: impl AsFd, buffer: impl AsFd) -> io::Result<()> {
    let fd = buffer.as_fd().as_raw_fd();
    let named = RpmsgDmabufAttach { fd, ..RpmsgDmabufAttach::default() };
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_dmabuf_attach`.
    unsafe { ioctl(endpoint, Setter::<ATTACH, _>::new(named)) }
}

/// `RPMSG_DMABUF_DETACH_IOCTL`: undoes [`attach`], at the latest when the remote is done.
pub fn detach(endpoint: impl AsFd, buffer: impl AsFd) -> io::Result<()> {
    let fd = buffer.as_fd().as_raw_fd();
    let named = RpmsgDmabufAttach { fd, ..RpmsgDmabufAttach::default() };
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_dmabuf_attach`.
    unsafe { ioctl(endpoint, Setter::<DETACH, _>::new(named)) }
}

/// `RPMSG_DMABUF_SEND_IOCTL`: gives a part of an attached buffer to the remote; returns the cookie
/// of the answer. `flags` is [`TO_REMOTE`] or [`FROM_REMOTE`].
pub fn send(
    endpoint: impl AsFd,
    buffer: impl AsFd,
    flags: u32,
    offset: u64,
    length: u64,
) -> io::Result<u64> {
    let fd = buffer.as_fd().as_raw_fd();
    let mut given = RpmsgDmabuf { fd, flags, offset, length, ..RpmsgDmabuf::default() };
    // SAFETY: the opcode is that of a call that updates a `struct rpmsg_dmabuf`.
    unsafe { ioctl(endpoint, Updater::<SEND, _>::new(&mut given)) }?;
    Ok(given.cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<HeapAllocation>(), 24);
        assert_eq!(size_of::<UdmabufCreate>(), 24);
        assert_eq!(size_of::<RpmsgDmabufAttach>(), 32);
        assert_eq!(size_of::<RpmsgDmabuf>(), 64);
        assert_eq!(size_of::<ExportSyncFile>(), 8);
        assert_eq!(size_of::<SyncFileInfo>(), 56);
        assert_eq!(size_of::<Fence>(), 80);
        assert_eq!(std::mem::offset_of!(RpmsgDmabuf, cookie), 24);
        assert_eq!(std::mem::offset_of!(SyncFileInfo, sync_fence_info), 48);
        assert_eq!(std::mem::offset_of!(Fence, timestamp_ns), 72);
    }

    #[test]
    fn numbers_are_those_of_the_headers() {
        // As printed by a C program that includes them.
        assert_eq!(SYNC, 0x4008_6200);
        assert_eq!(opcode::read_write::<ExportSyncFile>(b'b', 2), 0xc008_6202);
        assert_eq!(opcode::read_write::<SyncFileInfo>(b'>', 4), 0xc038_3e04);
        assert_eq!(opcode::read_write::<HeapAllocation>(b'H', 0), 0xc018_4800);
        assert_eq!(opcode::write::<UdmabufCreate>(b'u', 0x42), 0x4018_7542);
        assert_eq!(ATTACH, 0x4020_b50c);
        assert_eq!(DETACH, 0x4020_b50d);
        assert_eq!(SEND, 0xc040_b50e);
    }

    #[test]
    fn every_call_fails_on_a_file_that_does_not_know_it() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(begin(&null, Access::Read), Err(Errno::NOTTY));
        assert_eq!(end(&null, Access::Write), Err(Errno::NOTTY));
        assert_eq!(export_sync_file(&null, Access::Read).map(drop), Err(Errno::NOTTY));
        assert_eq!(sync_file_status(&null), Err(Errno::NOTTY));
        assert_eq!(sync_file_fences(&null, &mut []), Err(Errno::NOTTY));
        assert_eq!(heap_alloc(&null, 4096).map(drop), Err(Errno::NOTTY));
        assert_eq!(udmabuf_create(&null, &null, 0, 4096).map(drop), Err(Errno::NOTTY));
        assert_eq!(attach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(detach(&null, &null), Err(Errno::NOTTY));
        assert_eq!(send(&null, &null, TO_REMOTE, 0, 1), Err(Errno::NOTTY));
    }
}
