//! Blocks that are passed by reference instead of being copied.

use super::carrier::{Carrier, Wanted, refusal, timed_out};
use super::packet::{BufferMessage, Direction, errno};
use super::share::done;
use super::transfer::Transfer;
use crate::block::{Block, Memory};
use crate::endpoint::{Endpoint, MAX_MESSAGE};
use crate::poll::Deadline;
use crate::{Error, Result};

/// One block that is filled, given to the remote, and read again. Only this side copies.
///
/// A program that has its data in a [`Block`] gives that one, by [`Endpoint::give`].
pub(super) struct Buffers {
    endpoint: Endpoint,
    memory: Option<Memory>,
    block: Option<Block>,
    /// Bytes of the last block that was sent.
    sent: Option<usize>,
}

impl Buffers {
    /// `memory` is where blocks are allocated; `None` lets the library choose.
    pub(super) fn new(endpoint: Endpoint, memory: Option<Memory>) -> Self {
        Self { endpoint, memory, block: None, sent: None }
    }

    /// The attached block, of at least `len` bytes.
    fn block(&mut self, len: usize) -> Result<&mut Block> {
        if self.block.as_ref().is_none_or(|block| block.len() < len) {
            let block = match &self.memory {
                Some(memory) => Block::with(len, memory),
                None => Block::new(len),
            }?;
            if let Some(old) = self.block.take() {
                self.endpoint.detach(&old)?;
            }
            self.endpoint.attach(&block)?;
            self.block = Some(block);
        }
        self.block.as_mut().ok_or_else(|| Error::invalid("a block", len, "1 byte or more"))
    }

    /// Gives the first `len` bytes of the block, and waits until they come back.
    fn exchange(
        &mut self,
        len: usize,
        direction: Direction,
        deadline: Deadline,
    ) -> Result<BufferMessage> {
        let tried = match direction {
            Direction::ToRemote => "send a block to",
            Direction::FromRemote => "receive a block from",
        };
        let Some(block) = &mut self.block else { unreachable!("the caller has attached it") };
        let cookie = self.endpoint.give(block, 0..len, direction)?;
        let done = await_done(&self.endpoint, cookie, tried, deadline);
        // The remote may still use a block that it has not given back.
        if done.is_err() {
            self.forget();
        }
        let done = done?;
        match errno(done.status) {
            None => Ok(done),
            Some(errno) => Err(refusal(tried, self.endpoint.label(), errno)),
        }
    }

    /// Leaves the block to the remote: it is freed when the remote is done with it.
    fn forget(&mut self) {
        if let Some(block) = self.block.take() {
            let _ = self.endpoint.detach(&block);
        }
    }
}

fn await_done(
    endpoint: &Endpoint,
    cookie: u64,
    tried: &str,
    deadline: Deadline,
) -> Result<BufferMessage> {
    let mut message = [0; MAX_MESSAGE];
    loop {
        let received = match deadline.remaining() {
            Some(timeout) => endpoint.recv_timeout(&mut message, timeout)?,
            None => Some(endpoint.recv(&mut message)?),
        };
        let length = received.ok_or_else(|| timed_out(tried, endpoint.label()))?;
        // Other answers are for blocks that were left to the remote.
        if let Some(answer) = done(&message[..length]).filter(|answer| answer.cookie == cookie) {
            return Ok(answer);
        }
    }
}

impl Carrier for Buffers {
    fn send(&mut self, bytes: &[u8], transfer: &mut Transfer<'_>) -> Result<()> {
        let deadline = transfer.deadline();
        if bytes.is_empty() {
            return Err(Error::invalid("a block to share", "0 bytes", "1 byte or more"));
        }
        let block = self.block(bytes.len())?;
        block.write()?.bytes_mut().slice(..bytes.len()).copy_from(bytes);
        self.exchange(bytes.len(), Direction::ToRemote, deadline)?;
        self.sent = Some(bytes.len());
        transfer.tell(bytes.len() as u64, bytes.len() as u64);
        Ok(())
    }

    fn receive(&mut self, wanted: Wanted, transfer: &mut Transfer<'_>) -> Result<Vec<u8>> {
        let deadline = transfer.deadline();
        let len = match wanted {
            Wanted::Pattern(length) => length as usize,
            Wanted::Last => self.sent.ok_or_else(|| {
                let allowed = "a length: a shared buffer is allocated before it is filled";
                Error::invalid("the block to receive", "the last one", allowed)
            })?,
        };
        self.block(len)?;
        let done = self.exchange(len, Direction::FromRemote, deadline)?;
        let used = usize::try_from(done.length).unwrap_or(usize::MAX).min(len);
        let bytes = self.block(len)?.read()?.bytes().slice(..used).to_vec();
        transfer.tell(used as u64, used as u64);
        Ok(bytes)
    }
}
