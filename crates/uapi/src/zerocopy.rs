//! Sending from a program's own pages (`Documentation/networking/msg_zerocopy.rst`,
//! `<linux/errqueue.h>`).

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, cmsghdr, msghdr, sock_extended_err};
use rustix::io::{self, Errno};
use rustix::net::SendFlags;

use crate::call::{last, set_option};

/// `MSG_ZEROCOPY`: the socket refers to the pages until it reports the [`Completion`].
pub const ZEROCOPY: SendFlags = SendFlags::from_bits_retain(0x0400_0000);

const SO_ZEROCOPY: c_int = 60;
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Sends with [`ZEROCOPY`] that have completed, by number: from 0 for each socket, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The first number.
    pub first: u32,
    /// The last number.
    pub last: u32,
    /// Whether the kernel has copied after all.
    pub copied: bool,
}

/// `SO_ZEROCOPY`: without it, the flag has no effect.
pub fn enable(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, SO_ZEROCOPY, 1)
}

/// The next completion, if there is one; never waits.
///
/// # Errors
///
/// Another entry of the error queue is returned as its errno.
pub fn completion(socket: impl AsFd) -> io::Result<Option<Completion>> {
    // Room for `sock_extended_err` and the address after it, aligned as a `cmsghdr`.
    let mut control = [MaybeUninit::<u64>::uninit(); 16];
    // SAFETY: a `msghdr` of zeroes is one without any buffer.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `msg_controllen` bytes to `msg_control`.
    let done = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    if done < 0 {
        return match last() {
            Errno::AGAIN => Ok(None),
            errno => Err(errno),
        };
    }
    // SAFETY: the kernel has filled in `message`, and its buffer lives.
    let found = unsafe { extended_error(&message) };
    let error = found.ok_or(Errno::PROTO)?;
    if error.ee_errno != 0 || error.ee_origin != ORIGIN_ZEROCOPY {
        let errno = i32::try_from(error.ee_errno).ok().filter(|errno| *errno != 0);
        return Err(errno.map_or(Errno::PROTO, Errno::from_raw_os_error));
    }
    let copied = error.ee_code & CODE_COPIED != 0;
    Ok(Some(Completion { first: error.ee_info, last: error.ee_data, copied }))
}

/// The error in the control data of a message.
///
/// # Safety
///
/// The kernel has to have written the control data.
unsafe fn extended_error(message: &msghdr) -> Option<sock_extended_err> {
    // SAFETY: guaranteed by the caller.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or the first of the headers that the kernel has written.
    let cmsghdr { cmsg_level, cmsg_type, cmsg_len, .. } = *unsafe { header.as_ref() }?;
    let known = matches!(
        (cmsg_level, cmsg_type),
        (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    );
    let needed = u32::try_from(size_of::<sock_extended_err>()).ok()?;
    // SAFETY: this only computes a number.
    let needed = unsafe { libc::CMSG_LEN(needed) };
    if !known || cmsg_len < needed as _ {
        return None;
    }
    // SAFETY: as the length says, a `sock_extended_err` lies there, at any alignment.
    Some(unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast()) })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::send;

    use super::*;

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0)
    }

    fn completes(address: &str) {
        let (sender, mut peer) = pair(address);
        enable(&sender).unwrap();
        assert_eq!(completion(&sender), Ok(None));
        let original = vec![7; 100_000];
        let reading = std::thread::spawn(move || {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).map(|_| received)
        });
        let (mut rest, mut calls) = (&original[..], 0);
        while !rest.is_empty() {
            rest = &rest[send(&sender, rest, ZEROCOPY).unwrap()..];
            calls += 1;
        }
        sender.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), original);
        let mut next = 0;
        while next < calls {
            // It is reported at once or when the peer's answer is processed.
            let Some(Completion { first, last, .. }) = completion(&sender).unwrap() else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(first, next);
            next = last + 1;
        }
        assert_eq!((next, completion(&sender)), (calls, Ok(None)));
    }

    #[test]
    fn each_send_is_completed_once() {
        completes("127.0.0.1:0");
    }

    #[test]
    fn each_send_is_completed_once_with_ipv6() {
        if TcpListener::bind("[::1]:0").is_ok() {
            completes("[::1]:0");
        }
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(enable(&null), Err(Errno::NOTSOCK));
        assert_eq!(completion(&null), Err(Errno::NOTSOCK));
    }
}
