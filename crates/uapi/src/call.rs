//! What several calls have in common: results that are numbers, options of sockets, errors.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// An ioctl that takes a `T` and returns a number, not negative.
///
/// To make one is safe; who passes it to `ioctl` says that the opcode is that of such a call.
pub(crate) struct Call<const OPCODE: Opcode, T>(pub T);

// SAFETY: the argument outlives the call. The call may write to memory whose addresses are in it, so it counts as mutating.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Call<OPCODE, T> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<i32> {
        Ok(out)
    }
}

/// The result of a call that counts.
pub(crate) fn count(result: i32) -> usize {
    usize::try_from(result).unwrap_or(0)
}

/// Sets an option of a socket that is an `int`.
pub(crate) fn set_option(
    socket: impl AsFd,
    level: c_int,
    option: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<c_int>()).map_err(|_| Errno::INVAL)?;
    let (fd, value) = (socket.as_fd().as_raw_fd(), std::ptr::from_ref(&value).cast());
    // SAFETY: the kernel reads `len` bytes of `value`.
    let done = unsafe { libc::setsockopt(fd, level, option, value, len) };
    if done == 0 { Ok(()) } else { Err(last()) }
}

/// Why the last call of the C library has failed.
#[cold]
pub(crate) fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
