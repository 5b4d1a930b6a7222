//! A connection, of a sender or a receiver.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::options::Options;
use super::pieces::{Gathered, Pieces};
use super::watch::{Token, Watch};
use crate::block::{self, BytesMut};
use crate::stream::frame::{HEADER_LEN, Header};
use crate::{Error, Result};

/// A connection that never waits. After a call that would wait, its watch has an event when to try again.
#[derive(Debug)]
pub(super) struct Conn {
    inflow: Inflow,
    pub(super) name: String,
    /// When the connection was made.
    pub(super) since: Instant,
    header: [u8; HEADER_LEN],
    filled: usize,
    /// Bytes to send besides blocks.
    out: Vec<u8>,
}

/// Where received bytes come from. Bytes are sent by the socket in either case.
#[derive(Debug)]
pub(super) enum Inflow {
    /// The socket's memory.
    Socket(TcpStream),
    /// A block that bytes are received into.
    Pieces(Box<Pieces>),
}

impl Inflow {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Socket(socket) => socket,
            Self::Pieces(pieces) => pieces.socket(),
        }
    }

    /// Reads into one part after the other.
    fn read(&mut self, parts: &mut [BytesMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => Ok(block::read(socket, parts)?),
            Self::Pieces(pieces) => {
                let first = parts.iter_mut().find(|part| !part.is_empty());
                first.map_or(Ok(0), |part| pieces.read(part.slice(..)))
            }
        }
    }
}

impl Conn {
    pub(super) fn new(inflow: Inflow, name: &str, watch: &Watch, token: Token) -> Result<Self> {
        match &inflow {
            Inflow::Socket(socket) => watch.add(socket, token)?,
            // This may not have events for room to send: the tick is soon enough for a few bytes.
            Inflow::Pieces(pieces) => watch.add(pieces.connection(), token)?,
        }
        let (name, since) = (name.to_owned(), Instant::now());
        let header = [0; HEADER_LEN];
        Ok(Self { inflow, name, since, header, filled: 0, out: Vec::new() })
    }

    /// The socket, to get and set its options and to send.
    pub(super) fn socket(&self) -> &TcpStream {
        self.inflow.socket()
    }

    /// Has the kernel notice a peer that has gone without closing the connection.
    pub(super) fn prepare(&self) -> Result<()> {
        let socket = self.socket();
        sockopt::set_tcp_nodelay(socket, true)
            .and_then(|()| sockopt::set_socket_keepalive(socket, true))
            .and_then(|()| sockopt::set_tcp_keepidle(socket, Duration::from_secs(5)))
            .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2)))
            .and_then(|()| sockopt::set_tcp_keepcnt(socket, 3))
            .map_err(|errno| Error::new("prepare", self.name.clone(), errno))
    }

    /// Has the kernel close the connection if sent bytes are not acknowledged. For a receiver only, whose few
    /// bytes always find room: a sender may have to wait long for a slow receiver.
    pub(super) fn limit_silence(&self, options: &Options) -> Result<()> {
        let silence = u32::try_from(options.mute_after().as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(self.socket(), silence)
            .map_err(|errno| Error::new("prepare", self.name.clone(), errno))
    }

    /// The next header, or `None` if it has not arrived yet.
    pub(super) fn header(&mut self) -> Result<Option<Header>> {
        while self.filled < HEADER_LEN {
            let count = self.read(|inflow, header, filled| {
                inflow.read(&mut [BytesMut::from(&mut header[filled..])])
            })?;
            let Some(count) = count else { return Ok(None) };
            self.filled += count;
        }
        self.filled = 0;
        Header::decode(&self.header).map(Some)
    }

    /// Whether a part of a header has arrived.
    pub(super) fn has_part(&self) -> bool {
        self.filled > 0
    }

    /// Reads into `payload` and the beginning of the next header: one call instead of two. Returns the
    /// bytes of the payload, or `None` if none have arrived yet.
    pub(super) fn payload(&mut self, mut payload: BytesMut<'_>) -> Result<Option<usize>> {
        let len = payload.len();
        let count = self.read(|inflow, header, _| {
            inflow.read(&mut [payload.slice(..), BytesMut::from(&mut header[..])])
        })?;
        let Some(count) = count else { return Ok(None) };
        self.filled = count.saturating_sub(len);
        Ok(Some(count.min(len)))
    }

    /// Takes up to `most` bytes of the payload in place. Returns how many, or `None` if none have arrived
    /// yet.
    pub(super) fn gather(&mut self, into: &mut Gathered, most: usize) -> Result<Option<usize>> {
        self.read(|inflow, _, _| match inflow {
            Inflow::Pieces(pieces) => into.take(pieces, most),
            Inflow::Socket(_) => Err(ErrorKind::Unsupported.into()),
        })
    }

    /// Returns free memory to the kernel before a pause, until a block comes back, in which nothing is read.
    pub(super) fn pause(&self) -> Result<()> {
        match &self.inflow {
            Inflow::Pieces(pieces) => pieces.connection().pause(),
            Inflow::Socket(_) => Ok(()),
        }
    }

    /// `None` if the call would wait; the end is an error.
    fn read(
        &mut self,
        mut call: impl FnMut(&mut Inflow, &mut [u8; HEADER_LEN], usize) -> io::Result<usize>,
    ) -> Result<Option<usize>> {
        loop {
            match call(&mut self.inflow, &mut self.header, self.filled) {
                Ok(0) => {
                    let why = io::Error::new(ErrorKind::UnexpectedEof, "the peer has closed it");
                    return Err(self.failed("read from", why));
                }
                Ok(count) => return Ok(Some(count)),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(why) => return Err(self.failed("read from", why)),
            }
        }
    }

    /// Adds bytes to send; see [`flush`](Self::flush).
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Whether all added bytes were sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends added bytes, as far as there is room.
    pub(super) fn flush(&mut self) -> Result<()> {
        while !self.out.is_empty() {
            match self.socket().write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(why) => return Err(self.failed("write to", why)),
            }
        }
        Ok(())
    }

    pub(super) fn failed(&self, tried: &str, why: impl Into<io::Error>) -> Error {
        Error::new(tried, self.name.clone(), why)
    }

    /// Has the socket drop bytes under way when it is closed, so that nothing refers to their pages.
    pub(super) fn abort(&self) {
        let _ = sockopt::set_socket_linger(self.socket(), Some(Duration::ZERO));
    }
}
