//! Receiving into device memory (`Documentation/networking/devmem.rst`, `<linux/uio.h>`,
//! `<asm-generic/socket.h>`).

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, iovec, msghdr, socklen_t};
use rustix::io::{self, Errno};

use crate::call::{last, set_option};

/// Maximum number of [`Range`]s in one call of [`dont_need`].
pub const MAX_RANGES: usize = 128;
/// Maximum number of tokens in one call of [`dont_need`].
pub const MAX_TOKENS: usize = 1024;
/// Bytes that a [`Control::Device`] or [`Control::Linear`] takes in the control data.
pub const CONTROL_SPACE: usize = (HEADER + FRAGMENT).next_multiple_of(ALIGN);

const MSG_SOCK_DEVMEM: c_int = 0x0200_0000;
const SOL_SOCKET: u32 = libc::SOL_SOCKET.cast_unsigned();
const SO_DEVMEM_LINEAR: c_int = 78;
const SO_DEVMEM_DMABUF: c_int = 79;
const SO_DEVMEM_DONTNEED: c_int = 80;

/// Bytes of `struct cmsghdr` and of `struct dmabuf_cmsg`.
const HEADER: usize = (size_of::<usize>() + 8).next_multiple_of(ALIGN);
const FRAGMENT: usize = 24;
const ALIGN: usize = size_of::<usize>();

/// What [`receive`] has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the stream, in device memory, in ordinary memory or in both; 0 at its end.
    pub len: usize,
    /// Bytes of control data, for [`controls`].
    pub control_len: usize,
    /// Whether there was more control data than room for it.
    pub is_truncated: bool,
}

/// A piece of the stream in device memory (`struct dmabuf_cmsg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset in the DMABUF.
    pub offset: u64,
    /// Length in bytes.
    pub size: u32,
    /// Identifies the piece for [`dont_need`].
    pub token: u32,
    /// Number of the binding to which the DMABUF belongs.
    pub dmabuf_id: u32,
}

/// A control message, in the order of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `SCM_DEVMEM_DMABUF`: the next bytes are in device memory.
    Device(Fragment),
    /// `SCM_DEVMEM_LINEAR`: this number of the next bytes is in ordinary memory.
    Linear(u32),
    /// Something else.
    Other,
}

/// Consecutive tokens (`struct dmabuf_token`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first token.
    pub start: u32,
    /// Number of tokens.
    pub count: u32,
}

/// As [`receive`], but the data stays in the socket (`MSG_PEEK`). The tokens are new ones, which have to be
/// returned like others.
pub fn peek(socket: impl AsFd, bytes: &mut [u8], control: &mut [u8]) -> io::Result<Received> {
    receive_with(libc::MSG_PEEK, socket.as_fd(), bytes, control)
}

/// `recvmsg` with `MSG_SOCK_DEVMEM`; never waits. Ordinary bytes go to `bytes`, whose length also
/// limits those in device memory; the control data of [`Received::control_len`] bytes to `control`.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], control: &mut [u8]) -> io::Result<Received> {
    receive_with(0, socket.as_fd(), bytes, control)
}

fn receive_with(
    flags: c_int,
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut [u8],
) -> io::Result<Received> {
    let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` of zeroes is one without any buffer.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    let flags = flags | MSG_SOCK_DEVMEM | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes to `bytes` and `control`, at most as much as is said to fit.
    let done = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(done).map_err(|_| last())?;
    let is_truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
    #[allow(clippy::unnecessary_cast)] // necessary on some targets
    let control_len = (message.msg_controllen as usize).min(control.len());
    Ok(Received { len, control_len, is_truncated })
}

/// The control messages that [`receive`] has filled in; `EPROTO` for the first that is invalid, and
/// none after it.
pub fn controls(control: &[u8]) -> impl Iterator<Item = io::Result<Control>> + use<'_> {
    let mut rest = control;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = next(rest);
        rest = found.map_or(&[], |(_, rest)| rest);
        Some(found.map(|(control, _)| control).ok_or(Errno::PROTO))
    })
}

/// The first message, and the rest.
fn next(bytes: &[u8]) -> Option<(Control, &[u8])> {
    let (size, level_and_kind) = bytes.split_first_chunk()?;
    let message = bytes.get(..usize::from_ne_bytes(*size))?;
    let content = message.get(HEADER..)?;
    let control = match (number(level_and_kind, 0)?, number(level_and_kind, 1)?.cast_signed()) {
        (SOL_SOCKET, SO_DEVMEM_DMABUF) => Control::Device(fragment(content)?),
        (SOL_SOCKET, SO_DEVMEM_LINEAR) => Control::Linear(fragment(content)?.size),
        _ => Control::Other,
    };
    // The last one may end without its padding.
    let rest = bytes.get(message.len().next_multiple_of(ALIGN)..).unwrap_or_default();
    Some((control, rest))
}

fn number(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.as_chunks().0.get(index).map(|bytes| u32::from_ne_bytes(*bytes))
}

fn fragment(content: &[u8]) -> Option<Fragment> {
    let offset = u64::from_ne_bytes(*content.first_chunk()?);
    let number = |index| number(content.get(..FRAGMENT)?, index);
    Some(Fragment { offset, size: number(2)?, token: number(3)?, dmabuf_id: number(4)? })
}

/// `SO_DEVMEM_DONTNEED`: returns pieces to the kernel; the result is how many it took. At most
/// [`MAX_RANGES`] and [`MAX_TOKENS`].
pub fn dont_need(socket: impl AsFd, ranges: &[Range]) -> io::Result<u32> {
    let len = socklen_t::try_from(size_of_val(ranges)).map_err(|_| Errno::INVAL)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `len` bytes of `ranges`.
    let done = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, SO_DEVMEM_DONTNEED, ranges.as_ptr().cast(), len)
    };
    u32::try_from(done).map_err(|_| last())
}

/// `SO_RCVBUFFORCE`: limits the bytes that the kernel keeps until they are received, to
/// twice `bytes`.
pub fn force_receive_buffer(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes.cast_signed())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Control data as the kernel writes it.
    fn message(size: usize, kind: c_int, content: &[u32]) -> Vec<u8> {
        let mut bytes = size.to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(content.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Vec<io::Result<Control>> {
        controls(bytes).collect()
    }

    fn offset(offset: u64) -> [u32; 2] {
        let bytes = offset.to_ne_bytes();
        let (first, second) = bytes.split_at(4);
        [first, second].map(|half| u32::from_ne_bytes(half.try_into().unwrap()))
    }

    #[test]
    fn messages_are_taken_in_order() {
        let at = offset(0x1_0000_2000);
        let device = [at[0], at[1], 4096, 7, 3, 0];
        let full = HEADER + FRAGMENT;
        let linear = message(full, SO_DEVMEM_LINEAR, &[0, 0, 100, 0, 0, 0]);
        let other = message(HEADER + 4, 1, &[9]);
        let bytes = [linear, other, message(full, SO_DEVMEM_DMABUF, &device)].concat();
        let fragment = Fragment { offset: 0x1_0000_2000, size: 4096, token: 7, dmabuf_id: 3 };
        assert_eq!(
            parse(&bytes),
            [Ok(Control::Linear(100)), Ok(Control::Other), Ok(Control::Device(fragment))]
        );
        assert_eq!(bytes.len(), 2 * CONTROL_SPACE + (HEADER + 4).next_multiple_of(ALIGN));
        assert_eq!(parse(&[]), []);
    }

    #[test]
    fn what_cannot_be_ends_the_messages() {
        let good = message(HEADER + FRAGMENT, SO_DEVMEM_DMABUF, &[0; 6]);
        for bad in [
            // Shorter than a header, longer than the rest, without its content, an overflow.
            message(HEADER - 1, SO_DEVMEM_DMABUF, &[0; 6]),
            message(HEADER + FRAGMENT + 1, SO_DEVMEM_DMABUF, &[0; 6]),
            message(HEADER + FRAGMENT - 1, SO_DEVMEM_LINEAR, &[0; 6]),
            message(usize::MAX, SO_DEVMEM_DMABUF, &[0; 6]),
            message(0, 1, &[]),
            vec![1; ALIGN],
        ] {
            let found = parse(&[good.clone(), bad].concat());
            assert_eq!(found.len(), 2);
            assert_eq!(found[1], Err(Errno::PROTO));
        }
    }

    #[test]
    fn what_is_in_ordinary_memory_comes_without_control_data() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let (mut bytes, mut control) = ([0; 16], [0; 16]);
        let mut receive = || receive(&socket, &mut bytes, &mut control);
        assert_eq!(receive(), Err(Errno::AGAIN));
        sender.write_all(b"hello").unwrap();
        drop(sender);
        let len = |len| Ok(Received { len, control_len: 0, is_truncated: false });
        let mut first = receive();
        while first == Err(Errno::AGAIN) {
            first = receive();
        }
        assert_eq!(first, len(5));
        let mut end = receive();
        while end == Err(Errno::AGAIN) {
            end = receive();
        }
        assert_eq!(end, len(0));
        assert_eq!(bytes[..5], *b"hello");
        // The kernel has no device memory, or has not given such a token.
        let range = Range { start: 0, count: 1 };
        assert!(matches!(dont_need(&socket, &[range]), Ok(0) | Err(Errno::NOPROTOOPT)));
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(receive(&null, &mut [0; 8], &mut [0; 8]), Err(Errno::NOTSOCK));
        assert_eq!(dont_need(&null, &[]), Err(Errno::NOTSOCK));
        assert_eq!(force_receive_buffer(&null, 1), Err(Errno::NOTSOCK));
    }
}
