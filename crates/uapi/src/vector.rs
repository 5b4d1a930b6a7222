//! System calls on memory given by address and length (`<linux/uio.h>`), without a Rust reference to it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, c_uint, msghdr};
use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};

use crate::call::last;

pub use libc::iovec;

/// Maximum number of [`iovec`]s of one call (`UIO_MAXIOV`).
pub const MAX_VECTORS: usize = 1024;

/// `writev`.
///
/// # Safety
///
/// The memory that `from` names has to be mapped during the call.
pub unsafe fn write(fd: impl AsFd, from: &[iovec]) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads as many vectors, and the memory that they name, which the caller guarantees.
    done(unsafe { libc::writev(fd, from.as_ptr(), count(from)?) })
}

/// `readv`.
///
/// # Safety
///
/// The memory that `to` names has to be mapped during the call, and no Rust reference to it may exist.
pub unsafe fn read(fd: impl AsFd, to: &[iovec]) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads as many vectors, and writes to the memory that they name, which the
    // caller guarantees.
    done(unsafe { libc::readv(fd, to.as_ptr(), count(to)?) })
}

/// `preadv`, from byte `offset` of the file on.
///
/// # Safety
///
/// As [`read`].
pub unsafe fn read_at(fd: impl AsFd, to: &[iovec], offset: u64) -> io::Result<usize> {
    let fd = fd.as_fd().as_raw_fd();
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: as in `read`.
    done(unsafe { libc::preadv64(fd, to.as_ptr(), count(to)?, offset) })
}

/// `sendmsg`.
///
/// # Safety
///
/// As [`write()`].
pub unsafe fn send(socket: impl AsFd, from: &[iovec], flags: SendFlags) -> io::Result<usize> {
    let message = message(from)?;
    let (fd, flags) = numbers(socket.as_fd(), flags.bits());
    // SAFETY: the kernel reads `message`, as many vectors, and the memory that they name, which the
    // caller guarantees.
    done(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// `recvmsg`, without address and control data.
///
/// # Safety
///
/// As [`read`].
pub unsafe fn receive(socket: impl AsFd, to: &[iovec], flags: RecvFlags) -> io::Result<usize> {
    let mut message = message(to)?;
    let (fd, flags) = numbers(socket.as_fd(), flags.bits());
    // SAFETY: the kernel fills in `message`, and writes to the memory that the vectors name, which the
    // caller guarantees.
    done(unsafe { libc::recvmsg(fd, &raw mut message, flags) })
}

fn message(vectors: &[iovec]) -> io::Result<msghdr> {
    // SAFETY: a `msghdr` of zeroes is one without any buffer.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    // The kernel only reads the vectors themselves.
    message.msg_iov = vectors.as_ptr().cast_mut();
    count(vectors)?;
    message.msg_iovlen = vectors.len() as _;
    Ok(message)
}

/// The vectors, as the kernel has them.
fn count(vectors: &[iovec]) -> io::Result<c_int> {
    c_int::try_from(vectors.len()).map_err(|_| Errno::INVAL)
}

fn numbers(socket: BorrowedFd<'_>, flags: c_uint) -> (c_int, c_int) {
    (socket.as_raw_fd(), flags.cast_signed())
}

fn done(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| last())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn vectors<const N: usize>(parts: [&mut [u8]; N]) -> [iovec; N] {
        parts.map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
    }

    #[test]
    fn parts_go_out_and_come_in_in_their_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut hello, mut world) = (*b"hello ", *b"world");
        let out = vectors([&mut hello, &mut [], &mut world]);
        let (mut first, mut second) = ([0; 3], [0; 20]);
        let into = vectors([&mut first, &mut second]);
        // SAFETY: the memory is valid, and is not used meanwhile.
        unsafe {
            assert_eq!(write(&ours, &out), Ok(11));
            assert_eq!(read(&theirs, &into), Ok(11));
            assert_eq!(send(&ours, &out, SendFlags::NOSIGNAL), Ok(11));
            assert_eq!(receive(&theirs, &into[1..], RecvFlags::DONTWAIT), Ok(11));
            assert_eq!(receive(&theirs, &into, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        }
        assert_eq!((&first, &second[..11]), (b"hel", &b"hello world"[..]));
    }

    #[test]
    fn a_file_is_read_from_any_place() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut magic = [0; 3];
        let into = vectors([&mut magic]);
        // SAFETY: the memory is valid, and is not used meanwhile.
        assert_eq!(unsafe { read_at(&file, &into, 1) }, Ok(3));
        // SAFETY: as above.
        assert_eq!(unsafe { read_at(&file, &into, u64::MAX) }, Err(Errno::INVAL));
        assert_eq!(&magic, b"ELF");
    }
}
