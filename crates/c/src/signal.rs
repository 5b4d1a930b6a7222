//! What may befall the thread of a C program within a call.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGPIPE, sigset_t, timespec};

/// While this exists, the thread is not cancelled. Its stack has Rust's frames, through which it cannot unwind.
pub(crate) struct Whole(c_int);

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The value of `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

impl Whole {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        pthread_setcancelstate(DISABLE, &mut before);
        Self(before)
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        pthread_setcancelstate(self.0, &mut 0);
    }
}

/// While this exists, writing to a socket or pipe that nobody reads does not kill the program by SIGPIPE; it only
/// fails. A Rust program ignores the signal; a C program does not, and its handlers are its own.
pub(crate) struct Quiet(Option<sigset_t>);

impl Quiet {
    pub(crate) fn new() -> Self {
        // One that is pending is blocked, and stays pending.
        if is_pending() {
            return Self(None);
        }
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are there.
        let result = unsafe { libc::pthread_sigmask(SIG_BLOCK, &set(), before.as_mut_ptr()) };
        // SAFETY: filled after success.
        Self((result == 0).then(|| unsafe { before.assume_init() }))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let Some(before) = self.0 else { return };
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are there; nothing is asked about the signal.
        while is_pending() && unsafe { libc::sigtimedwait(&set(), null_mut(), &raw const now) } < 0
        {
        }
        // SAFETY: the set is there.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const before, null_mut()) };
    }
}

/// SIGPIPE alone.
fn set() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills it, and the signal exists.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), SIGPIPE);
        set.assume_init()
    }
}

fn is_pending() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills it; if that fails, it is not looked at.
    unsafe {
        libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), SIGPIPE) == 1
    }
}
