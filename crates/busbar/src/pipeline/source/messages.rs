//! Samples that a coprocessor sends as messages.

use crate::block::{Block, Memory};
use crate::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use crate::pipeline::edge::NOTHING;
use crate::pipeline::endpoint;
use crate::stream::net::Pool;
use crate::stream::{Format, Lost, Meta, Samples, StreamSetup};
use crate::{Error, Reason, Result};

/// Messages of a coprocessor as blocks. Each message is whole samples; a block takes all that wait and fit.
#[derive(Debug)]
pub(super) struct Messages {
    pub endpoint: Endpoint,
    /// Kept open with the endpoint.
    _controller: Controller,
    pub format: Format,
    pub block_len: usize,
    blocks: usize,
    pool: Pool,
    sequence: u64,
    /// What is missing before the next block.
    lost: Lost,
    /// The error after the messages of the last block.
    trouble: Option<Error>,
    pub copied: u64,
}

impl Messages {
    pub(super) fn open(service: &str, format: Format, setup: &StreamSetup) -> Result<Self> {
        let (controller, endpoint) = endpoint::open(service)?;
        // Tells the coprocessor the address of the endpoint.
        endpoint.try_send(&[])?;
        let block_len = block_len(setup.block_len, format.sample_len);
        let memory = setup.memory.clone().unwrap_or(Memory::Memfd);
        let pool = Pool::new(Block::several(setup.count(), block_len, &memory)?)?;
        Ok(Self {
            endpoint,
            _controller: controller,
            format,
            block_len,
            blocks: setup.count(),
            pool,
            sequence: 0,
            // Messages before the endpoint existed are not lost.
            lost: NOTHING,
            trouble: None,
            copied: 0,
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Samples>> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        self.pool.returned(|_| {});
        let Some(mut block) = self.pool.take() else { return Ok(None) };
        let filled = self.fill(&mut block);
        match filled {
            Ok(0) => {
                self.pool.put(block);
                Ok(None)
            }
            Err(error) => {
                self.pool.put(block);
                Err(error)
            }
            Ok(len) => {
                let time = std::time::SystemTime::now();
                let lost = std::mem::replace(&mut self.lost, NOTHING);
                let meta = Meta { sequence: self.sequence, time, lost, len };
                self.sequence += 1;
                self.copied += len as u64;
                Ok(Some(self.pool.hand_out(block, meta, self.blocks, 0)))
            }
        }
    }

    /// Takes the messages that wait and fit. An error after some messages is returned after them.
    fn fill(&mut self, block: &mut Block) -> Result<usize> {
        let mut room = block.write()?;
        let (mut message, mut len) = ([0; MAX_MESSAGE], 0);
        while self.block_len - len >= MAX_MESSAGE {
            let length = match self.try_recv(&mut message) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                // The kernel has dropped messages: they were not taken in time.
                Err(error) if error.reason() == Reason::Lost => {
                    if len > 0 {
                        self.lost = Lost::Unknown;
                        break;
                    }
                    self.lost = Lost::Unknown;
                    continue;
                }
                Err(error) if len > 0 => {
                    self.trouble = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            room.bytes_mut().slice(len..len + length).copy_from(&message[..length]);
            len += length;
        }
        Ok(len)
    }

    /// Receives a message, which has to be whole samples.
    fn try_recv(&self, message: &mut [u8]) -> Result<Option<usize>> {
        let Some(length) = self.endpoint.try_recv(message)? else { return Ok(None) };
        let sample_len = self.format.sample_len;
        if length.is_multiple_of(sample_len) {
            return Ok(Some(length));
        }
        let why = format!("a message of {length} bytes is not whole samples of {sample_len}");
        let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        Err(Error::new("take samples from", "an endpoint", why))
    }
}

/// Whole samples, and room for the longest message: a message is only received where it fits.
fn block_len(wanted: usize, sample_len: usize) -> usize {
    (wanted / sample_len * sample_len).max(MAX_MESSAGE.next_multiple_of(sample_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_fits_whatever_the_length_of_a_sample_is() {
        for sample_len in 1..=2 * MAX_MESSAGE {
            let len = block_len(1, sample_len);
            assert!(len >= MAX_MESSAGE && len.is_multiple_of(sample_len), "{sample_len}");
        }
        assert_eq!((block_len(8192, 4), block_len(8192, 12)), (8192, 8184));
    }
}
