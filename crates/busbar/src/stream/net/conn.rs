//! One connection, whoever has made it.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::Options;
use super::pieces::{Gathered, Pieces};
use super::watch::{Token, Watch};
use crate::stream::frame::{HEADER_LEN, Header};
use crate::{Error, Result};

/// A connection that never waits. What it says that there is nothing of any more, its watch tells
/// when there is again.
#[derive(Debug)]
pub(super) struct Conn {
    inflow: Inflow,
    pub(super) name: String,
    /// When it was made.
    pub(super) since: Instant,
    header: [u8; HEADER_LEN],
    filled: usize,
    /// What is to be sent besides blocks.
    out: Vec<u8>,
}

/// Where the bytes of a connection come from. What is sent goes by the socket either way.
#[derive(Debug)]
pub(super) enum Inflow {
    /// The socket's memory.
    Socket(TcpStream),
    /// A block that they are received into.
    Pieces(Box<Pieces>),
}

impl Inflow {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Socket(socket) => socket,
            Self::Pieces(pieces) => pieces.socket(),
        }
    }

    fn reader(&mut self) -> &mut dyn Read {
        match self {
            Self::Socket(socket) => socket,
            Self::Pieces(pieces) => &mut **pieces,
        }
    }
}

impl Conn {
    pub(super) fn new(inflow: Inflow, name: &str, watch: &Watch, token: Token) -> Result<Self> {
        match &inflow {
            Inflow::Socket(socket) => watch.add(socket, token)?,
            // Perhaps not when there is room to send again: the tick is soon enough for a few bytes.
            Inflow::Pieces(pieces) => watch.add(pieces.connection(), token)?,
        }
        let (name, since) = (name.to_owned(), Instant::now());
        let header = [0; HEADER_LEN];
        Ok(Self { inflow, name, since, header, filled: 0, out: Vec::new() })
    }

    /// To ask, to set options, and to send.
    pub(super) fn socket(&self) -> &TcpStream {
        self.inflow.socket()
    }

    /// Has the kernel notice a peer that is gone without a word.
    pub(super) fn prepare(&self) -> Result<()> {
        let socket = self.socket();
        sockopt::set_tcp_nodelay(socket, true)
            .and_then(|()| sockopt::set_socket_keepalive(socket, true))
            .and_then(|()| sockopt::set_tcp_keepidle(socket, Duration::from_secs(5)))
            .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(2)))
            .and_then(|()| sockopt::set_tcp_keepcnt(socket, 3))
            .map_err(|errno| Error::new("prepare", self.name.clone(), errno))
    }

    /// Has the kernel notice that nobody acknowledges what was sent. For a receiver, whose few bytes
    /// always find room: a sender may have to wait long for a peer that is only slow.
    pub(super) fn limit_silence(&self, options: &Options) -> Result<()> {
        let silence = u32::try_from(options.mute_after().as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(self.socket(), silence)
            .map_err(|errno| Error::new("prepare", self.name.clone(), errno))
    }

    /// The next header, or nothing where it has not come yet.
    pub(super) fn header(&mut self) -> Result<Option<Header>> {
        while self.filled < HEADER_LEN {
            let Some(count) =
                self.read(|inflow, header, filled| inflow.reader().read(&mut header[filled..]))?
            else {
                return Ok(None);
            };
            self.filled += count;
        }
        self.filled = 0;
        Header::decode(&self.header).map(Some)
    }

    /// Reads into `payload` and, behind it, the beginning of the next header: one call instead of
    /// two. Returns the bytes of the payload, or nothing where none have come yet.
    pub(super) fn payload(&mut self, payload: &mut [u8]) -> Result<Option<usize>> {
        let len = payload.len();
        let count = self.read(|inflow, header, _| {
            let parts = &mut [IoSliceMut::new(payload), IoSliceMut::new(header)];
            inflow.reader().read_vectored(parts)
        })?;
        let Some(count) = count else { return Ok(None) };
        self.filled = count.saturating_sub(len);
        Ok(Some(count.min(len)))
    }

    /// Takes up to `most` bytes of the payload as they lie: how many, or nothing where none have come
    /// yet.
    pub(super) fn gather(&mut self, into: &mut Gathered, most: usize) -> Result<Option<usize>> {
        self.read(|inflow, _, _| match inflow {
            Inflow::Pieces(pieces) => into.take(pieces, most),
            Inflow::Socket(_) => Err(ErrorKind::Unsupported.into()),
        })
    }

    /// Nothing is read until a block comes back: memory that is free is not to wait for that.
    pub(super) fn pause(&self) -> Result<()> {
        match &self.inflow {
            Inflow::Pieces(pieces) => pieces.connection().pause(),
            Inflow::Socket(_) => Ok(()),
        }
    }

    /// `None` where the call would wait; the end is an error.
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

    /// Adds to what is to be sent; see [`flush`](Self::flush).
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Whether everything that was said was sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends what was said, as far as there is room.
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

    /// Closes it at once: what is under way is dropped, so that nothing refers to its pages.
    pub(super) fn abort(&self) {
        let _ = sockopt::set_socket_linger(self.socket(), Some(Duration::ZERO));
    }
}
