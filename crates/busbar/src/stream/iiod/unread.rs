//! How much of what a client was sent it has not read.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use busbar_uapi::tcp;
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// Where a client is.
#[derive(Debug)]
pub(super) enum Place {
    /// On another machine. What that has acknowledged was copied there.
    Away,
    /// On this machine, where its socket refers to the pages that are sent until it has read them. The kernel tells by
    /// a request.
    Here(Box<[u8; tcp::REQUEST_LEN]>, OwnedFd),
    /// Perhaps in another network namespace of this machine: the kernel does not tell.
    Unknown,
}

impl Place {
    /// Asks once, for a connection that does not exist: so the kernel loads the modules for it now, and not while
    /// clients wait.
    pub(super) fn prepare() {
        let nobody = SocketAddr::from(([127, 0, 0, 1], 0));
        let _ = tcp::request(nobody, nobody).and_then(|request| ask(&asker()?, &request));
    }

    pub(super) fn of(socket: &TcpStream, peer: SocketAddr) -> Self {
        if tcp::comes_from_device(socket).unwrap_or(false) {
            return Self::Away;
        }
        Self::here(socket, peer).unwrap_or(Self::Unknown)
    }

    fn here(socket: &TcpStream, peer: SocketAddr) -> Option<Self> {
        let plain =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let request = tcp::request(plain(peer), plain(socket.local_addr().ok()?))?;
        let asked = asker()?;
        ask(&asked, &request)?;
        Some(Self::Here(Box::new(request), asked))
    }

    /// Bytes that it was sent and has not read; `None` if that is not known.
    pub(super) fn unread(&self, socket: &TcpStream) -> Option<usize> {
        // In this order: what is acknowledged is in the other socket.
        let under_way = tcp::unacknowledged(socket).ok()?;
        match self {
            Self::Away => Some(under_way),
            Self::Here(request, asked) => Some(under_way + ask(asked, request)?),
            Self::Unknown => None,
        }
    }
}

/// The socket for requests.
fn asker() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let asked =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG)).ok()?;
    // Only messages of the kernel are received.
    connect(&asked, &SocketAddrNetlink::new(0, 0)).ok()?;
    Some(asked)
}

/// The bytes that wait in the socket of a request. The kernel answers while it takes the request.
fn ask(asked: &OwnedFd, request: &[u8; tcp::REQUEST_LEN]) -> Option<usize> {
    send(asked, request, SendFlags::empty()).ok()?;
    let mut answer = [0; 2 * tcp::ANSWER_LEN];
    let received = loop {
        match recv(asked, &mut answer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            received => break received,
        }
    };
    let (count, _) = received.ok()?;
    tcp::unread(request, answer.get(..count)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_a_client_of_this_machine_has_not_read_is_known() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut server, peer) = listener.accept().unwrap();
            let place = Place::of(&server, peer);
            // Some systems do not have the kernel's part of it: samples are copied there.
            if matches!(place, Place::Unknown) {
                continue;
            }
            assert_eq!(place.unread(&server), Some(0));
            server.write_all(&[1; 1000]).unwrap();
            assert_eq!(place.unread(&server), Some(1000));
            client.read_exact(&mut [0; 300]).unwrap();
            assert_eq!(place.unread(&server), Some(700));
            client.read_exact(&mut [0; 700]).unwrap();
            assert_eq!(place.unread(&server), Some(0));
        }
    }
}
