//! The receiving end of a stream.

mod incoming;
mod landing;
mod taken;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use self::incoming::{Caller, Incoming, Into, MAX_CALLERS};
use self::landing::{Landing, Room};
use self::taken::Taken;
use super::bind;
use super::conn::{Conn, Inflow, Told};
use super::options::{BEAT, Options};
use super::pool::Pool;
use super::time::from_nanoseconds;
use super::watch::{Token, Watch};
#[cfg(feature = "usb")]
use super::wire::Port;
use crate::block::{Block, Memory};
use crate::poll::{self, Deadline, later};
use crate::receive;
use crate::stream::format::{Format, Lost, Meta};
use crate::stream::frame::{self, Header, Hello, Kind, MAX_REFUSAL};
use crate::stream::samples::Samples;
use crate::stream::setup::StreamSetup;
use crate::{Error, Result};

const LISTENER: Token = 0;
const POOL: Token = 1;
/// The first token of a connection.
const FIRST_CONNECTION: Token = 2;
/// Most blocks that are read and discarded at a time, as a sender may never stop.
const MOST_DISCARDED: usize = 16;
/// Blocks that are there are handed out for so long before the next turn: one acknowledgement for all of them.
const COMBINED: Duration = Duration::from_millis(1);
/// How long a connection that is not a socket is kept for the sender to learn that it was refused.
const LINGER: Duration = Duration::from_millis(200);
/// How long to wait at the end for the sender to close the connection.
const FAREWELL: Duration = Duration::from_secs(2);

/// Receives the blocks of one [`FrameSender`](super::FrameSender); see [the module](super).
///
/// A block is acknowledged, and used again, once the program has dropped it.
#[derive(Debug)]
pub struct FrameReceiver {
    // Connections before what makes them, so that they are dropped first.
    callers: VecDeque<Caller>,
    /// The connection of the first sender until it is admitted.
    asked: Option<Conn>,
    /// A connection that was refused and is kept until the sender knows so, and for how long.
    parting: Option<(Conn, Instant)>,
    link: Option<Incoming>,
    name: String,
    landing: Landing,
    watch: Watch,
    setup: StreamSetup,
    count: Count,
    options: Options,
    next_token: Token,
    /// Whether connections may wait to be accepted.
    knocks: bool,
    /// Whether the first sender is welcomed only once the program has admitted it.
    asks: bool,
    stream: Option<Stream>,
    ready: VecDeque<Samples>,
    /// When there was last a connection.
    heard: Instant,
    /// The last turn.
    advanced: Instant,
    trouble: Option<Error>,
    told: Told,
    /// Whether no connection is accepted any more.
    is_closed: bool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    corrupted: u64,
    /// Shared with blocks whose parts may be put together.
    copied: Arc<AtomicU64>,
}

/// How many blocks a receiver has: a number, and so many times as are [enough](StreamSetup::enough) of the length
/// that the sender has chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub fixed: usize,
    pub suited: usize,
}

impl Count {
    fn of(setup: &StreamSetup) -> Self {
        setup.blocks.map_or(Self { fixed: 0, suited: 1 }, |fixed| Self { fixed, suited: 0 })
    }

    /// The number for blocks of `len` bytes. If they do not fit, there are fewer, but not fewer than are enough
    /// of long ones.
    fn blocks(self, len: usize, fits: impl Fn(usize) -> bool) -> usize {
        let least = StreamSetup::enough(usize::MAX);
        let all = |each: usize| (self.fixed + self.suited * each).min(StreamSetup::MAX_BLOCKS);
        let mut each = StreamSetup::enough_of(len, self.suited);
        while each > least && !fits(all(each)) {
            each -= 1;
        }
        all(each)
    }
}

/// What is known of the stream, over all its connections.
#[derive(Debug)]
struct Stream {
    id: u64,
    hello: Hello,
    pool: Pool<Room>,
    blocks: usize,
    /// The first block that has not come.
    next: u64,
    taken: Taken,
    /// Whether the next block is the first of another sender.
    is_broken: bool,
    end: Option<Lost>,
    /// When the end was acknowledged.
    farewell: Option<Instant>,
}

impl FrameReceiver {
    /// Listens on `address`: `PORT` on every interface, or `HOST:PORT`. `?silence=TIME` behind it, such as
    /// `4950?silence=5s`, takes the place of [`Options::silence`]. `setup` determines the number of
    /// blocks and their memory; the sender determines their length.
    ///
    /// # Errors
    ///
    /// Bad input for an invalid address; `EADDRINUSE`, `EACCES`; as [`Block::with`].
    pub fn listen(address: &str, setup: &StreamSetup, options: &Options) -> Result<Self> {
        setup.check()?;
        let (address, options) = options.of_name(address)?;
        // Fails now, not at the first connection, if there is no such memory.
        drop(Block::with(1, setup.memory.as_ref().unwrap_or(&Memory::Memfd))?);
        let name = format!("port {address}");
        let failed = |why: std::io::Error| {
            let is_wrong = why.kind() == ErrorKind::InvalidInput;
            let error = Error::new("listen on", name.clone(), why);
            if is_wrong { error.help("allowed: PORT or HOST:PORT") } else { error }
        };
        let listener = bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Self::new(name, Landing::Blocks(listener), setup, &options)
    }

    /// Listens on `address` by `receiver`. Blocks stay where it has put them, in [parts](Samples::parts);
    /// dropping one frees its memory. `setup` determines how many blocks are handed out at a time; see
    /// [Device memory](super#device-memory).
    ///
    /// # Errors
    ///
    /// Bad input for an invalid number of blocks; as [`receive::Receiver::listen`].
    pub fn over(
        receiver: receive::Receiver,
        address: SocketAddr,
        setup: &StreamSetup,
        options: &Options,
    ) -> Result<Self> {
        setup.check()?;
        let listener = receiver.listen(address)?;
        let landing = Landing::Memory { listener, receiver: Box::new(receiver) };
        Self::new(format!("port {address}"), landing, setup, options)
    }

    /// As [`listen`](Self::listen), over connections that `port` makes; `name` is for errors.
    #[cfg(feature = "usb")]
    pub(crate) fn through(
        port: Box<dyn Port>,
        name: String,
        setup: &StreamSetup,
        options: &Options,
    ) -> Result<Self> {
        setup.check()?;
        drop(Block::with(1, setup.memory.as_ref().unwrap_or(&Memory::Memfd))?);
        Self::new(name, Landing::Port(port), setup, options)
    }

    fn new(name: String, landing: Landing, setup: &StreamSetup, options: &Options) -> Result<Self> {
        options.check()?;
        let watch = Watch::new()?;
        watch.add(&landing, LISTENER)?;
        Ok(Self {
            name,
            landing,
            watch,
            setup: setup.clone(),
            count: Count::of(setup),
            options: options.clone(),
            next_token: FIRST_CONNECTION,
            knocks: true,
            callers: VecDeque::new(),
            asks: false,
            asked: None,
            parting: None,
            link: None,
            stream: None,
            ready: VecDeque::new(),
            heard: Instant::now(),
            advanced: Instant::now(),
            trouble: None,
            told: Told::default(),
            is_closed: false,
            counts: Counts::default(),
        })
    }

    /// The address on which it listens.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.landing.local_addr()
    }

    /// The receiver that was given to [`over`](Self::over), for its statistics.
    #[must_use]
    pub fn receiver(&self) -> Option<&receive::Receiver> {
        match &self.landing {
            Landing::Blocks(_) | Landing::Port(_) => None,
            Landing::Memory { receiver, .. } => Some(receiver),
        }
    }

    /// What a sample looks like, once a sender has connected.
    #[must_use]
    pub fn format(&self) -> Option<&Format> {
        self.stream.as_ref().map(|stream| &stream.hello.format)
    }

    /// Bytes of the longest block, once a sender has connected.
    #[must_use]
    pub fn block_len(&self) -> Option<usize> {
        self.stream.as_ref().map(|stream| stream.hello.len())
    }

    /// Whether the stream has ended, everything was taken over here, and the sender knows so.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let Some(Stream { farewell: Some(since), .. }) = self.stream else { return false };
        let knows = self.link.as_ref().is_none_or(|link| link.conn.is_delivered());
        knows || since.elapsed() > FAREWELL
    }

    /// What was lost after the last block, once the sender has ended the stream.
    #[must_use]
    pub fn end(&self) -> Option<Lost> {
        self.stream.as_ref()?.end
    }

    /// Bytes of blocks that a processor has copied, each time it has.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.counts.copied.load(Ordering::Relaxed)
    }

    /// Number of connections after the first one.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.counts.connections.saturating_sub(1)
    }

    /// Invalid frames, including those with a wrong check sum. Each has ended its connection.
    #[must_use]
    pub fn corrupted(&self) -> u64 {
        self.counts.corrupted
    }

    /// The last error of a connection since the last call; the stream goes on.
    pub fn take_trouble(&mut self) -> Option<Error> {
        self.trouble.take()
    }

    /// The next block; `None` at the [end](Self::is_finished). Waits without a limit.
    ///
    /// # Errors
    ///
    /// The error of the last connection if the sender has not come back within [`Options::patience`].
    #[allow(clippy::should_implement_trait)] // fails, and waits
    pub fn next(&mut self) -> Result<Option<Samples>> {
        self.next_until(Deadline::NEVER)
    }

    /// The next block, or `None` if it is not complete now.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn try_next(&mut self) -> Result<Option<Samples>> {
        self.next_until(Deadline::now())
    }

    /// The next block; `None` if none came within `timeout`, and at the [end](Self::is_finished).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Samples>> {
        self.next_until(Deadline::after(timeout))
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<Samples>> {
        loop {
            if self.ready.is_empty() || self.advanced.elapsed() >= COMBINED {
                self.advance()?;
            }
            if let Some(samples) = self.ready.pop_front() {
                return Ok(Some(samples));
            }
            if self.is_finished() || deadline.has_passed() {
                return Ok(None);
            }
            poll::wait(&self.watch, PollFlags::IN, deadline.remaining())
                .map_err(|errno| Error::new("wait for", self.name.clone(), errno))?;
        }
    }

    /// Refuses the sender's stream, for a reason. The sender does not come back. To have it read the refusal, go
    /// on to [`advance`](Self::advance).
    pub fn refuse(&mut self, reason: &str) {
        self.refuse_from(0, reason);
    }

    /// From now on, the first sender waits until it is [admitted](Self::admit) or [rejected](Self::reject). Its
    /// format is known by then.
    pub(crate) fn ask_first(&mut self) {
        self.asks = true;
    }

    /// Sets the number of blocks.
    pub(crate) fn set_count(&mut self, count: Count) {
        self.count = count;
    }

    /// The number of blocks, once a sender has connected.
    pub(crate) fn blocks(&self) -> Option<usize> {
        self.stream.as_ref().map(|stream| stream.blocks)
    }

    pub(crate) fn memory_limit(&self) -> usize {
        self.options.memory_limit
    }

    /// Whether a sender waits to be admitted.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Welcomes the sender that waits.
    pub(crate) fn admit(&mut self) {
        self.asks = false;
        if let Some(conn) = self.asked.take()
            && let Err(error) = self.welcome(conn)
        {
            self.note(error);
        }
    }

    /// Refuses the sender that waits, and forgets its stream: the next sender is the first one.
    pub(crate) fn reject(&mut self, reason: &str) {
        self.refuse(reason);
        self.stream = None;
    }

    fn refuse_from(&mut self, sequence: u64, reason: &str) {
        if let Some(stream) = &self.stream
            && let Some(mut conn) = self.asked.take()
        {
            refuse(&mut conn, stream.id, sequence, reason);
            self.part_from(conn);
        }
        if let (Some(link), Some(stream)) = (&mut self.link, &self.stream) {
            refuse(&mut link.conn, stream.id, sequence, reason);
            link.is_refused = true;
        }
    }

    /// Drops a connection that was refused once the sender knows so. There is one of a kind that has to be kept.
    fn part_from(&mut self, mut conn: Conn) {
        if conn.lingers() {
            self.parting = Some((conn, later(Instant::now(), LINGER)));
        }
    }

    /// As [`refuse`](Self::refuse), and no other sender is accepted; further blocks are discarded.
    pub(crate) fn leave(&mut self, reason: &str) {
        self.refuse(reason);
        self.close();
    }

    /// As [`leave`](Self::leave), once all blocks that were wanted have come: a sender that has no more has
    /// succeeded.
    pub(crate) fn leave_content(&mut self, reason: &str) {
        let sequence = self.stream.as_ref().map_or(0, |stream| stream.next);
        // Blocks that were not taken out do not count.
        self.refuse_from(sequence.saturating_sub(self.ready.len() as u64), reason);
        self.close();
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.callers.clear();
        self.ready.clear();
    }

    /// After [`leave`](Self::leave): whether the sender has closed the connection, or there is none that has to be told.
    pub(crate) fn has_left(&mut self) -> bool {
        for _ in 0..MOST_DISCARDED {
            if self.link.is_none() && self.parting.is_none() {
                return true;
            }
            match self.try_next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return true,
            }
        }
        self.link.is_none() && self.parting.is_none()
    }

    /// Does what can be done without waiting. [`next`](Self::next) calls this, at least once a millisecond while there
    /// are blocks.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn advance(&mut self) -> Result<()> {
        let news = self.watch.take()?;
        self.advanced = Instant::now();
        self.knocks |= news.has(LISTENER);
        self.parting.take_if(|(conn, until)| Instant::now() >= *until || !conn.lingers());
        if let Landing::Port(port) = &mut self.landing {
            // One connection at a time.
            let is_free = self.link.is_none()
                && self.asked.is_none()
                && self.parting.is_none()
                && self.callers.is_empty();
            if !is_free && self.knocks {
                port.hear();
            }
            self.knocks = is_free;
        }
        if self.knocks && !self.is_closed {
            self.accept();
        }
        self.hear_callers()?;
        let Some(mut link) = self.link.take() else { return self.check_patience() };
        self.heard = Instant::now();
        match self.exchange(&mut link) {
            Ok(()) => self.link = Some(link),
            Err(error) => self.break_off(&link, error)?,
        }
        Ok(())
    }

    fn accept(&mut self) {
        for _ in 0..MAX_CALLERS {
            match self.landing.accept() {
                Ok(Some(inflow @ Inflow::Wire(_))) => {
                    self.greet(inflow);
                    // There is no other one at a time.
                    self.knocks = false;
                    return;
                }
                Ok(Some(inflow)) => self.greet(inflow),
                Ok(None) => {
                    self.knocks = false;
                    return;
                }
                // One connection has failed, or there is no free descriptor: later connections may work.
                Err(error) => {
                    if self.told.is_new(&error) {
                        self.trouble = Some(error);
                    }
                    return;
                }
            }
        }
    }

    fn greet(&mut self, inflow: Inflow) {
        // The peer has gone already.
        let Ok(name) = inflow.peer() else { return };
        match Conn::new(inflow, &name, &self.watch, self.next_token) {
            Ok(conn) => {
                if self.callers.len() >= MAX_CALLERS {
                    self.callers.pop_front();
                }
                self.callers.push_back(Caller::new(conn));
            }
            Err(error) => self.trouble = Some(error),
        }
        self.next_token += 1;
    }

    /// Reads from connections that have not sent a hello yet.
    fn hear_callers(&mut self) -> Result<()> {
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.hello() {
                Ok(None) => self.callers.push_back(caller),
                Ok(Some((header, hello))) => self.answer(caller.conn, &header, hello)?,
                Err(_) if caller.conn.is_unopened() => {}
                Err(error) => self.note(error),
            }
        }
        Ok(())
    }

    fn note(&mut self, error: Error) {
        self.counts.corrupted += u64::from(error.kind() == ErrorKind::InvalidData);
        self.trouble = Some(error);
    }

    /// Welcomes or refuses a connection that has sent a hello.
    fn answer(&mut self, mut conn: Conn, header: &Header, hello: Hello) -> Result<()> {
        let refusal = match &mut self.stream {
            None => self.begin(header, hello)?,
            Some(stream) => {
                let is_linked = self.link.is_some() || self.asked.is_some();
                stream.resume(header, &hello, is_linked).map(str::to_owned)
            }
        };
        if let Some(reason) = refusal {
            refuse(&mut conn, header.stream, 0, &reason);
            self.part_from(conn);
            return Ok(());
        }
        if self.asks {
            self.asked = Some(conn);
            return Ok(());
        }
        // An earlier connection of the same sender is at most half open.
        if let Some(old) = self.link.take() {
            self.drop_link(old);
        }
        if let Err(error) = self.welcome(conn) {
            self.note(error);
        }
        Ok(())
    }

    /// Begins the stream of the first sender; the reason if there is no room for it.
    fn begin(&mut self, header: &Header, hello: Hello) -> Result<Option<String>> {
        let (len, limit) = (hello.len(), self.options.memory_limit);
        let fits = |blocks| self.landing.fits(blocks, len, &self.setup, limit);
        let blocks = self.count.blocks(len, fits);
        let rooms = self.landing.rooms(blocks, len, &self.setup, limit);
        match rooms.and_then(|rooms| Stream::open(header, hello, rooms)) {
            Ok(opened) => {
                self.watch.add(&opened.pool, POOL)?;
                self.stream = Some(opened);
                Ok(None)
            }
            Err(error) => {
                self.trouble = Some(error);
                Ok(Some(self.landing.refusal(blocks, len, &self.setup, limit)))
            }
        }
    }

    fn welcome(&mut self, mut conn: Conn) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        conn.prepare()?;
        conn.limit_silence(&self.options)?;
        let like = stream.pool.take();
        let block = match &like {
            Some(Room::Block(block)) => Some(block),
            _ => None,
        };
        let settled = conn.settle(stream.hello.len(), block);
        if let Some(room) = like {
            stream.pool.put(room);
        }
        settled?;
        conn.say(&Header::new(Kind::Welcome, stream.id, stream.next).encode());
        conn.flush()?;
        stream.farewell = None;
        self.told = Told::default();
        self.counts.connections += 1;
        self.heard = Instant::now();
        self.link = Some(Incoming::new(conn, stream.hello.block_time()));
        Ok(())
    }

    fn drop_link(&mut self, mut link: Incoming) {
        if let Some(stream) = &self.stream {
            link.take_rooms().for_each(|room| stream.pool.put(room));
        }
    }

    fn break_off(&mut self, link: &Incoming, error: Error) -> Result<()> {
        link.conn.abort();
        let finished = self.stream.as_ref().is_some_and(|stream| stream.farewell.is_some());
        if !finished {
            self.note(error);
        }
        self.check_patience()
    }

    fn check_patience(&mut self) -> Result<()> {
        let begun = self.stream.as_ref().is_some_and(|stream| stream.farewell.is_none());
        let waits = begun && self.asked.is_none();
        if !waits || self.heard.elapsed() < self.options.patience || !self.ready.is_empty() {
            return Ok(());
        }
        let why = io::Error::new(ErrorKind::TimedOut, "the sender has not come back");
        let last = self.trouble.take();
        let error = Error::new(
            "receive the stream on",
            self.name.clone(),
            last.map_or(why, |last| {
                io::Error::new(
                    ErrorKind::TimedOut,
                    format!("the sender has not come back after: {last}"),
                )
            }),
        );
        Err(error)
    }

    /// Reads blocks as long as there are some and there is room, and acknowledges.
    fn exchange(&mut self, link: &mut Incoming) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let outcome = stream.exchange(link, &mut self.ready, &self.counts.copied, &self.options);
        if outcome.is_err() {
            link.take_rooms().for_each(|room| stream.pool.put(room));
        }
        outcome
    }
}

impl Stream {
    fn open(header: &Header, hello: Hello, rooms: Vec<Room>) -> Result<Self> {
        Ok(Self {
            id: header.stream,
            hello,
            blocks: rooms.len(),
            pool: Pool::new(rooms)?,
            next: header.sequence,
            taken: Taken::new(header.sequence),
            is_broken: false,
            end: None,
            farewell: None,
        })
    }

    /// Goes on with the stream of a sender; returns the reason if that is not possible.
    fn resume(&mut self, header: &Header, hello: &Hello, is_linked: bool) -> Option<&'static str> {
        if header.stream == self.id {
            // Otherwise the sender no longer has blocks that were not taken over here.
            let knows = self.taken.next() >= header.sequence;
            return (!knows).then_some("blocks before those were never received");
        }
        if is_linked || self.end.is_some() {
            return Some("another sender's stream is received here");
        }
        if hello.format != self.hello.format || hello.block_len > self.hello.block_len {
            return Some("a stream of another format was begun here");
        }
        (self.id, self.next, self.is_broken) = (header.stream, header.sequence, true);
        self.taken.restart(header.sequence);
        None
    }

    fn exchange(
        &mut self,
        link: &mut Incoming,
        ready: &mut VecDeque<Samples>,
        copied: &Arc<AtomicU64>,
        options: &Options,
    ) -> Result<()> {
        loop {
            while let Some(samples) = self.receive(link, copied)? {
                ready.push_back(samples);
            }
            link.check_pace(options)?;
            // Blocks that came back meanwhile have no further event.
            if !self.acknowledge(link)? {
                return link.conn.check_flow(options);
            }
        }
    }

    /// The next block, or `None` if it is not complete or there is no room for it.
    fn receive(&mut self, link: &mut Incoming, copied: &Arc<AtomicU64>) -> Result<Option<Samples>> {
        loop {
            while link.conn.wants()
                && let Some(Room::Block(block)) = self.pool.take()
            {
                link.conn.give(block)?;
            }
            if link.is_idle() {
                let Some(header) = link.conn.header()? else {
                    link.conn.wait_for(1);
                    return Ok(None);
                };
                self.check(&header)?;
                link.hear();
                if header.kind == Kind::Alive {
                    if link.hear_alive() {
                        continue;
                    }
                    return Ok(None);
                }
                if header.kind == Kind::End {
                    // A sender that repeated it would keep this loop busy.
                    frame::require("kind", !link.has_ended, || "a second end")?;
                    link.has_ended = true;
                    self.end = Some(header.lost);
                    continue;
                }
                link.announced = Some(header);
            }
            if let Some(header) = link.announced.filter(|_| link.conn.is_in_place()) {
                let Some(block) = link.conn.take()? else { return Ok(None) };
                link.end_in_place();
                return self.hand_out(&header, Into::Filled(block), copied).map(Some);
            }
            if let Some(header) = link.announced {
                let Some(room) = self.pool.take() else {
                    link.conn.pause()?;
                    return Ok(None);
                };
                link.begin(header, room);
            }
            let Some((header, filled)) = link.fill()? else { return Ok(None) };
            let samples = self.hand_out(&header, filled, copied)?;
            return Ok(Some(samples));
        }
    }

    fn check(&self, header: &Header) -> Result<()> {
        let Header { kind, stream, sequence, len, .. } = *header;
        frame::require("stream", stream == self.id, || format!("{stream:#x}"))?;
        let sent = matches!(kind, Kind::Data | Kind::End | Kind::Alive) && self.end.is_none();
        let again = kind == Kind::End && self.end.is_some();
        frame::require("kind", sent || again, || format!("{kind:?}"))?;
        frame::require("sequence", sequence == self.next, || sequence)?;
        let sample = u32::try_from(self.hello.format.sample_len).unwrap_or(u32::MAX);
        let whole = len <= self.hello.block_len && len.is_multiple_of(sample);
        frame::require("payload length", whole, || len)
    }

    fn hand_out(
        &mut self,
        header: &Header,
        filled: Into,
        copied: &Arc<AtomicU64>,
    ) -> Result<Samples> {
        if let Err(error) = filled.check(header) {
            self.pool.put(filled.room());
            return Err(error);
        }
        let lost = if self.is_broken { Lost::Unknown } else { header.lost };
        self.is_broken = false;
        let (len, time) = (header.len as usize, from_nanoseconds(header.time));
        let meta = Meta { sequence: header.sequence, time, lost, len };
        self.next = header.sequence + 1;
        let tag = self.taken.expect(header.sequence);
        let moved = if matches!(filled, Into::Filled(_)) { 0 } else { len as u64 };
        Ok(match filled {
            Into::Block(block, _) | Into::Filled(block) => {
                copied.fetch_add(moved, Ordering::Relaxed);
                self.pool.hand_out(block, meta, self.blocks, tag)
            }
            Into::Parts(gathered) => {
                let (parts, count) = gathered.into_parts();
                let back = self.pool.back(tag);
                copied.fetch_add(count, Ordering::Relaxed);
                Samples::scattered(parts, meta, copied, Box::new(move || back(Room::Apart)))
            }
        })
    }

    /// Acknowledges blocks that were taken over, and sends an acknowledgement each [`BEAT`] at least. Returns whether
    /// there is room again for a block that waits.
    fn acknowledge(&mut self, link: &mut Incoming) -> Result<bool> {
        let came_back = self.pool.returned(|tag| self.taken.add(tag));
        let has_room = came_back && (link.announced.is_some() || link.conn.wants());
        if link.is_refused {
            return Ok(has_room);
        }
        link.conn.flush()?;
        let taken = self.taken.next();
        let is_over = self.end.is_some() && taken == self.next;
        let acknowledged = if is_over { taken.saturating_add(1) } else { taken };
        let is_due = link.acknowledged != Some(acknowledged) || link.beat.elapsed() >= BEAT;
        if is_due && link.conn.is_flushed() {
            link.conn.say(&Header::new(Kind::Ack, self.id, acknowledged).encode());
            link.acknowledged = Some(acknowledged);
            link.beat = Instant::now();
            link.conn.flush()?;
        }
        if is_over && link.conn.is_flushed() {
            self.farewell.get_or_insert_with(Instant::now);
        }
        Ok(has_room)
    }
}

impl AsFd for FrameReceiver {
    /// Readable when [`advance`](Self::advance) has something to do, not only when there is a block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Sends a refusal. An error does not matter: the connection ends anyway.
fn refuse(conn: &mut Conn, stream: u64, sequence: u64, reason: &str) {
    let most = MAX_REFUSAL as usize;
    let end = (0..=most.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
    let reason = &reason.as_bytes()[..end.unwrap_or(0)];
    if let Ok(header) = Header::with_payload(Kind::Refusal, stream, sequence, reason) {
        conn.say(&header.encode());
        conn.say(reason);
        let _ = conn.flush();
        conn.close_gently();
    }
}

#[cfg(all(test, feature = "usb"))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::block::BytesMut;
    use crate::poll::Bell;
    use crate::stream::Source;
    use crate::stream::frame::HEADER_LEN;
    use crate::stream::net::Wire;

    /// A peer that sends a hello, and takes the answer once it is told to.
    #[derive(Debug)]
    struct Slow {
        bytes: VecDeque<u8>,
        bell: Bell,
        takes: Arc<AtomicBool>,
        written: usize,
    }

    impl Wire for Slow {
        fn read(&mut self, mut into: BytesMut<'_>) -> io::Result<usize> {
            let count = into.len().min(self.bytes.len());
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let bytes: Vec<_> = self.bytes.drain(..count).collect();
            into.slice(..count).copy_from(&bytes);
            Ok(count)
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written += bytes.len();
            Ok(bytes.len())
        }

        fn send(&mut self, _: &[u8; HEADER_LEN], _: &Samples) -> io::Result<u64> {
            Err(ErrorKind::Unsupported.into())
        }

        fn settle(&mut self, _: usize, _: Option<&Block>) -> io::Result<()> {
            Ok(())
        }

        fn padding(&self, _: usize) -> usize {
            0
        }

        fn stalled(&self) -> Option<Instant> {
            None
        }

        fn lingers(&mut self) -> bool {
            self.written > 0 && !self.takes.load(Ordering::Relaxed)
        }

        fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.bell.as_fd()]
        }
    }

    /// Has one such peer.
    #[derive(Debug)]
    struct One(Option<Box<dyn Wire>>, Bell);

    impl Port for One {
        fn open(&mut self) -> Result<Option<Box<dyn Wire>>> {
            Ok(self.0.take())
        }

        fn waits(&self) -> bool {
            true
        }

        fn hear(&mut self) {}

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    #[test]
    fn a_peer_that_is_refused_is_kept_until_it_knows_and_nobody_waits_for_it() {
        let setup = StreamSetup::new();
        let source = Source::open("synth:counter", &setup).unwrap();
        let block_len = u32::try_from(source.block_len()).unwrap();
        let hello = Hello { format: source.format().clone(), block_len }.encode().unwrap();
        let header = Header::with_payload(Kind::Hello, 1, 0, &hello).unwrap();
        let takes = Arc::new(AtomicBool::new(false));
        let slow = Slow {
            bytes: [&header.encode()[..], &hello].concat().into(),
            bell: Bell::new().unwrap(),
            takes: Arc::clone(&takes),
            written: 0,
        };
        let (seen, port) =
            (Arc::downgrade(&takes), One(Some(Box::new(slow)), Bell::new().unwrap()));
        let options = Options::new().memory_limit(0);
        let mut receiver =
            FrameReceiver::through(Box::new(port), "a test".into(), &setup, &options).unwrap();
        receiver.advance().unwrap();
        assert!(receiver.parting.is_some(), "{receiver:?}");
        takes.store(true, Ordering::Relaxed);
        drop(takes);
        receiver.advance().unwrap();
        assert_eq!(seen.strong_count(), 0);
    }
}
