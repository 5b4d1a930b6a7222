//! Transmitting by `write`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::buffer::Buffer;
use crate::Result;
use crate::block;
use crate::poll::{Set, later};
use crate::stream::driver::{HasBlock, Pending};

/// How often to look whether all that was written is transmitted.
const DRAINING: Duration = Duration::from_millis(1);

/// A transmit buffer.
#[derive(Debug)]
pub(in crate::stream) struct Transmit<L> {
    buffer: Buffer,
    /// Blocks to write, with their bytes.
    queued: VecDeque<(L, usize)>,
    /// Bytes of the first block that were written.
    written: usize,
    /// Bytes written in all.
    total: usize,
    /// Samples in a block, and bytes in a sample.
    samples: usize,
    sample_len: usize,
}

impl<L: HasBlock> Transmit<L> {
    pub(in crate::stream) fn new(buffer: Buffer, samples: usize, sample_len: usize) -> Self {
        let queued = VecDeque::new();
        Self { buffer, queued, written: 0, total: 0, samples, sample_len }
    }

    pub(in crate::stream) fn start(&mut self) -> Result<()> {
        // Two blocks as large as ours.
        self.buffer.start(2 * self.samples, 1)
    }

    /// Takes the first `len` bytes of a block, to [`write`](Self::write) them.
    pub(in crate::stream) fn push(&mut self, load: L, len: usize) {
        self.queued.push_back((load, len));
    }

    /// Writes what the driver takes. Returns the number of bytes, and the blocks that are written.
    pub(in crate::stream) fn write(&mut self) -> Result<(u64, Vec<L>)> {
        let (mut count, mut done) = (0, Vec::new());
        while let Some((load, len)) = self.queued.front() {
            let Some(file) = self.buffer.is_ready()? else { break };
            let block = load.block();
            let written = block::write(file, &[block.read()?.of(self.written..*len).bytes()]);
            let written = match written {
                Ok(written) => written,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::NODEV) => return Err(self.buffer.failed(Errno::PIPE)),
                Err(errno) => return Err(self.buffer.failed(errno)),
            };
            count += written as u64;
            (self.written, self.total) = (self.written + written, self.total + written);
            if self.written == *len {
                self.written = 0;
                done.extend(self.queued.pop_front().map(|(load, _)| load));
            }
        }
        self.buffer.want(!self.queued.is_empty())?;
        Ok((count, done))
    }

    pub(in crate::stream) fn is_drained(&mut self) -> Result<bool> {
        if self.total == 0 || !self.queued.is_empty() {
            return Ok(self.total == 0 && self.queued.is_empty());
        }
        let room = self.buffer.room() * self.sample_len;
        let available = match self.buffer.control().available() {
            Ok(Some(available)) => available,
            Ok(None) => return Ok(true),
            Err(Errno::NODEV) => return Err(self.buffer.failed(Errno::PIPE)),
            Err(errno) => return Err(self.buffer.failed(errno)),
        };
        if !self.buffer.is_dma() {
            // Bytes that wait in the driver's queue.
            return Ok(available == 0);
        }
        let rest = self.total % (room / 2).max(1);
        if rest > 0 {
            self.pad(room / 2 - rest)?;
            return Ok(false);
        }
        // Bytes that are free.
        Ok(available >= room)
    }

    /// Fills the driver's last block with zeros.
    fn pad(&mut self, len: usize) -> Result<()> {
        let zeros = vec![0; len];
        let Some(file) = self.buffer.is_ready()? else { return Ok(()) };
        match rustix::io::write(file, &zeros) {
            Ok(count) => self.total += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(self.buffer.failed(errno)),
        }
        Ok(())
    }

    pub(in crate::stream) fn pending(&self) -> Pending {
        if self.queued.is_empty() {
            // The driver does not tell when it has transmitted what was written.
            return Pending::Until(later(Instant::now(), DRAINING));
        }
        self.buffer.pending()
    }

    pub(in crate::stream) fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.buffer.watch(set, !self.queued.is_empty())
    }

    pub(in crate::stream) fn stop(&mut self) -> Result<()> {
        self.queued.clear();
        self.buffer.stop()
    }
}
