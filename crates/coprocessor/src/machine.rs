//! The firmware: rings, name service and services, one turn at a time.
//!
//! A [`Machine`] knows nothing of descriptors, polling or threads. Its caller tells it of
//! starts and stops, calls a turn whenever something may have happened, and kicks Linux
//! as it asks. So it also runs on ordinary memory, against a mock of Linux.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use busbar::{Error, Result};
use serde::Serialize;
use vm_memory::{Bytes, GuestMemoryMmap, MmapRegion, VolatileMemory};

use crate::buffer::{Buffers, Window};
use crate::message::{self, BUFFER_SIZE, Message};
use crate::name_service::{self, Announcement, Change, Channel, Directory};
use crate::ring::Ring;
use crate::service::{Around, Call, Outbox, ServiceStatistics, Services, Transfer};
use crate::table::{self, Device, STATUS_DRIVER_OK};

/// Most messages from Linux that are taken in one turn, with one kick for all answers.
const BATCH: usize = 64;

/// What Linux and the coprocessor share.
#[derive(Debug)]
pub struct Shared {
    memory: GuestMemoryMmap,
    table: Arc<MmapRegion>,
    window: Option<Arc<dyn Window>>,
}

impl Shared {
    /// `memory` lies at its device address, `table` holds the resource table.
    #[must_use]
    pub fn new(memory: GuestMemoryMmap, table: impl Into<Arc<MmapRegion>>) -> Self {
        Self { memory, table: table.into(), window: None }
    }

    /// Buffers that Linux shares can be mapped from `window`.
    #[must_use]
    pub fn with_window(self, window: impl Window + 'static) -> Self {
        Self { window: Some(Arc::new(window)), ..self }
    }

    fn device(&self) -> Result<Device> {
        let mut copy = vec![0; self.table.size()];
        self.table.as_volatile_slice().copy_to(&mut copy);
        table::parse(&copy)
    }

    /// Also orders the status before everything that Linux has set up until then.
    fn is_ready(&self, status_at: usize) -> bool {
        let status = self.table.as_volatile_slice().load::<u8>(status_at, Ordering::Acquire);
        status.is_ok_and(|status| status & STATUS_DRIVER_OK != 0)
    }
}

/// An event that the user of a coprocessor may want to know.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Linux has started the core for the `boot`th time.
    Started {
        /// How often Linux has started this core.
        boot: u64,
    },
    /// Linux's driver has set up the rings, and all services are announced.
    Ready {
        /// The services.
        channels: &'a [Channel],
    },
    /// Linux has announced or withdrawn a channel of its own.
    Channel {
        /// The announcement.
        announcement: Announcement,
        /// What it changed.
        change: Change,
    },
    /// A call of a service has failed.
    Failed {
        /// The service.
        channel: Channel,
        /// Why.
        error: &'a Error,
    },
    /// A service has taken or sent a block.
    Transferred {
        /// The service.
        channel: Channel,
        /// The block.
        transfer: Transfer,
    },
    /// Linux has stopped the core.
    Stopped,
    /// The firmware has crashed; Linux recovers it with another start.
    Crashed {
        /// Why.
        reason: &'a str,
    },
}

/// Takes [`Notice`]s.
pub type Notify<'a> = &'a mut dyn FnMut(Notice<'_>);

/// Malformed input that was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Buffers with invalid descriptors.
    pub buffers: u64,
    /// Messages without a header, or shorter than it says.
    pub messages: u64,
    /// Malformed announcements.
    pub announcements: u64,
    /// Messages to an address that no service has.
    pub strays: u64,
}

/// What a coprocessor has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Starts by Linux.
    pub boots: u64,
    /// Crashes of the firmware.
    pub crashes: u64,
    /// Kicks to Linux.
    pub kicks: u64,
    /// Turns that ended while messages waited for buffers of Linux.
    pub waits: u64,
    /// What was dropped.
    pub dropped: Dropped,
    /// Each service.
    pub services: Vec<ServiceStatistics>,
}

/// What the caller has to do after a turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Vrings to kick, one bit for each notify id.
    pub kick: u32,
    /// Another turn is due at once.
    pub busy: bool,
    /// Another turn is due at this time, even if nothing happens.
    pub deadline: Option<Instant>,
    /// The firmware has crashed: report it and call [`Machine::halt`].
    pub crash: Option<String>,
}

/// The rings of one boot and what is in flight on them.
struct Link {
    status_at: usize,
    /// Linux receives.
    receive: Ring<GuestMemoryMmap>,
    /// Linux transmits.
    transmit: Ring<GuestMemoryMmap>,
    /// Linux takes announcements.
    announces: bool,
    /// Services up to here are announced,
    announced: usize,
    /// and up to here started.
    started: usize,
    ready: bool,
    outbox: Outbox,
    channels: Directory,
    crash: Option<String>,
}

impl Link {
    fn new(memory: &GuestMemoryMmap, device: &Device) -> Result<Self> {
        let event_index = device.has(table::FEATURE_EVENT_INDEX);
        let ring = |index| Ring::new(memory.clone(), &device.vring(index)?, event_index);
        let (outbox, channels) = Default::default();
        Ok(Self {
            status_at: device.status_at,
            receive: ring(table::RECEIVE)?,
            transmit: ring(table::TRANSMIT)?,
            announces: device.has(table::FEATURE_NAME_SERVICE),
            announced: 0,
            started: 0,
            ready: false,
            outbox,
            channels,
            crash: None,
        })
    }

    /// Moves waiting messages into buffers of Linux; true if none waits any more.
    fn flush(&mut self) -> Result<bool> {
        while let Some(message) = self.outbox.front() {
            if !self.receive.send(message.as_bytes())? {
                return Ok(false);
            }
            self.outbox.pop();
        }
        Ok(true)
    }

    fn announce(&mut self, channel: Channel, withdrawn: bool) -> Result<()> {
        if self.announces {
            let data = Announcement { channel, withdrawn }.encode();
            self.outbox.push(Message::new(channel.address, name_service::ADDRESS, &data)?);
        }
        Ok(())
    }

    /// The mask of the vrings that Linux has to be kicked on.
    fn kicks(&mut self) -> Result<u32> {
        let mut mask = 0;
        for ring in [&mut self.receive, &mut self.transmit] {
            if ring.needs_kick()? {
                mask |= ring.mask();
            }
        }
        Ok(mask)
    }

    /// Asks Linux to kick for what is waited for; true if it is there already.
    fn listen(&mut self, drained: bool) -> Result<bool> {
        if !self.outbox.is_empty() {
            return self.receive.listen();
        }
        self.receive.mute()?;
        if drained { self.transmit.listen() } else { Ok(true) }
    }

    fn is_current(&self) -> Result<bool> {
        Ok(self.receive.is_current()? && self.transmit.is_current()?)
    }
}

/// The firmware, see the [module](self).
pub struct Machine<'a> {
    shared: &'a Shared,
    services: &'a mut Services,
    started: bool,
    closing: bool,
    link: Option<Link>,
    buffers: Buffers,
    transfers: Vec<Transfer>,
    statistics: Statistics,
}

impl fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("services", &self.services)
            .field("started", &self.started)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

impl<'a> Machine<'a> {
    /// A machine that waits for its first start.
    pub fn new(shared: &'a Shared, services: &'a mut Services) -> Self {
        let (transfers, statistics) = Default::default();
        let buffers = Buffers::new(shared.window.clone());
        let (started, closing, link) = (false, false, None);
        Self { shared, services, started, closing, link, buffers, transfers, statistics }
    }

    /// Linux has started the core.
    pub fn start(&mut self) {
        self.forget();
        self.started = true;
        self.statistics.boots += 1;
    }

    /// Linux stops the core, or the core has crashed: the memory is not touched any more.
    pub fn halt(&mut self) {
        self.forget();
        self.started = false;
    }

    fn forget(&mut self) {
        self.link = None;
        self.buffers.clear();
    }

    /// Whether the core is started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Withdraws all names; no service is called any more. Further turns send what waits.
    pub fn close(&mut self) -> Result<()> {
        self.closing = true;
        let Some(link) = &mut self.link else { return Ok(()) };
        let mut announced = self.services.channels().take(link.announced);
        announced.try_for_each(|channel| link.announce(channel, true))
    }

    /// Whether no message waits for a buffer of Linux.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.outbox.is_empty())
    }

    /// What was done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics { services: self.services.statistics(), ..self.statistics.clone() }
    }

    /// Does what there is to do, up to a batch of messages.
    ///
    /// Malformed input from Linux is dropped and counted, or where nothing
    /// can be trusted any more, makes the firmware crash.
    pub fn turn(&mut self, now: Instant, notify: Notify<'_>) -> Turn {
        let turn = self
            .try_turn(now, notify)
            .unwrap_or_else(|error| Turn { crash: Some(error.to_string()), ..Turn::default() });
        if let Some(link) = &mut self.link {
            let malformed = link.receive.take_malformed() + link.transmit.take_malformed();
            self.statistics.dropped.buffers += malformed;
        }
        self.statistics.kicks += u64::from(turn.kick != 0);
        self.statistics.crashes += u64::from(turn.crash.is_some());
        turn
    }

    fn try_turn(&mut self, now: Instant, notify: Notify<'_>) -> Result<Turn> {
        let Some(mut link) = self.current_link()? else { return Ok(Turn::default()) };
        let result = self.serve(&mut link, now, notify);
        self.link = Some(link);
        result
    }

    fn serve(&mut self, link: &mut Link, now: Instant, notify: Notify<'_>) -> Result<Turn> {
        link.flush()?;
        self.start_services(link, notify)?;
        self.tick(link, now, notify)?;
        let drained = self.take_messages(link, notify)?;
        let kick = link.kicks()?;
        let waiting = !link.outbox.is_empty();
        self.statistics.waits += u64::from(waiting);
        let idle = waiting || self.closing;
        Ok(Turn {
            kick,
            busy: link.listen(drained)?,
            deadline: if idle { None } else { self.services.next_deadline() },
            crash: link.crash.take(),
        })
    }

    /// The rings, after Linux has set them up and until it releases them.
    fn current_link(&mut self) -> Result<Option<Link>> {
        if !self.started {
            return Ok(None);
        }
        if let Some(link) = self.link.take()
            && self.shared.is_ready(link.status_at)
            && link.is_current()?
        {
            return Ok(Some(link));
        }
        let device = self.shared.device()?;
        if !device.is_ready() || !self.shared.is_ready(device.status_at) {
            return Ok(None);
        }
        // The table is read again: addresses may have been set between the copy and the status.
        Link::new(&self.shared.memory, &self.shared.device()?).map(Some)
    }

    /// Announces the services one by one and starts each once Linux can know of it.
    fn start_services(&mut self, link: &mut Link, notify: Notify<'_>) -> Result<()> {
        while !link.ready && !self.closing && link.outbox.is_empty() {
            if link.started < link.announced {
                link.started += 1;
                self.call(link, link.started - 1, Call::Start, notify)?;
            } else if let Some(channel) = self.services.channel(link.announced) {
                link.announced += 1;
                link.announce(channel, false)?;
                link.flush()?;
            } else {
                link.ready = true;
                let channels: Vec<_> = self.services.channels().collect();
                notify(Notice::Ready { channels: &channels });
            }
        }
        Ok(())
    }

    fn tick(&mut self, link: &mut Link, now: Instant, notify: Notify<'_>) -> Result<()> {
        let mut next = 0;
        while link.outbox.is_empty() && !self.closing {
            let Some(index) = self.services.due(next, now) else { break };
            self.call(link, index, Call::Tick(now), notify)?;
            next = index + 1;
        }
        Ok(())
    }

    /// Returns whether Linux has sent no more.
    fn take_messages(&mut self, link: &mut Link, notify: Notify<'_>) -> Result<bool> {
        let mut buffer = [0; BUFFER_SIZE];
        for _ in 0..BATCH {
            if !link.outbox.is_empty() {
                return Ok(false);
            }
            link.transmit.mute()?;
            let Some(message) = link.transmit.receive(&mut buffer)? else { return Ok(true) };
            self.dispatch(link, message, notify)?;
        }
        Ok(false)
    }

    fn dispatch(&mut self, link: &mut Link, message: &[u8], notify: Notify<'_>) -> Result<()> {
        let dropped = &mut self.statistics.dropped;
        let Ok((header, data)) = message::parse(message) else {
            dropped.messages += 1;
            return Ok(());
        };
        if header.destination == name_service::ADDRESS {
            match Announcement::decode(data) {
                Ok(announcement) => {
                    let change = link.channels.apply(&announcement);
                    notify(Notice::Channel { announcement, change });
                }
                Err(_) => dropped.announcements += 1,
            }
            return Ok(());
        }
        match self.services.at(header.destination) {
            Some(index) if !self.closing => {
                self.call(link, index, Call::Message { from: header.source, data }, notify)
            }
            _ => {
                dropped.strays += 1;
                Ok(())
            }
        }
    }

    fn call(
        &mut self,
        link: &mut Link,
        index: usize,
        call: Call<'_>,
        notify: Notify<'_>,
    ) -> Result<()> {
        let Link { outbox, channels, crash, .. } = link;
        let Self { services, buffers, transfers, .. } = self;
        let around = Around { outbox, channels, crash, buffers, transfers };
        let result = services.call(index, call, around);
        if let Some(channel) = services.channel(index) {
            for transfer in transfers.drain(..) {
                notify(Notice::Transferred { channel, transfer });
            }
            if let Err(error) = &result {
                notify(Notice::Failed { channel, error });
            }
        }
        link.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::message::MTU;
    use crate::mock::{BASE, Linux, RING_OFFSETS};
    use crate::service::{Control, Crash, Echo, Port, ROOM, Service, Sink, data, sink};
    use crate::table::Image;

    const US: u32 = 0x400;
    const LINUX: u32 = 0x777;

    fn image(entries: u16, event_index: bool) -> Image {
        Image::default().entries(entries).unwrap().event_index(event_index)
    }

    /// A machine on a mock of Linux, and its notices.
    struct Bench<'a> {
        linux: &'a mut Linux,
        machine: Machine<'a>,
        told: Vec<String>,
    }

    impl Bench<'_> {
        /// Takes turns until there is nothing to do; returns the kicks.
        fn run(&mut self) -> u32 {
            self.try_run().unwrap_or_else(|reason| panic!("crash: {reason}"))
        }

        fn try_run(&mut self) -> Result<u32, String> {
            let mut kicks = 0;
            loop {
                let told = &mut self.told;
                let turn =
                    self.machine.turn(Instant::now(), &mut |notice| told.push(tell(&notice)));
                kicks |= turn.kick;
                match turn.crash {
                    Some(reason) => {
                        self.machine.halt();
                        return Err(reason);
                    }
                    None if turn.busy => {}
                    None => return Ok(kicks),
                }
            }
        }

        fn boot(&mut self) {
            self.linux.probe();
            self.machine.start();
            self.run();
        }

        fn received(&mut self) -> Vec<(u32, u32, Vec<u8>)> {
            std::iter::from_fn(|| self.linux.receive())
                .map(|(header, data)| (header.source, header.destination, data))
                .collect()
        }

        /// The announcements received; there may be no other message.
        fn announced(&mut self) -> Vec<(String, u32, bool)> {
            let decode = |(source, destination, data): (u32, u32, Vec<u8>)| {
                let announcement = Announcement::decode(&data).unwrap();
                assert_eq!(destination, name_service::ADDRESS);
                assert_eq!(source, announcement.channel.address);
                let channel = announcement.channel;
                (channel.name.to_string(), channel.address, announcement.withdrawn)
            };
            self.received().into_iter().map(decode).collect()
        }
    }

    fn tell(notice: &Notice<'_>) -> String {
        match notice {
            Notice::Ready { channels } => format!("ready {}", channels.len()),
            Notice::Channel { announcement, change } => {
                format!("{change:?} {}", announcement.channel.name)
            }
            Notice::Failed { channel, error } => format!("{} failed: {error}", channel.name),
            other => format!("{other:?}"),
        }
    }

    /// Runs `test` on a machine with these services, for both ways of suppressing kicks.
    fn on(entries: u16, make: impl Fn(&mut Services), test: impl Fn(&mut Bench<'_>)) {
        for event_index in [false, true] {
            let mut linux = Linux::new(image(entries, event_index));
            let shared = linux.shared();
            let mut services = Services::default();
            make(&mut services);
            let machine = Machine::new(&shared, &mut services);
            test(&mut Bench { linux: &mut linux, machine, told: Vec::new() });
        }
    }

    fn one<S: Service + Send + 'static>(make: impl Fn() -> S) -> impl Fn(&mut Services) {
        move |services| {
            services.add(make()).unwrap();
        }
    }

    fn echo(services: &mut Services) {
        services.add(Echo::new("echo")).unwrap();
    }

    #[test]
    fn nothing_is_touched_before_the_driver_is_ready() {
        on(4, echo, |bench| {
            bench.machine.start();
            assert_eq!(bench.run(), 0);
            assert!(bench.told.is_empty());
            bench.linux.probe();
            assert_eq!(bench.run(), 1);
            assert_eq!(bench.told, ["ready 1"]);
        });
    }

    #[test]
    fn services_are_announced_at_each_start_and_withdrawn_at_the_end() {
        let two = |services: &mut Services| {
            services.add(Echo::new("one")).unwrap();
            services.add(Echo::new("two")).unwrap();
        };
        on(4, two, |bench| {
            for _ in 0..3 {
                bench.boot();
                let expected = [("one".to_owned(), US, false), ("two".to_owned(), US + 1, false)];
                assert_eq!(bench.announced(), expected);
                bench.machine.halt();
            }
            bench.boot();
            bench.announced();
            bench.machine.close().unwrap();
            assert!(!bench.machine.is_flushed());
            bench.run();
            assert!(bench.machine.is_flushed());
            let expected = [("one".to_owned(), US, true), ("two".to_owned(), US + 1, true)];
            assert_eq!(bench.announced(), expected);
            assert!(bench.linux.send(LINUX, US, b"too late"));
            bench.run();
            assert_eq!(bench.received(), []);
            assert_eq!(bench.machine.statistics().dropped.strays, 1);
        });
    }

    #[test]
    fn more_services_than_buffers_are_announced_as_buffers_come() {
        let many = |services: &mut Services| {
            for number in 0..9 {
                services.add(Echo::new(format!("echo-{number}"))).unwrap();
            }
        };
        on(2, many, |bench| {
            bench.boot();
            let mut announced = Vec::new();
            while announced.len() < 9 {
                assert!(announced.len() >= 6 || bench.told.is_empty());
                announced.extend(bench.announced());
                let kicked = bench.linux.kicks() != 0;
                assert!(
                    kicked || announced.len() >= 8,
                    "the machine waits for buffers without a kick"
                );
                bench.run();
            }
            let addresses: Vec<_> = announced.iter().map(|(_, address, _)| *address).collect();
            assert_eq!(addresses, (US..US + 9).collect::<Vec<_>>());
            assert_eq!(bench.told, ["ready 9"]);
        });
    }

    #[test]
    fn rings_that_are_set_up_anew_without_a_stop_are_taken_over() {
        on(4, echo, |bench| {
            bench.boot();
            bench.announced();
            for noticed in [true, false, true] {
                assert!(bench.linux.send(LINUX, US, b"ping"));
                bench.run();
                assert_eq!(bench.received(), [(US, LINUX, b"ping".to_vec())]);
                bench.linux.remove();
                if noticed {
                    bench.run();
                }
                bench.linux.probe();
                bench.run();
                assert_eq!(bench.announced().len(), 1);
            }
        });
    }

    /// Every message comes back once, whatever the order in which the two sides run.
    fn echo_all(bench: &mut Bench<'_>, messages: u32, mut linux_runs: impl FnMut(u32) -> bool) {
        let (mut sent, mut received) = (0, 0);
        let mut step = 0;
        while received < messages {
            step += 1;
            if linux_runs(step) {
                while sent < messages && bench.linux.send(LINUX, US, &sent.to_le_bytes()) {
                    sent += 1;
                }
                for (_, _, data) in bench.received() {
                    assert_eq!(data, received.to_le_bytes());
                    received += 1;
                }
            }
            // The machine sleeps unless it is kicked.
            if bench.linux.kicks() != 0 {
                bench.run();
            }
        }
        assert_eq!(bench.received(), []);
        assert_eq!((sent, received), (messages, messages));
    }

    #[test]
    fn indices_wrap_around() {
        on(4, echo, |bench| {
            bench.boot();
            bench.announced();
            echo_all(bench, 70_000, |_| true);
            assert_eq!(bench.machine.statistics().dropped, Dropped::default());
        });
    }

    #[test]
    fn without_buffers_messages_wait_and_input_waits_with_them() {
        on(2, echo, |bench| {
            bench.boot();
            // The announcement holds one of the two receive buffers.
            assert!(bench.linux.send(LINUX, US, b"1") && bench.linux.send(LINUX, US, b"2"));
            bench.run();
            assert!(bench.linux.send(LINUX, US, b"3") && bench.linux.send(LINUX, US, b"4"));
            bench.linux.kicks();
            bench.run();
            assert!(!bench.linux.send(LINUX, US, b"5"), "input is not taken");
            assert_eq!(bench.machine.statistics().waits, 2);
            let mut echoes = Vec::new();
            while echoes.len() < 5 {
                echoes.extend(bench.received().into_iter().map(|(_, _, data)| data));
                let kicked = bench.linux.kicks() != 0;
                assert!(kicked || echoes.len() >= 3, "buffers are waited for");
                bench.run();
            }
            assert_eq!(echoes[1..], [b"1", b"2", b"3", b"4"]);
        });
    }

    /// Sends a burst for each message, as long as a call may be.
    struct Burst;

    impl Service for Burst {
        fn name(&self) -> &'static str {
            "burst"
        }

        fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
            assert_eq!(port.room(), ROOM);
            (0..ROOM).try_for_each(|_| port.send(from, data))
        }
    }

    #[test]
    fn no_message_of_a_burst_is_lost() {
        on(4, one(|| Burst), |bench| {
            bench.boot();
            bench.announced();
            for byte in 0..4 {
                assert!(bench.linux.send(LINUX, US, &[byte]));
            }
            bench.linux.kicks();
            bench.run();
            let mut bytes = Vec::new();
            loop {
                let more = bench.received();
                if more.is_empty() {
                    break;
                }
                bytes.extend(more.into_iter().map(|(_, _, data)| data[0]));
                bench.linux.kicks();
                bench.run();
            }
            let expected: Vec<_> = (0..4).flat_map(|byte| [byte; ROOM]).collect();
            assert_eq!(bytes, expected);
        });
    }

    /// Records when it is called, and sets its deadline.
    struct Clock(Option<Instant>);

    impl Service for Clock {
        fn name(&self) -> &'static str {
            "clock"
        }

        fn on_start(&mut self, port: &mut Port<'_>) -> Result<()> {
            self.0 = Some(Instant::now());
            port.send(LINUX, b"start")
        }

        fn on_message(&mut self, _: &mut Port<'_>, _: u32, _: &[u8]) -> Result<()> {
            Err(Error::invalid("message", "any", "none"))
        }

        fn next_deadline(&self) -> Option<Instant> {
            self.0
        }

        fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
            assert!(self.0.take().unwrap() <= now);
            port.send(LINUX, b"tick")
        }
    }

    #[test]
    fn services_are_started_ticked_and_their_errors_told() {
        on(8, one(|| Clock(None)), |bench| {
            bench.boot();
            bench.run();
            let data: Vec<_> = bench.received().into_iter().skip(1).map(|(_, _, d)| d).collect();
            assert_eq!(data, [b"start".to_vec(), b"tick".to_vec()]);
            assert!(bench.linux.send(LINUX, US, b"x"));
            bench.run();
            assert!(bench.told[1].starts_with("clock failed: "), "{:?}", bench.told);
            assert_eq!(bench.machine.statistics().services[0].errors, 1);
        });
    }

    #[test]
    fn a_deadline_is_passed_on_unless_messages_wait() {
        let later = Instant::now() + Duration::from_secs(3600);
        let clock = |services: &mut Services| {
            services.add(Clock(Some(later))).unwrap();
            services.add(Echo::new("echo")).unwrap();
        };
        let mut linux = Linux::new(image(2, true));
        let shared = linux.shared();
        let mut services = Services::default();
        clock(&mut services);
        let mut machine = Machine::new(&shared, &mut services);
        linux.probe();
        machine.start();
        let mut turn = machine.turn(Instant::now(), &mut |_| {});
        assert_eq!(turn.deadline, None, "announcements wait");
        while linux.receive().is_some() || turn.busy {
            turn = machine.turn(Instant::now(), &mut |_| {});
        }
        assert!(machine.turn(Instant::now(), &mut |_| {}).deadline.is_none());
    }

    #[test]
    fn the_channels_of_linux_are_noted() {
        on(8, echo, |bench| {
            bench.boot();
            let channel =
                Channel { name: name_service::Name::new("theirs").unwrap(), address: 0x900 };
            for withdrawn in [false, false, true, true] {
                assert!(bench.linux.announce(&Announcement { channel, withdrawn }));
            }
            bench.run();
            let expected = ["Added theirs", "Duplicate theirs", "Removed theirs", "Unknown theirs"];
            assert_eq!(bench.told[1..], expected);
        });
    }

    #[test]
    fn what_is_wrong_is_dropped_and_counted() {
        on(8, echo, |bench| {
            bench.boot();
            bench.announced();
            assert!(bench.linux.send(LINUX, US + 1, b"nobody"));
            assert!(bench.linux.send(LINUX, name_service::ADDRESS, b"no announcement"));
            assert!(bench.linux.send(LINUX, US, b"cut"));
            // The length field of the third message is greater than its buffer.
            let at = BASE + 0x8000 + 512 * (8 + 8 - 3) + 12;
            bench.linux.memory().write_obj(100u16, vm_memory::GuestAddress(at)).unwrap();
            assert!(bench.linux.send(LINUX, US, b"right"));
            bench.run();
            assert_eq!(bench.received(), [(US, LINUX, b"right".to_vec())]);
            let expected = Dropped { buffers: 0, messages: 1, announcements: 1, strays: 1 };
            assert_eq!(bench.machine.statistics().dropped, expected);
        });
    }

    #[test]
    fn an_index_that_runs_is_a_crash_that_a_new_boot_ends() {
        on(4, echo, |bench| {
            bench.boot();
            let avail = BASE + RING_OFFSETS[1] + 16 * 4 + 2;
            bench.linux.memory().write_obj(99u16, vm_memory::GuestAddress(avail)).unwrap();
            let reason = bench.try_run().unwrap_err();
            assert!(reason.contains("available index of vring 1"), "{reason}");
            assert_eq!(bench.run(), 0);
            bench.boot();
            assert_eq!(bench.announced().len(), 1);
            assert_eq!(bench.machine.statistics().crashes, 1);
        });
    }

    #[test]
    fn a_vring_outside_the_memory_is_a_crash() {
        on(4, echo, |bench| {
            bench.linux.probe();
            bench.linux.write_table(48, &[0; 4]);
            bench.machine.start();
            let reason = bench.try_run().unwrap_err();
            assert!(reason.contains("address of vring 0"), "{reason}");
        });
    }

    #[test]
    fn a_service_can_crash_the_firmware() {
        on(4, one(|| Crash::new("crash")), |bench| {
            bench.boot();
            assert!(bench.linux.send(LINUX, US, b"crash"));
            assert_eq!(bench.try_run().unwrap_err(), "0x777 asked for it");
        });
    }

    #[test]
    fn the_sink_counts_through_the_rings() {
        on(16, one(|| Sink::new("sink")), |bench| {
            bench.boot();
            bench.announced();
            let mut message = [0; MTU];
            for number in 0..1000 {
                data::fill(number, &mut message).unwrap();
                while !bench.linux.send(LINUX, US, &message) {
                    bench.linux.kicks();
                    bench.run();
                }
            }
            bench.run();
            let query = sink::Query { token: 5, reset: false };
            assert!(bench.linux.send(LINUX, US, &query.encode()));
            bench.run();
            let answer = sink::Answer::decode(&bench.received()[0].2).unwrap();
            assert!(answer.counts.is_complete(1000), "{answer:?}");
        });
    }

    #[test]
    fn a_pipeline_is_led_through_the_rings() {
        let control = || Control::new("control").rate(48_000).trigger(Duration::from_millis(1));
        on(4, one(control), |bench| {
            bench.boot();
            bench.announced();
            for (said, expected) in [
                ("start adc", &["1 set adc sampling_frequency 48000"][..]),
                ("start\0adc", &[]),
                ("ok 1", &["2 start adc"]),
            ] {
                assert!(bench.linux.send(LINUX, US, said.as_bytes()));
                bench.run();
                let received = bench.received();
                assert!(received.iter().all(|(from, to, _)| (*from, *to) == (US, LINUX)));
                let lines: Vec<_> = received.iter().map(|(_, _, data)| &data[..]).collect();
                assert_eq!(lines, expected.iter().map(|line| line.as_bytes()).collect::<Vec<_>>());
            }
            assert!(bench.linux.send(LINUX, US, b"ok 2"));
            let mut events = Vec::new();
            while events.len() < 3 {
                bench.run();
                events.extend(bench.received().into_iter().map(|(_, _, data)| data));
            }
            assert_eq!(events[..2], [&b"event trigger 1"[..], b"event trigger 2"]);
            assert!(bench.linux.send(LINUX, US, b"stop adc"));
            bench.run();
            assert_eq!(bench.received().pop().unwrap().2, b"3 stop adc");
            assert_eq!(bench.machine.statistics().services[0].errors, 1);
        });
    }

    #[test]
    fn tx_complete_kicks_come_only_when_linux_wants_them() {
        on(8, one(|| Sink::new("sink")), |bench| {
            bench.boot();
            bench.announced();
            // With event indices, Linux asks by default for a kick at the very first entry.
            assert!(bench.linux.send(LINUX, US, b"0"));
            bench.run();
            assert!(bench.linux.send(LINUX, US, b"1"));
            assert_eq!(bench.run(), 0);
            bench.linux.want_transmit_interrupts(true);
            assert!(bench.linux.send(LINUX, US, b"2"));
            bench.run();
            while bench.linux.send(LINUX, US, b"3") {}
            assert_eq!(bench.run(), 2);
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn echo_loses_nothing_in_any_order(
            exponent in 1u32..=8,
            event_index: bool,
            order in prop::collection::vec(any::<bool>(), 1..50),
        ) {
            let mut linux = Linux::new(image(1 << exponent, event_index));
            let shared = linux.shared();
            let mut services = Services::default();
            echo(&mut services);
            let machine = Machine::new(&shared, &mut services);
            let mut bench = Bench { linux: &mut linux, machine, told: Vec::new() };
            bench.boot();
            bench.announced();
            let mut order = order.into_iter().chain([true]).cycle();
            echo_all(&mut bench, 2000, |_| order.next().unwrap());
        }
    }
}
