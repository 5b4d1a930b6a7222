//! Blocks: memory that devices, programs and coprocessors share without copying it.
//!
//! A [`Block`] owns a DMABUF: a descriptor of memory that a driver can hand to its device, another
//! process can map, and the kernel frees with the last descriptor. The processor reads and writes
//! it through guards, which tell the kernel when caches have to be made right, and which wait until
//! no device uses the block any more (`Documentation/driver-api/dma-buf.rst` in the kernel's
//! sources).
//!
//! ```no_run
//! use busbar::block::Block;
//!
//! # fn main() -> busbar::Result<()> {
//! let mut block = Block::new(65536)?;
//! block.write()?.fill(7);
//! assert_eq!(block.read()?[65535], 7);
//! # Ok(())
//! # }
//! ```

mod map;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use busbar_uapi::dmabuf::{self, Access};
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use self::map::Map;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

const UDMABUF: &str = "/dev/udmabuf";
const HEAPS: &str = "/dev/dma_heap";
/// Bytes of a small page, to which heaps and `udmabuf` round.
const PAGE: usize = 4096;
/// Bytes of a huge page where nothing else is asked for.
const HUGE_PAGE: usize = 2 << 20;

/// Where a block's memory is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A DMA heap, by its name in `/dev/dma_heap`: `system`, or a contiguous one of the board.
    Heap(String),
    /// Ordinary pages of a memfd, by way of `/dev/udmabuf`.
    Pages,
    /// Huge pages of 2 MiB, by way of `/dev/udmabuf`. The system has to have reserved some:
    /// `/proc/sys/vm/nr_hugepages`.
    HugePages,
    /// From elsewhere: it came as a descriptor.
    Foreign,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heap(name) => write!(f, "DMA heap `{name}`"),
            Self::Pages => f.write_str("pages (udmabuf)"),
            Self::HugePages => f.write_str("huge pages (udmabuf)"),
            Self::Foreign => f.write_str("a DMABUF from elsewhere"),
        }
    }
}

/// An owned DMABUF.
///
/// Dropping it closes the descriptor; the memory goes when nobody uses it any more.
#[derive(Debug)]
pub struct Block {
    fd: OwnedFd,
    len: usize,
    memory: Memory,
    map: OnceLock<Map>,
}

impl Block {
    /// Memory of at least `len` bytes, zeroed, from the first of: heap `system`, `udmabuf`.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with); what the last one failed of if both do.
    pub fn new(len: usize) -> Result<Self> {
        let heap = Memory::Heap("system".into());
        match Self::with(len, &heap) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::with(len, &Memory::Pages)
            }
            done => done,
        }
    }

    /// Memory of at least `len` bytes, zeroed, from `memory`.
    ///
    /// # Errors
    ///
    /// `ENOENT` where the kernel has no such memory, `ENOMEM`, `EACCES`; bad input for a length of
    /// 0 and for [`Memory::Foreign`].
    pub fn with(len: usize, memory: &Memory) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("the length of a block", len, "1 byte or more"));
        }
        let (fd, len) = match memory {
            Memory::Heap(name) => from_heap(name, len)?,
            Memory::Pages => from_pages(len, PAGE, MemfdFlags::empty())?,
            Memory::HugePages => from_pages(len, HUGE_PAGE, MemfdFlags::HUGETLB)?,
            Memory::Foreign => {
                let allowed = "a heap, pages, or huge pages; `Block::from` takes a descriptor";
                return Err(Error::invalid("the memory of a block", memory, allowed));
            }
        };
        Ok(Self { fd, len, memory: memory.clone(), map: OnceLock::new() })
    }

    /// Bytes of the block: a multiple of its pages' size.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where its memory is from.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Another descriptor of the same memory.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(|why| Error::new("duplicate", self.label(), why))?;
        Ok(Self { fd, len: self.len, memory: self.memory.clone(), map: OnceLock::new() })
    }

    /// The bytes, for reading. Waits until no device writes to the block.
    ///
    /// Another process that has the block can write to it at any time; agree with it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the block cannot be mapped.
    pub fn read(&self) -> Result<Reading<'_>> {
        let map = self.map()?;
        self.sync("begin to read", || dmabuf::begin(self, Access::Read))?;
        Ok(Reading { block: self, map })
    }

    /// The bytes, for writing and reading. Waits until no device uses the block.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&mut self) -> Result<Writing<'_>> {
        self.map()?;
        self.sync("begin to write", || dmabuf::begin(&*self, Access::ReadWrite))?;
        Ok(Writing { block: self })
    }

    /// Waits until no device writes to the block; `false` if that took longer than `timeout`.
    ///
    /// The descriptor can be polled for the same: `POLLIN` when nobody writes to the block any
    /// more, `POLLOUT` when nobody uses it.
    pub fn wait_filled(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::IN, timeout)
    }

    /// Waits until no device uses the block; `false` if that took longer than `timeout`.
    pub fn wait_unused(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::OUT, timeout)
    }

    fn wait(&self, events: PollFlags, timeout: Duration) -> Result<bool> {
        let deadline = Deadline::after(timeout);
        loop {
            let happened = poll::wait(self, events, deadline.remaining())
                .map_err(|errno| Error::new("wait for", self.label(), errno))?;
            if happened.intersects(events) {
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
        }
    }

    fn map(&self) -> Result<&Map> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map =
            Map::new(&self.fd, self.len).map_err(|errno| Error::new("map", self.label(), errno))?;
        Ok(self.map.get_or_init(|| map))
    }

    fn sync(&self, tried: &str, call: impl Fn() -> Result<(), Errno>) -> Result<()> {
        loop {
            match call() {
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return done.map_err(|errno| Error::new(tried, self.label(), errno)),
            }
        }
    }

    /// Fails only for what is no DMABUF, and then there would be no guard.
    fn end(&self, access: Access) {
        let _ = self.sync("end to use", || dmabuf::end(self, access));
    }

    pub(crate) fn label(&self) -> String {
        format!("a block of {} bytes, {}", self.len, self.memory)
    }
}

fn open(path: &str, help: &str) -> Result<File> {
    File::options().read(true).write(true).open(path).map_err(|why| {
        Error::new("open", path, why).help(format!("the kernel needs {help}, and you access to it"))
    })
}

fn from_heap(name: &str, len: usize) -> Result<(OwnedFd, usize)> {
    if name.is_empty() || name.contains('/') {
        return Err(Error::invalid("a DMA heap", name, format!("a name in {HEAPS}")));
    }
    let path = format!("{HEAPS}/{name}");
    let heap = open(&path, "CONFIG_DMABUF_HEAPS_SYSTEM for the heap `system`")?;
    let len = len.next_multiple_of(PAGE);
    let fd = dmabuf::heap_alloc(&heap, len as u64)
        .map_err(|errno| Error::new(format!("allocate {len} bytes from"), path, errno))?;
    Ok((fd, len))
}

/// A memfd that cannot shrink, made into a DMABUF.
fn from_pages(len: usize, page: usize, flags: MemfdFlags) -> Result<(OwnedFd, usize)> {
    let device = open(UDMABUF, "CONFIG_UDMABUF")?;
    let len = len.next_multiple_of(page);
    let failed = |tried: &str, errno| {
        let error =
            Error::new(tried, format!("a block of {len} bytes of {page}-byte pages"), errno);
        match errno {
            Errno::NOMEM | Errno::NOSPC if page > PAGE => {
                error.help("reserve huge pages: sysctl vm.nr_hugepages")
            }
            Errno::INVAL => error
                .help("its limits are /sys/module/udmabuf/parameters/size_limit_mb and list_limit"),
            _ => error,
        }
    };
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory =
        rustix::fs::memfd_create("busbar-block", flags).map_err(|errno| failed("make", errno))?;
    rustix::fs::ftruncate(&memory, len as u64).map_err(|errno| failed("make", errno))?;
    // Without its pages, udmabuf takes huge ones that nobody has reserved: Linux 6.12 dies of it or
    // miscounts. Small ones would not be zeroed by this.
    if page > PAGE {
        rustix::fs::fallocate(&memory, rustix::fs::FallocateFlags::empty(), 0, len as u64)
            .map_err(|errno| failed("allocate", errno))?;
    }
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK)
        .map_err(|errno| failed("seal", errno))?;
    let fd = dmabuf::udmabuf_create(&device, &memory, 0, len as u64)
        .map_err(|errno| failed("share", errno))?;
    Ok((fd, len))
}

/// For a DMABUF from elsewhere, received from another process say.
impl TryFrom<OwnedFd> for Block {
    type Error = Error;

    fn try_from(fd: OwnedFd) -> Result<Self> {
        let failed =
            |errno| Error::new("use as a block", "a descriptor", errno).help("it is not a DMABUF");
        // Only a DMABUF knows the call.
        dmabuf::begin(fd.as_fd(), Access::Read).map_err(failed)?;
        dmabuf::end(fd.as_fd(), Access::Read).map_err(failed)?;
        let len = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
        let len = usize::try_from(len).map_err(|_| failed(Errno::FBIG))?;
        Ok(Self { fd, len, memory: Memory::Foreign, map: OnceLock::new() })
    }
}

impl From<Block> for OwnedFd {
    fn from(block: Block) -> Self {
        block.fd
    }
}

impl AsFd for Block {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The bytes of a [`Block`], for reading.
#[derive(Debug)]
pub struct Reading<'a> {
    block: &'a Block,
    map: &'a Map,
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.bytes()
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.block.end(Access::Read);
    }
}

/// The bytes of a [`Block`], for writing and reading.
#[derive(Debug)]
pub struct Writing<'a> {
    block: &'a mut Block,
}

impl Deref for Writing<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.map.get().map_or(&[], Map::bytes)
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.map.get_mut().map_or(&mut [], Map::bytes_mut)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.block.end(Access::ReadWrite);
    }
}
