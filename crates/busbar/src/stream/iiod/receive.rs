//! A device from which clients receive samples. They share its blocks.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::hub::{Mask, SPARE, Who, errno};
use super::peer::Machine;
use crate::block::{Memory, Purpose};
use crate::stream::format::{Format, Lost};
use crate::stream::samples::Samples;
use crate::stream::setup::StreamSetup;
use crate::stream::sigmf::{Player, Recording};
use crate::stream::source::Source;
use crate::{Error, Result};

/// Most blocks in one turn, so that others have theirs.
const BATCH: usize = 16;
/// A source that fails with more blocks in a row has failed.
const MOST_FAILURES: u32 = 16;
/// A reader that has taken nothing for so long is not waited for, if there are others.
const STUCK: Duration = Duration::from_secs(1);
const NOTHING: Lost = Lost::Samples(0);

/// An open source.
#[derive(Debug)]
pub(super) enum Feed {
    Source(Source),
    Recording(Box<Player>),
}

impl Feed {
    /// Opens `iio:NAME` or `synth:PATTERN`.
    pub(super) fn open(name: &str, mut setup: StreamSetup) -> Result<Self> {
        if name.starts_with("iio:") {
            // So that the network takes it as it is.
            setup.memory = Some(Memory::choose(Purpose::Network));
        }
        Source::open(name, &setup).map(Self::Source)
    }

    pub(super) fn play(path: &Path, setup: &StreamSetup) -> Result<Self> {
        Player::new(Recording::open(path)?, setup).map(|player| Self::Recording(Box::new(player)))
    }

    pub(super) fn format(&self) -> &Format {
        match self {
            Self::Source(source) => source.format(),
            Self::Recording(player) => player.format(),
        }
    }

    fn block_len(&self) -> usize {
        match self {
            Self::Source(source) => source.block_len(),
            Self::Recording(player) => player.block_len(),
        }
    }

    fn next(&mut self) -> Result<Option<Samples>> {
        match self {
            Self::Source(source) => source.try_next(),
            Self::Recording(player) => player.try_next(),
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self, Self::Recording(player) if player.is_finished())
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Source(source) => source.as_fd(),
            Self::Recording(player) => player.as_fd(),
        }
    }
}

/// What samples look like, as clients are told.
#[derive(Debug)]
pub(super) struct Layout {
    pub mask: String,
    pub sample_len: usize,
}

impl Layout {
    pub(super) fn new(mask: &Mask, sample_len: usize) -> Arc<Self> {
        Arc::new(Self { mask: mask.text(), sample_len })
    }
}

/// A device from which samples are received.
#[derive(Debug)]
pub(super) struct Receive {
    /// `None` if samples are pushed, or there will be no more.
    feed: Option<Feed>,
    /// Why there will be no more.
    ended: Option<Errno>,
    /// The channels that are on.
    mask: Mask,
    layout: Arc<Layout>,
    pool: Pool,
    block_len: usize,
    /// Blocks that each reader may have now.
    window: usize,
    /// Whether samples are [pushed](Self::push).
    is_pushed: bool,
    /// Whether samples that nobody takes are lost. Otherwise the source waits.
    is_paced: bool,
    failures: u32,
    readers: Vec<Reader>,
}

/// The blocks of a source.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pool {
    /// Samples of a block.
    pub samples: usize,
    pub blocks: usize,
    /// Blocks that each reader may have, if there are enough.
    pub buffers: usize,
    /// What the server lacks for more blocks, so that another reader takes of those of the others.
    pub lack: Option<Errno>,
}

#[derive(Debug)]
struct Reader {
    who: Who,
    /// A part that is finished stays in front until the client asks for the next one: it may still be under way.
    queue: VecDeque<Part>,
    /// Blocks that were sent by reference, and that the client may not have read yet.
    held: VecDeque<Samples>,
    /// The same of sources before this one.
    old: VecDeque<Samples>,
    /// What is missing before the next part.
    lost: Lost,
    /// Whether no part has come yet.
    is_new: bool,
    /// Whether it cannot be told that there are further channels.
    is_fixed: bool,
    /// When it took samples last.
    taken: Instant,
}

/// A block, or the rest of it.
#[derive(Debug)]
struct Part {
    samples: Samples,
    at: usize,
    /// What is missing before it.
    lost: Lost,
    layout: Arc<Layout>,
}

/// Samples for a client.
#[derive(Debug)]
pub(super) struct Chunk {
    pub samples: Samples,
    pub range: Range<usize>,
    pub layout: Arc<Layout>,
}

/// The readers of a device while it is opened anew.
#[derive(Debug)]
pub(super) struct Waiting {
    pub mask: Mask,
    pub pool: Pool,
    readers: Vec<Reader>,
}

/// What a reader leaves behind that it may not have read.
#[derive(Debug)]
pub(super) struct Left {
    /// Blocks of the source.
    pub blocks: Vec<Samples>,
    /// Blocks of sources before.
    pub old: Vec<Samples>,
}

impl Receive {
    pub(super) fn new(feed: Feed, mask: &Mask, pool: Pool, is_paced: bool) -> Self {
        let layout = Layout::new(mask, feed.format().sample_len);
        Self {
            block_len: feed.block_len(),
            feed: Some(feed),
            ended: None,
            mask: mask.clone(),
            layout,
            pool,
            window: pool.buffers,
            is_pushed: false,
            is_paced,
            failures: 0,
            readers: Vec::new(),
        }
    }

    /// Samples come by [`push`](Self::push).
    pub(super) fn pushed(mask: &Mask, format: &Format, is_paced: bool) -> Self {
        Self {
            feed: None,
            ended: None,
            mask: mask.clone(),
            layout: Layout::new(mask, format.sample_len),
            pool: Pool::default(),
            block_len: 0,
            window: 0,
            is_pushed: true,
            is_paced,
            failures: 0,
            readers: Vec::new(),
        }
    }

    /// There are no samples.
    pub(super) fn failed(mask: &Mask, errno: Errno) -> Self {
        let format = Format { channels: Vec::new(), sample_len: 1, rate: None };
        Self { ended: Some(errno), ..Self::pushed(mask, &format, true) }
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.len()
    }

    pub(super) fn has(&self, client: u64) -> bool {
        self.readers.iter().any(|reader| reader.who.client == client)
    }

    pub(super) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(super) fn pool(&self) -> Pool {
        self.pool
    }

    /// Bytes of the blocks of the source, if they are the server's.
    pub(super) fn memory(&self) -> usize {
        self.blocks() * self.block_len
    }

    /// Blocks of the source, if they are the server's: those that are pushed are not.
    pub(super) fn blocks(&self) -> usize {
        if self.is_pushed { 0 } else { self.pool.blocks }
    }

    /// Samples a second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.feed.as_ref().and_then(|feed| feed.format().rate)
    }

    /// Blocks of the source that readers have and that cannot be taken from them.
    pub(super) fn kept(&self) -> usize {
        self.readers.iter().map(|reader| reader.kept(&self.layout)).sum()
    }

    /// Blocks of sources before that readers have not read.
    pub(super) fn old(&self) -> impl Iterator<Item = &Samples> {
        self.readers.iter().flat_map(|reader| reader.old(&self.layout))
    }

    /// Whether samples are of this source.
    pub(super) fn is_of(&self, layout: &Arc<Layout>) -> bool {
        Arc::ptr_eq(&self.layout, layout)
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Bytes of a sample, and of a block.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.layout.sample_len, self.block_len)
    }

    /// Whether another reader of these channels can join without a gap for the others.
    pub(super) fn suits(&self, mask: &Mask) -> bool {
        let needed = self.pool.buffers * (self.readers.len() + 1) + SPARE;
        let has_room = self.pool.lack.is_some() || self.pool.blocks >= needed;
        self.ended.is_none() && self.mask.covers(mask) && has_room
    }

    /// Whether a reader keeps another one of these channels away: it would get further ones.
    pub(super) fn refuses(&self, mask: &Mask) -> bool {
        !self.mask.covers(mask) && self.readers.iter().any(|reader| reader.is_fixed)
    }

    /// A reader cannot be told that there are further channels.
    pub(super) fn fix(&mut self, client: u64) {
        if let Some(reader) = self.readers.iter_mut().find(|it| it.who.client == client) {
            reader.is_fixed = true;
        }
    }

    /// Adds a reader. It gets what comes from now on. If blocks are few, the others get fewer: returns what they lose. So
    /// many blocks are `unread` by clients that have left.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is one already; what the server lacks if there is no block for it.
    pub(super) fn join(&mut self, who: Who, unread: usize) -> Result<Vec<(Machine, Lost)>, Errno> {
        if self.has(who.client) {
            return Err(Errno::BUSY);
        }
        if self.pool.blocks > 0 {
            let lack = self.pool.lack.unwrap_or(Errno::NOMEM);
            self.window = self.share(1, unread).ok_or(lack)?;
        }
        let losses = self.shrink();
        self.readers.push(Reader {
            who,
            queue: VecDeque::new(),
            held: VecDeque::new(),
            old: VecDeque::new(),
            lost: NOTHING,
            is_new: true,
            is_fixed: false,
            taken: Instant::now(),
        });
        Ok(losses)
    }

    /// The most blocks that each of the readers, and of so many `more`, can have, so that the source always has some
    /// itself: whatever readers have that cannot be taken from them.
    fn share(&self, more: usize, unread: usize) -> Option<usize> {
        let there = self.pool.blocks.saturating_sub(SPARE + unread);
        let kept: Vec<_> = self.readers.iter().map(|it| it.kept(&self.layout)).collect();
        let needed = |window: usize| {
            kept.iter().map(|kept| window.max(*kept)).sum::<usize>() + more * window
        };
        (1..=self.pool.buffers).rev().find(|window| needed(*window) <= there)
    }

    /// Takes the blocks from readers that are beyond what each may have now, the newest ones.
    fn shrink(&mut self) -> Vec<(Machine, Lost)> {
        if self.pool.blocks == 0 {
            return Vec::new();
        }
        let (window, sample_len) = (self.window, self.layout.sample_len);
        let mut losses = Vec::new();
        for reader in &mut self.readers {
            let mut missed = NOTHING;
            while reader.queue.len() + reader.held.len() > window
                && reader.queue.back().is_some_and(|part| part.at == 0)
                && let Some(part) = reader.queue.pop_back()
            {
                let count = (part.samples.meta().len / sample_len) as u64;
                missed = sum(missed, Lost::Samples(count));
                reader.lost = sum(part.lost, reader.lost);
            }
            if missed != NOTHING {
                reader.lost = sum(reader.lost, missed);
                losses.push((reader.who.host, missed));
            }
        }
        losses
    }

    /// Removes a reader. Returns the blocks that it may not have read: with the first one of its queue if that `is_begun`.
    /// So many more blocks are `unread` by clients that have left.
    pub(super) fn leave(&mut self, client: u64, is_begun: bool, unread: usize) -> Left {
        let mut left = Left { blocks: Vec::new(), old: Vec::new() };
        let index = self.readers.iter().position(|reader| reader.who.client == client);
        let Some(mut reader) = index.map(|index| self.readers.swap_remove(index)) else {
            return left;
        };
        let begun = reader.queue.pop_front().filter(|part| is_begun && part.is_begun());
        if let Some(part) = begun {
            let is_old = !self.is_of(&part.layout);
            if is_old { &mut reader.old } else { &mut reader.held }.push_back(part.samples);
        }
        (left.blocks, left.old) = (reader.held.into(), reader.old.into());
        self.share_anew(unread + left.blocks.len());
        left
    }

    /// A reader has gone, or blocks that clients had not read have come back: the others may have more. So many blocks are
    /// `unread`.
    pub(super) fn share_anew(&mut self, unread: usize) {
        if self.pool.blocks > 0 {
            self.window = self.share(0, unread).unwrap_or(1);
        }
    }

    /// Closes the source. Of its blocks, readers keep those that they have begun to read; the others are lost for them.
    pub(super) fn close(mut self) -> Waiting {
        for reader in &mut self.readers {
            reader.queue.retain(|part| part.at > 0);
            reader.old.append(&mut reader.held);
        }
        Waiting { mask: self.mask, pool: self.pool, readers: self.readers }
    }

    /// Goes on with the readers of the source before. They do not know what they have missed: returns whose loss it
    /// is.
    pub(super) fn adopt(&mut self, waiting: Waiting) -> Vec<(Machine, Lost)> {
        self.readers = waiting.readers;
        self.share_anew(0);
        let begun = self.readers.iter_mut().filter(|reader| !reader.is_new);
        let lost = begun.map(|reader| {
            (reader.lost, reader.is_new) = (Lost::Unknown, true);
            (reader.who.host, Lost::Unknown)
        });
        lost.collect()
    }

    /// A client has read the first of the blocks that are held for it.
    pub(super) fn release(&mut self, client: u64) {
        if let Some(reader) = self.readers.iter_mut().find(|it| it.who.client == client)
            && reader.old.pop_front().is_none()
        {
            reader.held.pop_front();
        }
    }

    /// Whether a source that can wait has to: for all readers, or for one that is only slow.
    fn must_wait(&self, window: usize) -> bool {
        let full = || self.readers.iter().filter(|it| it.is_full(window));
        full().any(|it| it.taken.elapsed() < STUCK)
            || (full().count() > 0 && full().count() == self.readers.len())
    }

    /// Takes blocks from the source and gives them to the readers. Returns whether there were some, what was
    /// lost for whom, and why there will be no more.
    pub(super) fn pump(&mut self) -> (bool, Vec<(Machine, Lost)>, Option<Error>) {
        let (mut moved, mut losses) = (false, Vec::new());
        for _ in 0..BATCH {
            let waits = !self.is_paced && self.must_wait(self.window);
            let Some(feed) = self.feed.as_mut().filter(|_| !waits) else { break };
            match feed.next() {
                Ok(Some(samples)) => {
                    self.failures = 0;
                    moved = true;
                    self.give(&samples, samples.meta().lost, self.window, &mut losses);
                }
                Ok(None) if feed.has_ended() => {
                    self.end(Errno::PIPE);
                    break;
                }
                Ok(None) => break,
                Err(error) => {
                    self.failures += 1;
                    // The next block says what was lost.
                    if error.errno() != Some(Errno::PIPE) && self.failures <= MOST_FAILURES {
                        continue;
                    }
                    self.end(errno(&error));
                    return (true, losses, Some(error));
                }
            }
        }
        (moved, losses, None)
    }

    /// Whether readers have not got everything, or may not have read it.
    pub(super) fn has_waiting(&self) -> bool {
        self.readers.iter().any(|it| {
            it.queue.iter().any(|part| !part.is_finished())
                || !it.held.is_empty()
                || !it.old.is_empty()
        })
    }

    /// There will be no more samples.
    pub(super) fn end(&mut self, why: Errno) {
        self.feed = None;
        self.ended = Some(why);
    }

    /// Gives a block of another source, with this loss before it, to the readers. Returns whether it was taken,
    /// and what was lost for whom. So many blocks of the source are `unread` by clients that have left.
    pub(super) fn push(
        &mut self,
        samples: &Samples,
        lost: Lost,
        unread: usize,
    ) -> (bool, Vec<(Machine, Lost)>) {
        self.block_len = self.block_len.max(samples.meta().len);
        let blocks = samples.total();
        self.pool = Pool { blocks, buffers: blocks, ..Pool::default() };
        self.share_anew(unread);
        let mut losses = self.shrink();
        if !self.is_paced && (self.readers.is_empty() || self.must_wait(self.window)) {
            return (false, losses);
        }
        self.give(samples, lost, self.window, &mut losses);
        (true, losses)
    }

    fn give(
        &mut self,
        samples: &Samples,
        lost: Lost,
        window: usize,
        losses: &mut Vec<(Machine, Lost)>,
    ) {
        let count = (samples.meta().len / self.layout.sample_len) as u64;
        for reader in &mut self.readers {
            let is_full = reader.is_full(window);
            let own = if reader.is_new { NOTHING } else { lost };
            let missed = Lost::Samples(if is_full { count } else { 0 });
            reader.is_new = false;
            let found = [own, missed].into_iter().filter(|lost| *lost != NOTHING);
            losses.extend(found.map(|lost| (reader.who.host, lost)));
            // A converter that cannot tell does so with each block, whether something is lost or not.
            let own = if own == Lost::Unknown { NOTHING } else { own };
            reader.lost = sum(sum(reader.lost, own), missed);
            if !is_full {
                let lost = std::mem::replace(&mut reader.lost, NOTHING);
                let layout = Arc::clone(&self.layout);
                reader.queue.push_back(Part { samples: samples.clone(), at: 0, lost, layout });
            }
        }
    }

    /// The next samples for a client, as long as they are of `layout` if that is given: `most` bytes at most, whole
    /// samples, of one block.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if samples are missing before them, once, and only if `reports_loss`; why there will be none.
    pub(super) fn take(
        &mut self,
        client: u64,
        most: usize,
        layout: Option<&Arc<Layout>>,
        reports_loss: bool,
    ) -> Result<Taken, Errno> {
        let ended = self.ended;
        let reader =
            self.readers.iter_mut().find(|it| it.who.client == client).ok_or(Errno::BADF)?;
        reader.drop_finished();
        let Some(part) = reader.queue.front_mut() else {
            return ended.map_or(Ok(Taken::Nothing), Err);
        };
        if layout.is_some_and(|layout| !Arc::ptr_eq(layout, &part.layout)) {
            return Ok(Taken::Other);
        }
        reader.taken = Instant::now();
        let lost = std::mem::replace(&mut part.lost, NOTHING);
        if reports_loss && lost != NOTHING {
            return Err(Errno::NOBUFS);
        }
        let len = most.min(part.samples.meta().len - part.at);
        let range = part.at..part.at + len;
        part.at = range.end;
        let (samples, layout) = (part.samples.clone(), Arc::clone(&part.layout));
        if samples.meta().len == 0 {
            reader.queue.pop_front();
        }
        Ok(Taken::Chunk(Chunk { samples, range, layout }))
    }

    /// Whether a reader has room for a further block while it keeps one more.
    pub(super) fn can_hold(&self, client: u64) -> bool {
        let reader = self.readers.iter().find(|it| it.who.client == client);
        reader.is_some_and(|it| it.held.len() + 1 < self.window)
    }

    /// Keeps a block, which a client has taken as a whole, until it has read everything.
    pub(super) fn hold(&mut self, client: u64, samples: Samples, layout: &Arc<Layout>) {
        let is_old = !self.is_of(layout);
        if let Some(reader) = self.readers.iter_mut().find(|it| it.who.client == client) {
            reader.drop_finished();
            if is_old { &mut reader.old } else { &mut reader.held }.push_back(samples);
        }
    }
}

impl Reader {
    fn is_full(&self, window: usize) -> bool {
        self.queue.len() + self.held.len() + self.old.len() >= window
    }

    /// Drops the part that the client has taken to its end.
    fn drop_finished(&mut self) {
        if self.queue.front().is_some_and(Part::is_finished) {
            self.queue.pop_front();
        }
    }

    /// Blocks of this source that cannot be taken from it.
    fn kept(&self, layout: &Arc<Layout>) -> usize {
        let begun = self.queue.iter().filter(|it| it.at > 0 && Arc::ptr_eq(&it.layout, layout));
        self.held.len() + begun.count()
    }

    /// Blocks of sources before this one.
    fn old(&self, layout: &Arc<Layout>) -> impl Iterator<Item = &Samples> {
        let queued = self.queue.iter().filter(|part| !Arc::ptr_eq(&part.layout, layout));
        self.old.iter().chain(queued.map(|part| &part.samples))
    }
}

impl Part {
    fn is_finished(&self) -> bool {
        self.at > 0 && self.at == self.samples.meta().len
    }

    /// Whether a part of it was taken, and the rest was not.
    fn is_begun(&self) -> bool {
        self.at > 0 && !self.is_finished()
    }
}

/// What there is for a client.
#[derive(Debug)]
pub(super) enum Taken {
    Chunk(Chunk),
    /// Nothing yet.
    Nothing,
    /// Samples of another layout.
    Other,
}

/// Two losses, one after the other.
fn sum(one: Lost, other: Lost) -> Lost {
    match (one, other) {
        (Lost::Samples(one), Lost::Samples(other)) => Lost::Samples(one.saturating_add(other)),
        _ => Lost::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: &str = "0000000f";

    fn who(client: u64) -> Who {
        Who { client, host: Machine::Usb }
    }

    /// A device with so many blocks, and readers that want four each.
    fn receive(blocks: usize, lack: Option<Errno>) -> Receive {
        let setup = StreamSetup::new().blocks(blocks).block_len(4096);
        let feed = Feed::open("synth:counter", setup).unwrap();
        let pool = Pool { samples: 512, blocks, buffers: 4, lack };
        Receive::new(feed, &Mask::parse(MASK, 4).unwrap(), pool, true)
    }

    /// A client takes a block, and keeps it.
    fn keep(receive: &mut Receive, client: u64) {
        receive.pump();
        let Ok(Taken::Chunk(chunk)) = receive.take(client, usize::MAX, None, false) else {
            panic!("a block is there");
        };
        receive.hold(client, chunk.samples, &chunk.layout);
    }

    #[test]
    fn a_share_grows_when_what_another_has_not_read_comes_back() {
        let mut receive = receive(6, Some(Errno::NOMEM));
        receive.join(who(1), 0).unwrap();
        assert_eq!(receive.window, 4);
        receive.join(who(2), 0).unwrap();
        assert_eq!(receive.window, 2);
        keep(&mut receive, 2);
        let left = receive.leave(2, false, 0);
        assert_eq!((left.blocks.len(), receive.window), (1, 3));
        drop(left);
        receive.share_anew(0);
        assert_eq!(receive.window, 4);
    }

    #[test]
    fn a_device_that_is_opened_anew_has_shares_of_its_new_blocks() {
        let mut before = receive(6, Some(Errno::NOMEM));
        before.join(who(1), 0).unwrap();
        before.join(who(2), 0).unwrap();
        let mut after = receive(6, Some(Errno::NOMEM));
        after.adopt(before.close());
        assert_eq!(after.window, 2);
    }

    #[test]
    fn who_is_refused_is_told_what_the_server_lacks() {
        for lack in [Errno::NOMEM, Errno::MFILE] {
            let mut receive = receive(3, Some(lack));
            receive.join(who(1), 0).unwrap();
            assert_eq!(receive.join(who(2), 0).unwrap_err(), lack);
        }
    }
}
