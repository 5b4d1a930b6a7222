//! Blocks: memory that devices, programs and coprocessors share without copying it.
//!
//! A [`Block`] owns a DMABUF: a descriptor of memory that a driver can hand to its device, another
//! process can map, and the kernel frees with the last descriptor. The processor reads and writes
//! it through guards, which tell the kernel when caches have to be made right, and which wait until
//! no device uses the block any more (`Documentation/driver-api/dma-buf.rst` in the kernel's
//! sources).
//!
//! Where there is no device, [`Memory::Memfd`] is the same without a DMABUF, on any host.
//!
//! # Which memory
//!
//! | memory | a device uses it | `sendfile`, `MSG_ZEROCOPY` |
//! |---|---|---|
//! | [`Heap`](Memory::Heap) | yes; contiguous where the heap is | no: not made of ordinary pages |
//! | [`Pages`](Memory::Pages) | yes, 64 MiB a block unless the limit was raised | yes |
//! | [`HugePages`](Memory::HugePages) | yes, as above | `MSG_ZEROCOPY` |
//! | [`Memfd`](Memory::Memfd) | no | yes |
//!
//! [`Memory::choose`] takes the best one that the host has.
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
use std::str::FromStr;
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
#[non_exhaustive]
pub enum Memory {
    /// A DMA heap, by its name in `/dev/dma_heap`: `system`, or a contiguous one of the board.
    Heap(String),
    /// Ordinary pages of a memfd, by way of `/dev/udmabuf`.
    Pages,
    /// Huge pages of 2 MiB, by way of `/dev/udmabuf`. The system has to have reserved some:
    /// `/proc/sys/vm/nr_hugepages`.
    HugePages,
    /// Ordinary pages of a memfd, and no DMABUF: for programs and the network, not for devices.
    Memfd,
    /// From elsewhere: it came as a descriptor.
    Foreign,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heap(name) => write!(f, "DMA heap `{name}`"),
            Self::Pages => f.write_str("pages (udmabuf)"),
            Self::HugePages => f.write_str("huge pages (udmabuf)"),
            Self::Memfd => f.write_str("memfd"),
            Self::Foreign => f.write_str("a descriptor from elsewhere"),
        }
    }
}

/// `heap:NAME`, `pages`, `huge`, `memfd`.
impl FromStr for Memory {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match (name, name.strip_prefix("heap:")) {
            ("pages", _) => Ok(Self::Pages),
            ("huge", _) => Ok(Self::HugePages),
            ("memfd", _) => Ok(Self::Memfd),
            (_, Some(heap)) if !heap.is_empty() && !heap.contains('/') => {
                Ok(Self::Heap(heap.into()))
            }
            _ => {
                Err(Error::invalid("the memory of a block", name, "heap:NAME, pages, huge, memfd"))
            }
        }
    }
}

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Devices use it, and programs.
    Device,
    /// Devices use it, and it goes out to the network.
    Network,
    /// Programs use it, and the network, but no device.
    Program,
}

impl Memory {
    /// The heap that every kernel with heaps has.
    fn system() -> Self {
        Self::Heap("system".into())
    }

    /// The best memory that this process may take on this host.
    ///
    /// For [`Purpose::Device`], heap `system`, else pages; for [`Purpose::Network`] pages, else the
    /// heap. [`Memory::Memfd`] for [`Purpose::Program`], and where there is neither; then no device
    /// can use the block itself. Huge pages are never chosen: somebody has to reserve them.
    #[must_use]
    pub fn choose(purpose: Purpose) -> Self {
        let candidates = match purpose {
            Purpose::Device => vec![Self::system(), Self::Pages],
            Purpose::Network => vec![Self::Pages, Self::system()],
            Purpose::Program => Vec::new(),
        };
        candidates.into_iter().find(Self::is_there).unwrap_or(Self::Memfd)
    }

    /// Whether this process may take it.
    fn is_there(&self) -> bool {
        let device = match self {
            Self::Heap(name) => format!("{HEAPS}/{name}"),
            Self::Pages | Self::HugePages => UDMABUF.into(),
            Self::Memfd => return true,
            Self::Foreign => return false,
        };
        // Heaps are often for reading only; `open` asks for both.
        rustix::fs::access(device, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK)
            .is_ok()
    }
}

/// An owned DMABUF, or a memfd.
///
/// Dropping it closes the descriptor; the memory goes when nobody uses it any more.
#[derive(Debug)]
pub struct Block {
    /// The DMABUF, or the memfd where there is none.
    fd: OwnedFd,
    /// What the DMABUF is made of, where that is known.
    memfd: Option<OwnedFd>,
    is_dmabuf: bool,
    len: usize,
    memory: Memory,
    map: OnceLock<Map>,
}

impl Block {
    /// A DMABUF of at least `len` bytes, zeroed, from the first of: heap `system`, `udmabuf`.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with); what the last one failed of if both do.
    pub fn new(len: usize) -> Result<Self> {
        match Self::with(len, &Memory::system()) {
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
        let (fd, memfd, len) = match memory {
            Memory::Heap(name) => {
                let (fd, len) = from_heap(name, len)?;
                (fd, None, len)
            }
            Memory::Pages => from_pages(len, PAGE, MemfdFlags::empty())?,
            Memory::HugePages => from_pages(len, HUGE_PAGE, MemfdFlags::HUGETLB)?,
            Memory::Memfd => {
                let (fd, len) = memfd(len, PAGE, MemfdFlags::empty())?;
                (fd, None, len)
            }
            Memory::Foreign => {
                let allowed =
                    "a heap, pages, huge pages, or memfd; `Block::try_from` takes a descriptor";
                return Err(Error::invalid("the memory of a block", memory, allowed));
            }
        };
        let is_dmabuf = *memory != Memory::Memfd;
        Ok(Self { fd, memfd, is_dmabuf, len, memory: memory.clone(), map: OnceLock::new() })
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

    /// Whether a device can use it.
    #[must_use]
    pub fn is_dmabuf(&self) -> bool {
        self.is_dmabuf
    }

    /// The memfd of its memory, where that is known: its pages are ordinary ones, so `sendfile` takes
    /// them as they are. What devices do to the block is not waited for.
    #[must_use]
    pub fn memory_file(&self) -> Option<BorrowedFd<'_>> {
        self.file().map(AsFd::as_fd)
    }

    fn file(&self) -> Option<&OwnedFd> {
        self.memfd.as_ref().or((!self.is_dmabuf).then_some(&self.fd))
    }

    /// Another descriptor of the same memory.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn try_clone(&self) -> Result<Self> {
        let failed = |why| Error::new("duplicate", self.label(), why);
        let fd = self.fd.try_clone().map_err(failed)?;
        let memfd = self.memfd.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
        let (is_dmabuf, len, memory) = (self.is_dmabuf, self.len, self.memory.clone());
        Ok(Self { fd, memfd, is_dmabuf, len, memory, map: OnceLock::new() })
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

    /// Waits until no device writes to the block.
    ///
    /// The descriptor can be polled for the same: `POLLIN` when nobody writes to the block any
    /// more, `POLLOUT` when nobody uses it.
    pub fn wait_filled(&self) -> Result<()> {
        self.wait(PollFlags::IN, Deadline::NEVER).map(drop)
    }

    /// Whether no device writes to the block now.
    pub fn try_wait_filled(&self) -> Result<bool> {
        self.wait(PollFlags::IN, Deadline::now())
    }

    /// Waits until no device writes to the block; `false` if that took longer than `timeout`.
    pub fn wait_filled_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::IN, Deadline::after(timeout))
    }

    /// Waits until no device uses the block.
    pub fn wait_unused(&self) -> Result<()> {
        self.wait(PollFlags::OUT, Deadline::NEVER).map(drop)
    }

    /// Whether no device uses the block now.
    pub fn try_wait_unused(&self) -> Result<bool> {
        self.wait(PollFlags::OUT, Deadline::now())
    }

    /// Waits until no device uses the block; `false` if that took longer than `timeout`.
    pub fn wait_unused_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::OUT, Deadline::after(timeout))
    }

    fn wait(&self, events: PollFlags, deadline: Deadline) -> Result<bool> {
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
        // The same pages either way, but those of a memfd are ordinary ones, which the network and
        // io_uring take as they are.
        let map = Map::new(self.file().unwrap_or(&self.fd), self.len)
            .map_err(|errno| Error::new("map", self.label(), errno))?;
        Ok(self.map.get_or_init(|| map))
    }

    fn sync(&self, tried: &str, call: impl Fn() -> Result<(), Errno>) -> Result<()> {
        if !self.is_dmabuf {
            return Ok(());
        }
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
    let heap = open(&path, "CONFIG_DMABUF_HEAPS_SYSTEM for the heap `system`")
        .map_err(|error| other_heaps(error, name))?;
    let len = len.next_multiple_of(PAGE);
    let fd = dmabuf::heap_alloc(&heap, len as u64)
        .map_err(|errno| Error::new(format!("allocate {len} bytes from"), path, errno))?;
    Ok((fd, len))
}

/// A name that no heap has gets those of the heaps there are.
fn other_heaps(error: Error, name: &str) -> Error {
    let heaps = std::fs::read_dir(HEAPS).into_iter().flatten().flatten();
    let mut heaps: Vec<_> = heaps.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    heaps.sort();
    match (error.kind(), heaps.is_empty()) {
        (io::ErrorKind::NotFound, false) => error.help(format!("there are: {}", heaps.join(", "))),
        (io::ErrorKind::NotFound, true) if name != "system" => error
            .help("there is no DMA heap; other memory: pages, huge, memfd (see `busbar doctor`)"),
        _ => error,
    }
}

/// A memfd that cannot shrink, made into a DMABUF: that, the memfd, and how many bytes they have.
fn from_pages(
    len: usize,
    page: usize,
    flags: MemfdFlags,
) -> Result<(OwnedFd, Option<OwnedFd>, usize)> {
    let device = open(UDMABUF, "CONFIG_UDMABUF")?;
    let (memory, len) = memfd(len, page, flags)?;
    let fd = dmabuf::udmabuf_create(&device, &memory, 0, len as u64).map_err(|errno| {
        let error = no_pages("share", len, page, errno);
        match errno {
            Errno::INVAL => error
                .help("its limits are /sys/module/udmabuf/parameters/size_limit_mb and list_limit"),
            _ => error,
        }
    })?;
    Ok((fd, Some(memory), len))
}

/// A memfd that cannot shrink, of whole pages.
fn memfd(len: usize, page: usize, flags: MemfdFlags) -> Result<(OwnedFd, usize)> {
    let len = len.next_multiple_of(page);
    let failed = |tried: &'static str| move |errno| no_pages(tried, len, page, errno);
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("busbar-block", flags).map_err(failed("make"))?;
    rustix::fs::ftruncate(&memory, len as u64).map_err(failed("make"))?;
    // Without its pages, udmabuf takes huge ones that nobody has reserved: Linux 6.12 dies of it or
    // miscounts. Small ones would not be zeroed by this.
    if page > PAGE {
        let flags = rustix::fs::FallocateFlags::empty();
        let call = || rustix::fs::fallocate(&memory, flags, 0, len as u64);
        rustix::io::retry_on_intr(call).map_err(failed("allocate"))?;
    }
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).map_err(failed("seal"))?;
    Ok((memory, len))
}

fn no_pages(tried: &str, len: usize, page: usize, errno: Errno) -> Error {
    let error = Error::new(tried, format!("a block of {len} bytes of {page}-byte pages"), errno);
    match errno {
        Errno::NOMEM | Errno::NOSPC if page > PAGE => {
            error.help("reserve huge pages: sysctl vm.nr_hugepages")
        }
        _ => error,
    }
}

/// For a DMABUF from elsewhere, received from another process say, or a memfd that is sealed against
/// shrinking.
impl TryFrom<OwnedFd> for Block {
    type Error = Error;

    fn try_from(fd: OwnedFd) -> Result<Self> {
        let failed = |errno| {
            Error::new("use as a block", "a descriptor", errno)
                .help("it is not a DMABUF, nor a memfd that cannot shrink")
        };
        // Only a memfd has seals; one that could shrink would take the pages from under a reader.
        let is_dmabuf = match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) => false,
            Ok(_) => return Err(failed(Errno::PERM)),
            Err(_) => true,
        };
        if is_dmabuf {
            // Only a DMABUF knows the call.
            dmabuf::begin(fd.as_fd(), Access::Read).map_err(failed)?;
            dmabuf::end(fd.as_fd(), Access::Read).map_err(failed)?;
        }
        let len = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
        let len = usize::try_from(len).map_err(|_| failed(Errno::FBIG))?;
        if len == 0 {
            return Err(failed(Errno::INVAL));
        }
        Ok(Self { fd, memfd: None, is_dmabuf, len, memory: Memory::Foreign, map: OnceLock::new() })
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
