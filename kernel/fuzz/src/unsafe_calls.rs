//! All that the compiler cannot check: system calls with any arguments, memory that they may write to,
//! and processes of their own to make them in.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::process::Pid;

/// Behind memory that calls may write to comes so much that nobody can: more than 32 bits of length.
const FENCE: usize = 8 << 30;

/// Memory that calls read and write, with nothing behind it for as far as a length of 32 bits leads.
///
/// It is shared with whoever is forked, and stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: a range of addresses that stays valid; threads have one each.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many bytes of it, whole pages.
    pub fn new(len: usize) -> io::Result<Self> {
        let (none, both) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new range of addresses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len + FENCE, none, reserve) }?;
        let fixed = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the start of that range, which nobody else knows of.
        unsafe { mmap_anonymous(base, len, both, fixed) }?;
        Ok(Self { base: base.cast(), len })
    }

    /// Where it is, and how long.
    pub fn place(self) -> (u64, usize) {
        (self.base.expose_provenance() as u64, self.len)
    }

    /// Puts bytes at its start, as many as there is room for.
    pub fn fill(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: so many bytes are ours. System calls of other threads may write there at the same
        // time: then it is one or the other, and any byte is a byte.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, len) }
    }

    /// 32 bits at an address, if that is in it.
    pub fn read_u32(self, address: u64) -> Option<u32> {
        let at = usize::try_from(address.checked_sub(self.place().0)?).ok()?;
        if at.checked_add(4)? > self.len {
            return None;
        }
        // SAFETY: four bytes within the memory.
        Some(unsafe { self.base.add(at).cast::<u32>().read_unaligned() })
    }
}

/// Numbers that are shared with whoever is forked: a mapping of a file, or of nothing.
///
/// It stays until the process ends.
pub fn shared_numbers(file: Option<&File>, count: usize) -> io::Result<&'static [AtomicU64]> {
    let (len, both) = (count * size_of::<AtomicU64>(), ProtFlags::READ | ProtFlags::WRITE);
    let base = match file {
        // SAFETY: a new mapping.
        Some(file) => unsafe { mmap(ptr::null_mut(), len, both, MapFlags::SHARED, file, 0) },
        // SAFETY: a new mapping.
        None => unsafe { mmap_anonymous(ptr::null_mut(), len, both, MapFlags::SHARED) },
    }?;
    // SAFETY: the mapping has so many numbers, is aligned to a page and is never undone. Others may
    // write to it, which is what atomics are for.
    Ok(unsafe { std::slice::from_raw_parts(base.cast(), count) })
}

/// An ioctl whose argument is a number.
pub fn ioctl_number(file: &File, request: u32, argument: u64) -> io::Result<()> {
    // SAFETY: for calls that take their argument as a number.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), request, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A system call with any arguments; its result, or the negative errno.
///
/// # Safety
///
/// The call may write to what its arguments lead to, open and close files, and change mappings. So it is
/// for a process that is there for nothing else; its arguments are those of a description, whose
/// addresses are in [`Memory`] or lead nowhere.
pub unsafe fn call(number: libc::c_long, words: [u64; 6]) -> i64 {
    let [first, second, third, fourth, fifth, sixth] = words;
    // SAFETY: upheld by the caller.
    let done = unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) };
    if done == -1 {
        return -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    done
}

/// Runs `body` in a process of its own, which then ends.
///
/// It has what this one has; nobody else does anything in it.
pub fn fork(body: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: this program has a single thread whenever it forks, so no lock is held by another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            body();
            // SAFETY: ends the process, without what this one has to do at its end.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).ok_or_else(|| Errno::SRCH.into()),
    }
}

/// The numbers of `epoll_ctl_batch` and `epoll_pwait1`, where the kernel has them (`EPIOCGSYSCALLS`).
pub fn epoll_numbers(set: &impl AsRawFd) -> Option<[u32; 2]> {
    let mut answer = [0u32; 4];
    // SAFETY: a call of this number writes 16 bytes at most.
    let done = unsafe {
        libc::syscall(libc::SYS_ioctl, set.as_raw_fd(), 0x8010_8ab0u32, answer.as_mut_ptr())
    };
    (done == 0).then_some([answer[2], answer[3]])
}

/// The number of the thread that calls.
pub fn thread() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// Has calls of a thread of this process end with `EINTR`.
pub fn interrupt(thread: &AtomicU64) {
    let thread = thread.load(Ordering::Relaxed);
    // SAFETY: a signal that `ignore_interrupts` has made harmless, or to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

extern "C" fn nothing(_: c_int) {}

/// Has [`interrupt`] do nothing but that.
pub fn ignore_interrupts() {
    // SAFETY: zeroes are an action without flags and with an empty mask. The handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
    }
}

/// Limits what this process can do to itself: files that grow, descriptors, core dumps. It dies with
/// its parent.
pub fn limit_self() {
    for (what, most) in
        [(libc::RLIMIT_FSIZE, 16 << 20), (libc::RLIMIT_NOFILE, 512), (libc::RLIMIT_CORE, 0)]
    {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads a structure.
        unsafe { libc::setrlimit(what, &raw const limit) };
    }
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Makes a descriptor lead where another one does.
pub fn redirect(from: RawFd, to: &File) {
    // SAFETY: only for the standard streams of a process that uses them no more.
    unsafe { libc::dup2(to.as_raw_fd(), from) };
}
