//! Samples without frames, for any program of the host.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use busbar_uapi::dmabuf::{self, Access};
use busbar_uapi::functionfs::Requests;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::address::{Address, Gadget};
use super::gadget::{self, Endpoints, Events, Function, Guests, Shape};
use super::{CHUNK, LINGER, MOST_RAW};
use crate::block;
use crate::poll::{Oldest, Set, Timer, later};
use crate::stream::samples::Samples;
use crate::stream::setup::Interface;
use crate::{Error, Result};

const REQUESTS: u64 = 0;
const EVENTS: u64 = 1;
const TIMER: u64 = 2;

/// Sends the samples of blocks to a host, one transfer after the other, without anything between them.
///
/// A transfer that ends with a short packet ends the host's read. Other blocks do not: a host reads lengths of whole
/// packets of 1024 bytes, or ones that divide a block. What the host does not read waits. When it begins anew, it gets
/// the blocks that it has not read, from their beginning.
pub struct RawSender {
    // First: fences are closed before their endpoints.
    /// Blocks that are under way, the oldest first.
    flight: VecDeque<Sent>,
    oldest: Oldest,
    link: Link,
    waiting: VecDeque<Samples>,
    /// The number of the first block in `flight`.
    first: u64,
    /// Whether the host has enabled the endpoints.
    is_up: bool,
    /// The host begins anew: until when to wait for what has become of transfers before.
    lingering: Option<Instant>,
    timer: Timer,
    set: Set,
    copied: u64,
    name: String,
    interface: Option<Interface>,
    events: Events,
    // Last: the gadget can be removed once the files are closed.
    function: Function,
}

/// What lasts until the host begins anew.
struct Link {
    // First: requests end before the blocks are detached.
    requests: Requests,
    /// The tags and the results of requests that have ended, until they are taken.
    ended: Vec<(u64, Result<usize, Errno>)>,
    guests: Guests,
    endpoints: Arc<Endpoints>,
}

#[derive(Debug)]
struct Sent {
    samples: Samples,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// In place, until the fence is signalled.
    Fence(Arc<OwnedFd>),
    /// By so many copies that the controller has not sent.
    Copies(usize),
}

impl Sent {
    /// How it has ended; `None` if it is under way.
    fn outcome(&self) -> Option<Result<(), Errno>> {
        match &self.way {
            Way::Fence(fence) => match dmabuf::sync_file_status(fence) {
                Ok((_, status)) => status,
                Err(errno) => Some(Err(errno)),
            },
            Way::Copies(left) => (*left == 0).then_some(Ok(())),
        }
    }
}

impl Link {
    /// Has `set` readable when requests have ended. `name`: of the function, for errors.
    fn new(
        function: &Function,
        interface: Option<Interface>,
        set: &Set,
        name: &str,
    ) -> Result<Self> {
        let requests = Requests::new(MOST_RAW).map_err(|why| Error::new("use", name, why))?;
        let endpoints = Arc::new(function.endpoints()?);
        let guests = Guests::new(Arc::clone(&endpoints), interface);
        set.add(&requests, REQUESTS, EventFlags::IN)?;
        Ok(Self { requests, ended: Vec::new(), guests, endpoints })
    }

    /// Queues samples; `None` if there is no room.
    fn send(&mut self, samples: &Samples, tag: u64) -> io::Result<Option<Way>> {
        if self.has_failed() {
            // Nothing may overtake what has failed.
            return Ok(None);
        }
        let len = samples.meta().len;
        let copies = len.div_ceil(CHUNK);
        if self.requests.under_way() > 0 && self.requests.room() < copies {
            return Ok(None);
        }
        if let Some(block) = self.guests.attached(samples, len)?
            && self.guests.send(block, len)?
        {
            // The result is known from this fence alone.
            let fence = dmabuf::export_sync_file(block, Access::Write)?;
            return Ok(Some(Way::Fence(Arc::new(fence))));
        }
        if copies > MOST_RAW.into() {
            return Err(gadget::too_long(len, MOST_RAW.into()));
        }
        let parts = samples.parts()?;
        let parts: Vec<_> = parts.iter().collect();
        super::cut(&parts, len, |chunk| {
            // Behind one that the kernel has not taken, others would take its place.
            if !self.has_failed() {
                let (requests, to) = (&mut self.requests, &self.endpoints.to);
                block::request(requests, to, chunk, true, tag).map_err(gadget::broken)?;
                self.reap()?;
            }
            Ok(())
        })?;
        Ok(Some(Way::Copies(copies)))
    }

    /// Whether the kernel has not taken a request, as far as that is known.
    fn has_failed(&self) -> bool {
        self.ended.iter().any(|(_, result)| result.is_err())
    }

    fn reap(&mut self) -> io::Result<()> {
        let Self { requests, ended, .. } = self;
        Ok(requests.reap(|one| ended.push((one.tag, one.result)))?)
    }
}

impl RawSender {
    /// Makes the gadget. `address` has to be a [`Gadget`] with `raw`. `interface`: as
    /// [`FrameSender::open_usb`](crate::stream::net::FrameSender::open_usb).
    ///
    /// # Errors
    ///
    /// As that; bad input for another address.
    pub fn open(address: &Address, interface: Option<Interface>) -> Result<Self> {
        let Address::Gadget(wanted @ Gadget { raw: true, .. }) = address else {
            let allowed = "usb:?raw: this machine is the device";
            return Err(Error::invalid("a USB function without frames", address, allowed));
        };
        let (function, control) = Function::open(wanted, Shape::SAMPLES)?;
        let (events, set, timer) = (Events::new(control), Set::new()?, Timer::new()?);
        let name = format!("the USB function {address}");
        let link = Link::new(&function, interface, &set, &name)?;
        set.add(&events, EVENTS, EventFlags::IN)?;
        set.add(&timer, TIMER, EventFlags::IN)?;
        Ok(Self {
            flight: VecDeque::new(),
            oldest: Oldest::default(),
            link,
            waiting: VecDeque::new(),
            first: 0,
            is_up: false,
            lingering: None,
            timer,
            set,
            copied: 0,
            name,
            interface,
            events,
            function,
        })
    }

    /// Adds a block to the queue, and sends it as soon as there is room.
    ///
    /// # Errors
    ///
    /// As [`advance`](Self::advance).
    pub fn push(&mut self, samples: Samples) -> Result<()> {
        self.waiting.push_back(samples);
        self.advance()
    }

    /// Blocks that the host has not read yet.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.flight.len() + self.waiting.len()
    }

    /// Bytes of blocks that were copied to be sent.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Does what can be done without waiting.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) if a block was to be sent in place and cannot;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if one of more than 16 MiB would have to be copied; `ENOMEM`.
    pub fn advance(&mut self) -> Result<()> {
        loop {
            if self.events.take_fresh() {
                self.is_up = false;
                self.linger(Some(later(Instant::now(), LINGER)))?;
            }
            if self.lingers() {
                return Ok(());
            }
            if self.lingering.is_some()
                && let Err(error) = self.linger(None).and_then(|()| self.begin_anew())
            {
                // There is no other event until the host begins anew.
                self.events.put_fresh();
                return Err(error);
            }
            self.step().map_err(|why| Error::new("write to", &self.name, why))?;
            // While blocks were queued, the event may have been taken.
            if !self.events.is_fresh() {
                return Ok(());
            }
        }
    }

    fn linger(&mut self, until: Option<Instant>) -> Result<()> {
        self.lingering = until;
        self.timer.set(until)
    }

    /// Whether results are missing of transfers that the host has ended. They come a moment later, and tell what the host
    /// has read.
    fn lingers(&mut self) -> bool {
        let Some(until) = self.lingering else { return false };
        // Why the others have ended does not matter: they are sent again.
        let _ = self.reap();
        self.link.requests.under_way() > 0 && Instant::now() < until
    }

    /// Forgets what was queued at endpoints: the host has reset them.
    fn begin_anew(&mut self) -> Result<()> {
        let _ = self.settle();
        self.oldest.clear(&self.set);
        while let Some(Sent { samples, .. }) = self.flight.pop_back() {
            self.waiting.push_front(samples);
        }
        self.link = Link::new(&self.function, self.interface, &self.set, &self.name)?;
        self.is_up = true;
        Ok(())
    }

    /// Takes the results of copies.
    fn reap(&mut self) -> io::Result<()> {
        let Self { link, flight, first, is_up, .. } = self;
        let mut failed = Ok(());
        link.reap()?;
        for (tag, result) in link.ended.drain(..) {
            let index = usize::try_from(tag.wrapping_sub(*first)).unwrap_or(usize::MAX);
            match (result, flight.get_mut(index).map(|sent| &mut sent.way)) {
                (Ok(_), Some(Way::Copies(left))) => *left = left.saturating_sub(1),
                (Ok(_), _) => {}
                (Err(errno), _) => {
                    *is_up = false;
                    failed = failed.and(ended_by(errno));
                }
            }
        }
        failed
    }

    /// Drops blocks that the host has.
    fn settle(&mut self) -> io::Result<()> {
        while let Some(outcome) = self.flight.front().and_then(Sent::outcome) {
            if let Err(errno) = outcome {
                self.oldest.clear(&self.set);
                self.is_up = false;
                return ended_by(errno);
            }
            self.flight.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        loop {
            self.reap()?;
            self.settle()?;
            self.begin_all()?;
            // Requests that have ended while others were queued have no further event.
            if self.link.ended.is_empty() {
                return self.watch();
            }
        }
    }

    /// Queues blocks as long as there is room.
    fn begin_all(&mut self) -> io::Result<()> {
        while self.is_up && !self.waiting.is_empty() {
            // Linux 6.12 without patch 0030 crashes if it is asked for a transfer once the function is unbound.
            self.is_up = !self.events.is_over();
            if !self.is_up {
                break;
            }
            match self.begin() {
                Ok(true) => {}
                Ok(false) => break,
                // The host has left. An event tells when it comes back.
                Err(why) if why.kind() == io::ErrorKind::ConnectionReset => self.is_up = false,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Queues the next block; `false` if there is no room.
    fn begin(&mut self) -> io::Result<bool> {
        let tag = self.first + self.flight.len() as u64;
        let Some(samples) = self.waiting.front() else { return Ok(false) };
        let Some(way) = self.link.send(samples, tag)? else { return Ok(false) };
        if matches!(way, Way::Copies(_)) {
            self.copied += samples.meta().len as u64;
        }
        self.flight.extend(self.waiting.pop_front().map(|samples| Sent { samples, way }));
        Ok(true)
    }

    /// Has the set readable when the host has the oldest block.
    fn watch(&mut self) -> io::Result<()> {
        let fence = match self.flight.front() {
            Some(Sent { way: Way::Fence(fence), .. }) => Some(fence),
            _ => None,
        };
        self.oldest.keep(&self.set, fence);
        match fence {
            Some(fence) if self.is_up => Ok(self.oldest.watch(&self.set, fence)?),
            _ => Ok(()),
        }
    }
}

/// Nothing is wrong if the host has left: an event tells when it has come back.
fn ended_by(errno: Errno) -> io::Result<()> {
    match gadget::broken(errno) {
        why if why.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        why => Err(why),
    }
}

impl fmt::Debug for RawSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, is_up, .. } = self;
        f.debug_struct("RawSender")
            .field("name", name)
            .field("unsent", &self.unsent())
            .field("under_way", &self.flight.len())
            .field("is_up", is_up)
            .finish_non_exhaustive()
    }
}

/// Readable when [`advance`](Self::advance) has something to do.
impl AsFd for RawSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
