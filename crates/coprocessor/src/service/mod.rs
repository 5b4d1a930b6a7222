//! Firmware services: they answer at the addresses of the coprocessor.
//!
//! A service is a name and what to do with a message:
//!
//! ```
//! use busbar_coprocessor::service::{Port, Service};
//!
//! struct Shout;
//!
//! impl Service for Shout {
//!     fn name(&self) -> &str {
//!         "shout"
//!     }
//!
//!     fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> busbar::Result<()> {
//!         port.send(from, &data.to_ascii_uppercase())
//!     }
//! }
//! ```
//!
//! Ready-made ones are listed in [`Spec`].

pub mod bulk;
pub mod control;
pub mod converter;
mod crash;
pub mod data;
mod echo;
pub mod sink;
pub mod source;
mod spec;

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use busbar::bulk::packet::BufferMessage;
use busbar::{Error, Result};
use serde::Serialize;

use crate::buffer::{Buffers, Part};
use crate::message::Message;
use crate::name_service::{self, Channel, Directory, Name};

pub use bulk::{Bulk, Stm32mp1, Treatment};
pub use control::Control;
pub use converter::Converter;
pub use crash::Crash;
pub use echo::Echo;
pub use sink::Sink;
pub use source::Source;
pub use spec::Spec;

/// The first address for services without an address of their own.
pub const FIRST_ADDRESS: u32 = 0x400;
/// Messages that a service can always send in one call, whatever Linux does.
pub const ROOM: usize = 64;

/// A service at one address of the coprocessor.
///
/// All services run on one thread, so that none may block. Nothing that a service sends is
/// lost, and yet sending never waits: no service is called while a message still waits for a
/// buffer of Linux. Each call begins with room for [`ROOM`] messages, and while Linux takes
/// none, what it sent before stays in the ring, unread. An error that a call returns is counted
/// and reported; the service stays.
pub trait Service {
    /// The name that is announced to Linux: 1 to 31 printable ASCII characters.
    fn name(&self) -> &str;

    /// Takes a message from address `from` of Linux.
    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()>;

    /// Linux has set up the rings and knows the service: the first time, and again after each
    /// recovery. Earlier requests have ended.
    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        Ok(())
    }

    /// When [`Self::on_tick`] is due; asked for after each call of the service.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed.
    fn on_tick(&mut self, _port: &mut Port<'_>, _now: Instant) -> Result<()> {
        Ok(())
    }
}

/// What a service can do while it is called.
#[derive(Debug)]
pub struct Port<'a> {
    address: u32,
    outbox: &'a mut Outbox,
    channels: &'a Directory,
    crash: &'a mut Option<String>,
    buffers: &'a mut Buffers,
    transfers: &'a mut Vec<Transfer>,
    sent: &'a mut Traffic,
}

impl Port<'_> {
    /// The address of the service.
    #[must_use]
    pub fn address(&self) -> u32 {
        self.address
    }

    /// Messages that can still be sent in this call.
    #[must_use]
    pub fn room(&self) -> usize {
        ROOM.saturating_sub(self.outbox.0.len())
    }

    /// Sends `data` to address `to` of Linux, never waiting.
    ///
    /// Fails where `data` is longer than [`crate::message::MTU`] or no [`Self::room`] is left.
    pub fn send(&mut self, to: u32, data: &[u8]) -> Result<()> {
        if self.room() == 0 {
            let full = std::io::Error::new(
                std::io::ErrorKind::WouldBlock,
                format!("{ROOM} messages were sent in this call"),
            );
            return Err(Error::new("send", format!("a message to {to:#x}"), full)
                .help("go on in `on_tick` while there is room"));
        }
        self.outbox.push(Message::new(self.address, to, data)?);
        self.sent.add(data.len());
        Ok(())
    }

    /// Maps the buffer that Linux has given with `message`, to read or fill it in place.
    ///
    /// Fails where it cannot be mapped. If it is not given at all, the first access fails.
    /// After it was given back, by sending [`BufferMessage::done`], it must not be used any more.
    pub fn buffer(&mut self, message: &BufferMessage) -> Result<Part> {
        self.buffers.part(message)
    }

    /// Reports a block to the user of the coprocessor.
    pub fn report(&mut self, transfer: Transfer) {
        self.transfers.push(transfer);
    }

    /// The channels that Linux has announced.
    #[must_use]
    pub fn channels(&self) -> &[Channel] {
        self.channels.channels()
    }

    /// Makes the coprocessor crash after this call, for `reason`. Messages just sent may be lost.
    pub fn crash(&mut self, reason: impl Into<String>) {
        self.crash.get_or_insert_with(|| reason.into());
    }
}

/// A block that a service has taken or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Linux's end.
    pub peer: u32,
    /// Whether the service has sent it; otherwise it was received.
    pub sent: bool,
    /// Whether it was in a shared buffer; otherwise it came in messages.
    pub shared: bool,
    /// Bytes.
    pub length: u64,
    /// Its checksum, see [`busbar::bulk::packet::crc16`].
    pub crc: u16,
}

/// Messages that wait for buffers of Linux.
#[derive(Debug, Default)]
pub(crate) struct Outbox(VecDeque<Message>);

impl Outbox {
    pub(crate) fn push(&mut self, message: Message) {
        self.0.push_back(message);
    }

    pub(crate) fn front(&self) -> Option<&Message> {
        self.0.front()
    }

    pub(crate) fn pop(&mut self) {
        self.0.pop_front();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Messages and their bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes of data, without headers.
    pub bytes: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}

/// What a service has received and sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceStatistics {
    /// Announced name.
    pub name: String,
    /// Address.
    pub address: u32,
    /// From Linux.
    pub received: Traffic,
    /// To Linux; the last ones may still wait for buffers.
    pub sent: Traffic,
    /// Calls that returned an error.
    pub errors: u64,
}

struct Entry {
    service: Box<dyn Service + Send>,
    channel: Channel,
    received: Traffic,
    sent: Traffic,
    errors: u64,
}

/// The services of a coprocessor with their addresses.
#[derive(Default)]
pub struct Services {
    entries: Vec<Entry>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries.iter().map(|entry| entry.service.name());
        f.debug_list().entries(names).finish()
    }
}

impl Services {
    /// Adds a service at the next free address from [`FIRST_ADDRESS`] on, and returns the address.
    ///
    /// Fails where the name cannot be announced.
    pub fn add(&mut self, service: impl Service + Send + 'static) -> Result<u32> {
        self.add_boxed(Box::new(service), None)
    }

    /// Adds a service at `address`, anything but 0, 53 (the name service) and the highest.
    ///
    /// Fails where the address is taken or the name cannot be announced.
    pub fn add_at(&mut self, address: u32, service: impl Service + Send + 'static) -> Result<u32> {
        self.add_boxed(Box::new(service), Some(address))
    }

    pub(crate) fn add_boxed(
        &mut self,
        service: Box<dyn Service + Send>,
        address: Option<u32>,
    ) -> Result<u32> {
        let name = Name::new(service.name())?;
        let address = address.unwrap_or_else(|| self.free_address());
        if matches!(address, 0 | name_service::ADDRESS | u32::MAX) {
            let allowed = "anything but 0, 0x35 (the name service) and 0xffffffff";
            return Err(Error::invalid("service address", format!("{address:#x}"), allowed));
        }
        if let Some(other) = self.entry(address) {
            let value = format!("{address:#x} for {name}");
            let allowed = format!("an address that {} does not have", other.channel.name);
            return Err(Error::invalid("service address", value, allowed));
        }
        let channel = Channel { name, address };
        let (received, sent) = Default::default();
        self.entries.push(Entry { service, channel, received, sent, errors: 0 });
        Ok(address)
    }

    /// How many services there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Names and addresses.
    pub fn channels(&self) -> impl Iterator<Item = Channel> {
        self.entries.iter().map(|entry| entry.channel)
    }

    /// What each service has received and sent so far.
    #[must_use]
    pub fn statistics(&self) -> Vec<ServiceStatistics> {
        let of = |entry: &Entry| ServiceStatistics {
            name: entry.channel.name.to_string(),
            address: entry.channel.address,
            received: entry.received,
            sent: entry.sent,
            errors: entry.errors,
        };
        self.entries.iter().map(of).collect()
    }

    /// The service at `address`.
    pub(crate) fn at(&self, address: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.channel.address == address)
    }

    pub(crate) fn channel(&self, index: usize) -> Option<Channel> {
        self.entries.get(index).map(|entry| entry.channel)
    }

    /// The earliest deadline of all services.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.service.next_deadline()).min()
    }

    /// The next service from `first` on whose deadline has passed.
    pub(crate) fn due(&self, first: usize, now: Instant) -> Option<usize> {
        let is_due = |at: &usize| {
            self.entries[*at].service.next_deadline().is_some_and(|deadline| deadline <= now)
        };
        (first..self.entries.len()).find(is_due)
    }

    /// Calls the service at `index` for `call`.
    pub(crate) fn call(&mut self, index: usize, call: Call<'_>, around: Around<'_>) -> Result<()> {
        let Some(entry) = self.entries.get_mut(index) else { return Ok(()) };
        let Around { outbox, channels, crash, buffers, transfers } = around;
        let address = entry.channel.address;
        let sent = &mut entry.sent;
        let mut port = Port { address, outbox, channels, crash, buffers, transfers, sent };
        let result = match call {
            Call::Start => entry.service.on_start(&mut port),
            Call::Tick(now) => entry.service.on_tick(&mut port, now),
            Call::Message { from, data } => {
                entry.received.add(data.len());
                entry.service.on_message(&mut port, from, data)
            }
        };
        entry.errors += u64::from(result.is_err());
        result
    }

    fn entry(&self, address: u32) -> Option<&Entry> {
        self.at(address).map(|index| &self.entries[index])
    }

    fn free_address(&self) -> u32 {
        (FIRST_ADDRESS..u32::MAX).find(|address| self.at(*address).is_none()).unwrap_or(u32::MAX)
    }
}

/// Why a service is called.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    Start,
    Tick(Instant),
    Message { from: u32, data: &'a [u8] },
}

/// What a service reaches through its port.
pub(crate) struct Around<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) channels: &'a Directory,
    pub(crate) crash: &'a mut Option<String>,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) transfers: &'a mut Vec<Transfer>,
}

#[cfg(test)]
pub(crate) mod testing {
    //! Calls one service without rings.

    use super::*;
    use crate::buffer::Window;
    use crate::message;

    /// A service and the messages that it has sent: destination and data.
    pub(crate) struct Bench {
        services: Services,
        channels: Directory,
        buffers: Buffers,
        pub(crate) transfers: Vec<Transfer>,
        pub(crate) crash: Option<String>,
    }

    pub(crate) type Sent = Vec<(u32, Vec<u8>)>;

    impl Bench {
        pub(crate) fn new(service: impl Service + Send + 'static) -> Self {
            let mut services = Services::default();
            services.add(service).unwrap();
            let (channels, buffers, transfers) = Default::default();
            Self { services, channels, buffers, transfers, crash: None }
        }

        pub(crate) fn with_window(mut self, window: impl Window + 'static) -> Self {
            self.buffers = Buffers::new(Some(std::sync::Arc::new(window)));
            self
        }

        pub(crate) fn message(&mut self, from: u32, data: &[u8]) -> Result<Sent> {
            self.call(Call::Message { from, data })
        }

        pub(crate) fn start(&mut self) -> Result<Sent> {
            self.call(Call::Start)
        }

        pub(crate) fn tick(&mut self, now: Instant) -> Result<Sent> {
            self.call(Call::Tick(now))
        }

        pub(crate) fn deadline(&self) -> Option<Instant> {
            self.services.next_deadline()
        }

        fn call(&mut self, call: Call<'_>) -> Result<Sent> {
            let mut outbox = Outbox::default();
            let Self { channels, buffers, transfers, crash, .. } = self;
            let outbox_of_call = &mut outbox;
            let around = Around { outbox: outbox_of_call, channels, crash, buffers, transfers };
            self.services.call(0, call, around)?;
            let sent = outbox.0.iter().map(|message| {
                let (header, data) = message::parse(message.as_bytes()).unwrap();
                (header.destination, data.to_vec())
            });
            Ok(sent.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Bench;
    use super::*;

    /// Sends as many messages as it is told to.
    struct Flood;

    impl Service for Flood {
        fn name(&self) -> &'static str {
            "flood"
        }

        fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
            (0..data[0]).try_for_each(|number| port.send(from, &[number]))
        }
    }

    #[test]
    fn a_call_has_room_for_so_many_messages_and_no_more() {
        let room = u8::try_from(ROOM).unwrap();
        let mut bench = Bench::new(Flood);
        assert_eq!(bench.message(7, &[room]).unwrap().len(), ROOM);
        let error = bench.message(7, &[room + 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn addresses_go_up_around_those_that_are_taken() {
        let mut services = Services::default();
        services.add_at(0x401, Flood).unwrap();
        assert_eq!(services.add(Flood).unwrap(), 0x400);
        assert_eq!(services.add(Flood).unwrap(), 0x402);
    }

    #[test]
    fn addresses_that_are_taken_or_reserved_are_refused() {
        let mut services = Services::default();
        services.add_at(0x401, Flood).unwrap();
        for bad in [0, 53, u32::MAX, 0x401] {
            let error = services.add_at(bad, Flood).unwrap_err().to_string();
            assert!(error.contains("service address"), "{error}");
        }
        assert_eq!(services.len(), 1);
    }
}
