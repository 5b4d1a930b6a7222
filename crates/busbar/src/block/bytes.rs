//! Access to shared memory without Rust references.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::AsFd;
use std::slice;

#[cfg(feature = "usb")]
use busbar_uapi::functionfs;
use busbar_uapi::vector::{self, iovec};
use rustix::io::Errno;
#[cfg(any(test, feature = "receive"))]
use rustix::net::RecvFlags;
#[cfg(any(test, feature = "stream"))]
use rustix::net::SendFlags;

/// The type that one instruction copies. With 16 bytes, a copy is as fast as `memcpy`; with a `usize`, it is
/// not.
#[cfg(target_arch = "aarch64")]
type Wide = std::arch::aarch64::uint8x16_t;
#[cfg(target_arch = "x86_64")]
type Wide = std::arch::x86_64::__m128i;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
type Wide = usize;

/// Length of a chunk: what the fastest loop of the CRC-32C needs.
const CHUNK: usize = 24 << 10;

/// Fewer bytes than this are copied one by one instead of by a chunk.
const FEW: usize = 64;

/// Shared memory to read. Others may write to it at any time: a device, the kernel, another process, or
/// another mapping in this process.
///
/// A `&[u8]` promises the compiler that nobody writes. `Bytes` promises nothing: it is an address and a
/// length. Bytes are copied out by volatile reads, which are as fast as `memcpy`, or the kernel takes them
/// in place ([`write_to`](Self::write_to)). A read during a write returns old bytes, new bytes or a mixture;
/// it is never undefined behaviour.
///
/// A program that knows that nobody writes can have a slice: [`as_slice`](Self::as_slice).
///
/// ```
/// use busbar::block::Bytes;
///
/// let bytes = Bytes::from(&[1, 2, 3, 4][..]);
/// assert_eq!(bytes.slice(1..3).to_vec(), [2, 3]);
/// let mut sum = 0;
/// bytes.for_each_chunk(|chunk| sum += chunk.iter().map(|byte| u32::from(*byte)).sum::<u32>());
/// assert_eq!(sum, 10);
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bytes<'a> {
    memory: iovec,
    /// The memory is mapped for as long.
    mapped: PhantomData<&'a [u8]>,
}

/// Shared memory to write and to read. Others may use it at the same time, as for [`Bytes`].
///
/// ```
/// use busbar::block::BytesMut;
///
/// let mut memory = [0; 4];
/// let mut bytes = BytesMut::from(&mut memory[..]);
/// bytes.fill(7);
/// bytes.slice(1..3).copy_from(&[8, 9]);
/// assert_eq!(memory, [7, 8, 9, 7]);
/// ```
#[repr(transparent)]
pub struct BytesMut<'a> {
    memory: iovec,
    mapped: PhantomData<&'a mut [u8]>,
}

// SAFETY: any thread may read mapped memory.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}
// SAFETY: any thread may use mapped memory. Only this value uses a Rust allocation.
unsafe impl Send for BytesMut<'_> {}
// SAFETY: a shared reference only allows reads.
unsafe impl Sync for BytesMut<'_> {}

impl<'a> Bytes<'a> {
    /// `len` bytes at `address`.
    ///
    /// # Safety
    ///
    /// The memory is mapped and readable during `'a`. If it is a Rust allocation, nobody writes to it during
    /// `'a`. If it is not, such as the result of `mmap`, anybody may write to it, but not through a
    /// Rust reference.
    #[must_use]
    pub unsafe fn from_raw_parts(address: *const u8, len: usize) -> Self {
        let memory = iovec { iov_base: address.cast_mut().cast(), iov_len: len };
        Self { memory, mapped: PhantomData }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.memory.iov_len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The address, for example for a system call.
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.memory.iov_base.cast_const().cast()
    }

    /// The byte at `index`, or nothing beyond the end.
    #[must_use]
    pub fn get(self, index: usize) -> Option<u8> {
        // SAFETY: the index is within the bytes.
        (index < self.len()).then(|| unsafe { self.as_ptr().add(index).read_volatile() })
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    ///
    /// If the range ends beyond the end, or before it starts; as indexing a slice.
    #[must_use]
    pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
        let range = within(range, self.len());
        // SAFETY: they are within these bytes.
        unsafe { Self::from_raw_parts(self.as_ptr().add(range.start), range.len()) }
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    ///
    /// If `at` is beyond the end.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        (self.slice(..at), self.slice(at..))
    }

    /// Copies the bytes into `to`.
    ///
    /// # Panics
    ///
    /// If `to` has another length.
    pub fn copy_to(self, to: &mut [u8]) {
        assert_eq!(self.len(), to.len(), "the lengths differ");
        // SAFETY: both have so many bytes, and nothing else refers to `to`.
        unsafe { load(self.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Appends a copy of the bytes to `to`.
    pub fn append_to(self, to: &mut Vec<u8>) {
        to.reserve(self.len());
        let room = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: there is room for so many, and they are filled before the length says so.
        unsafe {
            load(self.as_ptr(), room, self.len());
            to.set_len(to.len() + self.len());
        }
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.append_to(&mut bytes);
        bytes
    }

    /// Calls `each` with copies of the bytes, in order, in chunks of up to 24 KiB on the stack: for check sums
    /// and other work that looks at every byte once.
    pub fn for_each_chunk(self, mut each: impl FnMut(&[u8])) {
        let Ok(()) = self.try_for_each_chunk(|chunk| {
            each(chunk);
            Ok::<_, Infallible>(())
        });
    }

    /// As [`for_each_chunk`](Self::for_each_chunk) up to the first error, which is returned.
    ///
    /// # Errors
    ///
    /// What `each` returns.
    pub fn try_for_each_chunk<E>(
        self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut chunk = MaybeUninit::<[u8; CHUNK]>::uninit();
        let mut rest = self;
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(rest.len().min(CHUNK));
            // SAFETY: a chunk has room for so many, and they are filled before they are referred to.
            each(unsafe {
                load(next.as_ptr(), chunk.as_mut_ptr().cast(), next.len());
                slice::from_raw_parts(chunk.as_ptr().cast(), next.len())
            })?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes the bytes to a file or socket, by one `write` from the memory itself. Returns how many bytes the
    /// kernel has taken.
    ///
    /// # Errors
    ///
    /// As `write`.
    pub fn write_to(self, fd: impl AsFd) -> io::Result<usize> {
        Ok(write(fd, &[self])?)
    }

    /// Writes all bytes to a file or socket. Fails with `WouldBlock` if a non-blocking descriptor has no room
    /// for all.
    ///
    /// # Errors
    ///
    /// As `write`.
    pub fn write_all_to(self, fd: impl AsFd) -> io::Result<()> {
        write_all(fd, &[self])
    }

    /// The bytes in place, without a copy.
    ///
    /// # Safety
    ///
    /// Nobody may write to the bytes during `'a`: no device, no system call, no other process, and no other
    /// mapping in this process, such as that of [`Block::try_clone`](super::Block::try_clone) or of a
    /// descriptor that was passed on.
    #[must_use]
    pub unsafe fn as_slice(self) -> &'a [u8] {
        // SAFETY: they are mapped; the caller guarantees the rest.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl BytesMut<'_> {
    /// `len` bytes at `address`.
    ///
    /// # Safety
    ///
    /// The memory is mapped, readable and writable during `'a`. If it is a Rust allocation, nobody else uses
    /// it during `'a`. If it is not, such as the result of `mmap`, anybody may read and write it, but not
    /// through a Rust reference.
    #[must_use]
    pub unsafe fn from_raw_parts(address: *mut u8, len: usize) -> Self {
        Self { memory: iovec { iov_base: address.cast(), iov_len: len }, mapped: PhantomData }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.iov_len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address, for example for a system call.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.iov_base.cast()
    }

    /// The same bytes, for reading.
    #[must_use]
    pub fn as_bytes(&self) -> Bytes<'_> {
        Bytes { memory: self.memory, mapped: PhantomData }
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    ///
    /// If the range ends beyond the end, or before it starts; as indexing a slice.
    #[must_use]
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> BytesMut<'_> {
        BytesMut { memory: self.memory, mapped: PhantomData }.into_slice(range)
    }

    /// As [`slice`](Self::slice), for the lifetime of the whole.
    pub(crate) fn into_slice(mut self, range: impl RangeBounds<usize>) -> Self {
        let range = within(range, self.len());
        // SAFETY: they are within these bytes.
        unsafe { Self::from_raw_parts(self.as_mut_ptr().add(range.start), range.len()) }
    }

    /// Copies `from` into the bytes.
    ///
    /// # Panics
    ///
    /// If `from` has another length.
    pub fn copy_from(&mut self, from: &[u8]) {
        assert_eq!(self.len(), from.len(), "the lengths differ");
        // SAFETY: both have so many bytes.
        unsafe { store(from.as_ptr(), self.as_mut_ptr(), from.len()) };
    }

    /// Copies other shared memory into the bytes.
    ///
    /// # Panics
    ///
    /// As [`copy_from`](Self::copy_from).
    pub fn copy_from_bytes(&mut self, from: Bytes<'_>) {
        assert_eq!(self.len(), from.len(), "the lengths differ");
        let apart = self.memory.iov_base.addr() ^ from.as_ptr().addr();
        if apart.is_multiple_of(size_of::<usize>()) || from.len() < FEW {
            // SAFETY: both have so many bytes.
            unsafe { transfer(from.as_ptr(), self.as_mut_ptr(), from.len()) };
        } else {
            self.copy_by_chunks(from);
        }
    }

    /// Copies memory that is aligned differently, through private memory, which need not be aligned.
    #[inline(never)] // Callers do not need so much stack.
    fn copy_by_chunks(&mut self, from: Bytes<'_>) {
        let mut at = 0;
        from.for_each_chunk(|chunk| {
            self.slice(at..at + chunk.len()).copy_from(chunk);
            at += chunk.len();
        });
    }

    /// Sets every byte to `value`.
    pub fn fill(&mut self, value: u8) {
        let values = [value; 512];
        for start in (0..self.len()).step_by(values.len()) {
            let end = self.len().min(start + values.len());
            self.slice(start..end).copy_from(&values[..end - start]);
        }
    }

    /// Reads from a file or socket, by one `read` into the memory itself. Returns how many bytes have come, 0 at
    /// the end.
    ///
    /// # Errors
    ///
    /// As `read`.
    pub fn read_from(&mut self, fd: impl AsFd) -> io::Result<usize> {
        Ok(read(fd, &mut [self.slice(..)])?)
    }

    /// The bytes in place, without a copy.
    ///
    /// # Safety
    ///
    /// Nobody else may read or write the bytes while they are borrowed, in the sense of
    /// [`Bytes::as_slice`].
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: they are mapped and borrowed; the caller guarantees the rest.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: nobody writes to them for as long as `'a`.
        unsafe { Self::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for BytesMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: nobody else uses them for as long as `'a`.
        unsafe { Self::from_raw_parts(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Default for Bytes<'_> {
    fn default() -> Self {
        Self::from(&[][..])
    }
}

impl Default for BytesMut<'_> {
    fn default() -> Self {
        Self::from(&mut [][..])
    }
}

/// Whether the bytes were equal when they were read.
impl PartialEq<[u8]> for Bytes<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        let mut rest = other;
        let compare = |chunk: &[u8]| {
            let (expected, behind) = rest.split_at_checked(chunk.len()).ok_or(())?;
            rest = behind;
            if chunk == expected { Ok(()) } else { Err(()) }
        };
        self.len() == other.len() && self.try_for_each_chunk(compare).is_ok()
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytes").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for BytesMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesMut").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Writes parts in order by one call; at most [`vector::MAX_VECTORS`].
pub(crate) fn write(fd: impl AsFd, parts: &[Bytes<'_>]) -> Result<usize, Errno> {
    // SAFETY: `Bytes` guarantees that they are mapped.
    unsafe { vector::write(fd, vectors(parts)) }
}

/// Writes all bytes of any number of parts, in order.
pub(crate) fn write_all(fd: impl AsFd, parts: &[Bytes<'_>]) -> io::Result<()> {
    let fd = fd.as_fd();
    let mut parts = parts.to_vec();
    let mut left = advance(&mut parts, 0);
    while !left.is_empty() {
        match write(fd, &left[..left.len().min(vector::MAX_VECTORS)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => left = advance(left, written),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The parts without their first `count` bytes.
fn advance<'a, 'b>(parts: &'a mut [Bytes<'b>], mut count: usize) -> &'a mut [Bytes<'b>] {
    let is_gone = |part: &&Bytes<'_>| {
        let rest = count.checked_sub(part.len());
        count = rest.unwrap_or(count);
        rest.is_some()
    };
    let gone = parts.iter().take_while(is_gone).count();
    let left = &mut parts[gone..];
    if let Some(first) = left.first_mut() {
        *first = first.slice(count..);
    }
    left
}

/// Sends parts in order by one call; at most [`vector::MAX_VECTORS`].
#[cfg(any(test, feature = "stream"))]
pub(crate) fn send(fd: impl AsFd, parts: &[Bytes<'_>], flags: SendFlags) -> Result<usize, Errno> {
    // SAFETY: as above.
    unsafe { vector::send(fd, vectors(parts), flags) }
}

/// Queues a write of parts as one USB transfer; at most [`vector::MAX_VECTORS`] parts.
#[cfg(feature = "usb")]
pub(crate) fn request(
    requests: &mut functionfs::Requests,
    endpoint: &functionfs::Endpoint,
    parts: &[Bytes<'_>],
    tells: bool,
    tag: u64,
) -> Result<(), Errno> {
    // SAFETY: as above.
    unsafe { requests.write(endpoint, vectors(parts), tells, tag) }
}

/// Reads into parts in order by one call; at most [`vector::MAX_VECTORS`].
pub(crate) fn read(fd: impl AsFd, parts: &mut [BytesMut<'_>]) -> Result<usize, Errno> {
    // SAFETY: `BytesMut` guarantees that they are mapped and that no reference exists.
    unsafe { vector::read(fd, vectors_mut(parts)) }
}

/// Receives from a socket.
#[cfg(any(test, feature = "receive"))]
pub(crate) fn receive(
    fd: impl AsFd,
    mut part: BytesMut<'_>,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    // SAFETY: as above.
    unsafe { vector::receive(fd, vectors_mut(slice::from_mut(&mut part)), flags) }
}

/// Reads from byte `offset` of a file on, until the part is full.
#[cfg(any(test, feature = "stream"))]
pub(crate) fn read_exact_at(
    fd: impl AsFd,
    mut part: BytesMut<'_>,
    mut offset: u64,
) -> io::Result<()> {
    let fd = fd.as_fd();
    while !part.is_empty() {
        // SAFETY: as above.
        match unsafe { vector::read_at(fd, vectors_mut(slice::from_mut(&mut part)), offset) } {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                part = part.into_slice(count..);
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn vectors<'a>(parts: &'a [Bytes<'_>]) -> &'a [iovec] {
    // SAFETY: `repr(transparent)`, and a `PhantomData` has no size.
    unsafe { slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) }
}

fn vectors_mut<'a>(parts: &'a mut [BytesMut<'_>]) -> &'a [iovec] {
    // SAFETY: `repr(transparent)`, and a `PhantomData` has no size.
    unsafe { slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) }
}

/// The bounds of `range`.
///
/// # Panics
///
/// If it is not within `len` bytes.
fn within(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "{start}..{end} of {len} bytes");
    start..end
}

// Shared memory is not a Rust allocation while only volatile operations access it. `std::ptr::read_volatile`
// then does what the processor's load does, which is defined even if others write at the same time. The shared
// side has to be aligned; the other side is private memory and need not be.

/// How one value is copied.
trait Way {
    /// # Safety
    ///
    /// As `read` and `write` of [`std::ptr`]; the shared side is aligned.
    unsafe fn copy<T>(from: *const T, to: *mut T);
}

/// From shared memory to private memory.
struct Out;
/// From private memory to shared memory.
struct In;
/// From shared memory to shared memory.
struct Across;

impl Way for Out {
    #[inline]
    unsafe fn copy<T>(from: *const T, to: *mut T) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write_unaligned(from.read_volatile()) }
    }
}

impl Way for In {
    #[inline]
    unsafe fn copy<T>(from: *const T, to: *mut T) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write_volatile(from.read_unaligned()) }
    }
}

impl Way for Across {
    #[inline]
    unsafe fn copy<T>(from: *const T, to: *mut T) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write_volatile(from.read_volatile()) }
    }
}

/// Reads shared memory.
///
/// # Safety
///
/// `len` bytes can be read at `from`, and written at `to`, to which nothing else refers.
unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller; `from` is aligned at the edges.
    unsafe { copy::<Out>(from, to, len, edges(from, len)) }
}

/// Writes shared memory.
///
/// # Safety
///
/// `len` bytes can be read at `from`, and written at `to`.
unsafe fn store(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller; `to` is aligned at the edges.
    unsafe { copy::<In>(from, to, len, edges(to, len)) }
}

/// Copies shared memory to shared memory.
///
/// # Safety
///
/// As [`store`].
unsafe fn transfer(from: *const u8, to: *mut u8, len: usize) {
    let apart = from.addr() ^ to.addr();
    let (narrow, wide) = edges(to, len);
    let are_aligned_alike = |unit: usize| apart.is_multiple_of(unit);
    let edges = match () {
        () if are_aligned_alike(size_of::<Wide>()) => (narrow, wide),
        () if are_aligned_alike(size_of::<usize>()) => (narrow, len),
        () => (len, len),
    };
    // SAFETY: guaranteed by the caller; at the edges, both are aligned.
    unsafe { copy::<Across>(from, to, len, edges) }
}

/// Copies bytes up to the first edge, a `usize` at a time up to the second, and then [`Wide`] ones.
///
/// # Safety
///
/// As [`Way::copy`], for `len` bytes; the shared side is aligned at the edges.
#[inline]
unsafe fn copy<W: Way>(from: *const u8, to: *mut u8, len: usize, (narrow, wide): (usize, usize)) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let at = copy_as::<W, u8, 1>(from, to, 0, narrow);
        let at = copy_as::<W, usize, 1>(from, to, at, wide);
        let at = copy_as::<W, Wide, 4>(from, to, at, len);
        let at = copy_as::<W, usize, 1>(from, to, at, len);
        copy_as::<W, u8, 1>(from, to, at, len);
    }
}

/// Copies `N` values of type `T` at a time, from byte `at` on, while they end before `end`. Returns where
/// they end.
///
/// # Safety
///
/// As [`copy`]; the shared side is aligned for a `T` at byte `at`.
#[inline]
unsafe fn copy_as<W: Way, T, const N: usize>(
    from: *const u8,
    to: *mut u8,
    mut at: usize,
    end: usize,
) -> usize {
    while end - at >= N * size_of::<T>() {
        for _ in 0..N {
            // SAFETY: guaranteed by the caller.
            unsafe { W::copy(from.add(at).cast::<T>(), to.add(at).cast()) };
            at += size_of::<T>();
        }
    }
    at
}

/// How many of `len` bytes are before the first that is aligned for `usize`, and for [`Wide`].
fn edges(address: *const u8, len: usize) -> (usize, usize) {
    let to = |unit: usize| (address.addr().wrapping_neg() % unit).min(len);
    (to(size_of::<usize>()), to(size_of::<Wide>()))
}

#[cfg(test)]
mod tests;
