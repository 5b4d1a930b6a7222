//! The memory of a block in this process.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::bytes::{Bytes, BytesMut};

/// A shared mapping of a whole DMABUF.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    len: usize,
    is_writable: bool,
}

// SAFETY: the mapping belongs to this value alone, and any thread may access it.
unsafe impl Send for Map {}
// SAFETY: a shared reference only allows reads, by any number of threads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps it for reading only where its descriptor was opened so, or a seal forbids to write.
    pub(super) fn new(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        match Self::with(&fd, len, ProtFlags::READ | ProtFlags::WRITE) {
            Err(Errno::ACCESS | Errno::PERM) => Self::with(&fd, len, ProtFlags::READ),
            mapped => mapped,
        }
    }

    fn with(fd: impl AsFd, len: usize, access: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, is_writable: access.contains(ProtFlags::WRITE) })
    }

    /// Whether [`bytes_mut`](Self::bytes_mut) may be called.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(super) fn bytes(&self) -> Bytes<'_> {
        // SAFETY: `len` bytes are mapped while this value lives, at most `isize::MAX`. A DMABUF or a sealed
        // memfd cannot shrink, and a hole in a memfd of small pages reads as zeros. No reference to them exists.
        unsafe { Bytes::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes, or none if they must not be written.
    pub(super) fn bytes_mut(&mut self) -> BytesMut<'_> {
        if !self.is_writable {
            return BytesMut::default();
        }
        // SAFETY: as above, and they are mapped for writing.
        unsafe { BytesMut::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
