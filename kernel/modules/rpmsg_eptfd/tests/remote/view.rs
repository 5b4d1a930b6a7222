//! Memory as the process that is the coprocessor sees it.

#![allow(dead_code)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags};

use crate::support::Mapping;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// A range of device addresses as the coprocessor sees it.
///
/// It is accessed by system calls, which fail where an instruction would be `SIGBUS`.
pub struct View {
    mapping: Mapping,
    at: usize,
    len: usize,
}

#[allow(unsafe_code)]
impl View {
    /// `len` bytes at `address`, mapped for reading and writing.
    pub fn new(core: impl AsFd, address: u64, len: u64) -> Self {
        let first = address - address % PAGE;
        let pages = (address + len).next_multiple_of(PAGE) - first;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(core, pages, access, MapFlags::SHARED, first);
        let (at, len) = (usize::try_from(address - first), usize::try_from(len));
        Self { mapping: mapping.expect("any range"), at: at.unwrap(), len: len.unwrap() }
    }

    /// Its address in this process.
    pub fn base(&self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.mapping.base.add(self.at) }
    }

    fn bytes(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= self.len);
        // SAFETY: within the mapping. Only the kernel gets this address, and it checks each access.
        unsafe { std::slice::from_raw_parts(self.base().add(from), to - from) }
    }

    /// Lets the kernel write as many of `bytes` as possible at `at`.
    fn poke(&self, at: usize, bytes: &[u8]) -> Result<usize, Errno> {
        assert!(at + bytes.len() <= self.len);
        let scratch = scratch();
        assert_eq!(pwrite(&scratch, bytes, 0), Ok(bytes.len()));
        // SAFETY: as above, and there is no other reference.
        let target = unsafe { std::slice::from_raw_parts_mut(self.base().add(at), bytes.len()) };
        pread(&scratch, target, 0)
    }

    /// All bytes, or `EFAULT` if one may not be read.
    pub fn read(&self) -> Result<Vec<u8>, Errno> {
        let scratch = scratch();
        let mut bytes = vec![0; self.len];
        let mut done = 0;
        while done < self.len {
            done += pwrite(&scratch, self.bytes(done, self.len), done as u64)?;
        }
        assert_eq!(pread(&scratch, &mut bytes, 0), Ok(self.len));
        Ok(bytes)
    }

    /// Writes `bytes` to the start, or fails with `EFAULT` if one may not be written.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.poke(done, &bytes[done..])?;
        }
        Ok(())
    }

    /// Asserts that no byte can be accessed.
    pub fn assert_gone(&self) {
        for at in [0, self.len / 2, self.len - 1] {
            let read = pwrite(scratch(), self.bytes(at, at + 1), 0);
            assert_eq!(read, Err(Errno::FAULT), "read {at}");
            assert_eq!(self.poke(at, b"x"), Err(Errno::FAULT), "write {at}");
        }
    }
}

fn scratch() -> OwnedFd {
    memfd_create("scratch", MemfdFlags::CLOEXEC).unwrap()
}
