//! Connections of those who have said hello, and of those who have not.

use std::time::{Duration, Instant};

use super::super::conn::Conn;
use super::super::pieces::Gathered;
use super::landing::Room;
use crate::block::Block;
use crate::stream::Parts;
use crate::stream::frame::{self, Header, Hello, Kind};
use crate::{Error, Result};

/// Connections without a hello that are kept; the oldest has to go for a new one.
pub(super) const MAX_CALLERS: usize = 16;
/// In which a hello has to come.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who has not said hello yet.
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

    /// The hello, once it is there.
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
                let rest = &mut self.payload[self.filled..];
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
        let why = std::io::Error::new(std::io::ErrorKind::TimedOut, "it has not said hello");
        Err(Error::new("use", self.conn.name.clone(), why))
    }
}

/// The connection of the sender.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) conn: Conn,
    /// The block that comes next, and for which there was no room yet.
    pub(super) announced: Option<Header>,
    filling: Option<Filling>,
    /// What the sender was told, and when.
    pub(super) acknowledged: Option<u64>,
    pub(super) beat: Instant,
    /// The sender was told that this is the end: nothing may be said after that.
    pub(super) is_refused: bool,
}

#[derive(Debug)]
struct Filling {
    header: Header,
    into: Into,
    filled: usize,
}

/// What is filled.
#[derive(Debug)]
pub(super) enum Into {
    Block(Block),
    Parts(Gathered),
}

impl Into {
    /// Whether it is what the sender has sent.
    pub(super) fn check(&self, header: &Header) -> Result<()> {
        let len = header.len as usize;
        match self {
            Self::Block(block) => header.check(&block.read()?[..len]),
            Self::Parts(_) if header.check.is_none() => Ok(()),
            Self::Parts(gathered) => header.check_parts(Parts::of(gathered.parts(), len)?.iter()),
        }
    }

    /// For another one.
    pub(super) fn room(self) -> Room {
        match self {
            Self::Block(block) => Room::Block(block),
            Self::Parts(_) => Room::Apart,
        }
    }
}

impl Incoming {
    pub(super) fn new(conn: Conn) -> Self {
        let beat = Instant::now();
        Self { conn, announced: None, filling: None, acknowledged: None, beat, is_refused: false }
    }

    /// Whether a header comes next.
    pub(super) fn is_idle(&self) -> bool {
        self.announced.is_none() && self.filling.is_none()
    }

    pub(super) fn begin(&mut self, header: Header, room: Room) {
        self.announced = None;
        let into = match room {
            Room::Block(block) => Into::Block(block),
            Room::Apart => Into::Parts(Gathered::default()),
        };
        self.filling = Some(Filling { header, into, filled: 0 });
    }

    /// Reads on; the block once it is whole.
    pub(super) fn fill(&mut self) -> Result<Option<(Header, Into)>> {
        let Some(filling) = &mut self.filling else { return Ok(None) };
        if !filling.fill(&mut self.conn)? {
            return Ok(None);
        }
        Ok(self.filling.take().map(|filling| (filling.header, filling.into)))
    }

    /// What was being filled.
    pub(super) fn take_room(&mut self) -> Option<Room> {
        self.filling.take().map(|filling| filling.into.room())
    }
}

impl Filling {
    /// Reads on; whether it is whole.
    fn fill(&mut self, conn: &mut Conn) -> Result<bool> {
        let (len, filled) = (self.header.len as usize, &mut self.filled);
        match &mut self.into {
            Into::Block(block) => {
                let mut bytes = block.write()?;
                read_on(filled, len, |from| conn.payload(&mut bytes[from..len]))
            }
            Into::Parts(gathered) => read_on(filled, len, |from| conn.gather(gathered, len - from)),
        }
    }
}

/// Reads as long as something comes; whether `len` bytes are there.
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
