//! Calls that ask the kernel whether it offers something, without using it.

use rustix::io::{self, Errno};
use rustix::io_uring::{io_uring_params, io_uring_setup};

/// Whether `io_uring_setup` exists and is allowed: `ENOSYS` or `EPERM` if not.
pub fn io_uring() -> io::Result<()> {
    let mut params = io_uring_params::default();
    // SAFETY: the parameters refer to no other ring. The kernel makes no ring without entries.
    match unsafe { io_uring_setup(0, &mut params) } {
        Ok(_) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn io_uring_has_an_answer() {
        use rustix::io::Errno;
        let answer = super::io_uring();
        assert!(matches!(answer, Ok(()) | Err(Errno::NOSYS | Errno::PERM)), "{answer:?}");
    }
}
