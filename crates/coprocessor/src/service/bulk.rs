//! Receives blocks and sends them back, in messages and in shared buffers.
//!
//! The packets are those of [`busbar::bulk::packet`]. From each address of Linux blocks are joined,
//! checked and answered, and the last good one is kept: a request with length 0 has it sent back,
//! or, for an address that has sent none, the last one of all. A request with a length has that
//! many bytes sent, byte i being `i & 0xff`. What is sent keeps to the credit that Linux grants.
//!
//! A shared buffer that is to be read is a block too: every byte is read, its checksum computed,
//! and it is kept. One that is to be filled gets the last good block if that has exactly as many
//! bytes, and otherwise the pattern. [`Bulk::buffers`] makes a service that only compares them with the
//! pattern, or gives them back as they are.
//!
//! Answers that come while a block is sent to the same address follow it; only shared buffers are
//! given back at once. A reset forgets everything of its address, except that its last block stays
//! the last one of all.
//!
//! Bounds: [`MAX_BLOCK`] bytes in a block, [`MAX_PEERS`] addresses, [`MAX_KEPT`] bytes kept,
//! [`MAX_GIVEN`] shared buffers at a time; the address that has been silent for the longest time is forgotten
//! first. Work on a buffer is done in slices, so that no other service waits for long.

mod given;
mod outgoing;
mod peer;
mod stm32mp1;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use busbar::bulk::packet::{
    BufferMessage, Content, Control, Direction, Encoded, Event, Kind, Received, errno,
};
use busbar::{Error, Result, later};
use busbar_uapi::rpmsg_bulk::{STATUS_NO_BUFFERS, STATUS_NO_DATA, STATUS_PROTOCOL};

use self::given::{Given, Outcome};
use self::outgoing::{Body, Faults, Sending};
use self::peer::Peers;
pub use self::stm32mp1::Stm32mp1;
use super::{Port, Service, Transfer};

/// Bytes of the longest block.
pub const MAX_BLOCK: u32 = 64 << 20;
/// Addresses of Linux that are remembered.
pub const MAX_PEERS: usize = 64;
/// Bytes of all blocks that are kept for addresses.
pub const MAX_KEPT: u64 = 256 << 20;
/// Shared buffers that are worked on or wait for it.
pub const MAX_GIVEN: usize = 1024;

/// Bytes of shared buffers that are worked on in one call.
const SLICE: usize = 1 << 20;

/// A good block.
#[derive(Clone, Debug)]
struct Kept {
    bytes: Arc<Vec<u8>>,
    crc: u16,
}

impl Kept {
    fn new(bytes: Vec<u8>, crc: u16) -> Self {
        Self { bytes: Arc::new(bytes), crc }
    }
}

impl Content for Kept {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn crc(&self) -> u16 {
        self.crc
    }

    fn bytes(&self, from: u64, length: usize) -> &[u8] {
        Content::bytes(&*self.bytes, from, length)
    }
}

/// What is done with shared buffers that are to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Each is a block, and kept.
    #[default]
    Kept,
    /// Every byte is compared with that of the pattern, where it lies. The status of a buffer that
    /// has another one is `EBADMSG`.
    Checked,
    /// They are given back unchanged, also those that are to be filled.
    Untouched,
}

/// An answer that is held back.
#[derive(Debug)]
struct Late {
    due: Instant,
    to: u32,
    answer: Answer,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    /// For a block: sent in order with everything else to that address.
    Block(Encoded),
    /// For a shared buffer: sent at once.
    Buffer(BufferMessage),
}

/// Receives and sends blocks, see the [module](self).
#[derive(Debug)]
pub struct Bulk {
    name: String,
    buffers: Treatment,
    delay: Duration,
    faults: Faults,
    peers: Peers,
    last: Option<Kept>,
    given: VecDeque<Given>,
    late: VecDeque<Late>,
    deadline: Option<Instant>,
    buffer: Vec<u8>,
}

impl Bulk {
    /// A service that is announced as `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            buffers: Treatment::default(),
            delay: Duration::ZERO,
            faults: Faults::default(),
            peers: Peers::default(),
            last: None,
            given: VecDeque::new(),
            late: VecDeque::new(),
            deadline: None,
            buffer: Vec::new(),
        }
    }

    /// What to do with shared buffers.
    #[must_use]
    pub fn buffers(self, buffers: Treatment) -> Self {
        Self { buffers, ..self }
    }

    /// Answers blocks and gives buffers back after this delay at the earliest.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// A fault for tests: flips a bit in every n-th block that it sends in messages.
    #[must_use]
    pub fn corrupt(mut self, every: NonZeroU64) -> Self {
        self.faults.corrupt = Some(every);
        self
    }

    /// A fault for tests: ends every n-th block that it sends in messages one byte early.
    #[must_use]
    pub fn truncate(mut self, every: NonZeroU64) -> Self {
        self.faults.truncate = Some(every);
        self
    }

    /// Handles the content of a message.
    fn handle(&mut self, port: &mut Port<'_>, from: u32, event: Event) -> Result<()> {
        if let Some(answer) = event.answer() {
            self.answer(port, from, Answer::Block(answer))?;
        }
        match event {
            Event::Block(Received { bytes, crc, .. }) => {
                report(port, from, false, false, bytes.len() as u64, crc);
                self.keep(from, Kept::new(bytes, crc));
            }
            Event::Control(control) => self.control(port, from, control)?,
            Event::Buffer(message) if message.kind == Kind::Given => {
                self.take_buffer(port, from, &message)?;
            }
            Event::Buffer(_) | Event::Refused { .. } | Event::Taken { .. } => {}
        }
        Ok(())
    }

    fn control(&mut self, port: &mut Port<'_>, from: u32, control: Control) -> Result<()> {
        match control {
            Control::Receive { length, credit } => self.begin(port, from, length, credit),
            Control::Credit { bytes } => {
                self.peers.get(from).outgoing.grant(bytes);
                Ok(())
            }
            Control::Reset { value } => {
                self.forget(from);
                port.send(from, &Control::ResetDone { value }.encode())
            }
            Control::Status { length, status } => match errno(status) {
                None => Ok(()),
                Some(errno) => Err(Error::new("send", format!("a block to {from:#x}"), errno)
                    .help(format!("Linux has refused it after {length} bytes"))),
            },
            Control::ResetDone { .. } => Ok(()),
        }
    }

    /// Linux asks for a block.
    fn begin(&mut self, port: &mut Port<'_>, from: u32, length: u32, credit: u32) -> Result<()> {
        let refuse = |status| Answer::Block(Control::Status { length: 0, status }.encode());
        let peer = self.peers.get(from);
        if peer.outgoing.sends_block() {
            return self.answer(port, from, refuse(STATUS_PROTOCOL));
        }
        let Some(body) = Body::wanted(length, peer.kept.as_ref().or(self.last.as_ref())) else {
            return self.answer(port, from, refuse(STATUS_NO_DATA));
        };
        let sending = Sending::new(body, credit, self.faults.next())?;
        peer.outgoing.push_block(sending);
        Ok(())
    }

    fn forget(&mut self, from: u32) {
        self.peers.forget(from);
        self.late.retain(|late| late.to != from || matches!(late.answer, Answer::Buffer(_)));
        for given in self.given.iter_mut().filter(|given| given.from == from) {
            given.forgotten = true;
        }
    }

    fn keep(&mut self, from: u32, block: Kept) {
        self.last = Some(block.clone());
        self.peers.keep(from, block);
    }

    fn take_buffer(&mut self, port: &mut Port<'_>, from: u32, given: &BufferMessage) -> Result<()> {
        if self.buffers == Treatment::Untouched {
            return self.answer(port, from, Answer::Buffer(given.done(given.length, 0)));
        }
        if self.given.len() == MAX_GIVEN {
            return self.answer(port, from, Answer::Buffer(given.done(0, STATUS_NO_BUFFERS)));
        }
        self.given.push_back(Given::new(from, *given));
        Ok(())
    }

    fn answer(&mut self, port: &mut Port<'_>, to: u32, answer: Answer) -> Result<()> {
        if self.delay.is_zero() {
            return self.answer_now(port, to, answer);
        }
        self.late.push_back(Late { due: later(Instant::now(), self.delay), to, answer });
        Ok(())
    }

    fn answer_now(&mut self, port: &mut Port<'_>, to: u32, answer: Answer) -> Result<()> {
        match answer {
            Answer::Buffer(message) => return port.send(to, &message.encode()),
            Answer::Block(message) => self.peers.get(to).outgoing.push_answer(message),
        }
        Ok(())
    }

    /// Goes on with all work for which there is room for messages.
    fn go_on(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        while port.room() > 0 && self.late.front().is_some_and(|late| late.due <= now) {
            let Some(Late { to, answer, .. }) = self.late.pop_front() else { break };
            self.answer_now(port, to, answer)?;
        }
        self.work(port)?;
        self.send(port)?;
        self.deadline =
            if self.is_busy() { Some(now) } else { self.late.front().map(|late| late.due) };
        Ok(())
    }

    /// Whether there is work that needs only room for messages.
    fn is_busy(&self) -> bool {
        !self.given.is_empty() || self.peers.iter().any(|peer| peer.outgoing.is_ready())
    }

    /// Sends to all addresses what is due, each its share.
    fn send(&mut self, port: &mut Port<'_>) -> Result<()> {
        let ready = self.peers.iter().filter(|peer| peer.outgoing.is_ready()).count();
        let Some(share) = port.room().checked_div(ready) else { return Ok(()) };
        for peer in self.peers.in_turn() {
            let share = share.max(1).min(port.room());
            peer.outgoing.send(port, peer.address, share, &mut self.buffer)?;
        }
        Ok(())
    }

    /// Works on shared buffers, a slice at a time.
    fn work(&mut self, port: &mut Port<'_>) -> Result<()> {
        let mut left = SLICE;
        while left > 0 && port.room() > 0 {
            let Some(mut given) = self.given.pop_front() else { break };
            let kept = self.peers.find(given.from).and_then(|peer| peer.kept.as_ref());
            match given.go_on(port, self.buffers, kept.or(self.last.as_ref()), &mut left) {
                Outcome::More => self.given.push_front(given),
                Outcome::Failed(status) => {
                    let done = given.message.done(0, status);
                    self.answer(port, given.from, Answer::Buffer(done))?;
                }
                Outcome::Done { block, crc } => self.give_back(port, &given, block, crc)?,
            }
        }
        Ok(())
    }

    /// `block` is the block to keep, `crc` the checksum of the data read or written.
    fn give_back(
        &mut self,
        port: &mut Port<'_>,
        given: &Given,
        block: Option<Vec<u8>>,
        crc: u16,
    ) -> Result<()> {
        let Given { from, message, forgotten, .. } = *given;
        let sent = message.direction == Direction::FromRemote;
        report(port, from, sent, true, message.length, crc);
        if let Some(block) = block.filter(|_| !forgotten) {
            self.keep(from, Kept::new(block, crc));
        }
        self.answer(port, from, Answer::Buffer(message.done(message.length, 0)))
    }
}

fn report(port: &mut Port<'_>, peer: u32, sent: bool, shared: bool, length: u64, crc: u16) {
    port.report(Transfer { peer, sent, shared, length, crc });
}

impl Service for Bulk {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        (self.peers, self.last, self.given, self.late) = Default::default();
        self.deadline = None;
        Ok(())
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        let events = self.peers.get(from).joiner.push(data);
        // An error of one event does not prevent answers to the others.
        let handled = events.map(|event| self.handle(port, from, event)).fold(Ok(()), Result::and);
        handled.and(self.go_on(port, Instant::now()))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        self.go_on(port, now)
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests;
