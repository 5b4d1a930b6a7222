//! The memory of a block in this process.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of a whole DMABUF.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and any thread may access it.
unsafe impl Send for Map {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped as long as this value lives. A DMABUF cannot shrink, and
        // the guards keep writers of this process away; those elsewhere see `Block::read`.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference is exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
