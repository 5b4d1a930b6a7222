//! A connection, of a sender or a receiver.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::awaited::Awaited;
use super::options::Options;
use super::pieces::{Gathered, Pieces};
use super::watch::{Token, Watch};
use super::wire::Wire;
use crate::block::{self, Block, BytesMut};
use crate::stream::frame::{HEADER_LEN, Header};
use crate::stream::samples::Samples;
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
    /// Bytes of padding before the next header.
    skip: usize,
    awaited: Awaited,
}

/// The last error of a connection, which is told once until a connection is made.
#[derive(Debug, Default)]
pub(super) struct Told(Option<String>);

impl Told {
    pub(super) fn is_new(&mut self, error: &Error) -> bool {
        let text = Some(error.to_string());
        let is_new = self.0 != text;
        self.0 = text;
        is_new
    }
}

/// Where received bytes come from. Bytes are sent by the socket, if there is one.
#[derive(Debug)]
pub(super) enum Inflow {
    /// The socket's memory.
    Socket(TcpStream),
    /// A block that bytes are received into.
    Pieces(Box<Pieces>),
    /// A connection that is not a socket.
    Wire(Box<dyn Wire>),
}

impl Inflow {
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Socket(socket) => Some(socket),
            Self::Pieces(pieces) => Some(pieces.socket()),
            Self::Wire(_) => None,
        }
    }

    /// What to call the connection in errors.
    pub(super) fn peer(&self) -> io::Result<String> {
        match self.socket() {
            Some(socket) => Ok(format!("the connection from {}", socket.peer_addr()?)),
            None => Ok("the USB connection".into()),
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
            Self::Wire(wire) => {
                let first = parts.iter_mut().find(|part| !part.is_empty());
                first.map_or(Ok(0), |part| wire.read(part.slice(..)))
            }
        }
    }
}

/// Has the kernel close a connection if what was sent is not acknowledged, or not taken, for that long. It counts up to
/// 24 days: longer is that long.
pub(crate) fn user_timeout(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    let most = i32::MAX.unsigned_abs();
    let millis = u32::try_from(silence.as_millis()).unwrap_or(most).clamp(1, most);
    Ok(sockopt::set_tcp_user_timeout(socket, millis)?)
}

impl Conn {
    pub(super) fn new(inflow: Inflow, name: &str, watch: &Watch, token: Token) -> Result<Self> {
        match &inflow {
            Inflow::Socket(socket) => watch.add(socket, token)?,
            // This may not have events for room to send: the tick is soon enough for a few bytes.
            Inflow::Pieces(pieces) => watch.add(pieces.connection(), token)?,
            Inflow::Wire(wire) => {
                wire.descriptors().into_iter().try_for_each(|fd| watch.add(fd, token))?;
            }
        }
        let (name, since) = (name.to_owned(), Instant::now());
        let header = [0; HEADER_LEN];
        Ok(Self {
            inflow,
            name,
            since,
            header,
            filled: 0,
            out: Vec::new(),
            skip: 0,
            awaited: Awaited::any(),
        })
    }

    /// The socket, to get and set its options and to send.
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        self.inflow.socket()
    }

    /// The connection that has no socket.
    pub(super) fn wire(&mut self) -> Option<&mut dyn Wire> {
        match &mut self.inflow {
            Inflow::Wire(wire) => Some(&mut **wire),
            _ => None,
        }
    }

    /// From now on there are data frames, with blocks of up to `block_len` bytes, such as `like`.
    pub(super) fn settle(&mut self, block_len: usize, like: Option<&Block>) -> Result<()> {
        let settled = self.wire().map_or(Ok(()), |wire| wire.settle(block_len, like));
        settled.map_err(|why| self.failed("use", why))
    }

    /// Whether payloads come in blocks that are [given](Self::give) before.
    pub(super) fn is_in_place(&mut self) -> bool {
        self.wire().is_some_and(|wire| wire.is_in_place())
    }

    /// Whether to give it a further block.
    pub(super) fn wants(&mut self) -> bool {
        self.wire().is_some_and(|wire| wire.wants())
    }

    /// Has the next payload put into a block.
    pub(super) fn give(&mut self, block: Block) -> Result<()> {
        let given = self.wire().map_or(Ok(()), |wire| wire.give(block));
        given.map_err(|why| self.failed("read from", why))
    }

    /// The block with the payload of the last header, or `None` if it has not come yet.
    pub(super) fn take(&mut self) -> Result<Option<Block>> {
        match self.wire().map(Wire::take) {
            None => Ok(None),
            Some(Ok(block)) => Ok(Some(block)),
            Some(Err(why)) if why.kind() == ErrorKind::WouldBlock => Ok(None),
            Some(Err(why)) => Err(self.failed("read from", why)),
        }
    }

    /// Whether it has a block for the next payload.
    pub(super) fn has_given(&self) -> bool {
        matches!(&self.inflow, Inflow::Wire(wire) if wire.has_given())
    }

    /// Whether the block of samples that were sent is still read in place.
    pub(super) fn holds(&self, samples: &Samples) -> bool {
        matches!(&self.inflow, Inflow::Wire(wire) if wire.holds(samples))
    }

    /// The blocks that were given and not taken.
    pub(super) fn reclaim(&mut self) -> Vec<Block> {
        self.wire().map(Wire::reclaim).unwrap_or_default()
    }

    /// A payload of so many bytes was read.
    pub(super) fn end_of_payload(&mut self, len: usize) {
        self.skip = self.wire().map_or(0, |wire| wire.padding(len));
    }

    /// Whether the host configured this device, and then another connection began, before a program opened the device.
    pub(super) fn is_unopened(&self) -> bool {
        matches!(self.inflow, Inflow::Wire(_)) && self.filled == 0
    }

    /// Whether the peer has all that was sent, as far as that is known.
    pub(super) fn is_delivered(&self) -> bool {
        match &self.inflow {
            Inflow::Wire(wire) => self.out.is_empty() && wire.stalled().is_none(),
            _ => false,
        }
    }

    /// Fails if the peer does not take what was sent.
    pub(super) fn check_flow(&self, options: &Options) -> Result<()> {
        let Inflow::Wire(wire) = &self.inflow else { return Ok(()) };
        if wire.stalled().is_none_or(|since| since.elapsed() < options.silence) {
            return Ok(());
        }
        let why = io::Error::new(ErrorKind::TimedOut, "the peer does not take what is sent");
        Err(self.failed("write to", why))
    }

    /// Has the peer get what was sent, although the connection is dropped. Bytes of the peer are left unread:
    /// without this, the kernel would reset a socket. A connection that is none has to be kept while it
    /// [lingers](Self::lingers).
    pub(super) fn close_gently(&self) {
        if let Some(socket) = self.socket() {
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Whether the peer would not get what was sent if the connection were dropped now.
    pub(super) fn lingers(&mut self) -> bool {
        self.wire().is_some_and(Wire::lingers)
    }

    /// Has the kernel notice a peer that has gone without closing the connection.
    pub(super) fn prepare(&self) -> Result<()> {
        let Some(socket) = self.socket() else { return Ok(()) };
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
        let Some(socket) = self.socket() else { return Ok(()) };
        user_timeout(socket, options.silence)
            .map_err(|why| Error::new("prepare", self.name.clone(), why))
    }

    /// The next header, or `None` if it has not arrived yet.
    pub(super) fn header(&mut self) -> Result<Option<Header>> {
        while self.skip > 0 {
            let mut padding = [0; 1024];
            let most = self.skip.min(padding.len());
            let count =
                self.read(|inflow, _, _| inflow.read(&mut [BytesMut::from(&mut padding[..most])]))?;
            let Some(count) = count else { return Ok(None) };
            self.skip -= count;
        }
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
            Inflow::Socket(_) | Inflow::Wire(_) => Err(ErrorKind::Unsupported.into()),
        })
    }

    /// Returns free memory to the kernel before a pause, until a block comes back, in which nothing is read.
    pub(super) fn pause(&self) -> Result<()> {
        match &self.inflow {
            Inflow::Pieces(pieces) => pieces.connection().pause(),
            Inflow::Socket(_) | Inflow::Wire(_) => Ok(()),
        }
    }

    /// To be called after a read that would wait: `left` bytes are needed for the next step.
    pub(super) fn wait_for(&mut self, left: usize) {
        if let Inflow::Socket(socket) = &self.inflow {
            self.awaited.set(socket, left);
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
            let written = match &mut self.inflow {
                Inflow::Socket(socket) => socket.write(&self.out),
                Inflow::Pieces(pieces) => pieces.socket().write(&self.out),
                Inflow::Wire(wire) => wire.write(&self.out),
            };
            match written {
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
        if let Some(socket) = self.socket() {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}
