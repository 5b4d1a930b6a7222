//! The sending end of a stream.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::conn::{Conn, Inflow, Told};
use super::has_name;
use super::options::{BEAT, Options};
use super::time::to_nanoseconds;
use super::transmit::{self, Queued, ZeroCopy};
use super::watch::Watch;
use super::wire::Port;
use crate::block::BytesMut;
use crate::poll::{self, Deadline, Task, later};
use crate::stream::format::{Format, Lost};
use crate::stream::frame::{self, Header, Hello, Kind};
use crate::stream::samples::Samples;
use crate::{Error, Reason, Result};

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Most frames of the receiver in one turn, as it may never stop. The rest waits for the next tick.
const MOST_FRAMES: usize = 64;
/// Connections in a row that may end before a block is taken over.
const MOST_FRUITLESS: u32 = 20;
/// The token of the connection.
const SOCKET: u64 = 0;
/// The token of a port.
const PORT: u64 = 1;
/// The token of a thread that looks a name up.
const NAME: u64 = 2;
/// How long to wait for the address of a name before the last known one is used.
const LOOKUP: Duration = Duration::from_secs(2);
/// The longest time between two turns of a program that lets the sender work all the time: the watch ticks more often.
const LONGEST_GAP: Duration = Duration::from_millis(300);

/// Sends blocks to a [`FrameReceiver`](super::FrameReceiver); see [the module](super).
///
/// Dropping it closes the connection at once and drops blocks under way. Call [`finish`](Self::finish) and
/// [`wait`](Self::wait) before to have them delivered.
#[derive(Debug)]
pub struct FrameSender {
    // Before the queue, so that it is dropped first: the socket must not refer to a block that goes back to its
    // driver.
    link: Link,
    name: String,
    route: Route,
    options: Options,
    stream: u64,
    hello: Vec<u8>,
    block_len: usize,
    sample_len: usize,
    watch: Watch,
    /// Blocks that the receiver has not taken over.
    queue: VecDeque<Queued>,
    /// Blocks that the receiver says it has, but that the connection still reads.
    held: Vec<Queued>,
    /// The sequence of the first in the queue.
    first: u64,
    end: Option<Lost>,
    is_finished: bool,
    /// Why the receiver wants no more blocks, if it had all that there were when it said so.
    content: Option<String>,
    /// When a frame of the receiver came last, on any connection.
    heard: Instant,
    /// The last turn, and since when there has been one all the time.
    turned: Instant,
    steady: Instant,
    /// The pause before the next connection.
    pause: Duration,
    /// Connections in a row that were welcomed and ended before a block was taken over.
    fruitless: u32,
    trouble: Option<Error>,
    told: Told,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    copied: u64,
    resent: u64,
}

/// How a connection is made.
#[derive(Debug)]
enum Route {
    Tcp(Tcp),
    #[cfg_attr(not(feature = "usb"), allow(dead_code))]
    Port(Box<dyn Port>),
}

/// A host that may have several addresses, and other ones later.
struct Tcp {
    /// `HOST:PORT`.
    target: String,
    lookup: Lookup,
    addresses: Vec<SocketAddr>,
    /// Index of the address to try next. Behind the last one, the name is looked up again.
    next: usize,
    /// A thread looks the name up, since then.
    looking: Option<(Task<Vec<SocketAddr>>, Instant)>,
}

type Lookup = fn(&str) -> Result<Vec<SocketAddr>>;

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, addresses, next, .. } = self;
        f.debug_struct("Tcp")
            .field("target", target)
            .field("addresses", addresses)
            .field("next", next)
            .finish_non_exhaustive()
    }
}

impl Tcp {
    fn new(target: &str, lookup: Lookup) -> Result<Self> {
        let (addresses, target) = (lookup(target)?, target.to_owned());
        Ok(Self { target, lookup, addresses, next: 0, looking: None })
    }

    /// The next connection needs the address as it is then.
    fn forget(&mut self) {
        self.next = self.addresses.len();
    }

    /// The address to try next; `None` while a name is looked up. Never waits.
    fn address(&mut self, watch: &Watch) -> Result<Option<SocketAddr>> {
        if self.next >= self.addresses.len() {
            if has_name(&self.target) && !self.look_up(watch)? {
                return Ok(None);
            }
            self.next = 0;
        }
        let address = self.addresses[self.next];
        self.next += 1;
        Ok(Some(address))
    }

    /// Whether the addresses are as good as they get. A name server that does not answer may be what is gone: the last
    /// known ones are used then.
    fn look_up(&mut self, watch: &Watch) -> Result<bool> {
        let Some((task, since)) = &self.looking else {
            let (target, lookup) = (self.target.clone(), self.lookup);
            let task = Task::start(&format!("the address of {target}"), move || lookup(&target))?;
            watch.add(&task, NAME)?;
            self.looking = Some((task, Instant::now()));
            return Ok(false);
        };
        let Some(found) = task.take() else { return Ok(since.elapsed() >= LOOKUP) };
        self.looking = None;
        if let Ok(found) = found {
            self.addresses = found;
        }
        Ok(true)
    }
}

#[derive(Debug)]
enum Link {
    Down { until: Instant },
    Connecting(Conn),
    Up(Box<Up>),
}

impl Link {
    /// Whether the connection still reads a block that was sent.
    fn holds(&self, queued: &Queued) -> bool {
        matches!(self, Self::Up(up) if up.conn.holds(queued.samples()))
    }
}

#[derive(Debug)]
struct Up {
    conn: Conn,
    heard: Instant,
    /// Whether frames may have come since a read that would have waited.
    has_news: bool,
    is_welcome: bool,
    /// Index of the block in the queue that is sent next.
    cursor: usize,
    /// Bytes of it that were sent.
    sent: usize,
    /// When something was sent last.
    spoke: Instant,
    end_is_sent: bool,
    zero_copy: ZeroCopy,
}

/// An error, by its consequence.
enum Fault {
    /// This connection has failed; the next one may work.
    Link(Error),
    /// The stream has failed.
    Stream(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Link(error)
    }
}

impl FrameSender {
    /// Sends to `target`, `HOST:PORT`, a stream with samples of `format` in blocks of up to
    /// `block_len` bytes. Waits for the address of `HOST`, but not for the connection; for a further connection a thread
    /// looks the name up again. `?silence=TIME` behind it, such as `host:4950?silence=5s`, takes the place of
    /// [`Options::silence`].
    ///
    /// # Errors
    ///
    /// Bad input if `target` has no address or frames cannot carry the stream.
    pub fn open(
        target: &str,
        format: &Format,
        block_len: usize,
        options: &Options,
    ) -> Result<Self> {
        Self::open_by(resolve, target, format, block_len, options)
    }

    fn open_by(
        lookup: Lookup,
        target: &str,
        format: &Format,
        block_len: usize,
        options: &Options,
    ) -> Result<Self> {
        let (target, options) = options.of_name(target)?;
        let route = Route::Tcp(Tcp::new(target, lookup)?);
        Self::new(format!("the connection to {target}"), route, format, block_len, &options)
    }

    /// As [`open`](Self::open), over connections that `port` makes; `name` is for errors.
    #[cfg(feature = "usb")]
    pub(crate) fn through(
        port: Box<dyn Port>,
        name: String,
        format: &Format,
        block_len: usize,
        options: &Options,
    ) -> Result<Self> {
        Self::new(name, Route::Port(port), format, block_len, options)
    }

    fn new(
        name: String,
        route: Route,
        format: &Format,
        block_len: usize,
        options: &Options,
    ) -> Result<Self> {
        options.check()?;
        let payload_len = Header::payload_len(Kind::Data, block_len)?;
        let hello = Hello { format: format.clone(), block_len: payload_len }.encode()?;
        let (now, watch) = (Instant::now(), Watch::new()?);
        if let Route::Port(port) = &route {
            watch.add(port.descriptor(), PORT)?;
        }
        Ok(Self {
            link: Link::Down { until: now },
            name,
            route,
            options: options.clone(),
            stream: random()?,
            hello,
            block_len,
            sample_len: format.sample_len,
            watch,
            queue: VecDeque::new(),
            held: Vec::new(),
            first: 0,
            end: None,
            is_finished: false,
            content: None,
            heard: now,
            turned: now,
            steady: now,
            pause: Duration::ZERO,
            fruitless: 0,
            trouble: None,
            told: Told::default(),
            counts: Counts::default(),
        })
    }

    /// Names the stream, so that a script can answer.
    #[cfg(all(feature = "usb", any(test, fuzzing)))]
    pub(crate) fn name(&mut self, stream: u64) {
        self.stream = stream;
    }

    /// Adds a block to the queue; [`advance`](Self::advance) sends it.
    ///
    /// # Errors
    ///
    /// Bad input for a block that is empty, longer than the stream was opened for, or not of whole samples; as [`Samples::read`] with check sums. `EPIPE`
    /// after [`finish`](Self::finish). `ConnectionRefused` if the receiver has all that it wants.
    pub fn push(&mut self, samples: Samples) -> Result<()> {
        let lost = samples.meta().lost;
        self.push_as(samples, lost, None)
    }

    /// As [`push`](Self::push), with another loss before the block, and its CRC-32C if that is known.
    pub(crate) fn push_as(
        &mut self,
        samples: Samples,
        lost: Lost,
        check: Option<u32>,
    ) -> Result<()> {
        if self.end.is_some() {
            return Err(Error::new("send a block by", self.name.clone(), Errno::PIPE)
                .help("the stream was finished"));
        }
        if let Some(reason) = &self.content {
            return Err(self.refusal(reason.clone()));
        }
        let meta = *samples.meta();
        if meta.len > self.block_len || !meta.len.is_multiple_of(self.sample_len.max(1)) {
            let allowed = format!("whole samples of {}, up to {}", self.sample_len, self.block_len);
            return Err(Error::invalid("the bytes of a block", meta.len, allowed));
        }
        let sequence = self.first + self.queue.len() as u64;
        let mut header = Header::data(self.stream, sequence, meta.len)?;
        header.time = to_nanoseconds(meta.time);
        (header.lost, header.check) = (lost, check);
        if self.options.checksum && check.is_none() {
            header.check = Some(samples.parts()?.crc32c());
        }
        self.queue.push_back(Queued::frame(header.encode(), samples));
        Ok(())
    }

    /// Ends the stream; `lost` is what was lost after the last block.
    pub fn finish(&mut self, lost: Lost) {
        self.end = self.end.or(Some(lost));
        self.is_finished |= self.content.is_some();
    }

    /// Whether the receiver has taken over everything, the end included.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Blocks that the receiver has not taken over yet.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of blocks that were copied to be sent.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.counts.copied
    }

    /// Number of connections after the first one.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.counts.connections.saturating_sub(1)
    }

    /// Blocks that were sent again, because the receiver did not have them after a reconnect.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.counts.resent
    }

    /// The last error of a connection since the last call; the stream goes on.
    pub fn take_trouble(&mut self) -> Option<Error> {
        self.trouble.take()
    }

    /// Does what can be done without waiting.
    ///
    /// # Errors
    ///
    /// The error of the last connection if no frame of the receiver came for [`Options::patience`];
    /// `ConnectionRefused` with the reason if the receiver does not take the stream, or not all of it. If it has
    /// all blocks that there are and wants no more, the next [`push`](Self::push) returns an error, and
    /// [`finish`](Self::finish) succeeds.
    pub fn advance(&mut self) -> Result<()> {
        let news = self.watch.take()?;
        let before = std::mem::replace(&mut self.turned, Instant::now());
        if before.elapsed() > LONGEST_GAP {
            self.steady = self.turned;
        }
        if let (Route::Port(port), true) = (&mut self.route, news.has(PORT)) {
            port.hear();
        }
        let news = news.has(SOCKET);
        match self.step(news) {
            Ok(()) => Ok(()),
            Err(Fault::Link(error)) => self.break_off(error),
            Err(Fault::Stream(error)) => Err(error),
        }
    }

    /// Waits, after [`finish`](Self::finish), until the receiver has taken over everything.
    ///
    /// # Errors
    ///
    /// As [`advance`](Self::advance).
    pub fn wait(&mut self) -> Result<()> {
        self.wait_until(Deadline::NEVER).map(drop)
    }

    /// Whether the receiver has taken over everything by now.
    ///
    /// # Errors
    ///
    /// As [`advance`](Self::advance).
    pub fn try_wait(&mut self) -> Result<bool> {
        self.wait_until(Deadline::now())
    }

    /// Waits until the receiver has taken over everything; `false` if that took longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`advance`](Self::advance).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool> {
        self.wait_until(Deadline::after(timeout))
    }

    fn wait_until(&mut self, deadline: Deadline) -> Result<bool> {
        loop {
            self.advance()?;
            if self.is_finished || deadline.has_passed() {
                return Ok(self.is_finished);
            }
            poll::wait(&self.watch, PollFlags::IN, deadline.remaining())
                .map_err(|errno| Error::new("wait for", self.name.clone(), errno))?;
        }
    }

    fn step(&mut self, news: bool) -> Result<(), Fault> {
        self.held.retain(|queued| self.link.holds(queued));
        if self.is_finished || self.content.is_some() {
            return Ok(());
        }
        match &mut self.link {
            Link::Down { until } if Instant::now() < *until => Ok(()),
            Link::Down { .. } => self.connect(),
            Link::Connecting(conn) => {
                let since = conn.since;
                if news { Ok(self.greet()?) } else { Ok(self.check_silence(since)?) }
            }
            Link::Up(up) => {
                up.has_news |= news;
                self.exchange()
            }
        }
    }

    fn connect(&mut self) -> Result<(), Fault> {
        match &mut self.route {
            Route::Tcp(tcp) => match tcp.address(&self.watch)? {
                Some(address) => Ok(self.call(address)?),
                None => Ok(()),
            },
            Route::Port(port) => match port.open()? {
                Some(wire) => {
                    let conn = Conn::new(Inflow::Wire(wire), &self.name, &self.watch, SOCKET)?;
                    Ok(self.begin(conn)?)
                }
                None => self.wait_for_peer(),
            },
        }
    }

    /// Without a peer, there is a limit to waiting; where the peer decides when it comes, only once it has been
    /// there.
    fn wait_for_peer(&self) -> Result<(), Fault> {
        if self.waits_for_first() || self.heard.elapsed() < self.options.patience {
            return Ok(());
        }
        let why = io::Error::new(ErrorKind::TimedOut, "there is no peer");
        Err(Fault::Stream(Error::new("use", self.name.clone(), why)))
    }

    /// Whether it is the peer who decides when it comes.
    fn waits(&self) -> bool {
        matches!(&self.route, Route::Port(port) if port.waits())
    }

    /// Whether such a peer has not come yet.
    fn waits_for_first(&self) -> bool {
        self.waits() && self.counts.connections == 0
    }

    fn call(&mut self, address: SocketAddr) -> Result<()> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let failed = |errno| Error::new("connect to", address.to_string(), errno);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let socket = TcpStream::from(socket.map_err(failed)?);
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(failed(errno)),
        }
        self.link =
            Link::Connecting(Conn::new(Inflow::Socket(socket), &self.name, &self.watch, SOCKET)?);
        Ok(())
    }

    /// Sends the hello once the connection is made.
    fn greet(&mut self) -> Result<()> {
        let Link::Connecting(conn) = &mut self.link else { return Ok(()) };
        let Some(socket) = conn.socket() else { return Ok(()) };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Err(conn.failed("make", errno)),
        }
        // Without a peer, the socket is still connecting.
        if socket.peer_addr().is_err() {
            return Ok(());
        }
        let down = Link::Down { until: Instant::now() };
        let Link::Connecting(conn) = std::mem::replace(&mut self.link, down) else {
            return Ok(());
        };
        self.begin(conn)
    }

    /// Sends the hello.
    fn begin(&mut self, mut conn: Conn) -> Result<()> {
        conn.prepare()?;
        conn.settle(self.block_len, None)?;
        let hello = Header::with_payload(Kind::Hello, self.stream, self.first, &self.hello)?;
        conn.say(&hello.encode());
        conn.say(&self.hello);
        conn.flush()?;
        let zero_copy = conn.socket().map(ZeroCopy::new).unwrap_or_default();
        self.link = Link::Up(Box::new(Up {
            conn,
            heard: Instant::now(),
            has_news: true,
            is_welcome: false,
            cursor: 0,
            sent: 0,
            spoke: Instant::now(),
            end_is_sent: false,
            zero_copy,
        }));
        Ok(())
    }

    fn exchange(&mut self) -> Result<(), Fault> {
        for _ in 0..MOST_FRAMES {
            let up = self.up_mut()?;
            if !up.has_news {
                break;
            }
            let Some(header) = up.conn.header()? else {
                up.has_news = false;
                break;
            };
            self.take(&header)?;
            if self.is_finished || self.content.is_some() {
                // The receiver waits for the sender to close the connection.
                self.link = Link::Down { until: Instant::now() };
                return Ok(());
            }
        }
        self.transmit()?;
        let up = self.up_mut()?;
        let (heard, is_welcome) = (up.heard, up.is_welcome);
        // A peer that decides when it comes may not have come yet.
        if !is_welcome && self.waits() {
            return Ok(());
        }
        Ok(self.check_silence(heard)?)
    }

    fn up_mut(&mut self) -> Result<&mut Up> {
        match &mut self.link {
            Link::Up(up) => Ok(up),
            _ => Err(Error::new("use", self.name.clone(), Errno::NOTCONN)),
        }
    }

    /// Handles a frame of the receiver.
    fn take(&mut self, header: &Header) -> Result<(), Fault> {
        let own = header.stream == self.stream;
        frame::require("stream", own, || format!("{:#x}", header.stream))?;
        let now = Instant::now();
        match (header.kind, self.up_mut()?.is_welcome) {
            (Kind::Refusal, _) => self.refused(header)?,
            (Kind::Welcome, false) => self.welcome(header.sequence)?,
            (Kind::Ack, true) => self.acknowledge(header.sequence)?,
            (kind, _) => return Err(frame::bad("kind", format!("{kind:?}")).into()),
        }
        self.heard = now;
        if let Link::Up(up) = &mut self.link {
            up.heard = now;
        }
        Ok(())
    }

    /// The receiver has all blocks before `sequence`.
    fn welcome(&mut self, sequence: u64) -> Result<()> {
        let (first, len) = (self.first, self.queue.len());
        let cursor = sequence.checked_sub(first).and_then(|had| usize::try_from(had).ok());
        let cursor = cursor.filter(|cursor| *cursor <= len);
        let cursor = cursor.ok_or_else(|| frame::bad("sequence", sequence))?;
        self.counts.connections += 1;
        self.told = Told::default();
        let again = self.queue.iter().skip(cursor).filter(|queued| queued.was_begun).count();
        self.counts.resent += again as u64;
        if let Route::Tcp(tcp) = &mut self.route {
            tcp.forget();
        }
        let up = self.up_mut()?;
        (up.cursor, up.is_welcome) = (cursor, true);
        Ok(())
    }

    /// The receiver has taken over all blocks before `sequence`.
    fn acknowledge(&mut self, sequence: u64) -> Result<()> {
        let bad = || frame::bad("sequence", sequence);
        let first = self.first;
        let taken = sequence.checked_sub(first).and_then(|taken| usize::try_from(taken).ok());
        let taken = taken.ok_or_else(bad)?;
        let up = self.up_mut()?;
        let (sent, end_is_sent) = (up.cursor, up.end_is_sent);
        if end_is_sent && taken == sent + 1 {
            self.let_go(sent);
            self.first = sequence - 1;
            self.is_finished = true;
            return Ok(());
        }
        if taken > sent {
            return Err(bad());
        }
        up.cursor -= taken;
        self.let_go(taken);
        self.first = sequence;
        if taken > 0 {
            (self.pause, self.fruitless) = (Duration::ZERO, 0);
        }
        Ok(())
    }

    /// Lets the first blocks go. A peer may say that it has one that it has not read: whoever fills that block next would
    /// wait for the peer.
    fn let_go(&mut self, count: usize) {
        let Self { link, queue, held, .. } = self;
        held.extend(queue.drain(..count).filter(|queued| link.holds(queued)));
    }

    /// Sends as much as there is room for.
    fn transmit(&mut self) -> Result<()> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        let up = &mut **up;
        if let Some(socket) = up.conn.socket() {
            let failed = |errno| up.conn.failed("write to", errno);
            self.counts.copied += up.zero_copy.reap(socket).map_err(failed)?;
        }
        up.conn.flush()?;
        if !up.is_welcome || !up.conn.is_flushed() {
            return Ok(());
        }
        while let Some(queued) = self.queue.get_mut(up.cursor) {
            let progress = if queued.is_short() && up.conn.socket().is_some() {
                transmit::send_short(&up.conn, &mut self.queue, up.cursor, up.sent)?
            } else {
                queued.send_by(&mut up.conn, up.sent, &mut up.zero_copy)?
            };
            let Some(progress) = progress else { return Ok(()) };
            self.counts.copied += progress.copied;
            up.sent += progress.sent;
            up.spoke = Instant::now();
            while let Some(queued) = self.queue.get(up.cursor)
                && up.sent >= queued.len()
            {
                (up.cursor, up.sent) = (up.cursor + 1, up.sent - queued.len());
            }
        }
        if let (Some(lost), false) = (self.end, up.end_is_sent) {
            let sequence = self.first + self.queue.len() as u64;
            let end = Header { lost, ..Header::new(Kind::End, self.stream, sequence) };
            up.conn.say(&end.encode());
            up.end_is_sent = true;
            up.conn.flush()?;
        }
        self.say_alive()
    }

    /// Says that this end is there if there was nothing else to say for a while: only if its program lets it do so each
    /// time, since the receiver counts on that then.
    fn say_alive(&mut self) -> Result<()> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        let is_due = up.spoke.elapsed() >= BEAT && self.steady.elapsed() >= BEAT;
        if !is_due || up.end_is_sent || up.conn.socket().is_none() {
            return Ok(());
        }
        let sequence = self.first + self.queue.len() as u64;
        up.conn.say(&Header::new(Kind::Alive, self.stream, sequence).encode());
        up.spoke = Instant::now();
        up.conn.flush()
    }

    /// Reads the reason of a refusal, which is short and was sent in one piece.
    fn refused(&mut self, header: &Header) -> Result<(), Fault> {
        let mut reason = vec![0; header.len as usize];
        let read = self.up_mut().and_then(|up| up.conn.payload(BytesMut::from(&mut reason[..])));
        let known = matches!(read, Ok(Some(len)) if len == reason.len());
        let reason: String = if known && header.check(&reason).is_ok() {
            let printable = |c: char| if c.is_control() { '?' } else { c };
            String::from_utf8_lossy(&reason).chars().map(printable).collect()
        } else {
            "for a reason that could not be read".into()
        };
        let all = self.first + self.queue.len() as u64;
        if header.sequence == 0 || header.sequence != all {
            return Err(Fault::Stream(self.refusal(reason)));
        }
        self.let_go(self.queue.len());
        self.first = all;
        self.is_finished = self.end.is_some();
        self.content = Some(reason);
        Ok(())
    }

    fn refusal(&self, reason: String) -> Error {
        let why = io::Error::new(ErrorKind::ConnectionRefused, reason);
        Error::new("send the stream by", self.name.clone(), why).because(Reason::Refused)
    }

    fn check_silence(&self, since: Instant) -> Result<()> {
        if since.elapsed() < self.options.silence {
            return Ok(());
        }
        let why = io::Error::new(ErrorKind::TimedOut, "the receiver is silent");
        Err(Error::new("use", self.name.clone(), why))
    }

    /// Closes a connection that has failed; the next one is made after a pause.
    fn break_off(&mut self, error: Error) -> Result<()> {
        let mut is_trouble = true;
        match &self.link {
            Link::Connecting(conn) => conn.abort(),
            Link::Up(up) => {
                up.conn.abort();
                self.fruitless += u32::from(up.is_welcome);
                is_trouble = up.is_welcome || !up.conn.is_unopened();
            }
            Link::Down { .. } => {}
        }
        self.link = Link::Down { until: later(Instant::now(), self.pause) };
        self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        if self.fruitless > MOST_FRUITLESS {
            return Err(error.help("each connection fails like this before a block is taken over"));
        }
        if !self.waits_for_first() && self.heard.elapsed() >= self.options.patience {
            let there = match &self.route {
                Route::Tcp(_) => "tcp-listen:",
                Route::Port(_) => "usb:",
            };
            return Err(error.help(format!(
                "no frame of the receiver for {} s: does `busbar stream {there}` run there?",
                self.options.patience.as_secs_f32()
            )));
        }
        if is_trouble && self.told.is_new(&error) {
            self.trouble = Some(error);
        }
        Ok(())
    }
}

impl AsFd for FrameSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        match &self.link {
            Link::Up(up) if !self.is_finished => up.conn.abort(),
            _ => {}
        }
    }
}

fn resolve(target: &str) -> Result<Vec<SocketAddr>> {
    let found = target.to_socket_addrs().map(Vec::from_iter);
    let addresses = found.map_err(|why| {
        let is_wrong = why.kind() == ErrorKind::InvalidInput;
        let error = Error::new("find the address of", target, why);
        if is_wrong { error.help("allowed: HOST:PORT") } else { error }
    })?;
    if addresses.is_empty() {
        return Err(Error::invalid("the address", target, "HOST:PORT"));
    }
    Ok(addresses)
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags).map(drop))
        .map_err(|errno| Error::new("name", "a stream", errno))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;
    use crate::stream::{Source, StreamSetup};

    static PORT: AtomicU16 = AtomicU16::new(0);

    fn moved(_: &str) -> Result<Vec<SocketAddr>> {
        resolve(&format!("127.0.0.1:{}", PORT.load(Ordering::Relaxed)))
    }

    #[test]
    fn a_receiver_with_another_address_is_found_again() {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            PORT.store(listener.local_addr().unwrap().port(), Ordering::Relaxed);
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let (old, setup) = (listen(), StreamSetup::new());
        let source = Source::open("synth:counter", &setup).unwrap();
        let (format, len) = (source.format(), source.block_len());
        let mut sender =
            FrameSender::open_by(moved, "a.name:1", format, len, &Options::default()).unwrap();
        let mut accept = |listener: TcpListener| loop {
            sender.wait_timeout(Duration::from_millis(1)).unwrap();
            if let Ok((socket, _)) = listener.accept() {
                break socket;
            }
        };
        drop(accept(old));
        drop(accept(listen()));
    }
}
