//! Connections.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::sockopt;

use super::filled::Filled;
use super::fragments::Fragments;
use super::host::Copies;
use super::memory::Memory;
use super::rule::Steering;
use super::view::Piece;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// A TCP connection whose data comes in [`Piece`]s.
///
/// For a [`Poller`](crate::wait::Poller), it is readable when there may be something new; then take
/// pieces by [`try_next`](Self::try_next) until there is none.
#[derive(Debug)]
pub struct Connection {
    socket: Arc<TcpStream>,
    way: Way,
    ready: VecDeque<Piece>,
    has_ended: bool,
    /// Keeps the rule that steers the connection to the device's queue.
    _steering: Option<Arc<Steering>>,
}

#[derive(Debug)]
enum Way {
    Device(Fragments),
    Host(Copies),
}

impl Connection {
    /// A connection of a socket whose data goes into `memory`: by the device of `binding`, if there is one.
    pub(super) fn new(
        socket: TcpStream,
        memory: &Arc<Memory>,
        binding: Option<u32>,
        steering: Option<Arc<Steering>>,
    ) -> Result<Self> {
        socket.set_nonblocking(true).map_err(|why| Error::new("prepare", "a connection", why))?;
        notice_death(&socket)?;
        let socket = Arc::new(socket);
        let way = match binding {
            Some(id) => {
                memory.shares.add(&socket)?;
                Way::Device(Fragments::new(&socket, memory, id))
            }
            None => Way::Host(Copies::new(&socket, memory)?),
        };
        Ok(Self { socket, way, ready: VecDeque::new(), has_ended: false, _steering: steering })
    }

    /// A connection whose device has filled these parts of a block.
    #[cfg(test)]
    pub(crate) fn by_device(
        block: crate::block::Block,
        views: impl Iterator<Item = std::ops::Range<usize>>,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let memory = Arc::new(Memory::new(block).unwrap());
        let mut connection = Self::new(socket, &memory, Some(1), None).unwrap();
        for bytes in views {
            memory.hold(&bytes);
            connection.ready.push_back(Piece::View(super::view::View::new(&memory, bytes, None)));
        }
        connection
    }

    /// Waits for the next piece of the stream, without a time limit; `None` at its [end](Self::is_finished).
    ///
    /// Without a device, it also waits for memory that views hold.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` and `ETIMEDOUT` if the peer has disappeared;
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) if data came into other memory than the
    /// block. The connection is finished then.
    #[allow(clippy::should_implement_trait)] // it can fail, and may have to wait
    pub fn next(&mut self) -> Result<Option<Piece>> {
        self.next_until(Deadline::NEVER)
    }

    /// The next piece of the stream, if it is there now; `None` otherwise, and at the
    /// [end](Self::is_finished).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn try_next(&mut self) -> Result<Option<Piece>> {
        self.next_until(Deadline::now())
    }

    /// Waits for the next piece of the stream; `None` if nothing came within `timeout`, and at the
    /// [end](Self::is_finished).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Piece>> {
        self.next_until(Deadline::after(timeout))
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.has_ended {
                return Ok(None);
            }
            if self.fill(deadline)? == Filled::Nothing {
                if deadline.has_passed() {
                    return Ok(None);
                }
                poll::wait(&*self.socket, PollFlags::IN, deadline.remaining())
                    .map_err(|errno| Error::new("wait for", "a connection", errno))?;
            }
        }
    }

    /// Whether the stream has ended: the peer has closed its end, or an error was returned, and all pieces were
    /// handed out.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.has_ended && self.ready.is_empty()
    }

    /// Returns the tokens of dropped views now. Call it before you stop calling [`next`](Self::next) for a
    /// while, unless that has returned `None`.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn flush(&self) -> Result<()> {
        match &self.way {
            Way::Device(fragments) => fragments.flush(true),
            Way::Host(_) => Ok(()),
        }
    }

    /// Returns the tokens of dropped views, for a caller that calls [`next`](Self::next) again when other
    /// views are dropped.
    pub(crate) fn pause(&self) -> Result<()> {
        match &self.way {
            Way::Device(fragments) => fragments.flush(false),
            Way::Host(_) => Ok(()),
        }
    }

    /// The socket: to send, to ask for addresses, to set options. Data that is read from it directly is
    /// missing in the pieces; data in device memory cannot be read from it.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether a device writes the data into the block, so that no processor copies a view.
    pub(crate) fn is_by_device(&self) -> bool {
        matches!(self.way, Way::Device(_))
    }

    /// Whether views hold so much of the block that there may be no room for new data. A caller that keeps
    /// its views, and waits for more, may then wait for ever.
    pub(crate) fn is_low(&self) -> bool {
        let memory = match &self.way {
            Way::Device(fragments) => fragments.memory(),
            Way::Host(copies) => copies.memory(),
        };
        let len = memory.block.len();
        let most = if self.is_by_device() { memory.shares.left(len) } else { len / 4 * 3 };
        memory.held() > most
    }

    /// Whether pieces are there that were received, and not handed out yet.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether there may be more to read, and views keep the socket open.
    fn may_stay_open(&self) -> bool {
        !self.has_ended && matches!(&self.way, Way::Device(fragments) if fragments.has_views())
    }

    /// Ordinary receive waits by itself, until the deadline.
    fn fill(&mut self, deadline: Deadline) -> Result<Filled> {
        let (socket, ready) = (&self.socket, &mut self.ready);
        let filled = match &mut self.way {
            Way::Device(fragments) => fragments.fill(socket, ready),
            Way::Host(copies) if deadline.has_passed() => copies.fill(socket, ready),
            Way::Host(copies) => copies.fill_until(socket, ready, deadline),
        };
        if matches!(filled, Ok(Filled::End) | Err(_)) {
            self.has_ended = true;
            // Some of its views may still exist: their tokens are returned one by one.
            let flushed = self.flush();
            return filled.and_then(|filled| flushed.map(|()| filled));
        }
        filled
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Device(_) => self.socket.as_fd(),
            Way::Host(copies) => copies.as_fd(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.ready.clear();
        // Views may keep the socket open; the peer must not wait for them.
        let _ = self.socket.shutdown(Shutdown::Both);
        // This frees the memory of data that will not be received.
        while self.may_stay_open() && matches!(self.fill(Deadline::now()), Ok(Filled::Some)) {
            self.ready.clear();
        }
        let _ = self.flush();
    }
}

/// Makes the kernel notice a peer that has disappeared.
fn notice_death(socket: &TcpStream) -> Result<()> {
    sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5)))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, 4))
        .map_err(|errno| Error::new("prepare", "a connection", errno))
}
