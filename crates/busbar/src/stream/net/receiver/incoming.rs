//! Incoming connections, before and after the hello.

use std::io::ErrorKind;
use std::iter::once;
use std::time::{Duration, Instant};

use super::super::conn::Conn;
use super::super::options::Options;
use super::super::pieces::Gathered;
use super::landing::Room;
use crate::block::{Block, BytesMut};
use crate::stream::crc::crc32c;
use crate::stream::frame::{self, Header, Hello, Kind};
use crate::stream::samples::Parts;
use crate::{Error, Result};

/// Most connections without a hello; a further one replaces the oldest. No more are accepted in a turn, so that each is
/// heard once.
pub(super) const MAX_CALLERS: usize = 16;
/// How long to wait for a hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest time between two turns that counts as waiting for the sender: the watch ticks more often.
const LONGEST_TURN: Duration = Duration::from_millis(200);

/// How long a sender may be silent that tells neither its rate nor that it is there.
const UNKNOWN: Duration = Duration::from_secs(60);
/// Most frames without a block in a turn: the rest is read in the next one.
const MOST_ALIVE: usize = 64;

/// A connection that has not sent a hello yet.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) conn: Conn,
    header: Option<Header>,
    payload: Vec<u8>,
    filled: usize,
}

impl Caller {
    pub(super) fn new(conn: Conn) -> Self {
        Self { conn, header: None, payload: Vec::new(), filled: 0 }
    }

    /// The hello, once it has arrived.
    pub(super) fn hello(&mut self) -> Result<Option<(Header, Hello)>> {
        if self.header.is_none()
            && let Some(header) = self.conn.header()?
        {
            frame::require("kind", header.kind == Kind::Hello, || format!("{:?}", header.kind))?;
            self.payload = vec![0; header.len as usize];
            self.header = Some(header);
        }
        if let Some(header) = self.header {
            while self.filled < self.payload.len() {
                let rest = BytesMut::from(&mut self.payload[self.filled..]);
                let Some(count) = self.conn.payload(rest)? else { return self.wait() };
                self.filled += count;
            }
            header.check(&self.payload)?;
            return Ok(Some((header, Hello::decode(&self.payload)?)));
        }
        self.wait()
    }

    fn wait<T>(&self) -> Result<Option<T>> {
        if self.conn.since.elapsed() < PATIENCE {
            return Ok(None);
        }
        let why = std::io::Error::new(ErrorKind::TimedOut, "the peer has not sent a hello");
        Err(Error::new("use", self.conn.name.clone(), why))
    }
}

/// The connection of the sender.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) conn: Conn,
    /// The header of the next block, for which there was no room yet.
    pub(super) announced: Option<Header>,
    filling: Option<Filling>,
    /// The last acknowledgement.
    pub(super) acknowledged: Option<u64>,
    /// When that was sent.
    pub(super) beat: Instant,
    /// How long the sender was waited for within the frame that has begun.
    waited: Duration,
    /// How long it was waited for since the last frame.
    quiet: Duration,
    /// Whether it says that it is there while it has no block.
    beats: bool,
    /// How often it has said so in this turn.
    alive: usize,
    /// How long a block of it takes, if it tells its rate.
    block_time: Option<Duration>,
    /// The end of the last turn.
    turned: Instant,
    /// Whether the sender has ended the stream on this connection.
    pub(super) has_ended: bool,
    /// Whether the stream was refused: nothing may be sent after that.
    pub(super) is_refused: bool,
}

#[derive(Debug)]
struct Filling {
    header: Header,
    into: Into,
    filled: usize,
}

/// The memory that is filled.
#[derive(Debug)]
pub(super) enum Into {
    /// With the check sum of what was filled, where the header has one.
    Block(Block, u32),
    /// It came filled.
    Filled(Block),
    Parts(Gathered),
}

impl Into {
    /// Verifies the check sum of the block.
    pub(super) fn check(&self, header: &Header) -> Result<()> {
        let len = header.len as usize;
        match self {
            _ if header.check.is_none() => Ok(()),
            Self::Block(_, sum) => header.check_sum(*sum),
            Self::Filled(block) => header.check_parts(once(block.read()?.of(0..len).bytes())),
            Self::Parts(gathered) => header.check_parts(Parts::of(gathered.parts(), len)?.iter()),
        }
    }

    /// The room for another block.
    pub(super) fn room(self) -> Room {
        match self {
            Self::Block(block, _) | Self::Filled(block) => Room::Block(block),
            Self::Parts(_) => Room::Apart,
        }
    }
}

impl Incoming {
    /// `block_time`: how long the samples of a block take, if the sender tells.
    pub(super) fn new(conn: Conn, block_time: Option<Duration>) -> Self {
        let beat = Instant::now();
        Self {
            conn,
            announced: None,
            filling: None,
            acknowledged: None,
            beat,
            waited: Duration::ZERO,
            quiet: Duration::ZERO,
            beats: false,
            alive: 0,
            block_time,
            turned: beat,
            has_ended: false,
            is_refused: false,
        }
    }

    /// Whether a header is to be read next.
    pub(super) fn is_idle(&self) -> bool {
        self.announced.is_none() && self.filling.is_none()
    }

    pub(super) fn begin(&mut self, header: Header, room: Room) {
        self.announced = None;
        let into = match room {
            Room::Block(block) => Into::Block(block, 0),
            Room::Apart => Into::Parts(Gathered::default()),
        };
        self.filling = Some(Filling { header, into, filled: 0 });
    }

    /// The announced block has come in place.
    pub(super) fn end_in_place(&mut self) {
        self.announced = None;
        self.waited = Duration::ZERO;
    }

    /// Reads on. Returns the block once it is complete.
    pub(super) fn fill(&mut self) -> Result<Option<(Header, Into)>> {
        let Some(filling) = &mut self.filling else { return Ok(None) };
        if !filling.fill(&mut self.conn)? {
            self.conn.wait_for(filling.header.len as usize - filling.filled);
            return Ok(None);
        }
        self.waited = Duration::ZERO;
        self.conn.end_of_payload(filling.header.len as usize);
        Ok(self.filling.take().map(|filling| (filling.header, filling.into)))
    }

    /// At the end of a turn: fails if the sender takes too long for a frame that it has begun. It would keep others
    /// out otherwise. Time in which this end had no room, or no turn, does not count.
    pub(super) fn check_pace(&mut self, options: &Options) -> Result<()> {
        let turn = std::mem::replace(&mut self.turned, Instant::now()).elapsed();
        self.alive = 0;
        let len = match (&self.filling, self.announced) {
            (Some(filling), _) => filling.header.len,
            // It comes in place.
            (None, Some(header)) if self.conn.has_given() => header.len,
            (None, Some(_)) => return Ok(()),
            (None, None) if self.conn.has_part() => 0,
            (None, None) => {
                self.waited = Duration::ZERO;
                return self.check_silence(turn, options);
            }
        };
        self.waited = self.waited.saturating_add(turn.min(LONGEST_TURN));
        if self.waited < options.frame_time(len) {
            return Ok(());
        }
        let why = std::io::Error::new(ErrorKind::TimedOut, "the sender does not complete a frame");
        Err(self.conn.failed("read from", why))
    }

    /// The sender has sent a header.
    pub(super) fn hear(&mut self) {
        self.quiet = Duration::ZERO;
    }

    /// The sender says that it is there. Returns whether to read on in this turn.
    pub(super) fn hear_alive(&mut self) -> bool {
        (self.beats, self.alive) = (true, self.alive + 1);
        self.alive < MOST_ALIVE
    }

    /// At the end of a turn without a frame: fails if the sender has sent none for too long. Over USB there is no other
    /// that it would keep out.
    fn check_silence(&mut self, turn: Duration, options: &Options) -> Result<()> {
        if self.has_ended || self.is_refused || self.conn.socket().is_none() {
            return Ok(());
        }
        self.quiet = self.quiet.saturating_add(turn.min(LONGEST_TURN));
        let slow = self.block_time.map_or(UNKNOWN, |time| time.saturating_mul(4));
        let limit = options.silence;
        let limit = if self.beats { limit } else { limit.max(slow) };
        if self.quiet < limit {
            return Ok(());
        }
        let why = format!("the sender has been silent for {} s", limit.as_secs_f32());
        Err(self.conn.failed("read from", std::io::Error::new(ErrorKind::TimedOut, why)))
    }

    /// The room of blocks that were being filled.
    pub(super) fn take_rooms(&mut self) -> impl Iterator<Item = Room> + use<> {
        let filling = self.filling.take().map(|filling| filling.into.room());
        filling.into_iter().chain(self.conn.reclaim().into_iter().map(Room::Block))
    }
}

impl Filling {
    /// Reads on. Returns whether the block is complete.
    fn fill(&mut self, conn: &mut Conn) -> Result<bool> {
        let Self { header, into, filled } = self;
        let len = header.len as usize;
        match into {
            Into::Block(block, sum) => {
                let mut filling = block.write()?;
                read_on(filled, len, |from| {
                    let count = conn.payload(filling.bytes_mut().into_slice(from..len))?;
                    // They are in the processor's cache now.
                    if let (Some(count), Some(_)) = (count, header.check) {
                        *sum = crc32c(*sum, filling.bytes().slice(from..from + count));
                    }
                    Ok(count)
                })
            }
            Into::Filled(_) => Ok(true),
            Into::Parts(gathered) => read_on(filled, len, |from| conn.gather(gathered, len - from)),
        }
    }
}

/// Reads until it would wait. Returns whether there are `len` bytes.
fn read_on(
    filled: &mut usize,
    len: usize,
    mut read: impl FnMut(usize) -> Result<Option<usize>>,
) -> Result<bool> {
    while *filled < len {
        let Some(count) = read(*filled)? else { return Ok(false) };
        *filled += count;
    }
    Ok(true)
}
