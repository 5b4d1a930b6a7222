//! Plays recordings.

use std::time::{Duration, SystemTime};

use rustix::event::PollFlags;

use super::recording::Recording;
use crate::block::{Block, Memory};
use crate::poll::{self, Deadline};
use crate::stream::format::{Format, Lost, Meta};
use crate::stream::net::Pool;
use crate::stream::samples::Samples;
use crate::stream::setup::StreamSetup;
use crate::{Error, Result};

/// Hands out the samples of a recording in blocks, as fast as they are taken.
///
/// A block ends before each gap, and the next one says what is missing, exactly as it was recorded.
#[derive(Debug)]
pub struct Player {
    recording: Recording,
    pool: Pool,
    blocks: usize,
    block_len: usize,
    at: u64,
    /// Number of gaps that were passed.
    gap: usize,
    unknown_until: u64,
    /// Samples that are known to be missing before `at`, without those before the first sample.
    missing: u64,
    sequence: u64,
    copied: u64,
}

impl Player {
    /// Plays `recording`. `setup` determines number, length and memory of the blocks.
    ///
    /// # Errors
    ///
    /// As [`Block::with`]; bad input for an invalid setup.
    pub fn new(recording: Recording, setup: &StreamSetup) -> Result<Self> {
        setup.check()?;
        if !setup.channels.is_empty() {
            let allowed = "nothing: a recording is played as it is";
            return Err(Error::invalid("the channels", setup.channels.join(","), allowed));
        }
        let sample_len = recording.format().sample_len;
        let block_len = (setup.block_len / sample_len).max(1) * sample_len;
        let memory = setup.memory.clone().unwrap_or(Memory::Memfd);
        let blocks = (0..setup.count()).map(|_| Block::with(block_len, &memory));
        let pool = Pool::new(blocks.collect::<Result<_>>()?)?;
        Ok(Self {
            recording,
            pool,
            blocks: setup.count(),
            block_len,
            at: 0,
            gap: 0,
            unknown_until: 0,
            missing: 0,
            sequence: 0,
            copied: 0,
        })
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        self.recording.format()
    }

    /// Bytes of samples that a block holds.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Whether there are no more samples.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.at >= self.recording.samples()
    }

    /// What is missing after the last sample, once [`is_finished`](Self::is_finished).
    #[must_use]
    pub fn end(&self) -> Lost {
        if !self.recording.is_complete() {
            return Lost::Unknown;
        }
        let rest = self.recording.gaps().iter().skip(self.gap);
        rest.fold(Lost::Samples(0), |sum, gap| match (sum, gap.lost) {
            (Lost::Samples(sum), Lost::Samples(lost)) => Lost::Samples(sum.saturating_add(lost)),
            _ => Lost::Unknown,
        })
    }

    /// Bytes that were copied from the page cache.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// The next block; `None` at the [end](Self::is_finished). Waits while all blocks are handed out.
    ///
    /// # Errors
    ///
    /// As [`Recording::read`].
    #[allow(clippy::should_implement_trait)] // fails, and waits
    pub fn next(&mut self) -> Result<Option<Samples>> {
        self.next_until(Deadline::NEVER)
    }

    /// The next block; `None` if all blocks are handed out, and at the [end](Self::is_finished).
    ///
    /// # Errors
    ///
    /// As [`Recording::read`].
    pub fn try_next(&mut self) -> Result<Option<Samples>> {
        self.next_until(Deadline::now())
    }

    /// The next block; `None` if no block came back within `timeout`, and at the
    /// [end](Self::is_finished).
    ///
    /// # Errors
    ///
    /// As [`Recording::read`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Samples>> {
        self.next_until(Deadline::after(timeout))
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<Samples>> {
        while !self.is_finished() {
            // Makes the descriptor not readable.
            self.pool.returned(|_| {});
            if let Some(mut block) = self.pool.take() {
                return match self.fill(&mut block) {
                    Ok(meta) => Ok(Some(self.pool.hand_out(block, meta, self.blocks, 0))),
                    Err(error) => {
                        self.pool.put(block);
                        Err(error)
                    }
                };
            }
            if deadline.has_passed() {
                break;
            }
            poll::wait(&self.pool, PollFlags::IN, deadline.remaining())
                .map_err(|errno| Error::new("wait for", "a block of a recording", errno))?;
        }
        Ok(None)
    }

    fn fill(&mut self, block: &mut Block) -> Result<Meta> {
        let sample_len = self.recording.format().sample_len;
        let passed = (self.gap, self.unknown_until, self.missing);
        let lost = self.pass_gaps();
        let next = self.recording.gaps().get(self.gap).map_or(u64::MAX, |gap| gap.at);
        let until = [next, self.unknown_until].into_iter().filter(|until| *until > self.at).min();
        let most = until.map_or(u64::MAX, |until| until - self.at);
        let most = usize::try_from(most).unwrap_or(usize::MAX).saturating_mul(sample_len);
        let len = self.block_len.min(most);
        let filled = block.write().and_then(|mut writing| {
            writing = writing.first(len);
            self.recording.read_into(self.at, writing.bytes_mut())
        });
        let len = filled.inspect_err(|_| {
            // The next attempt tells of them.
            (self.gap, self.unknown_until, self.missing) = passed;
        })?;
        self.at += (len / sample_len) as u64;
        self.copied += len as u64;
        let meta = Meta { sequence: self.sequence, time: self.time(), lost, len };
        self.sequence += 1;
        Ok(meta)
    }

    /// What is missing before the next sample; passes its gaps.
    fn pass_gaps(&mut self) -> Lost {
        let (mut known, mut missing) = (0u64, 0u64);
        while let Some(gap) = self.recording.gaps().get(self.gap)
            && gap.at <= self.at
        {
            missing = missing.saturating_add(gap.known);
            match gap.lost {
                Lost::Samples(lost) => known = known.saturating_add(lost),
                Lost::Unknown => {
                    self.unknown_until = self.unknown_until.max(gap.end).max(gap.at + 1);
                }
            }
            self.gap += 1;
        }
        if self.at > 0 {
            self.missing = self.missing.saturating_add(missing);
        }
        if self.at < self.unknown_until { Lost::Unknown } else { Lost::Samples(known) }
    }

    /// The time of the sample before the next one, by the rate, missing samples included.
    fn time(&self) -> SystemTime {
        let begin = self.recording.begin().unwrap_or(SystemTime::UNIX_EPOCH);
        #[allow(clippy::cast_precision_loss)] // exact for years
        let samples = self.at.saturating_add(self.missing) as f64;
        let since = self.recording.format().rate.map_or(0.0, |rate| samples / rate);
        begin.checked_add(Duration::try_from_secs_f64(since).unwrap_or_default()).unwrap_or(begin)
    }
}

impl std::os::fd::AsFd for Player {
    /// Readable when a block has come back.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pool.as_fd()
    }
}
