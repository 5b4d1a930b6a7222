//! Blocks: memory that devices, programs and coprocessors share without copying it.
//!
//! A [`Block`] owns a DMABUF: a descriptor of memory that a driver can pass to its device, another
//! process can map, and the kernel frees with the last descriptor. The processor reads and writes
//! it through guards, which tell the kernel when caches have to be synchronised, and which wait until
//! no device uses the block any more (`Documentation/driver-api/dma-buf.rst` in the kernel's
//! sources).
//!
//! Where no device uses the block, [`Memory::Memfd`] works without a DMABUF, on any host.
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
//! block.write()?.bytes_mut().fill(7);
//! assert_eq!(block.read()?.bytes().get(65535), Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! # Who else writes
//!
//! A guard waits for the devices that use the block, but it excludes nobody: anyone with a descriptor of the
//! same memory can write to it at any time, in this process or another, and so can a device that gets the block
//! later. A guard therefore has [`Bytes`] instead of a slice. They are copied out at the speed of `memcpy`
//! ([`to_vec`](Bytes::to_vec), [`for_each_chunk`](Bytes::for_each_chunk)), or the kernel takes them in place
//! ([`write_to`](Bytes::write_to)). A program that knows that nobody writes reads in place by
//! [`as_slice`](Bytes::as_slice). The same holds for the samples of a [`stream`](crate::stream) and the views
//! of a [`receiver`](crate::receive).

mod bytes;
mod map;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use busbar_uapi::dmabuf::{self, Access};
use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

pub use self::bytes::{Bytes, BytesMut};

#[cfg(feature = "receive")]
pub(crate) use self::bytes::receive;
#[cfg(feature = "usb")]
pub(crate) use self::bytes::request;
#[cfg(feature = "stream")]
pub(crate) use self::bytes::{read, read_exact_at, send, write, write_all};

use self::map::Map;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

const UDMABUF: &str = "/dev/udmabuf";
const HEAPS: &str = "/dev/dma_heap";
/// Length of the huge pages that are asked for; a host may have others by default.
const HUGE_PAGE: usize = 2 << 20;
/// The type of the file system that huge pages are from, as `fstatfs` returns it.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Where the memory of a block comes from.
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
    /// Unknown: it was given as a descriptor.
    Foreign,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heap(name) => write!(f, "DMA heap `{name}`"),
            Self::Pages => f.write_str("pages (udmabuf)"),
            Self::HugePages => f.write_str("huge pages (udmabuf)"),
            Self::Memfd => f.write_str("memfd"),
            Self::Foreign => f.write_str("a descriptor that was given"),
        }
    }
}

#[cfg(feature = "stream")]
impl Memory {
    /// Bytes that so many blocks of `len` bytes take, whole pages each; `None` if there cannot be so many.
    pub(crate) fn size_of(&self, blocks: usize, len: usize) -> Option<usize> {
        len.checked_next_multiple_of(page(self))?.checked_mul(blocks)
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

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Devices and programs use it.
    Device,
    /// Devices use it, and it is sent over the network.
    Network,
    /// Programs and the network use it, but no device.
    Program,
}

impl Memory {
    /// The heap that every kernel with heaps has.
    fn system() -> Self {
        Self::Heap("system".into())
    }

    /// The best memory that this process may use on this host.
    ///
    /// For [`Purpose::Device`] it is the heap `system`, else pages; for [`Purpose::Network`] pages, else
    /// the heap. It is [`Memory::Memfd`] for [`Purpose::Program`], and where there is neither; then no
    /// device can use the block itself. Huge pages are never chosen: the administrator has to reserve them.
    #[must_use]
    pub fn choose(purpose: Purpose) -> Self {
        let candidates = match purpose {
            Purpose::Device => vec![Self::system(), Self::Pages],
            Purpose::Network => vec![Self::Pages, Self::system()],
            Purpose::Program => Vec::new(),
        };
        candidates.into_iter().find(Self::is_there).unwrap_or(Self::Memfd)
    }

    /// Whether this process may use it.
    fn is_there(&self) -> bool {
        let device = match self {
            Self::Heap(name) => format!("{HEAPS}/{name}"),
            Self::Pages | Self::HugePages => UDMABUF.into(),
            Self::Memfd => return true,
            Self::Foreign => return false,
        };
        // A heap may be readable and not writable; `open` needs both.
        rustix::fs::access(device, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK)
            .is_ok()
    }
}

/// An owned DMABUF, or a memfd.
///
/// Dropping it closes the descriptor; the kernel frees the memory when nothing uses it any more.
#[derive(Debug)]
pub struct Block {
    /// The DMABUF, or the memfd if there is no DMABUF.
    fd: OwnedFd,
    /// The memfd whose pages the DMABUF has, if there is one.
    memfd: Option<OwnedFd>,
    is_dmabuf: bool,
    len: usize,
    memory: Memory,
    map: OnceLock<Map>,
}

impl Block {
    /// A DMABUF of at least `len` bytes, zeroed, from the heap `system` or else from `udmabuf`.
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with); the error of `udmabuf` if both fail.
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
    /// `ENOENT` where the kernel has no such memory, `ENOMEM`, `EACCES`; invalid input for a
    /// length of 0, for one that no address space has, and for [`Memory::Foreign`].
    pub fn with(len: usize, memory: &Memory) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("the length of a block", len, "1 byte or more"));
        }
        let len = whole_pages(len, memory)?;
        let (fd, memfd) = match memory {
            Memory::Heap(name) => (from_heap(name, len)?, None),
            Memory::Pages | Memory::HugePages => {
                let (fd, memfd) = from_pages(len, memory)?;
                (fd, Some(memfd))
            }
            Memory::Memfd => (memfd(len, memory)?, None),
            Memory::Foreign => {
                let allowed =
                    "a heap, pages, huge pages, or memfd; `Block::try_from` takes a descriptor";
                return Err(Error::invalid("the memory of a block", memory, allowed));
            }
        };
        let is_dmabuf = *memory != Memory::Memfd;
        Ok(Self { fd, memfd, is_dmabuf, len, memory: memory.clone(), map: OnceLock::new() })
    }

    /// Some blocks as [`with`](Self::with) makes one.
    #[cfg(feature = "stream")]
    pub(crate) fn several<B: FromIterator<Self>>(
        count: usize,
        len: usize,
        memory: &Memory,
    ) -> Result<B> {
        (0..count).map(|_| Self::with(len, memory)).collect()
    }

    /// Length of the block in bytes: a multiple of its page size, unless its descriptor was made elsewhere.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where its memory comes from.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether a device can use it.
    #[must_use]
    pub fn is_dmabuf(&self) -> bool {
        self.is_dmabuf
    }

    /// The memfd that its memory belongs to, if there is one. Its pages are ordinary ones, so `sendfile` sends
    /// them without a copy. Reading it does not wait for devices.
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
    /// Others can write at the same time: [Who else writes](self#who-else-writes).
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the block cannot be mapped.
    pub fn read(&self) -> Result<Reading<'_>> {
        let map = self.map()?;
        self.sync("begin to read", || dmabuf::begin(self, Access::Read))?;
        Ok(Reading { block: self, bytes: map.bytes() })
    }

    /// The bytes, for writing and reading. Waits until no device uses the block.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). `EACCES` if its descriptor was made elsewhere and is for reading only, or a memfd that is
    /// sealed against writing.
    pub fn write(&mut self) -> Result<Writing<'_>> {
        if !self.map()?.is_writable() {
            return Err(Error::new("write to", self.label(), Errno::ACCESS)
                .help("its descriptor is for reading only, or it is sealed against writing"));
        }
        self.sync("begin to write", || dmabuf::begin(&*self, Access::ReadWrite))?;
        let range = 0..self.len;
        Ok(Writing { block: self, range })
    }

    /// Waits until no device writes to the block.
    ///
    /// The descriptor can be polled for this: `POLLIN` when no device writes to the block any
    /// more, `POLLOUT` when no device uses it.
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
        // Both map the same pages, but those of a memfd are ordinary ones, which the network and io_uring
        // use without a copy.
        let map = Map::new(self.file().unwrap_or(&self.fd), self.len)
            .map_err(|errno| Error::new("map", self.label(), errno))?;
        Ok(self.map.get_or_init(|| map))
    }

    fn sync(&self, tried: &str, call: impl Fn() -> Result<(), Errno>) -> Result<()> {
        if !self.is_dmabuf {
            return Ok(());
        }
        sync(call).map_err(|errno| Error::new(tried, self.label(), errno))
    }

    /// Fails only for a file that is no DMABUF, for which there is no guard.
    fn end(&self, access: Access) {
        let _ = self.sync("end to use", || dmabuf::end(self, access));
    }

    pub(crate) fn label(&self) -> String {
        format!("a block of {} bytes, {}", self.len, self.memory)
    }
}

/// Begins or ends access to a DMABUF. A signal does not end the wait for its devices.
fn sync(call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR | Errno::AGAIN) => {}
            done => return done,
        }
    }
}

fn open(path: &str, help: &str) -> Result<File> {
    File::options().read(true).write(true).open(path).map_err(|why| {
        Error::new("open", path, why)
            .help(format!("the kernel needs {help}, and you need access to it"))
    })
}

/// Bytes of a page of this memory. Heaps and `udmabuf` round to small ones.
fn page(memory: &Memory) -> usize {
    if *memory == Memory::HugePages { HUGE_PAGE } else { rustix::param::page_size() }
}

/// The length in whole pages. No longer object can be addressed: `pointer::add` is undefined beyond.
fn whole_pages(len: usize, memory: &Memory) -> Result<usize> {
    let whole = len.checked_next_multiple_of(page(memory));
    whole.filter(|len| isize::try_from(*len).is_ok()).ok_or_else(|| {
        Error::invalid("the length of a block", len, format!("less than {} bytes", isize::MAX))
    })
}

fn from_heap(name: &str, len: usize) -> Result<OwnedFd> {
    if name.is_empty() || name.contains('/') {
        return Err(Error::invalid("a DMA heap", name, format!("a name in {HEAPS}")));
    }
    let path = format!("{HEAPS}/{name}");
    let heap = open(&path, "CONFIG_DMABUF_HEAPS_SYSTEM for the heap `system`")
        .map_err(|error| other_heaps(error, name))?;
    dmabuf::heap_alloc(&heap, len as u64)
        .map_err(|errno| Error::new(format!("allocate {len} bytes from"), path, errno))
}

/// The error for a name that no heap has lists the heaps.
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

/// A DMABUF of a memfd that cannot shrink; returns the DMABUF and the memfd.
fn from_pages(len: usize, memory: &Memory) -> Result<(OwnedFd, OwnedFd)> {
    let device = open(UDMABUF, "CONFIG_UDMABUF")?;
    let file = memfd(len, memory)?;
    let fd = dmabuf::udmabuf_create(&device, &file, 0, len as u64).map_err(|errno| {
        let error = no_pages("share", len, memory, errno);
        match errno {
            Errno::INVAL => error
                .help("its limits are /sys/module/udmabuf/parameters/size_limit_mb and list_limit"),
            _ => error,
        }
    })?;
    Ok((fd, file))
}

/// A memfd that cannot shrink, of whole pages.
fn memfd(len: usize, memory: &Memory) -> Result<OwnedFd> {
    let failed = |tried: &'static str| move |errno| no_pages(tried, len, memory, errno);
    let is_huge = *memory == Memory::HugePages;
    let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let flags = if is_huge { huge } else { MemfdFlags::empty() };
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("busbar-block", flags).map_err(failed("make"))?;
    rustix::fs::ftruncate(&file, len as u64).map_err(failed("make"))?;
    // The pages have to exist: otherwise udmabuf takes huge pages that are not reserved, and Linux 6.12
    // crashes or miscounts. Small pages would not be zeroed by this.
    if is_huge {
        let flags = rustix::fs::FallocateFlags::empty();
        let call = || rustix::fs::fallocate(&file, flags, 0, len as u64);
        rustix::io::retry_on_intr(call).map_err(failed("allocate"))?;
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).map_err(failed("seal"))?;
    Ok(file)
}

fn no_pages(tried: &str, len: usize, memory: &Memory, errno: Errno) -> Error {
    let on = format!("a block of {len} bytes of {}-byte pages", page(memory));
    let error = Error::new(tried, on, errno);
    match errno {
        Errno::NOMEM | Errno::NOSPC if *memory == Memory::HugePages => {
            error.help("reserve huge pages: sysctl vm.nr_hugepages")
        }
        _ => error,
    }
}

/// For a DMABUF that was created elsewhere, for example by another process, or a memfd that is sealed against
/// shrinking. Waits until no device writes to the DMABUF.
///
/// A memfd of huge pages is refused: the seal does not keep others from punching a hole into it, and reading that hole
/// is a `SIGBUS` where no huge page is free. A DMABUF of such a memfd keeps its pages.
impl TryFrom<OwnedFd> for Block {
    type Error = Error;

    fn try_from(fd: OwnedFd) -> Result<Self> {
        let failed = |errno| {
            Error::new("use as a block", "a descriptor", errno)
                .help("it is not a DMABUF, nor a memfd of small pages that cannot shrink")
        };
        // Only a memfd has seals. One that can shrink could lose pages while they are read.
        let is_dmabuf = match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) && !is_huge(&fd).map_err(failed)? => {
                false
            }
            Ok(_) => return Err(failed(Errno::PERM)),
            Err(_) => true,
        };
        if is_dmabuf {
            // Only a DMABUF has this call. It waits for a device that writes.
            sync(|| dmabuf::begin(fd.as_fd(), Access::Read)).map_err(failed)?;
            sync(|| dmabuf::end(fd.as_fd(), Access::Read)).map_err(failed)?;
        }
        // A DMABUF need not tell its length by `fstat`, and has no offset. A memfd's offset belongs to its other owners, too.
        let len = if is_dmabuf {
            rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?
        } else {
            u64::try_from(rustix::fs::fstat(&fd).map_err(failed)?.st_size).unwrap_or_default()
        };
        let len = usize::try_from(len).map_err(|_| failed(Errno::FBIG))?;
        isize::try_from(len).map_err(|_| failed(Errno::FBIG))?;
        if len == 0 {
            return Err(failed(Errno::INVAL));
        }
        Ok(Self { fd, memfd: None, is_dmabuf, len, memory: Memory::Foreign, map: OnceLock::new() })
    }
}

/// Whether a file is made of huge pages.
fn is_huge(file: &OwnedFd) -> Result<bool, Errno> {
    // The type of the field differs from one architecture to the next, and so may its sign.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(rustix::fs::fstatfs(file)?.f_type as u32 == HUGETLBFS_MAGIC)
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

/// The bytes of a [`Block`], or a part of them, for reading. Caches are coherent until it is dropped.
#[derive(Debug)]
pub struct Reading<'a> {
    block: &'a Block,
    bytes: Bytes<'a>,
}

impl Reading<'_> {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        self.bytes
    }

    /// The guard for the bytes of `range`, which has to be within the block.
    #[cfg(feature = "receive")]
    pub(crate) fn of(mut self, range: Range<usize>) -> Self {
        self.bytes = self.bytes.slice(range);
        self
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.block.end(Access::Read);
    }
}

/// The bytes of a [`Block`], or a part of them, for writing and reading. Caches are coherent until it is
/// dropped.
#[derive(Debug)]
pub struct Writing<'a> {
    block: &'a mut Block,
    range: Range<usize>,
}

impl Writing<'_> {
    /// The bytes, for reading.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        self.block.map.get().map(Map::bytes).unwrap_or_default().slice(self.range.clone())
    }

    /// The bytes, for writing and reading.
    #[must_use]
    pub fn bytes_mut(&mut self) -> BytesMut<'_> {
        match self.block.map.get_mut() {
            Some(map) => map.bytes_mut().into_slice(self.range.clone()),
            None => BytesMut::default(),
        }
    }

    /// The guard for the first `len` bytes, of which there have to be as many.
    #[cfg(feature = "stream")]
    pub(crate) fn first(mut self, len: usize) -> Self {
        self.range.end = self.range.start + len;
        self
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.block.end(Access::ReadWrite);
    }
}
