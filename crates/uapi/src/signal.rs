//! Signals of a thread (`<signal.h>`).

use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIG_BLOCK, SIG_SETMASK, sigset_t};

/// Signals by which the kernel answers an instruction of the thread itself. They cannot wait.
const OWN: [i32; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Whether this process ignores a signal, as one that `nohup` has started does with `SIGHUP`.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action, the call only fills the old one.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: filled after success.
    result == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// While this exists, the thread that has made it gets no signal, and the threads that it starts get none as long as
/// they exist. Signals that an instruction causes are excepted.
#[derive(Debug)]
pub struct Blocked {
    before: Option<sigset_t>,
    /// It belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks signals.
    #[must_use]
    pub fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call fills the set, the signals exist, and both sets are there.
        let result = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OWN {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(SIG_BLOCK, all.as_ptr(), before.as_mut_ptr())
        };
        // SAFETY: filled after success.
        let before = (result == 0).then(|| unsafe { before.assume_init() });
        Self { before, _here: std::marker::PhantomData }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the set is there.
            unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const before, ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        assert!(!is_ignored(libc::SIGURG));
        // SAFETY: an action without a function.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        assert!(is_ignored(libc::SIGURG) && !is_ignored(libc::SIGKILL) && !is_ignored(-1));
    }
}
