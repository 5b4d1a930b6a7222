//! Buffers that Linux shares with the coprocessor.
//!
//! Linux gives a part of a buffer in a message, see [`BufferMessage`], and until it is given back
//! the part can be read or filled in place. [`Port::buffer`](crate::service::Port::buffer) maps it:
//!
//! ```
//! use busbar::bulk::packet::BufferMessage;
//! use busbar_coprocessor::service::{Port, Service};
//!
//! /// Adds up the bytes of each buffer that it is given.
//! struct Sum(u64);
//!
//! impl Service for Sum {
//!     fn name(&self) -> &str {
//!         "sum"
//!     }
//!
//!     fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> busbar::Result<()> {
//!         let Some(given) = BufferMessage::decode(data) else { return Ok(()) };
//!         let part = port.buffer(&given)?;
//!         let mut bytes = vec![0; part.len()];
//!         part.read(0, &mut bytes)?;
//!         self.0 += bytes.into_iter().map(u64::from).sum::<u64>();
//!         port.send(from, &given.done(given.length, 0).encode())
//!     }
//! }
//! ```
//!
//! Linux can take a buffer back at any time, and anyone who may use an endpoint can name one
//! that was never given. An access then raises `SIGBUS`. [`Part`] turns it into an error: the
//! first mapping of a process installs a handler, which passes on every other `SIGBUS` to the
//! handler that was there before.

// Maps memory that can go away under an access.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use busbar::block::BytesMut;
use busbar::bulk::packet::BufferMessage;
use busbar::{Error, Result};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Mappings that are kept; the least recently used one is dropped first.
const MAX_AREAS: usize = 64;

/// Where the buffers of a coprocessor can be mapped from.
pub trait Window: Debug + Send + Sync {
    /// Maps `length` bytes at the device address `address`, both multiples of a page.
    ///
    /// May succeed for memory that Linux has not given: then an access fails. A shorter area is refused.
    fn map(&self, address: u64, length: usize) -> io::Result<Area>;
}

/// A mapping of shared memory that can go away.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    length: usize,
    /// An access has failed: what is mapped here now is not the shared memory.
    broken: AtomicBool,
}

// SAFETY: the mapping belongs to this value alone, is accessed through `BytesMut` only, and any
// thread may do that.
unsafe impl Send for Area {}
// SAFETY: as above; memory that another processor shares may change at any time anyway.
unsafe impl Sync for Area {}

impl Area {
    /// Maps a part of a file for reading and writing.
    pub fn new(file: impl AsFd, offset: u64, length: usize) -> io::Result<Self> {
        // No longer object can be addressed: `pointer::add` is undefined beyond.
        isize::try_from(length).map_err(|_| Errno::INVAL)?;
        install_handler()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, length, broken: AtomicBool::new(false) })
    }

    fn contains(&self, address: usize) -> bool {
        address.checked_sub(self.base.as_ptr().addr()).is_some_and(|at| at < self.length)
    }

    /// Calls `access` with the part `range` of the mapping, which has to be within.
    fn access(&self, range: Range<usize>, access: impl FnOnce(BytesMut<'_>)) -> Result<(), Errno> {
        // SAFETY: it is mapped while this value lives, and no reference to it exists.
        let mut bytes = unsafe { BytesMut::from_raw_parts(self.base.as_ptr(), self.length) };
        let part = bytes.slice(range);
        let outer = ACCESSED.replace(ptr::from_ref(self));
        // The handler has to see this store before the copy begins.
        compiler_fence(Ordering::SeqCst);
        access(part);
        compiler_fence(Ordering::SeqCst);
        ACCESSED.set(outer);
        if self.broken.load(Ordering::Acquire) { Err(Errno::FAULT) } else { Ok(()) }
    }

    /// Puts ordinary memory in the place of what has gone, so that the access can end.
    fn give_up(&self) -> Result<(), Errno> {
        // Before the memory is replaced: another thread must not take the new memory for the shared one.
        self.broken.store(true, Ordering::Release);
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: replaces a mapping that belongs to this value by one of the same size.
        unsafe { mmap_anonymous(self.base.as_ptr().cast(), self.length, protection, flags) }?;
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

thread_local! {
    /// The area that this thread accesses. Without initialiser and destructor, as a signal handler reads it.
    static ACCESSED: Cell<*const Area> = const { Cell::new(ptr::null()) };
}

/// What handled `SIGBUS` before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();
    let install = || match try_install_handler() {
        Ok(()) => None,
        Err(error) => error.raw_os_error().or(Some(libc::EINVAL)),
    };
    match INSTALLED.get_or_init(install) {
        None => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
    }
}

fn try_install_handler() -> io::Result<()> {
    let mut previous = MaybeUninit::zeroed();
    // SAFETY: the call only queries; a zeroed `sigaction` is valid.
    let previous = unsafe {
        check(libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()))?;
        previous.assume_init()
    };
    let _ = PREVIOUS.set(previous);
    // SAFETY: a zeroed `sigaction` is valid.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(_, _, _) = on_bus_error;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that `SA_SIGINFO` asks for, and calls only what is
    // allowed in a handler.
    unsafe { check(libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())) }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_bus_error(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut std::ffi::c_void,
) {
    // SAFETY: the kernel passes a valid `info`, and for this signal it has an address. What is
    // accessed outlives the access, which is where this thread is.
    let (address, area) = unsafe { ((*info).si_addr().addr(), ACCESSED.get().as_ref()) };
    let given_up = area.filter(|area| area.contains(address)).map(Area::give_up);
    if !matches!(given_up, Some(Ok(()))) {
        pass_on(signal, info, context);
    }
}

/// Passes the signal to the handler that was there before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut std::ffi::c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        // SAFETY: both are allowed in a handler. The signal comes once this one returns.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::sigaction(signal, &raw const *previous, ptr::null_mut());
            libc::raise(signal);
        },
        // SAFETY: with this flag it is a function of that signature.
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void);
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        },
        // SAFETY: without the flag, it is a function of this signature.
        handler => unsafe {
            std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal);
        },
    }
}

/// A part of a buffer that Linux has given.
#[derive(Clone, Debug)]
pub struct Part {
    area: Arc<Area>,
    from: usize,
    length: usize,
}

impl Part {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes from position `from` on into `bytes`.
    ///
    /// Fails with `FAULT` where Linux has not given them, or has taken them back.
    pub fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(from, bytes.len())?;
        self.area.access(range, |part| part.as_bytes().copy_to(bytes)).map_err(faulted("read"))
    }

    /// Appends `length` bytes from position `from` on to `bytes`.
    ///
    /// Fails like [`Self::read`]; then nothing is appended.
    pub fn append_to(&self, bytes: &mut Vec<u8>, from: usize, length: usize) -> Result<()> {
        let (range, before) = (self.range(from, length)?, bytes.len());
        bytes.reserve(length);
        let read = self.area.access(range, |part| part.as_bytes().append_to(bytes));
        if read.is_err() {
            bytes.truncate(before);
        }
        read.map_err(faulted("read"))
    }

    /// Whether the bytes from position `from` on are these.
    ///
    /// Fails like [`Self::read`].
    pub fn is(&self, from: usize, bytes: &[u8]) -> Result<bool> {
        let range = self.range(from, bytes.len())?;
        let mut same = false;
        self.area
            .access(range, |part| same = part.as_bytes() == *bytes)
            .map_err(faulted("read"))?;
        Ok(same)
    }

    /// Copies `bytes` to position `from`.
    ///
    /// Fails with `FAULT` where Linux has not given the memory there, or has taken it back.
    pub fn write(&self, from: usize, bytes: &[u8]) -> Result<()> {
        let range = self.range(from, bytes.len())?;
        self.area.access(range, |mut part| part.copy_from(bytes)).map_err(faulted("write"))
    }

    /// The corresponding range of the mapping.
    fn range(&self, from: usize, length: usize) -> Result<Range<usize>> {
        let end = from.checked_add(length).filter(|end| *end <= self.length);
        let end = end.ok_or_else(|| {
            let value = format!("{length} bytes from {from}");
            Error::invalid("part of a shared buffer", value, format!("{} bytes", self.length))
        })?;
        Ok(self.from + from..self.from + end)
    }
}

fn faulted(tried: &str) -> impl FnOnce(Errno) -> Error {
    move |errno| {
        Error::new(tried, "a shared buffer", errno)
            .help("Linux has not given it, or has taken it back")
    }
}

/// A mapping and its device addresses.
#[derive(Debug)]
struct Mapped {
    buffer: u64,
    range: Range<u64>,
    area: Arc<Area>,
}

impl Mapped {
    fn holds(&self, buffer: u64, range: &Range<u64>) -> bool {
        self.buffer == buffer && self.range.start <= range.start && range.end <= self.range.end
    }
}

/// The buffers that are mapped, the most recently used one last.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    window: Option<Arc<dyn Window>>,
    mapped: Vec<Mapped>,
}

impl Buffers {
    pub(crate) fn new(window: Option<Arc<dyn Window>>) -> Self {
        Self { window, mapped: Vec::new() }
    }

    /// Forgets all mappings.
    pub(crate) fn clear(&mut self) {
        self.mapped.clear();
    }

    /// The part that `message` describes. The first access fails if Linux has not given it.
    pub(crate) fn part(&mut self, message: &BufferMessage) -> Result<Part> {
        self.try_part(message).map_err(|error| {
            let part = format!("{} bytes at {:#x}", message.length, message.address);
            Error::new("map", format!("a shared buffer, {part}"), error)
        })
    }

    fn try_part(&mut self, message: &BufferMessage) -> io::Result<Part> {
        let start = message.address.checked_add(message.offset);
        let end = start.and_then(|start| start.checked_add(message.length));
        let (Some(start), Some(end)) = (start, end) else { return Err(Errno::FAULT.into()) };
        let length = usize::try_from(message.length).map_err(|_| Errno::NOMEM)?;
        let mapped = self.mapping(message.address, &pages(start..end)?)?;
        let from = usize::try_from(start - mapped.range.start).map_err(|_| Errno::NOMEM)?;
        Ok(Part { area: Arc::clone(&mapped.area), from, length })
    }

    /// A mapping of `buffer` that holds `range`.
    fn mapping(&mut self, buffer: u64, range: &Range<u64>) -> io::Result<&Mapped> {
        self.mapped.retain(|mapped| !mapped.area.broken.load(Ordering::Acquire));
        let at = match self.mapped.iter().position(|mapped| mapped.holds(buffer, range)) {
            Some(at) => at,
            None => self.map(buffer, range)?,
        };
        // To the end: the first one is dropped first.
        self.mapped[at..].rotate_left(1);
        self.mapped.last().ok_or_else(|| Errno::FAULT.into())
    }

    fn map(&mut self, buffer: u64, range: &Range<u64>) -> io::Result<usize> {
        let window = self.window.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let map = |range: Range<u64>| -> io::Result<Mapped> {
            let length = usize::try_from(range.end - range.start).map_err(|_| Errno::NOMEM)?;
            let area = window.map(range.start, length)?;
            if area.length < length {
                let why = format!("the window has mapped {} of {length} bytes", area.length);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Ok(Mapped { buffer, range, area: Arc::new(area) })
        };
        // A buffer of which ever more parts are given has one mapping in the end.
        let known = self.mapped.iter().position(|mapped| mapped.buffer == buffer);
        let grown = known.map(|at| {
            let old = &self.mapped[at].range;
            old.start.min(range.start)..old.end.max(range.end)
        });
        let mapped = match grown.map(map) {
            Some(Ok(mapped)) => mapped,
            _ => map(range.clone())?,
        };
        if let Some(at) = known {
            self.mapped.remove(at);
        } else if self.mapped.len() == MAX_AREAS {
            self.mapped.remove(0);
        }
        self.mapped.push(mapped);
        Ok(self.mapped.len() - 1)
    }
}

/// The whole pages around `range`, at least one.
fn pages(range: Range<u64>) -> io::Result<Range<u64>> {
    let page = rustix::param::page_size() as u64;
    let start = range.start - range.start % page;
    let end = range.end.max(range.start.saturating_add(1));
    let end = end.checked_next_multiple_of(page).ok_or(Errno::FAULT)?;
    Ok(start..end)
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests;
