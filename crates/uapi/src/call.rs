//! Calls whose result is a number.

use std::ffi::c_void;

use rustix::io;
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
