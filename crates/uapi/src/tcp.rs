//! What a TCP socket knows of its peer (`<linux/sockios.h>`, `<linux/inet_diag.h>`).

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, ioctl};

use crate::call::{last, set_option};

const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
const SO_INCOMING_NAPI_ID: c_int = 56;

/// Length of a request for the state of a socket, and of the answer, with their headers.
pub const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Length of an answer, with its header.
pub const ANSWER_LEN: usize = HEADER_LEN + 72;

const HEADER_LEN: usize = 16;
/// Ports and addresses in a request and in an answer.
const IN_REQUEST: usize = HEADER_LEN + 8;
const IN_ANSWER: usize = HEADER_LEN + 4;
const ID_LEN: usize = 36;
/// Bytes that the program has not read, in an answer.
const RQUEUE: usize = HEADER_LEN + 56;
/// `SOCK_DIAG_BY_FAMILY`, the type of both messages.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

/// Bytes that were written and that the peer has not acknowledged (`SIOCOUTQ`).
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: the kernel writes an `int`.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) }?;
    usize::try_from(bytes).map_err(|_| Errno::INVAL)
}

/// Whether what comes is received by the driver of a network device that polls it, as those of all fast devices do
/// (`SO_INCOMING_NAPI_ID`). The loopback device and `veth` do not, unless they were told to.
pub fn comes_from_device(socket: impl AsFd) -> io::Result<bool> {
    let mut id: u32 = 0;
    let mut len = libc::socklen_t::try_from(size_of::<u32>()).map_err(|_| Errno::INVAL)?;
    let (fd, value) = (socket.as_fd().as_raw_fd(), std::ptr::from_mut(&mut id).cast());
    // SAFETY: the kernel writes at most `len` bytes to `id`.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_INCOMING_NAPI_ID, value, &raw mut len) };
    if done == 0 { Ok(id != 0) } else { Err(last()) }
}

/// `SO_RCVLOWAT`: has the socket become readable only when `bytes` are there to read, or its end or an error, or when it
/// has no room for more, which Linux before 5.10 may not tell. If there are as many already, that is an event.
///
/// The kernel takes at most half of the largest receive buffer (`tcp_rmem`), and gives the socket one for so many.
pub fn wake_at(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// A request for the state of the socket of this machine that is connected from `local` to `remote`, to be sent to a
/// socket of `NETLINK_SOCK_DIAG`. `None` if the addresses are not of one family.
#[must_use]
pub fn request(local: SocketAddr, remote: SocketAddr) -> Option<[u8; REQUEST_LEN]> {
    let mut bytes = [0; REQUEST_LEN];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let family = match (local.ip(), remote.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            put(IN_REQUEST + 4, &from.octets());
            put(IN_REQUEST + 20, &to.octets());
            libc::AF_INET
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            put(IN_REQUEST + 4, &from.octets());
            put(IN_REQUEST + 20, &to.octets());
            libc::AF_INET6
        }
        _ => return None,
    };
    put(0, &u32::try_from(REQUEST_LEN).ok()?.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(HEADER_LEN, &[u8::try_from(family).ok()?, u8::try_from(libc::IPPROTO_TCP).ok()?]);
    // All states.
    put(HEADER_LEN + 4, &[0xff; 4]);
    put(IN_REQUEST, &local.port().to_be_bytes());
    put(IN_REQUEST + 2, &remote.port().to_be_bytes());
    // No interface, and any cookie.
    put(IN_REQUEST + 40, &[0xff; 8]);
    Some(bytes)
}

/// The bytes that the program has not read from the socket of a [`request`], if the answer is about this socket.
#[must_use]
pub fn unread(request: &[u8; REQUEST_LEN], answer: &[u8]) -> Option<usize> {
    let kind = answer.get(4..6)?;
    let is_same =
        answer.get(IN_ANSWER..IN_ANSWER + ID_LEN)? == &request[IN_REQUEST..IN_REQUEST + ID_LEN];
    let bytes = answer.get(RQUEUE..RQUEUE + 4)?;
    let bytes = u32::from_ne_bytes(bytes.try_into().ok()?);
    (kind == BY_FAMILY.to_ne_bytes() && is_same).then(|| usize::try_from(bytes).ok())?
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn only_answers_about_the_socket_count() {
        let addresses = ["127.0.0.1:80", "127.0.0.1:1000"].map(|it| it.parse().unwrap());
        let request = request(addresses[0], addresses[1]).unwrap();
        let mut answer = [0; ANSWER_LEN];
        assert_eq!(unread(&request, &answer), None);
        answer[4] = 20;
        assert_eq!(unread(&request, &answer), None);
        answer[IN_ANSWER..IN_ANSWER + ID_LEN]
            .copy_from_slice(&request[IN_REQUEST..IN_REQUEST + ID_LEN]);
        answer[RQUEUE..RQUEUE + 4].copy_from_slice(&77_u32.to_ne_bytes());
        assert_eq!(unread(&request, &answer), Some(77));
        for len in 0..RQUEUE + 4 {
            assert_eq!(unread(&request, &answer[..len]), None, "{len}");
        }
        assert_eq!(super::request(addresses[0], "[::1]:1".parse().unwrap()), None);
    }

    #[test]
    fn a_socket_is_readable_once_as_much_is_there_as_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let is_readable = |wait: i64| {
            let mut fds = [PollFd::new(&server, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: wait, tv_nsec: 0 })).unwrap() == 1
        };
        wake_at(&server, 1_000).unwrap();
        client.write_all(&[0; 999]).unwrap();
        assert!(!is_readable(0));
        client.write_all(&[0; 1]).unwrap();
        assert!(is_readable(60));
        // Fewer will do now, and more later.
        wake_at(&server, 2_000).unwrap();
        assert!(!is_readable(0));
        wake_at(&server, 1).unwrap();
        assert!(is_readable(0));
        // At the end, all there is.
        wake_at(&server, usize::MAX).unwrap();
        assert!(!is_readable(0));
        drop(client);
        assert!(is_readable(60));
    }

    #[test]
    fn the_loopback_device_is_no_device_that_polls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(b"x").unwrap();
        assert!(!comes_from_device(&server).unwrap_or_default());
        assert_eq!(unacknowledged(&server), Ok(0));
    }
}
