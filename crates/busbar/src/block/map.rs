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
}

// SAFETY: the mapping belongs to this value alone, and any thread may access it.
unsafe impl Send for Map {}
// SAFETY: a shared reference only allows reads, by any number of threads.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    pub(super) fn bytes(&self) -> Bytes<'_> {
        // SAFETY: `len` bytes are mapped while this value lives, at most `isize::MAX`. A DMABUF or a sealed
        // memfd cannot shrink, and a hole in a memfd of small pages reads as zeros. No reference to them exists.
        unsafe { Bytes::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> BytesMut<'_> {
        // SAFETY: as above.
        unsafe { BytesMut::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
