//! What carries the bytes of a client.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

#[cfg(feature = "usb")]
use std::ops::Range;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::keep_alive;
use super::unread::Place;
#[cfg(feature = "usb")]
use super::usb::Pipe;
use crate::block::BytesMut;
use crate::stream::net::transmit::{Progress, Queued, ZeroCopy};
use crate::stream::net::user_timeout;
#[cfg(feature = "usb")]
use crate::stream::samples::Samples;

/// Bytes that there is room for when commands are read.
const READ: usize = 4096;

/// What is sent next.
#[derive(Debug)]
pub(super) enum Out {
    /// How many of the bytes were sent.
    Bytes(Vec<u8>, usize),
    Samples(Box<Queued>, usize),
    /// Bytes of samples, which are copied.
    #[cfg(feature = "usb")]
    Copy(Samples, Range<usize>),
}

impl Out {
    pub(super) fn is_sent(&self) -> bool {
        self.left() == 0
    }

    /// Bytes that are not sent yet.
    pub(super) fn left(&self) -> usize {
        match self {
            Self::Bytes(bytes, sent) => bytes.len() - sent,
            Self::Samples(queued, sent) => queued.len() - sent,
            #[cfg(feature = "usb")]
            Self::Copy(_, left) => left.len(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum Link {
    Tcp(Tcp),
    #[cfg(feature = "usb")]
    Usb(Pipe),
}

#[derive(Debug)]
pub(super) struct Tcp {
    socket: TcpStream,
    peer: SocketAddr,
    zero_copy: ZeroCopy,
    /// Where the client is, once it reads samples.
    place: Option<Place>,
}

impl Tcp {
    /// The kernel closes it if the client does not answer, or does not take what it was sent, for this time.
    pub(super) fn new(socket: TcpStream, peer: SocketAddr, silence: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        keep_alive(&socket, silence)?;
        // The kernel sends no keepalive while something is not acknowledged.
        user_timeout(&socket, silence)?;
        Ok(Self { zero_copy: ZeroCopy::new(&socket), socket, peer, place: None })
    }

    fn send(&mut self, out: &mut Out) -> Result<Option<Progress>, Errno> {
        match out {
            Out::Bytes(bytes, at) => {
                let sent = rustix::net::send(&self.socket, &bytes[*at..], SendFlags::NOSIGNAL);
                let sent = match sent {
                    Err(Errno::INTR) => 0,
                    Err(Errno::AGAIN) => return Ok(None),
                    sent => sent?,
                };
                *at += sent;
                Ok(Some(Progress { sent, copied: 0 }))
            }
            Out::Samples(queued, at) => {
                let progress = queued.send(&self.socket, *at, &mut self.zero_copy)?;
                *at += progress.as_ref().map_or(0, |it| it.sent);
                Ok(progress)
            }
            #[cfg(feature = "usb")]
            Out::Copy(..) => Err(Errno::OPNOTSUPP),
        }
    }
}

impl Link {
    /// Receives more bytes. `expected`: how many the client is about to send, if that is known. `EAGAIN` if there are none
    /// yet, `EPIPE` if there will be none.
    #[cfg_attr(not(feature = "usb"), expect(unused_variables))]
    pub(super) fn receive(&mut self, input: &mut Vec<u8>, expected: usize) -> Result<(), Errno> {
        match self {
            Self::Tcp(tcp) => {
                input.reserve(READ);
                // Into memory that is not cleared: that takes a third of the time that a block takes.
                let spare = rustix::buffer::spare_capacity(input);
                match rustix::net::recv(&tcp.socket, spare, RecvFlags::empty()) {
                    Ok((_, 0)) => Err(Errno::PIPE),
                    Ok(_) | Err(Errno::INTR) => Ok(()),
                    Err(errno) => Err(errno),
                }
            }
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => pipe.receive(input, expected),
        }
    }

    /// The same into a block.
    #[cfg_attr(not(feature = "usb"), expect(unused_variables))]
    pub(super) fn receive_into(
        &mut self,
        mut to: BytesMut<'_>,
        expected: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => to.read_from(&tcp.socket),
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => Ok(pipe.receive_into(to, expected)?),
        }
    }

    /// Whether there is something to receive. `EPIPE` if there will be nothing.
    pub(super) fn has_input(&mut self) -> Result<bool, Errno> {
        match self {
            Self::Tcp(tcp) => match rustix::net::recv(&tcp.socket, &mut [0_u8], RecvFlags::PEEK) {
                Ok((_, 0)) => Err(Errno::PIPE),
                Ok(_) => Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => Ok(false),
                Err(errno) => Err(errno),
            },
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => pipe.has_input(),
        }
    }

    /// Bytes that the kernel has copied after all.
    pub(super) fn reap(&mut self) -> Result<u64, Errno> {
        match self {
            Self::Tcp(tcp) => tcp.zero_copy.reap(&tcp.socket),
            #[cfg(feature = "usb")]
            Self::Usb(_) => Ok(0),
        }
    }

    /// Sends some of it; `None` if there is no room.
    pub(super) fn send(&mut self, out: &mut Out) -> Result<Option<Progress>, Errno> {
        match self {
            Self::Tcp(tcp) => tcp.send(out),
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => pipe.send(out),
        }
    }

    /// Whether it can be closed without a loss of what was sent.
    pub(super) fn is_flushed(&mut self) -> bool {
        match self {
            Self::Tcp(_) => true,
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => pipe.is_flushed(),
        }
    }

    /// Whether an answer has to be sent by parts, as the client reads it: its first line or its head, and what follows.
    pub(super) fn has_parts(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "usb")]
            Self::Usb(_) => true,
        }
    }

    /// Whether it is not known what the client has read.
    pub(super) fn is_unknown(&mut self) -> bool {
        match self {
            Self::Tcp(tcp) => {
                let place = tcp.place.get_or_insert_with(|| Place::of(&tcp.socket, tcp.peer));
                matches!(place, Place::Unknown)
            }
            #[cfg(feature = "usb")]
            Self::Usb(_) => true,
        }
    }

    /// Bytes that the client was sent and has not read, if that is known.
    pub(super) fn unread(&self) -> Option<usize> {
        match self {
            Self::Tcp(tcp) => tcp.place.as_ref().and_then(|place| place.unread(&tcp.socket)),
            #[cfg(feature = "usb")]
            Self::Usb(_) => None,
        }
    }

    /// Has what is under way dropped when it is closed.
    pub(super) fn abort(&self) {
        match self {
            Self::Tcp(tcp) => {
                let _ = sockopt::set_socket_linger(&tcp.socket, Some(Duration::ZERO));
            }
            #[cfg(feature = "usb")]
            Self::Usb(_) => {}
        }
    }
}

/// Readable when something has come, or there is room again.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.socket.as_fd(),
            #[cfg(feature = "usb")]
            Self::Usb(pipe) => pipe.as_fd(),
        }
    }
}
