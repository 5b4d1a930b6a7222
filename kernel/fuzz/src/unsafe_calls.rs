//! Unsafe code: system calls with any arguments, memory that they may write to, and child processes that
//! make them.
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

/// Size of the inaccessible range after memory that calls may write to, beyond any 32-bit length.
const FENCE: usize = 8 << 30;

/// Memory that calls read and write, followed by an inaccessible range for any length of 32 bits.
///
/// It is shared with child processes and stays until the process ends.
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
    /// Allocates this number of bytes, whole pages.
    pub fn new(len: usize) -> io::Result<Self> {
        let (none, both) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new range of addresses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len + FENCE, none, reserve) }?;
        let fixed = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the start of that range, which no other code uses.
        unsafe { mmap_anonymous(base, len, both, fixed) }?;
        Ok(Self { base: base.cast(), len })
    }

    /// Returns address and size.
    pub fn place(self) -> (u64, usize) {
        (self.base.expose_provenance() as u64, self.len)
    }

    /// Copies bytes to its start, as many as there is room for.
    pub fn fill(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: these bytes belong to this memory. System calls of other threads may write there at
        // the same time, and any resulting byte is valid.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, len) }
    }

    /// Reads 32 bits at an address, if they are in this memory.
    pub fn read_u32(self, address: u64) -> Option<u32> {
        let at = usize::try_from(address.checked_sub(self.place().0)?).ok()?;
        if at.checked_add(4)? > self.len {
            return None;
        }
        // SAFETY: four bytes within the memory.
        Some(unsafe { self.base.add(at).cast::<u32>().read_unaligned() })
    }
}

/// Maps numbers that are shared with child processes, from a file or anonymously.
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
    // SAFETY: the mapping has this number of elements, is aligned to a page and is never unmapped. Other
    // processes may write to it, so the elements are atomics.
    Ok(unsafe { std::slice::from_raw_parts(base.cast(), count) })
}

/// Makes an ioctl whose argument is a number.
pub fn ioctl_number(file: &File, request: u32, argument: u64) -> io::Result<()> {
    // SAFETY: used only for ioctls that take their argument as a number.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), request, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a system call with any arguments; returns its result or the negative errno.
///
/// # Safety
///
/// The call may write to the memory that its arguments point to, open and close files, and change mappings.
/// The caller must be a process that exists for such calls only, and the arguments must come from a
/// description, so that addresses are in [`Memory`] or invalid.
pub unsafe fn call(number: libc::c_long, words: [u64; 6]) -> i64 {
    let [first, second, third, fourth, fifth, sixth] = words;
    // SAFETY: upheld by the caller.
    let done = unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) };
    if done == -1 {
        return -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    done
}

/// Runs `body` in a child process, which then ends.
///
/// The child has copies of this process's files and memory, and a single thread.
pub fn fork(body: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: this program has a single thread whenever it forks, so no lock is held by another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            body();
            // SAFETY: ends the child without the exit handlers of the parent.
            unsafe { libc::_exit(0) }
        }
        child => Pid::from_raw(child).ok_or_else(|| Errno::SRCH.into()),
    }
}

/// Returns the numbers of `epoll_ctl_batch` and `epoll_pwait1`, if the kernel has them (`EPIOCGSYSCALLS`).
pub fn epoll_numbers(set: &impl AsRawFd) -> Option<[u32; 2]> {
    let mut answer = [0u32; 4];
    // SAFETY: a call of this number writes 16 bytes at most.
    let done = unsafe {
        libc::syscall(libc::SYS_ioctl, set.as_raw_fd(), 0x8010_8ab0u32, answer.as_mut_ptr())
    };
    (done == 0).then_some([answer[2], answer[3]])
}

/// Returns the ID of the calling thread.
pub fn thread() -> u64 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// Makes calls of a thread of this process end with `EINTR`.
pub fn interrupt(thread: &AtomicU64) {
    let thread = thread.load(Ordering::Relaxed);
    // SAFETY: `ignore_interrupts` has made the signal harmless, or the thread does not exist.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

extern "C" fn nothing(_: c_int) {}

/// Installs an empty signal handler for [`interrupt`].
pub fn ignore_interrupts() {
    // SAFETY: a zeroed action has no flags and an empty mask. The handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
    }
}

/// Limits file sizes, descriptors and core dumps of this process, and has it killed when its parent
/// ends.
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

/// Makes a descriptor refer to the file of another one.
pub fn redirect(from: RawFd, to: &File) {
    // SAFETY: used only for the standard streams of a process that does not use them any more.
    unsafe { libc::dup2(to.as_raw_fd(), from) };
}
