//! Signals of a thread (`<signal.h>`).

use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGPIPE, sigset_t, timespec};
use rustix::io::Errno;

use crate::call::last;

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

/// While this exists, a write of this thread to a socket or pipe that nobody reads fails with `EPIPE` and raises no
/// `SIGPIPE`, which would end a program of C. It is for calls that know no `MSG_NOSIGNAL`, such as `sendfile`. Where the
/// program ignores the signal, as those of Rust and Python do, it costs one system call.
#[derive(Debug)]
pub struct Quiet {
    /// The mask to restore.
    before: Option<sigset_t>,
    /// It belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl Quiet {
    /// Blocks the signal.
    #[must_use]
    pub fn new() -> Self {
        let before = if is_ignored(SIGPIPE) { None } else { block() };
        Self { before, _here: std::marker::PhantomData }
    }
}

impl Default for Quiet {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        // What was raised meanwhile is taken. Another signal may interrupt that.
        // SAFETY: the set and the time are there; nothing is asked about the signal.
        while unsafe { libc::sigtimedwait(&pipe(), ptr::null_mut(), &raw const now) } < 0
            && last() == Errno::INTR
        {}
        // SAFETY: the set is there.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const before, ptr::null_mut()) };
    }
}

/// Blocks `SIGPIPE`. The mask before; `None` if nothing is to be restored, as a signal of the program is pending already: that
/// stays so, and a second one is not told from it.
fn block() -> Option<sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are there.
    let result = unsafe { libc::pthread_sigmask(SIG_BLOCK, &pipe(), before.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: filled after success.
    let before = unsafe { before.assume_init() };
    // SAFETY: the set is there, and the signal exists.
    let was_blocked = unsafe { libc::sigismember(&raw const before, SIGPIPE) == 1 };
    (!was_blocked || !is_pending()).then_some(before)
}

/// `SIGPIPE` alone.
fn pipe() -> sigset_t {
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static RAISED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count(_: i32) {
        RAISED.fetch_add(1, Ordering::SeqCst);
    }

    /// Sends a page of a file to a socket that nobody reads.
    fn send() -> rustix::io::Result<usize> {
        let mut file = tempfile();
        file.write_all(&[0; 4096]).unwrap();
        let (socket, peer) = UnixStream::pair().unwrap();
        drop(peer);
        rustix::fs::sendfile(&socket, &file, Some(&mut 0), 4096)
    }

    fn tempfile() -> std::fs::File {
        rustix::fs::memfd_create("signal", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    #[test]
    fn a_write_that_nobody_reads_raises_no_signal() {
        // SAFETY: the handler only counts.
        unsafe { libc::signal(SIGPIPE, count as *const () as libc::sighandler_t) };
        assert_eq!(send(), Err(Errno::PIPE));
        assert_eq!(RAISED.load(Ordering::SeqCst), 1);
        {
            let _quiet = Quiet::new();
            assert_eq!(send(), Err(Errno::PIPE));
        }
        assert_eq!((RAISED.load(Ordering::SeqCst), is_pending()), (1, false));
        // A program that has blocked the signal finds it neither pending nor unblocked.
        let before = block().unwrap();
        {
            let _quiet = Quiet::new();
            assert_eq!(send(), Err(Errno::PIPE));
        }
        assert!(!is_pending());
        // One that was pending before stays so.
        assert_eq!(send(), Err(Errno::PIPE));
        {
            let _quiet = Quiet::new();
            assert_eq!(send(), Err(Errno::PIPE));
        }
        assert!(is_pending());
        // SAFETY: the set is there.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const before, ptr::null_mut()) };
        assert_eq!(RAISED.load(Ordering::SeqCst), 2);
        // SAFETY: as the standard library has set it.
        unsafe { libc::signal(SIGPIPE, libc::SIG_IGN) };
        let _quiet = Quiet::new();
        assert_eq!(send(), Err(Errno::PIPE));
    }

    #[test]
    fn what_is_ignored_is_known() {
        assert!(!is_ignored(libc::SIGURG));
        // SAFETY: an action without a function.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        assert!(is_ignored(libc::SIGURG) && !is_ignored(libc::SIGKILL) && !is_ignored(-1));
    }
}
