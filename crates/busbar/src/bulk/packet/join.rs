//! The receiver's side: joins messages to packets.

use std::array;
use std::iter::Flatten;

use busbar_uapi::rpmsg_bulk::{
    DATA, HEADER_SIZE, LONG_HEADER_SIZE, STATUS_BAD_MESSAGE, STATUS_MESSAGE_SIZE,
    STATUS_NO_BUFFERS, STATUS_PROTOCOL,
};

use super::buffer::BufferMessage;
use super::control::{Control, Encoded};
use super::crc::{self, Crc16};
use super::header::{self, Form, Header, Parsed};

/// A block that was received whole and with the right check sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Check sum of the bytes alone.
    pub crc: u16,
    /// The header that it came with.
    pub form: Form,
}

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A good block.
    Block(Received),
    /// A packet that is refused.
    Refused {
        /// Bytes of the block that were received.
        length: u32,
        /// The reason, as on the wire.
        status: u32,
    },
    /// The two-byte answer to a block with the short header.
    Taken {
        /// Bytes that were received, header included.
        size: u16,
    },
    /// A packet without a block.
    Control(Control),
    /// A message about a shared buffer.
    Buffer(BufferMessage),
}

impl Event {
    /// The answer that the receiver of a block has to send; `None` for all other events.
    #[must_use]
    pub fn answer(&self) -> Option<Encoded> {
        match self {
            Self::Block(Received { bytes, form, .. }) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                Some(match form {
                    Form::Short => Encoded::new(&header::short_size(length).to_le_bytes()),
                    Form::Long => Control::Status { length, status: 0 }.encode(),
                })
            }
            Self::Refused { length, status } => {
                Some(Control::Status { length: *length, status: *status }.encode())
            }
            Self::Taken { .. } | Self::Control(_) | Self::Buffer(_) => None,
        }
    }
}

/// Up to two events: one message can end a packet and be another one.
pub type Events = Flatten<array::IntoIter<Option<Event>, 2>>;

/// How much of the current block was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were received.
    pub received: u32,
    /// Bytes of the whole block.
    pub length: u32,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// Between packets.
    #[default]
    Idle,
    /// Between packets, after data that was not a packet and was refused.
    Lost,
    Packet(Packet),
}

/// Joins the messages of one address.
///
/// Memory is allocated for a block when its header comes, at most for the longest one.
#[derive(Clone, Debug)]
pub struct Joiner {
    longest: u32,
    state: State,
    /// In a stream, the beginning of a header.
    head: Vec<u8>,
}

impl Joiner {
    /// Blocks of more than `longest` bytes are refused.
    #[must_use]
    pub fn new(longest: u32) -> Self {
        Self { longest, state: State::Idle, head: Vec::new() }
    }

    /// From the next block on, blocks of more than `longest` bytes are refused.
    pub fn set_longest(&mut self, longest: u32) {
        self.longest = longest;
    }

    /// Discards the current packet and earlier errors.
    pub fn reset(&mut self) {
        self.state = State::Idle;
        self.head.clear();
    }

    /// The progress of the current block, if there is one.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        match &self.state {
            State::Packet(packet) => {
                Some(Progress { received: packet.received, length: packet.length() })
            }
            State::Idle | State::Lost => None,
        }
    }

    /// Adds a message, on a carrier that keeps the boundaries of messages.
    pub fn push(&mut self, message: &[u8]) -> Events {
        let State::Packet(packet) = &mut self.state else {
            return [self.begin(message), None].into_iter().flatten();
        };
        if message.len() as u64 != packet.demanded() {
            let refused = packet.refuse(STATUS_PROTOCOL);
            self.state = State::Lost;
            return [Some(refused), self.begin(message)].into_iter().flatten();
        }
        packet.take(message);
        [self.finish(), None].into_iter().flatten()
    }

    /// Adds bytes, on a carrier without boundaries of messages, up to the end of the next event.
    ///
    /// Call it until `bytes` is empty and it returns no event. After data that is not a packet, there are no
    /// events until [`Self::reset`]: it is unknown where the next packet begins.
    pub fn push_stream(&mut self, bytes: &mut &[u8]) -> Option<Event> {
        while !bytes.is_empty() {
            let event = match &mut self.state {
                State::Idle => self.take_head(bytes),
                State::Lost => {
                    *bytes = &[];
                    None
                }
                State::Packet(packet) => {
                    packet.take(take(bytes, packet.left()));
                    self.finish()
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// A message outside of a packet.
    fn begin(&mut self, message: &[u8]) -> Option<Event> {
        if let Some(buffer) = BufferMessage::decode(message) {
            self.state = State::Idle;
            return Some(Event::Buffer(buffer));
        }
        match Header::parse(message) {
            Parsed::Header(header) => {
                self.begin_packet(&header, &message[header.form.size()..], message.len())
            }
            Parsed::More => taken(message),
            Parsed::Bad if message.len() < HEADER_SIZE => taken(message),
            Parsed::Bad => self.lose(),
        }
    }

    /// `body` came with the header in a message of `limit` bytes.
    fn begin_packet(&mut self, header: &Header, body: &[u8], limit: usize) -> Option<Event> {
        if header.kind != DATA {
            return if body.is_empty() {
                self.control(header)
            } else {
                self.lose_unless_answer(header)
            };
        }
        let mut packet = Packet::new(header, limit as u64, self.longest);
        if body.len() as u64 > packet.left() {
            return self.lose();
        }
        packet.take(body);
        self.state = State::Packet(packet);
        self.finish()
    }

    fn control(&mut self, header: &Header) -> Option<Event> {
        if header.covered_crc() != header.crc {
            self.state = State::Idle;
            let answer = is_answer(header.kind);
            return (!answer).then_some(Event::Refused { length: 0, status: STATUS_BAD_MESSAGE });
        }
        let Some(control) = Control::from_header(header) else { return self.lose() };
        self.state = State::Idle;
        Some(Event::Control(control))
    }

    /// The data is not a packet: refuses it, unless that was done already.
    fn lose(&mut self) -> Option<Event> {
        let was = std::mem::replace(&mut self.state, State::Lost);
        let refused = Event::Refused { length: 0, status: STATUS_PROTOCOL };
        (!matches!(was, State::Lost)).then_some(refused)
    }

    /// An answer is not answered: otherwise two ends that send invalid data would never stop.
    fn lose_unless_answer(&mut self, header: &Header) -> Option<Event> {
        if is_answer(header.kind) { None } else { self.lose() }
    }

    /// The event at the end of the packet, if all of it was received.
    fn finish(&mut self) -> Option<Event> {
        match &mut self.state {
            State::Packet(packet) if packet.left() == 0 => {
                let event = packet.finish();
                self.state = State::Idle;
                Some(event)
            }
            _ => None,
        }
    }

    /// The beginning of a packet, or an answer, in a stream.
    fn take_head(&mut self, bytes: &mut &[u8]) -> Option<Event> {
        // Two bytes distinguish an answer from a preamble; the next two distinguish the headers.
        let wanted = match self.head.len() {
            0..2 => 2,
            2..HEADER_SIZE => HEADER_SIZE,
            _ => LONG_HEADER_SIZE,
        };
        let more = take(bytes, (wanted - self.head.len()) as u64);
        self.head.extend_from_slice(more);
        if self.head.len() < wanted {
            return None;
        }
        let event = match Header::parse(&self.head) {
            Parsed::More => return None,
            Parsed::Header(header) => self.begin_packet(&header, &[], 0),
            Parsed::Bad if wanted == 2 => taken(&self.head),
            Parsed::Bad => self.lose(),
        };
        self.head.clear();
        event
    }
}

/// Up to `most` bytes off the front of `bytes`.
fn take<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let size = usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len()));
    let (taken, rest) = bytes.split_at(size);
    *bytes = rest;
    taken
}

/// The two-byte answer, or a message that is too short for anything.
fn taken(message: &[u8]) -> Option<Event> {
    let size = <[u8; 2]>::try_from(message).ok()?;
    Some(Event::Taken { size: u16::from_le_bytes(size) })
}

fn is_answer(kind: u16) -> bool {
    use busbar_uapi::rpmsg_bulk::{RESET_DONE, STATUS};
    matches!(kind, STATUS | RESET_DONE)
}

/// A block that is not complete.
#[derive(Clone, Debug)]
struct Packet {
    header: Header,
    /// Length of each message but the last.
    limit: u64,
    /// Empty if the block will be refused.
    bytes: Vec<u8>,
    received: u32,
    crc: Crc16,
    /// Why the block will be refused at its end.
    refused: Option<u32>,
}

impl Packet {
    fn new(header: &Header, limit: u64, longest: u32) -> Self {
        let mut bytes = Vec::new();
        let room = || usize::try_from(header.length).ok();
        let refused = if !header.is_proper() {
            Some(STATUS_PROTOCOL)
        } else if header.length > longest {
            Some(STATUS_MESSAGE_SIZE)
        } else if room().is_none_or(|room| bytes.try_reserve_exact(room).is_err()) {
            Some(STATUS_NO_BUFFERS)
        } else {
            None
        };
        Self { header: *header, limit, bytes, received: 0, crc: Crc16::default(), refused }
    }

    fn length(&self) -> u32 {
        self.header.length
    }

    /// Bytes that are still to come.
    fn left(&self) -> u64 {
        u64::from(self.length() - self.received)
    }

    /// Length of the next message.
    fn demanded(&self) -> u64 {
        self.limit.min(self.left())
    }

    /// `bytes` has at most as many bytes as are left.
    fn take(&mut self, bytes: &[u8]) {
        self.received += u32::try_from(bytes.len()).unwrap_or_default();
        if self.refused.is_none() {
            self.crc.update(bytes);
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn refuse(&self, status: u32) -> Event {
        Event::Refused { length: self.received, status: self.refused.unwrap_or(status) }
    }

    fn finish(&mut self) -> Event {
        let crc = self.crc.value();
        let all = crc::combine(self.header.covered_crc(), crc, u64::from(self.received));
        if self.refused.is_some() || all != self.header.crc {
            return self.refuse(STATUS_BAD_MESSAGE);
        }
        let bytes = std::mem::take(&mut self.bytes);
        Event::Block(Received { bytes, crc, form: self.header.form })
    }
}

#[cfg(test)]
mod tests;
