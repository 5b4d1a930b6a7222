//! Samples that are sent to a coprocessor as messages.

use crate::block::Bytes;
use crate::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use crate::pipeline::edge::Item;
use crate::pipeline::endpoint;
use crate::{Error, Result};

/// Blocks as messages to a coprocessor.
#[derive(Debug)]
pub(super) struct Messages {
    pub endpoint: Endpoint,
    /// Kept open with the endpoint.
    _controller: Controller,
    /// Bytes of a message: whole samples.
    len: usize,
    /// The block that is being sent, and its bytes that were sent.
    item: Option<(Item, usize)>,
    pub copied: u64,
}

impl Messages {
    pub(super) fn open(service: &str, sample_len: usize) -> Result<Self> {
        Self::check(sample_len)?;
        let (controller, endpoint) = endpoint::open(service)?;
        let len = MAX_MESSAGE / sample_len * sample_len;
        Ok(Self { endpoint, _controller: controller, len, item: None, copied: 0 })
    }

    /// Whether a message can have a whole sample.
    pub(super) fn check(sample_len: usize) -> Result<()> {
        if sample_len > MAX_MESSAGE {
            let allowed = format!("up to {MAX_MESSAGE}, the length of a message");
            return Err(Error::invalid("the bytes of a sample", sample_len, allowed));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, item: &Item) -> bool {
        let is_free = self.item.is_none();
        if is_free {
            self.item = Some((item.clone(), 0));
        }
        is_free
    }

    /// Sends messages, as many as there is room for. Returns how many blocks are left.
    pub(super) fn turn(&mut self) -> Result<usize> {
        let Some((item, sent)) = &mut self.item else { return Ok(0) };
        let (parts, len) = (item.samples.parts()?, item.samples.meta().len);
        let mut message = [0; MAX_MESSAGE];
        while *sent < len {
            let message = &mut message[..self.len.min(len - *sent)];
            copy_out(parts.iter(), *sent, message);
            if !self.endpoint.try_send(message)? {
                return Ok(1);
            }
            self.copied += message.len() as u64;
            *sent += message.len();
        }
        drop(parts);
        self.item = None;
        Ok(0)
    }
}

/// Copies what is in parts from a place on, as much as `to` has room for.
fn copy_out<'a>(parts: impl Iterator<Item = Bytes<'a>>, from: usize, to: &mut [u8]) {
    let (mut begin, mut filled) = (0, 0);
    for part in parts {
        let first = (from + filled).saturating_sub(begin).min(part.len());
        let count = (part.len() - first).min(to.len() - filled);
        part.slice(first..first + count).copy_to(&mut to[filled..filled + count]);
        (begin, filled) = (begin + part.len(), filled + count);
        if filled == to.len() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_put_together_of_parts() {
        let parts: [&[u8]; 5] = [&[0, 1, 2], &[], &[3], &[4, 5, 6, 7], &[8, 9]];
        let all: Vec<u8> = (0..10).collect();
        for from in 0..10 {
            for len in 0..=10 - from {
                let mut message = vec![77; len];
                copy_out(parts.into_iter().map(Bytes::from), from, &mut message);
                assert_eq!(message, all[from..from + len], "{len} from {from}");
            }
        }
    }
}
