//! The carrier of packets: messages through an endpoint, or bytes through a TTY.

use std::time::Duration;

use super::carrier::timed_out;
use super::packet::{Event, Events, Joiner, Opening, Piece};
use crate::Result;
use crate::endpoint::{Endpoint, MAX_MESSAGE};
use crate::poll::Deadline;

/// Messages to and from one service of a coprocessor.
pub(super) trait Messages {
    /// Its name in errors.
    fn label(&self) -> String;

    /// Sends one message, of [`MAX_MESSAGE`] bytes at most.
    fn send(&mut self, message: Piece<'_>, deadline: Deadline) -> Result<()>;

    /// Waits for the next message, or some bytes, and copies them to `buffer`.
    fn recv(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<usize>;

    /// Joins what [`recv`](Self::recv) has returned.
    fn join(&self, joiner: &mut Joiner, received: &[u8]) -> Vec<Event>;

    /// Whether the answer to the opening is among what was received.
    fn opened(&self, opening: &mut Opening, received: &[u8]) -> bool;
}

/// Messages through an endpoint, descriptor or node.
#[derive(Debug)]
pub(super) struct EndpointMessages {
    endpoint: Endpoint,
    message: Vec<u8>,
}

impl EndpointMessages {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, message: Vec::with_capacity(MAX_MESSAGE) }
    }
}

/// Clocks cannot represent this, so there is no deadline.
const FOREVER: Duration = Duration::MAX;

impl Messages for EndpointMessages {
    fn label(&self) -> String {
        self.endpoint.label()
    }

    fn send(&mut self, message: Piece<'_>, deadline: Deadline) -> Result<()> {
        message.write_to(&mut self.message);
        let timeout = deadline.remaining().unwrap_or(FOREVER);
        if self.endpoint.send_timeout(&self.message, timeout)? {
            return Ok(());
        }
        Err(timed_out("send to", self.label()))
    }

    fn recv(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<usize> {
        let timeout = deadline.remaining().unwrap_or(FOREVER);
        let received = self.endpoint.recv_timeout(buffer, timeout)?;
        received.ok_or_else(|| timed_out("receive from", self.label()))
    }

    fn join(&self, joiner: &mut Joiner, received: &[u8]) -> Vec<Event> {
        let events: Events = joiner.push(received);
        events.collect()
    }

    fn opened(&self, opening: &mut Opening, received: &[u8]) -> bool {
        opening.is_done(received)
    }
}
