//! Arguments of C programs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::BUSBAR_FOREVER;
use crate::error::{Fault, Result, string};
use crate::handle::{self, Object};

/// How much longer a structure may become than it was in the first version. A `size` that the caller has not set may
/// be any number: this bounds what is read and written behind the structure.
const GROWTH: usize = 128;

/// A structure whose first field is its size, as the caller has compiled it.
///
/// # Safety
///
/// It is `repr(C)`, its first field is a `usize` of its size, and any bytes are a valid value: a caller may write what he
/// likes, so there is no `bool` and no `enum`.
pub(crate) unsafe trait Sized: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in the first version of the library, the least that callers may have.
    const FIRST: usize;
    /// Its size in the last version of the library, the most that callers may have.
    const MOST: usize = {
        assert!(size_of::<Self>() <= Self::FIRST + GROWTH, "a structure is too long");
        Self::FIRST + GROWTH
    };
    /// All zeros, and the size.
    const ZERO: Self;
}

/// Declares structures with a size, each with the last field that it had in the first version of the library. New
/// fields follow it, and old callers do not have them.
macro_rules! sized {
    ($($name:ident: $last:ident;)*) => {$(
        // SAFETY: declared with `repr(C)` and the size first. The fields are numbers and addresses, which
        // tests/header.rs holds against the header.
        unsafe impl $crate::args::Sized for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST: usize = std::mem::offset_of!(Self, $last)
                + $crate::args::size_of_field(|value: &Self| &value.$last);
            // SAFETY: as above.
            const ZERO: Self = Self { size: size_of::<Self>(), ..unsafe { std::mem::zeroed() } };
        }
    )*};
}
pub(crate) use sized;

/// Bytes of a field.
pub(crate) const fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// That there is a structure to fill, before something is done that cannot be undone.
///
/// # Safety
///
/// As [`put`].
pub(crate) unsafe fn expect<T: Sized>(to: *const T) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { size(to) }.map(drop)
}

/// The size that the caller has set.
///
/// # Safety
///
/// `from` is null or the address of a `usize` that can be read.
unsafe fn size<T: Sized>(from: *const T) -> Result<usize> {
    if from.is_null() {
        return Err(Fault::argument(format!("struct {} is NULL", T::NAME)));
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    // The size of a structure is a multiple of that of its field `size`.
    if !(T::FIRST..=T::MOST).contains(&size) || !size.is_multiple_of(size_of::<usize>()) {
        let allowed = format!("sizeof(struct {}), from {} to {}", T::NAME, T::FIRST, T::MOST);
        let text = format!("`size` of struct {} is {size} (allowed: {allowed})", T::NAME);
        return Err(Fault::argument(text));
    }
    Ok(size)
}

/// Reads a structure; null means all zeros. A caller with a newer header must have set only what this version
/// knows.
///
/// # Safety
///
/// `from` is null, or so many bytes as its size says can be read.
pub(crate) unsafe fn get<T: Sized>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Ok(T::ZERO);
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size(from) }?;
    let known = size.min(size_of::<T>());
    let mut value = T::ZERO;
    // SAFETY: so many bytes can be read, any bytes are a valid value, and both do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known);
        let rest = std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known);
        if rest.iter().any(|byte| *byte != 0) {
            let text = "has fields that this version of libbusbar does not know: leave them 0";
            return Err(Fault::argument(format!("struct {} {text}", T::NAME)));
        }
    }
    Ok(value)
}

/// Fills a structure of the caller as far as it reaches. What this version does not know is 0.
///
/// # Safety
///
/// `to` is null, or so many bytes as its size says can be read and written.
pub(crate) unsafe fn put<T: Sized>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let size = unsafe { size(to) }?;
    let (skip, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    // SAFETY: so many bytes can be written, and both do not overlap.
    unsafe {
        let (from, to) = ((&raw const value).cast::<u8>(), to.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(skip), to.add(skip), known - skip);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// A text that has to be there.
///
/// # Safety
///
/// `from` is null or a string that ends with NUL and does not change during `'a`.
pub(crate) unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: guaranteed by the caller.
    unsafe { perhaps(from, what) }?.ok_or_else(|| Fault::argument(format!("{what} is NULL")))
}

/// A text; `None` for null.
///
/// # Safety
///
/// As [`text`].
pub(crate) unsafe fn perhaps<'a>(from: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    text.map(Some).map_err(|_| Fault::argument(format!("{what} is not UTF-8")))
}

/// Bytes of the caller.
///
/// # Safety
///
/// `from` is null, or `len` bytes can be read there and do not change during `'a`.
pub(crate) unsafe fn bytes<'a>(from: *const c_void, len: usize, what: &str) -> Result<&'a [u8]> {
    check(from, len, what)?;
    // SAFETY: guaranteed by the caller; an empty slice needs no memory.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from.cast(), len) } })
}

/// Room of the caller for `len` values.
///
/// # Safety
///
/// `to` is null, or `len` values can be written there, and nobody else uses them during `'a`.
pub(crate) unsafe fn room<'a, T>(to: *mut T, len: usize, what: &str) -> Result<&'a mut [T]> {
    check(to.cast_const().cast(), len.saturating_mul(size_of::<T>()), what)?;
    if !to.is_aligned() {
        return Err(Fault::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: guaranteed by the caller; an empty slice needs no memory.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(to, len) } })
}

fn check(from: *const c_void, len: usize, what: &str) -> Result<()> {
    if from.is_null() && len > 0 {
        return Err(Fault::argument(format!("{what} is NULL, and its length is not 0")));
    }
    if isize::try_from(len).is_err() {
        return Err(Fault::argument(format!("{what} is longer than the address space")));
    }
    Ok(())
}

/// Where the caller wants a result. Two of them may be the same place.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn set(self, value: T) {
        // SAFETY: `out` has guaranteed it.
        unsafe { self.0.write(value) };
    }
}

/// Where the caller wants a result. It is set to `empty` until there is one.
///
/// # Safety
///
/// `to` is null, or a `T` can be written there while the result exists.
pub(crate) unsafe fn out<T>(to: *mut T, empty: T, what: &str) -> Result<Out<T>> {
    if to.is_null() || !to.is_aligned() {
        return Err(Fault::argument(format!("the address for {what} is NULL or not aligned")));
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(empty) };
    Ok(Out(to))
}

/// Hands out where bytes are.
///
/// # Safety
///
/// As [`out`], for both.
pub(crate) unsafe fn lend(
    data: *mut *const c_void,
    len: *mut usize,
    bytes: impl FnOnce() -> Result<(*const u8, usize)>,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let data = unsafe { out(data, std::ptr::null(), "the data") }?;
    // SAFETY: as above.
    let len = unsafe { out(len, 0, "the length") }?;
    let (address, count) = bytes()?;
    data.set(address.cast());
    len.set(count);
    Ok(())
}

/// Makes an object and hands its handle out.
///
/// # Safety
///
/// As [`out`].
pub(crate) unsafe fn make<O: Object>(
    to: *mut *mut O,
    make: impl FnOnce() -> Result<O::Body>,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { out(to, std::ptr::null_mut(), "the handle") }?;
    to.set(handle::new(make()?));
    Ok(())
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Forever,
    For(Duration),
    Not,
}

impl Wait {
    /// Of nanoseconds: 0 not at all. A time that was computed and has become negative is a fault of the caller.
    pub(crate) fn of(nanos: i64) -> Result<Self> {
        match u64::try_from(nanos) {
            Ok(0) => Ok(Self::Not),
            Ok(nanos) => Ok(Self::For(Duration::from_nanos(nanos))),
            Err(_) if nanos == BUSBAR_FOREVER => Ok(Self::Forever),
            Err(_) => {
                let allowed = "0 or more nanoseconds, or BUSBAR_FOREVER (-1)";
                Err(busbar::Error::invalid("the timeout", nanos, allowed).into())
            }
        }
    }

    /// Calls one of the three methods of an operation that may wait.
    pub(crate) fn by<T>(
        self,
        forever: impl FnOnce() -> busbar::Result<T>,
        most: impl FnOnce(Duration) -> busbar::Result<Option<T>>,
        now: impl FnOnce() -> busbar::Result<Option<T>>,
    ) -> Result<T> {
        match self {
            Self::Forever => Ok(forever()?),
            Self::For(time) => most(time)?.ok_or(Fault::Nothing),
            Self::Not => now()?.ok_or(Fault::Nothing),
        }
    }

    /// As [`by`](Self::by), where the answer is whether it was done.
    pub(crate) fn whether(
        self,
        forever: impl FnOnce() -> busbar::Result<()>,
        most: impl FnOnce(Duration) -> busbar::Result<bool>,
        now: impl FnOnce() -> busbar::Result<bool>,
    ) -> Result<()> {
        let answer = |done: bool| done.then_some(());
        self.by(forever, |time| most(time).map(answer), || now().map(answer))
    }
}

/// The number of a descriptor, which its owner keeps.
pub(crate) fn number(fd: &impl AsFd) -> c_int {
    fd.as_fd().as_raw_fd()
}

/// A descriptor of the caller.
///
/// # Safety
///
/// Nobody closes it during `'a`.
pub(crate) unsafe fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Fault::argument(format!("the descriptor is {fd} (allowed: 0 or more)")));
    }
    // SAFETY: it is not -1; the caller guarantees the rest. One that is not open makes a call fail.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A copy of a descriptor of the caller.
///
/// # Safety
///
/// As [`descriptor`].
pub(crate) unsafe fn copy(fd: c_int, what: &str) -> Result<OwnedFd> {
    // SAFETY: guaranteed by the caller.
    let copy = unsafe { descriptor(fd) }?.try_clone_to_owned();
    copy.map_err(|why| busbar::Error::new("use descriptor", format!("{fd} for {what}"), why).into())
}

/// Texts that are handed out as addresses.
#[derive(Debug, Default)]
pub(crate) struct Texts(Vec<CString>);

impl Texts {
    /// The address of a copy, which is valid as long as this value.
    pub(crate) fn add(&mut self, text: impl Into<String>) -> *const c_char {
        self.0.push(string(text));
        self.0.last().map_or(c"".as_ptr(), |text| text.as_ptr())
    }
}
