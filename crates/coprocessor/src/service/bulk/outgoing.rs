//! Blocks and answers to one address, in order.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use busbar::Result;
use busbar::bulk::packet::{Content, Control, Cutter, Encoded, Pattern};
use busbar_uapi::rpmsg_bulk::STATUS_NO_BUFFERS;

use super::super::{Port, Transfer};
use super::Kept;
use crate::message::MTU;

/// Answers that may wait behind a block.
const MAX_WAITING: usize = 64;

/// Faults for tests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) corrupt: Option<NonZeroU64>,
    pub(super) truncate: Option<NonZeroU64>,
    blocks: u64,
}

impl Faults {
    /// The fault of the next block.
    pub(super) fn next(&mut self) -> Fault {
        self.blocks += 1;
        let due = |every: Option<NonZeroU64>| every.is_some_and(|every| self.blocks % every == 0);
        Fault { corrupt: due(self.corrupt), truncate: due(self.truncate) }
    }
}

/// The fault of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    corrupt: bool,
    truncate: bool,
}

/// A block to send.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Kept(Kept),
    Pattern(Pattern, u16),
}

impl Body {
    /// The block that a request for `length` bytes asks for; `last` is the last good block.
    pub(super) fn wanted(length: u32, last: Option<&Kept>) -> Option<Self> {
        match length {
            0 => last.cloned().map(Self::Kept),
            length => Some(Self::pattern(length)),
        }
    }

    /// This many bytes of the pattern.
    pub(super) fn pattern(length: u32) -> Self {
        let pattern = Pattern(length);
        Self::Pattern(pattern, pattern.crc())
    }

    fn content(&self) -> &dyn Content {
        match self {
            Self::Kept(kept) => kept,
            Self::Pattern(pattern, _) => pattern,
        }
    }
}

impl Content for Body {
    fn length(&self) -> u64 {
        self.content().length()
    }

    fn crc(&self) -> u16 {
        match self {
            Self::Kept(kept) => kept.crc,
            Self::Pattern(_, crc) => *crc,
        }
    }

    fn bytes(&self, from: u64, length: usize) -> &[u8] {
        self.content().bytes(from, length)
    }
}

/// A block that is being sent.
#[derive(Debug)]
pub(super) struct Sending {
    cutter: Cutter<Body>,
    credit: u64,
    fault: Fault,
}

impl Sending {
    pub(super) fn new(body: Body, credit: u32, fault: Fault) -> Result<Self> {
        Ok(Self { cutter: Cutter::new(body, MTU)?, credit: u64::from(credit), fault })
    }

    fn is_ready(&self) -> bool {
        self.cutter.piece_size() as u64 <= self.credit
    }

    /// Sends the next message; true if it was the last.
    fn send(&mut self, port: &mut Port<'_>, to: u32, buffer: &mut Vec<u8>) -> Result<bool> {
        let Some(piece) = self.cutter.piece() else { return Ok(true) };
        if piece.head.is_empty() && !self.fault.corrupt && !self.fault.truncate {
            port.send(to, piece.body)?;
        } else {
            piece.write_to(buffer);
            let (head, body) = (piece.head.len(), piece.body.len());
            self.spoil(buffer, head, body);
            port.send(to, buffer)?;
        }
        self.credit -= self.cutter.piece_size() as u64;
        self.cutter.advance();
        Ok(self.cutter.left() == 0)
    }

    /// Applies the fault to a message.
    fn spoil(&self, message: &mut Vec<u8>, head: usize, body: usize) {
        let middle = self.cutter.content().length() / 2;
        let at = middle.checked_sub(self.cutter.position()).and_then(|at| usize::try_from(at).ok());
        if self.fault.corrupt
            && let Some(at) = at.filter(|at| *at < body)
        {
            message[head + at] ^= 1;
        }
        if self.fault.truncate && self.cutter.left() == message.len() as u64 {
            message.pop();
        }
    }
}

#[derive(Debug)]
enum Item {
    Answer(Encoded),
    Block(Box<Sending>),
}

/// Blocks and answers to one address.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    items: VecDeque<Item>,
}

impl Outgoing {
    /// Adds an answer. If too many wait, everything for this address is dropped.
    pub(super) fn push_answer(&mut self, answer: Encoded) {
        let mut answer = answer;
        if self.items.len() == MAX_WAITING {
            self.items.clear();
            answer = Control::Status { length: 0, status: STATUS_NO_BUFFERS }.encode();
        }
        self.items.push_back(Item::Answer(answer));
    }

    pub(super) fn push_block(&mut self, sending: Sending) {
        self.items.push_back(Item::Block(Box::new(sending)));
    }

    /// Whether a block is being sent, or waits to be sent.
    pub(super) fn sends_block(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Block(_)))
    }

    /// Grants credit to the block; without a block it is lost.
    pub(super) fn grant(&mut self, bytes: u32) {
        for item in &mut self.items {
            if let Item::Block(sending) = item {
                sending.credit += u64::from(bytes);
            }
        }
    }

    /// Whether a message could be sent now.
    pub(super) fn is_ready(&self) -> bool {
        match self.items.front() {
            Some(Item::Answer(_)) => true,
            Some(Item::Block(sending)) => sending.is_ready(),
            None => false,
        }
    }

    /// Sends at most `most` messages.
    pub(super) fn send(
        &mut self,
        port: &mut Port<'_>,
        to: u32,
        most: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        for _ in 0..most {
            let ended = match self.items.front_mut() {
                Some(Item::Answer(answer)) => port.send(to, answer).map(|()| true)?,
                Some(Item::Block(sending)) if sending.is_ready() => {
                    let ended = sending.send(port, to, buffer)?;
                    if ended {
                        port.report(sent(to, sending.cutter.content()));
                    }
                    ended
                }
                _ => break,
            };
            if ended {
                self.items.pop_front();
            }
        }
        Ok(())
    }
}

fn sent(peer: u32, body: &Body) -> Transfer {
    Transfer { peer, sent: true, shared: false, length: body.length(), crc: body.crc() }
}
