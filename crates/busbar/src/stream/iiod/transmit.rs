//! A device to which a client transmits samples.

use std::io::ErrorKind;

use rustix::io::Errno;

use super::hub::errno;
use super::link::Link;
use crate::block::BytesMut;
use crate::stream::setup::Interface;
use crate::stream::sink::{Sink, Space};

/// Most bytes in one turn, so that others have theirs.
const BATCH: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Transmit {
    pub client: u64,
    sink: Sink,
    /// A block that is being filled, and how many bytes of it are.
    space: Option<(Space, usize)>,
    /// Samples that are to be repeated, while they come.
    cycle: Option<Vec<u8>>,
    is_cyclic: bool,
    /// Filled blocks that wait for the start, and how many bytes of each. `None` once it has started.
    early: Option<Vec<(Space, usize)>>,
    /// Blocks that were filled so far.
    filled: u64,
    /// What has failed after bytes were taken, which count.
    failed: Option<Errno>,
}

/// What a turn has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// So many bytes were received.
    Bytes(usize),
    /// The client has sent nothing more yet.
    NoBytes,
    /// The device has no room.
    NoRoom,
    /// The client has closed the connection.
    Closed,
}

impl Transmit {
    pub(super) fn new(sink: Sink, client: u64, is_cyclic: bool) -> Self {
        Self {
            client,
            sink,
            space: None,
            cycle: None,
            is_cyclic,
            early: None,
            filled: 0,
            failed: None,
        }
    }

    /// Keeps what comes until [`start`](Self::start).
    pub(super) fn wait_for_start(&mut self) {
        self.early = Some(Vec::new());
    }

    /// Transmits what has come before, and from now on at once.
    pub(super) fn start(&mut self) -> Result<(), Errno> {
        for (space, len) in self.early.take().into_iter().flatten() {
            space.send(len).map_err(|error| errno(&error))?;
        }
        if self.cycle.is_some() && self.is_cyclic { self.finish() } else { Ok(()) }
    }

    /// Whether what comes next is repeated.
    pub(super) fn set_cyclic(&mut self, is_cyclic: bool) -> Result<(), Errno> {
        if is_cyclic && self.sink.interface() != Interface::Dmabuf {
            return Err(Errno::PERM);
        }
        if self.early.is_some() && self.cycle.is_some() {
            // What is to be repeated from the start on.
            return Err(Errno::BUSY);
        }
        (self.is_cyclic, self.cycle) = (is_cyclic, None);
        Ok(())
    }

    /// Blocks that were filled, and how many of them were transmitted.
    pub(super) fn counts(&self) -> Result<(u64, u64), Errno> {
        self.sink.reap().map_err(|error| errno(&error))?;
        let early = self.early.as_ref().map_or(0, Vec::len) as u64;
        // A block that is being filled is no idle one either.
        let queued = (self.sink.queued() as u64).saturating_sub(u64::from(self.space.is_some()));
        Ok((self.filled, self.filled.saturating_sub(queued.max(early))))
    }

    /// Bytes of its blocks, and of what is collected to be repeated.
    pub(super) fn memory(&self) -> usize {
        let cycle = if self.is_cyclic { self.sink.block_len() + 1 } else { 0 };
        self.sink.blocks() * self.sink.block_len() + cycle
    }

    pub(super) fn blocks(&self) -> usize {
        self.sink.blocks()
    }

    /// Bytes of a sample and of a block.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.sink.format().sample_len, self.sink.block_len())
    }

    /// Takes what the client sends, first `ahead` and then from its connection: up to `left` bytes.
    pub(super) fn fill(
        &mut self,
        ahead: &mut Vec<u8>,
        link: &mut Link,
        left: usize,
    ) -> Result<Progress, Errno> {
        let mut done = 0;
        self.failed.take().map_or(Ok(()), Err)?;
        while done < left && done < BATCH && self.failed.is_none() {
            let step = if self.is_cyclic {
                self.collect(ahead, link, left - done)
            } else {
                self.fill_block(ahead, link, left - done)
            };
            match step {
                Ok(Progress::Bytes(count)) => done += count,
                other if done == 0 => return other,
                Ok(_) => break,
                Err(errno) => self.failed = Some(errno),
            }
        }
        Ok(Progress::Bytes(done))
    }

    fn fill_block(
        &mut self,
        ahead: &mut Vec<u8>,
        link: &mut Link,
        left: usize,
    ) -> Result<Progress, Errno> {
        if self.space.is_none() {
            let space = self.sink.try_space().map_err(|error| errno(&error))?;
            let Some(space) = space else {
                // Only the start makes room, which the client says after this.
                let waits = self.early.is_some();
                return if waits { Err(Errno::NOBUFS) } else { Ok(Progress::NoRoom) };
            };
            self.space = Some((space, 0));
        }
        let Some((space, at)) = &mut self.space else { return Ok(Progress::NoRoom) };
        let most = left.min(space.len() - *at);
        let mut writing = space.write().map_err(|error| errno(&error))?;
        let mut bytes = writing.bytes_mut();
        let mut to = bytes.slice(*at..*at + most);
        let progress = take(ahead, link, &mut to, left)?;
        let Progress::Bytes(count) = progress else { return Ok(progress) };
        drop(writing);
        *at += count;
        if *at == space.len() {
            self.failed = self.send().err();
        }
        Ok(Progress::Bytes(count))
    }

    fn collect(
        &mut self,
        ahead: &mut Vec<u8>,
        link: &mut Link,
        left: usize,
    ) -> Result<Progress, Errno> {
        let len = self.sink.block_len();
        let cycle = self.cycle.get_or_insert_default();
        // What does not fit is refused at the end.
        let mut piece = vec![0; left.min(64 << 10)];
        let progress = take(ahead, link, &mut BytesMut::from(piece.as_mut_slice()), left)?;
        let Progress::Bytes(count) = progress else { return Ok(progress) };
        let fits = count.min((len + 1).saturating_sub(cycle.len()));
        // As much as counts as its memory, not what a vector that grows would take.
        cycle.try_reserve_exact(len + 1 - cycle.len()).map_err(|_| Errno::NOMEM)?;
        cycle.extend_from_slice(&piece[..fits]);
        Ok(Progress::Bytes(count))
    }

    /// Sends what there is of a block: whole samples.
    fn send(&mut self) -> Result<(), Errno> {
        let Some((space, at)) = self.space.take() else { return Ok(()) };
        let (sample_len, _) = self.lengths();
        let len = at - at % sample_len;
        if len == 0 {
            return Ok(());
        }
        self.filled += 1;
        if let Some(early) = &mut self.early {
            early.push((space, len));
            return Ok(());
        }
        space.send(len).map_err(|error| errno(&error))
    }

    /// The client has sent all that it has announced.
    pub(super) fn finish(&mut self) -> Result<(), Errno> {
        self.failed.take().map_or(Ok(()), Err)?;
        if self.early.is_some() && self.is_cyclic {
            return Ok(());
        }
        if let Some(cycle) = self.cycle.take() {
            let (sample_len, _) = self.lengths();
            let len = cycle.len() - cycle.len() % sample_len;
            return self.sink.cyclic(&cycle[..len]).map_err(|error| errno(&error));
        }
        self.send()
    }

    /// Whether everything was transmitted. What is repeated never is.
    pub(super) fn is_drained(&self) -> Result<bool, Errno> {
        if self.is_cyclic {
            return Ok(true);
        }
        self.sink.try_drain().map_err(|error| errno(&error))
    }
}

/// Fills `to` with what was read `ahead`, or else with what has come, of `left` bytes.
fn take(
    ahead: &mut Vec<u8>,
    link: &mut Link,
    to: &mut BytesMut<'_>,
    left: usize,
) -> Result<Progress, Errno> {
    if !ahead.is_empty() {
        let count = to.len().min(ahead.len());
        to.slice(..count).copy_from(&ahead[..count]);
        ahead.drain(..count);
        return Ok(Progress::Bytes(count));
    }
    match link.receive_into(to.slice(..), left) {
        Ok(0) => Ok(Progress::Closed),
        Ok(count) => Ok(Progress::Bytes(count)),
        Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(Progress::NoBytes),
        Err(why) if why.kind() == ErrorKind::Interrupted => Ok(Progress::Bytes(0)),
        Err(why) => Err(Errno::from_io_error(&why).unwrap_or(Errno::IO)),
    }
}
