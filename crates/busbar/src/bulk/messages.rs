//! What carries packets: messages through an endpoint, or bytes through a TTY.

use std::io;
use std::time::Duration;

use super::packet::{Event, Events, Joiner, Opening, Piece};
use crate::endpoint::{Endpoint, MAX_MESSAGE};
use crate::poll::Deadline;
use crate::{Error, Result};

/// Messages to one service of a coprocessor, and what comes back.
pub(super) trait Messages {
    /// What errors call it.
    fn label(&self) -> String;

    /// Sends one message, of [`MAX_MESSAGE`] bytes at most.
    fn send(&mut self, message: Piece<'_>, deadline: Deadline) -> Result<()>;

    /// Waits for what comes next and puts it into `buffer`: a message, or some bytes.
    fn recv(&mut self, buffer: &mut [u8], deadline: Deadline) -> Result<usize>;

    /// What [`recv`](Self::recv) has returned, joined.
    fn join(&self, joiner: &mut Joiner, received: &[u8]) -> Vec<Event>;

    /// Whether the answer to the opening is among what was received.
    fn opened(&self, opening: &mut Opening, received: &[u8]) -> bool;
}

/// The error of a transfer whose time is over.
pub(super) fn timed_out(tried: &str, on: String) -> Error {
    Error::new(tried, on, io::Error::from(io::ErrorKind::TimedOut))
        .help("give it more time, or look whether the coprocessor still runs")
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

/// Longer than anybody waits: clocks cannot hold it, and then there is no deadline.
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
