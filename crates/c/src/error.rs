//! Errors: a number, and a text for each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use busbar::{Errno, Error, Reason};

use crate::signal::Whole;

/// Why a call has failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The library's error.
    Library(Error),
    /// An argument that cannot be.
    Argument(String),
    /// Nothing came within the time.
    Nothing,
    /// The data has ended.
    End,
    /// Another thread uses the object.
    Busy(&'static str),
    /// The descriptor of the thread has ended the call.
    Cancelled,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Fault {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Argument(text.into())
    }

    fn errno(&self) -> Errno {
        match self {
            Self::Library(error) => error.number(),
            Self::Argument(_) => Errno::INVAL,
            Self::Nothing => Errno::AGAIN,
            Self::End => Errno::NODATA,
            Self::Busy(_) => Errno::BUSY,
            Self::Cancelled => Errno::CANCELED,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Library(error) => error.reason(),
            Self::Argument(_) => Reason::Invalid,
            Self::Nothing => Reason::TimedOut,
            Self::End => Reason::Ended,
            Self::Busy(_) => Reason::Busy,
            Self::Cancelled => Reason::Interrupted,
        }
    }

    fn text(self) -> Text {
        match self {
            Self::Library(error) => Text::owned(error.to_string()),
            Self::Argument(text) => Text::owned(text),
            Self::Nothing => Text::Fixed(c"nothing came within the time limit"),
            Self::End => Text::Fixed(c"the data has ended: the peer has closed the connection"),
            Self::Busy(text) => Text::owned(text.into()),
            Self::Cancelled => {
                Text::Fixed(c"the call was ended by the descriptor of busbar_cancel_by")
            }
        }
    }
}

/// Why a call has failed, by which a program decides what to do. It is the same for every part of the library
/// and each of its interfaces to the kernel, where an error number is not.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum busbar_reason {
    /// No call has failed in this thread.
    None = 0,
    /// A value is not allowed.
    Invalid,
    /// There is no such device, service, file or kernel part.
    NotFound,
    /// It exists already.
    Exists,
    /// This user or process is not permitted to do it.
    Denied,
    /// Another process or thread uses it. It may be free later.
    Busy,
    /// This kernel, driver or device cannot do it.
    Unsupported,
    /// The time limit was reached.
    TimedOut,
    /// A signal, or the descriptor of busbar_cancel_by, ended a wait.
    Interrupted,
    /// A message or a block is longer than the receiver accepts.
    TooLong,
    /// Earlier data was lost, because it was not read in time. What comes next can be read.
    Lost,
    /// The peer is gone: the coprocessor, the converter or the other end of a connection.
    Ended,
    /// The peer cannot be reached. It may be later.
    Unreachable,
    /// The peer has refused the data, and would refuse it again.
    Refused,
    /// Data is invalid: changed on its way, or wrong from the start.
    Corrupted,
    /// Memory, descriptors or space are used up.
    Exhausted,
    /// None of these; the error number may say more.
    Other,
}

impl From<Reason> for busbar_reason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Invalid => Self::Invalid,
            Reason::NotFound => Self::NotFound,
            Reason::Exists => Self::Exists,
            Reason::Denied => Self::Denied,
            Reason::Busy => Self::Busy,
            Reason::Unsupported => Self::Unsupported,
            Reason::TimedOut => Self::TimedOut,
            Reason::Interrupted => Self::Interrupted,
            Reason::TooLong => Self::TooLong,
            Reason::Lost => Self::Lost,
            Reason::Ended => Self::Ended,
            Reason::Unreachable => Self::Unreachable,
            Reason::Refused => Self::Refused,
            Reason::Corrupted => Self::Corrupted,
            Reason::Exhausted => Self::Exhausted,
            _ => Self::Other,
        }
    }
}

enum Text {
    Fixed(&'static CStr),
    Owned(CString),
}

impl Text {
    fn owned(text: String) -> Self {
        Self::Owned(string(text))
    }

    fn as_ptr(&self) -> *const c_char {
        match self {
            Self::Fixed(text) => text.as_ptr(),
            Self::Owned(text) => text.as_ptr(),
        }
    }
}

/// A text for C, without the NULs that it may have.
pub(crate) fn string(text: impl Into<String>) -> CString {
    let mut text = text.into();
    text.retain(|letter| letter != '\0');
    CString::new(text).unwrap_or_default()
}

struct Last {
    text: Text,
    reason: busbar_reason,
    /// The text before, which the arguments of the call that has failed may include: C evaluates them in any order.
    before: Text,
}

thread_local! {
    static LAST: RefCell<Last> = const {
        let reason = busbar_reason::None;
        RefCell::new(Last { text: Text::Fixed(c""), reason, before: Text::Fixed(c"") })
    };
}

fn keep(errno: Errno, reason: busbar_reason, text: Text) -> c_int {
    // Not kept if this is called at the end of the thread, when the text is gone already.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.before = std::mem::replace(&mut last.text, text);
        last.reason = reason;
    });
    -errno.raw_os_error()
}

/// Makes a call for C: 0 or more is its result, less an error number. No panic leaves it.
pub(crate) fn call(call: impl FnOnce() -> Result<c_int>) -> c_int {
    let _whole = Whole::new();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => result,
        Ok(Err(fault)) => keep(fault.errno(), fault.reason().into(), fault.text()),
        Err(panic) => {
            let text = format!("a fault in libbusbar: {}", words(&*panic));
            // What a panic carries may panic itself when it is dropped.
            std::mem::forget(panic);
            keep(Errno::NOTRECOVERABLE, busbar_reason::Other, Text::owned(text))
        }
    }
}

/// As [`call`], for calls that return 0 or an error.
pub(crate) fn done(run: impl FnOnce() -> Result<()>) -> c_int {
    call(|| run().map(|()| 0))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// The text of the last error of this thread: what was tried, on what, why it failed, and what to do about it.
/// Empty if no call has failed. It is valid until two more calls of this thread have failed. Call first,
/// and print afterwards: as arguments of one printf, C evaluates them in any order.
///
/// Errors: none.
///
/// Threads: each has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn busbar_error() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.text.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// The reason of the last error of this thread.
///
/// Errors: none.
///
/// Threads: each has its own reason.
#[unsafe(no_mangle)]
pub extern "C" fn busbar_error_reason() -> busbar_reason {
    LAST.try_with(|last| last.try_borrow().map_or(busbar_reason::None, |last| last.reason))
        .unwrap_or(busbar_reason::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until the next error of this thread.
        unsafe { CStr::from_ptr(busbar_error()) }.to_str().unwrap().into()
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let number = 7;
        assert_eq!(call(|| panic!("fault {number}")), -Errno::NOTRECOVERABLE.raw_os_error());
        assert_eq!(last(), "a fault in libbusbar: fault 7");
        assert_eq!(busbar_error_reason(), busbar_reason::Other);
        assert_eq!(call(|| std::panic::panic_any(1)), -Errno::NOTRECOVERABLE.raw_os_error());
        assert_eq!(last(), "a fault in libbusbar: a panic");
    }

    #[test]
    fn each_thread_has_its_own_text() {
        assert_eq!(last(), "");
        assert_eq!(done(|| Err(Fault::argument("a\0b"))), -Errno::INVAL.raw_os_error());
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
        assert_eq!(last(), "ab");
    }
}
