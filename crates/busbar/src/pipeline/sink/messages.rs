//! Samples that are sent to a coprocessor as messages.

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
        let read = item.samples.read()?;
        let (bytes, mut message) = (read.bytes(), [0; MAX_MESSAGE]);
        while *sent < bytes.len() {
            let part = bytes.slice(*sent..bytes.len().min(*sent + self.len));
            let message = &mut message[..part.len()];
            part.copy_to(message);
            if !self.endpoint.try_send(message)? {
                return Ok(1);
            }
            self.copied += part.len() as u64;
            *sent += part.len();
        }
        drop(read);
        self.item = None;
        Ok(0)
    }
}
