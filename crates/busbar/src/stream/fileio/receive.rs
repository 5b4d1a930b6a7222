//! Receiving by `read`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::io::Errno;

use super::buffer::Buffer;
use crate::Result;
use crate::block::{self, Block};
use crate::poll::Set;
use crate::stream::driver::{Filled, Pending, Receiver, Taken};
use crate::stream::format::Lost;
use crate::stream::loss::Detector;

/// A receive buffer.
#[derive(Debug)]
pub(in crate::stream) struct Receive {
    buffer: Buffer,
    queued: VecDeque<Block>,
    /// Bytes in the first block.
    filled: usize,
    /// Bytes read since the device was started.
    read: usize,
    /// Inspects the first block.
    order: Option<Detector>,
    len: usize,
    samples: usize,
    copied: u64,
}

impl Receive {
    /// `order` inspects the first block only.
    pub(in crate::stream) fn start(
        mut buffer: Buffer,
        blocks: Vec<Block>,
        len: usize,
        samples: usize,
        order: Detector,
    ) -> Result<Self> {
        // Either the driver's two blocks are as large as ours, or its queue holds as much as all of ours.
        let room = if buffer.is_dma() { 2 } else { blocks.len().max(2) };
        buffer.start(samples.saturating_mul(room), samples)?;
        let order = buffer.is_dma().then_some(order);
        let (queued, filled, read, copied) = (blocks.into(), 0, 0, 0);
        Ok(Self { buffer, queued, filled, read, order, len, samples, copied })
    }

    /// Bytes in one of the driver's blocks.
    fn driver_block(&self) -> usize {
        (self.buffer.room() / 2 * (self.len / self.samples)).max(1)
    }

    /// Whether the driver's blocks come in the wrong order: the first of our blocks shows it.
    fn is_swapped(&mut self) -> Result<bool> {
        let Some(mut order) = self.order.take().filter(Detector::looks) else { return Ok(false) };
        let Some(block) = self.queued.front() else { return Ok(false) };
        let found = order.inspect(block.read()?.bytes(), self.samples);
        Ok(found.lost == Lost::Samples(self.buffer.room() as u64 / 2))
    }

    /// Starts the device again, with its blocks in the right order.
    fn restart(&mut self) -> Result<()> {
        self.buffer.check()?;
        let is_even = (self.read / self.driver_block()).is_multiple_of(2);
        (self.filled, self.read, self.order) = (0, 0, None);
        self.buffer.restart(is_even)
    }

    /// Reads into the first block. Returns whether it is full; `None` if there is nothing to read.
    fn read(&mut self) -> Result<Option<Result<bool, Errno>>> {
        let Some(block) = self.queued.front_mut() else { return Ok(None) };
        let Some(file) = self.buffer.is_ready()? else { return Ok(None) };
        let mut filling = block.write()?;
        let read = loop {
            let rest = filling.bytes_mut().into_slice(self.filled..self.len);
            match block::read(file, &mut [rest]) {
                Err(Errno::INTR) => {}
                done => break done,
            }
        };
        drop(filling);
        Ok(match read {
            Ok(0) | Err(Errno::AGAIN) => {
                if self.read == 0 && self.order.is_some() {
                    self.restart()?;
                }
                None
            }
            Ok(count) => {
                (self.filled, self.read) = (self.filled + count, self.read + count);
                self.copied += count as u64;
                Some(Ok(self.filled >= self.len))
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    fn pop(&mut self) -> Result<Option<Block>> {
        self.filled = 0;
        let block = self.queued.pop_front();
        self.buffer.want(!self.queued.is_empty())?;
        Ok(block)
    }
}

impl Receiver for Receive {
    fn queue(&mut self, block: Block) -> Result<()> {
        self.queued.push_back(block);
        self.buffer.want(true)
    }

    fn take(&mut self) -> Result<Taken> {
        loop {
            let failed = match self.read()? {
                None => return Ok(Taken::Nothing),
                Some(Ok(false)) => continue,
                Some(Ok(true)) => None,
                Some(Err(errno)) => Some(self.buffer.failed(errno)),
            };
            if failed.is_none() && self.is_swapped()? {
                self.restart()?;
                return Ok(Taken::Nothing);
            }
            let Some(block) = self.pop()? else { return Ok(Taken::Nothing) };
            return Ok(match failed {
                // The device has gone.
                Some(error) if error.errno() == Some(Errno::NODEV) => {
                    return Err(self.buffer.failed(Errno::PIPE).help("it has gone"));
                }
                Some(error) => Taken::Failed(block, error),
                None => {
                    let (time, samples) = (SystemTime::now(), self.samples);
                    Taken::Filled(Filled { block, time, samples, lost: None })
                }
            });
        }
    }

    fn pending(&self) -> Pending {
        if self.queued.is_empty() { Pending::Block } else { self.buffer.pending() }
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.buffer.watch(set, !self.queued.is_empty())
    }

    fn copied(&self) -> u64 {
        self.copied
    }

    fn stop(&mut self) -> Result<()> {
        self.queued.clear();
        let stopped = self.buffer.control().disable();
        let (blocks, rest) = (self.read / self.driver_block(), self.read % self.driver_block());
        if self.buffer.is_dma() && rest == 0 && blocks % 2 == 1 {
            self.buffer.skip();
        }
        stopped.and(self.buffer.stop())
    }
}
