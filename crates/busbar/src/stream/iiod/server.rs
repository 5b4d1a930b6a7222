//! The server: accepts clients and gives each its turn.

mod places;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use self::places::Refused;

use super::client::Client;
use super::context::Context;
use super::dns_sd::Announcement;
use super::hub::{self, DEVICES, Hub, News, Origin, Shortage};
use super::journal::Journal;
use super::link::{Link, Tcp};
use super::peer::{Machine, Peer, Refusal};
use super::setup::ServerSetup;
use super::sysfs::Roots;
use super::unread::Place;
#[cfg(feature = "usb")]
use super::usb::{Pipe, Request, Usb};
use super::worker::{Answer, SERVER, Worker};
use crate::poll;
use crate::stream::format::{Format, Lost};
use crate::stream::net::bind;
use crate::stream::net::watch::Watch;
use crate::stream::samples::Samples;
use crate::stream::sigmf::Recording;
use crate::stream::synth;
use crate::{Error, Result};

const LISTENER: u64 = 0;
const WORKER: u64 = 1;
#[cfg(feature = "usb")]
const USB: u64 = 2;
/// Clients have this token and greater ones.
const FIRST: u64 = 3;
/// How often it looks for devices that have come or gone.
const EACH: Duration = Duration::from_secs(1);
/// What `ServerSetup::silence` may be. The kernel takes no longer time.
const SILENCES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(24 * 60 * 60);
/// Most connections that are accepted in a turn, so that clients have theirs.
const MOST_ACCEPTED: usize = 64;

/// Serves devices to libiio's clients; see [the module](super).
///
/// It works in its [turns](Self::turn), in one thread. Others read and write attributes, one for each device and 16 at most,
/// and one announces it if that is asked for. Dropping it closes all connections and devices.
#[derive(Debug)]
pub struct Server {
    // Before the hub, so that it is dropped first: sockets must not refer to blocks that go back to their driver.
    clients: Vec<Client>,
    hub: Hub,
    worker: Worker,
    listener: TcpListener,
    address: SocketAddr,
    most_clients: usize,
    silence: Duration,
    next: u64,
    /// Whether there may be connections to accept.
    may_accept: bool,
    /// Connections without a place, which are told so.
    refused: Vec<Refused>,
    journal: Journal,
    /// What finds devices that come later, if it serves all devices of the machine.
    lister: Option<Lister>,
    announcement: Option<Announcement>,
    // After the clients, so that their endpoints are closed before.
    /// Pipes whose requests are to be ended by the thread of endpoint 0, which has the time: at the host's next request, of
    /// which one comes before a pipe is opened again.
    #[cfg(feature = "usb")]
    closed: Vec<Pipe>,
    #[cfg(feature = "usb")]
    usb: Option<Usb>,
}

/// Finds devices that have come or gone.
#[derive(Debug)]
struct Lister {
    /// Ids of those that were there.
    known: Vec<String>,
    /// When it has looked.
    looked: Instant,
    is_listing: bool,
    /// A list that was not taken over as a whole, because of what clients do.
    found: Option<Context>,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEvent {
    /// A client has connected.
    Came(Peer),
    /// A client has gone.
    Gone(Peer),
    /// A client was turned away, or its connection closed, for this reason.
    TurnedAway(Peer, Refusal),
    /// Connections beyond those that were told one by one: of a machine, or of all further machines.
    Further {
        /// The machine; `None`: others than those that are named.
        machine: Option<Machine>,
        /// How many have connected.
        came: u64,
        /// How many have gone.
        gone: u64,
        /// How many were turned away, or closed by the server.
        turned_away: u64,
    },
    /// A device of this machine has come, of this name or id.
    DeviceCame(String),
    /// A device of this machine has gone, of this name or id.
    DeviceGone(String),
    /// Connections cannot be accepted, for this reason, and wait. As if the process has too many descriptors.
    NotAccepted(String),
    /// So many further events were left out.
    Omitted(u64),
    /// Samples of a device are missing for clients of a machine.
    Lost {
        /// The name of the device, or its id.
        device: String,
        /// The machine.
        host: Machine,
        /// How many samples.
        lost: Lost,
    },
    /// Events of a device are missing for clients of a machine.
    LostEvents {
        /// The name of the device, or its id.
        device: String,
        /// The machine.
        host: Machine,
        /// How many events.
        lost: u64,
    },
    /// A device was not opened for a client of a machine, for want of something.
    Refused {
        /// The name of the device, or its id.
        device: String,
        /// The machine.
        host: Machine,
        /// Of what there is too little.
        why: Shortage,
    },
    /// A device gives no more samples until it is opened again, or a pipe of the USB host cannot be opened.
    Failed {
        /// The name of the device, or its id; `usb:` and the number of the pipe.
        device: String,
        /// Why.
        error: String,
    },
    /// A local network, the first one, knows the server by this name.
    Announced(String),
    /// The server is not announced, for this reason: on the network that it names, or at all. It serves nevertheless.
    /// Networks are tried again; the same reason is told once. A network on which nothing can be sent is told after some
    /// seconds.
    NotAnnounced(String),
}

impl std::fmt::Display for ServerEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Came(peer) => write!(f, "{peer} has connected"),
            Self::Gone(peer) => write!(f, "{peer} has gone"),
            Self::TurnedAway(peer, why) => write!(f, "{peer} was turned away: {why}"),
            Self::Further { machine, came, gone, turned_away } => {
                match machine {
                    Some(machine) => write!(f, "{machine}: ")?,
                    None => f.write_str("other machines: ")?,
                }
                write!(
                    f,
                    "{came} more connections came, {gone} went, {turned_away} were turned away"
                )
            }
            Self::DeviceCame(device) => write!(f, "{device} has come"),
            Self::DeviceGone(device) => write!(f, "{device} has gone"),
            Self::NotAccepted(error) => write!(f, "connections wait: {error}"),
            Self::Omitted(count) => write!(f, "{count} more events"),
            Self::Lost { device, host, lost: Lost::Samples(lost) } => {
                write!(f, "{host} has lost {lost} samples of {device}")
            }
            Self::Lost { device, host, lost: Lost::Unknown } => {
                write!(f, "{host} has lost samples of {device}; how many is not known")
            }
            Self::LostEvents { device, host, lost } => {
                write!(f, "{host} has lost {lost} events of {device}")
            }
            Self::Refused { device, host, why } => {
                write!(f, "{device} was not opened for {host}: {why}")
            }
            Self::Failed { device, error } => write!(f, "{device} has ended: {error}"),
            Self::Announced(name) => write!(f, "announced as `{name}`"),
            Self::NotAnnounced(error) => write!(f, "not announced: {error}"),
        }
    }
}

/// Totals of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Clients that are connected.
    pub clients: usize,
    /// Bytes that were sent with samples.
    pub sent: u64,
    /// Bytes of samples that were copied to be sent.
    pub copied: u64,
}

impl Server {
    /// Listens, and serves the devices of `setup`. They are opened when a client opens them.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` and others of the address; bad input for an invalid device or limit, and for two devices of the same name;
    /// `ENODEV` if the machine has no device and none was named, unless it is to [wait](ServerSetup#structfield.wait); those of
    /// a recording that cannot be opened; for a USB function `ENOENT` without a controller, `EBUSY` if it has another function, `EACCES`.
    pub fn open(setup: &ServerSetup) -> Result<Self> {
        let machine = || {
            Context::of_machine(&Roots::default())
                .map_err(|why| Error::new("list", "IIO devices", why))
        };
        if setup.devices.is_empty() {
            return Self::of_machine(setup, machine()?);
        }
        let mut context = Context::of_system();
        let mut origins = Vec::new();
        for text in &setup.devices {
            let (name, source) = split_name(text);
            if let Some(wanted) = source.strip_prefix("iio:") {
                let all = machine()?;
                let found = all.find(wanted).or_else(|| all.find(source));
                let Some(found) = found.filter(|_| name.is_none()) else {
                    let names: Vec<_> = all.devices.into_iter().filter_map(|it| it.name).collect();
                    return Err(Error::invalid("an IIO device", wanted, names.join(", ")));
                };
                let found = all.devices[found].clone();
                if context.devices.contains(&found) {
                    return Err(Error::invalid("an IIO device", wanted, "each once"));
                }
                context.devices.push(found);
                origins.push(Origin::Machine);
            } else {
                let (usual, format, origin) = made(source)?;
                let name = name.unwrap_or(&usual);
                if context.find(name).is_some() {
                    let error = Error::invalid("a name of a device", name, "each once");
                    return Err(error.help(format!(
                        "another device has it, and each name is given once: NAME={source}"
                    )));
                }
                context.devices.push(hub::device(0, name, &format));
                origins.push(origin);
            }
        }
        number(&mut context, &origins);
        Self::start(setup, context, origins)
    }

    /// Serves all devices of the machine, also those that come later.
    fn of_machine(setup: &ServerSetup, context: Context) -> Result<Self> {
        if !setup.wait && context.devices.iter().all(super::context::Device::is_trigger) {
            let error = Error::new("serve", "the IIO devices of this machine", Errno::NODEV);
            return Err(error.help(
                "there is none: load its driver, name a device such as `adc=synth:counter?rate=1M`, or wait for one: \
                 `wait`, on the command line `--wait`",
            ));
        }
        let known = context.devices.iter().map(|device| device.id.clone()).collect();
        let origins = vec![Origin::Machine; context.devices.len()];
        let mut server = Self::start(setup, context, origins)?;
        let looked = Instant::now();
        server.lister = Some(Lister { known, looked, is_listing: false, found: None });
        Ok(server)
    }

    /// Serves one device, whose samples are [pushed](Self::push). If it is paced, samples for which a client has no
    /// room are lost for it; else the pusher has to wait.
    pub(crate) fn pushed(
        setup: &ServerSetup,
        name: &str,
        format: &Format,
        is_paced: bool,
    ) -> Result<Self> {
        let devices = vec![hub::device(0, name, format)];
        let context = Context { devices, ..Context::of_system() };
        Self::start(setup, context, vec![Origin::Pushed(format.clone(), is_paced)])
    }

    fn start(setup: &ServerSetup, context: Context, origins: Vec<Origin>) -> Result<Self> {
        let failed = |why: std::io::Error| {
            let is_wrong = why.kind() == ErrorKind::InvalidInput;
            let error = Error::new("listen on", format!("port {}", setup.listen), why);
            if is_wrong { error.help("allowed: PORT or ADDRESS:PORT") } else { error }
        };
        if !SILENCES.contains(&setup.silence) {
            let given = format!("{} s", setup.silence.as_secs_f64());
            return Err(Error::invalid("a time of silence", given, "5 s to 1 day"));
        }
        let listener = bind(&setup.listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Place::prepare();
        let (watch, worker) = (Watch::new()?, Worker::new()?);
        watch.add(&listener, LISTENER)?;
        watch.add(&worker, WORKER)?;
        let mut server = Self {
            clients: Vec::new(),
            hub: Hub::new(
                context,
                origins,
                watch,
                (setup.memory_limit, setup.clients),
                setup.read_only,
            ),
            worker,
            listener,
            address,
            most_clients: setup.clients,
            silence: setup.silence,
            next: FIRST,
            may_accept: true,
            refused: Vec::new(),
            journal: Journal::default(),
            lister: None,
            announcement: None,
            #[cfg(feature = "usb")]
            closed: Vec::new(),
            #[cfg(feature = "usb")]
            usb: None,
        };
        #[cfg(feature = "usb")]
        if let Some(gadget) = &setup.usb {
            let usb = Usb::open(gadget, setup.usb_pipes)?;
            server.hub.watch.add(&usb, USB)?;
            server.usb = Some(usb);
        }
        if setup.announce {
            server.announce();
        }
        Ok(server)
    }

    /// Announces it, unless only this machine reaches it. It serves without that as well.
    fn announce(&mut self) {
        if self.address.ip().to_canonical().is_loopback() {
            return;
        }
        match Announcement::start(self.address) {
            Ok(announcement) => self.announcement = Some(announcement),
            Err(error) => self.journal.note(ServerEvent::NotAnnounced(error.to_string())),
        }
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ids and names of the devices.
    pub fn devices(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let devices = self.hub.context.devices.iter().filter(|it| !it.is_gone);
        devices.map(|it| (it.id.as_str(), it.name.as_deref()))
    }

    /// Totals since it was opened.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        let (sent, copied) = (self.hub.sent, self.hub.copied);
        ServerCounters { clients: self.clients.len(), sent, copied }
    }

    /// Events since the last call; the losses of a device for a machine are added up. Of the connections of a machine the
    /// first six events are told, and the first refusal for each reason; further ones are [counted](ServerEvent::Further); all are some hundred events at most. So
    /// one call a second makes a log of limited length. [`Announced`](ServerEvent::Announced) and
    /// [`NotAnnounced`](ServerEvent::NotAnnounced) come from another thread, and end no wait: they are found by a call from
    /// time to time.
    pub fn take_events(&mut self) -> Vec<ServerEvent> {
        let heard = self.announcement.as_mut().map(Announcement::events).unwrap_or_default();
        for event in heard {
            self.journal.note(event);
        }
        self.journal.take()
    }

    /// Does what can be done now; if there is nothing, waits for the next event.
    ///
    /// # Errors
    ///
    /// Only those of the system's calls to wait. The failure of a device or a client is an event.
    pub fn turn(&mut self) -> Result<bool> {
        self.turn_timeout(Duration::MAX)
    }

    /// Does what can be done now. Does not wait. Returns whether there was something.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn try_turn(&mut self) -> Result<bool> {
        let tokens = self.hub.watch.take()?;
        self.may_accept |= tokens.has(LISTENER);
        let mut moved = self.may_accept && self.accept();
        if tokens.has(WORKER) {
            for done in self.worker.answers() {
                if done.client == SERVER {
                    self.has_listed(done.answer);
                } else if let Some(client) =
                    self.clients.iter_mut().find(|it| it.who.client == done.client)
                {
                    client.answer(done, &mut self.hub);
                }
            }
        }
        #[cfg(feature = "usb")]
        if tokens.has(USB) {
            moved |= self.hear_host();
        }
        moved |= self.hub.pump_all();
        moved |= self.hub.events.pump(&tokens);
        // The oldest first: whoever has gone leaves the device to who comes next, which may be the same program.
        let is_time = tokens.has_tick();
        let mut index = 0;
        while let Some(client) = self.clients.get_mut(index) {
            client.is_woken |= tokens.has(client.who.client);
            // What it has read is for others, also if it asks for nothing more.
            moved |= is_time && client.give_back(&mut self.hub);
            let turn = client.turn(&mut self.hub, &self.worker);
            let checked = turn
                .and_then(|moved| if is_time { client.check().map(|()| moved) } else { Ok(moved) });
            if let Ok(has_moved) = checked {
                moved |= has_moved;
                index += 1;
            } else {
                self.remove(index);
                moved = true;
            }
        }
        if is_time {
            self.tell_refused();
            self.look();
        }
        self.hear();
        Ok(moved)
    }

    /// Lists the devices of this machine anew, as after their drivers have changed something, if it serves all of them. It
    /// looks for devices that come and go once a second anyway. A thread does this; clients that connect later see the
    /// list, and streams go on.
    pub fn list_devices(&mut self) {
        let Some(lister) = self.lister.as_mut().filter(|lister| !lister.is_listing) else { return };
        let roots = self.hub.roots.clone();
        let list = move || {
            let errno = |why| Errno::from_io_error(&why).unwrap_or(Errno::IO);
            let ids = roots.ids().map_err(errno)?;
            Ok(Answer::Devices(ids, Context::of_machine(&roots).map_err(errno)?))
        };
        // Without a thread, it is tried again.
        lister.is_listing = self.worker.list(Box::new(list)).is_ok();
    }

    /// The worker has listed the devices, or could not.
    fn has_listed(&mut self, answer: Result<Answer, Errno>) {
        let Some(lister) = &mut self.lister else { return };
        lister.is_listing = false;
        if let Ok(Answer::Devices(known, found)) = answer {
            (lister.known, lister.found) = (known, Some(found));
            self.renew();
        }
    }

    /// Looks whether devices have come or gone, from time to time.
    fn look(&mut self) {
        let Some(lister) = &mut self.lister else { return };
        if lister.looked.elapsed() < EACH {
            return;
        }
        lister.looked = Instant::now();
        // What cannot be read now is read later.
        if self.hub.roots.ids().is_ok_and(|ids| ids != lister.known) {
            self.list_devices();
        } else {
            self.renew();
        }
    }

    /// Takes over the list of devices, as far as clients allow that.
    fn renew(&mut self) {
        let Some(found) = self.lister.as_mut().and_then(|lister| lister.found.take()) else {
            return;
        };
        let may_renumber = !self.clients.iter().any(Client::is_binary);
        let renewed = self.hub.renew(&found, may_renumber);
        renewed.come.into_iter().for_each(|name| self.journal.note(ServerEvent::DeviceCame(name)));
        renewed.gone.into_iter().for_each(|name| self.journal.note(ServerEvent::DeviceGone(name)));
        if let Some(lister) = self.lister.as_mut().filter(|_| !renewed.is_whole) {
            lister.found = Some(found);
        }
    }

    /// As [`turn`](Self::turn), but waits for `timeout` at most.
    ///
    /// # Errors
    ///
    /// As [`turn`](Self::turn).
    pub fn turn_timeout(&mut self, timeout: Duration) -> Result<bool> {
        if self.try_turn()? {
            return Ok(true);
        }
        poll::wait(&*self, PollFlags::IN, Some(timeout))
            .map_err(|errno| Error::new("wait for", "clients", errno))?;
        self.try_turn()
    }

    /// Gives samples to the clients of the only device. Returns whether they were taken; if not, try again after the
    /// next turn.
    pub(crate) fn push(&mut self, samples: &Samples, lost: Lost) -> bool {
        self.hub.push(0, samples, lost)
    }

    /// Whether clients still have samples to read.
    pub(crate) fn has_waiting(&self) -> bool {
        self.hub.has_waiting()
    }

    /// Whether a client takes the samples.
    pub(crate) fn has_readers(&self) -> bool {
        self.hub.has_readers(0)
    }

    /// No more samples are pushed: clients get an error once they have read all.
    pub(crate) fn finish(&mut self) {
        self.hub.finish(0);
    }

    /// Accepts clients. Returns whether there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..MOST_ACCEPTED {
            match self.listener.accept() {
                Ok((socket, peer)) => self.welcome(socket, peer),
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    return false;
                }
                // It has gone already.
                Err(why) if why.kind() == ErrorKind::ConnectionAborted => {}
                // As if there are too many descriptors: it waits, and is tried again in the next turn.
                Err(why) => {
                    self.journal.note(ServerEvent::NotAccepted(why.to_string()));
                    return false;
                }
            }
        }
        true
    }

    fn welcome(&mut self, socket: TcpStream, address: SocketAddr) {
        let peer = Peer::Net(address);
        if let Err(why) = self.make_room(peer.machine()) {
            self.journal.note(ServerEvent::TurnedAway(peer, why));
            self.refuse(socket);
            return;
        }
        // One that has gone already is none.
        if let Ok(tcp) = Tcp::new(socket, address, self.silence) {
            self.add(Link::Tcp(tcp), peer);
        }
    }

    /// Adds a client. Returns whether that was possible.
    fn add(&mut self, link: Link, peer: Peer) -> bool {
        let client = Client::new(link, peer, self.next, self.silence);
        if self.hub.watch.add(client.link(), self.next).is_err() {
            return false;
        }
        self.next += 1;
        self.hub.enter(client.who.host);
        self.clients.push(client);
        self.journal.note(ServerEvent::Came(peer));
        true
    }

    fn remove(&mut self, index: usize) {
        let client = self.clients.remove(index);
        client.abort();
        let (who, peer, refusal) = (client.who, client.peer, client.refusal);
        self.worker.forget(who.client);
        #[cfg(feature = "usb")]
        if let Link::Usb(pipe) = client.into_link() {
            self.closed.push(pipe);
        }
        #[cfg(not(feature = "usb"))]
        drop(client);
        self.hub.leave(who);
        let gone = refusal.map(|why| ServerEvent::TurnedAway(peer, why));
        self.journal.note(gone.unwrap_or(ServerEvent::Gone(peer)));
    }

    /// Does what the USB host asks for: one thing, as the next comes after the answer. Returns whether there was something.
    #[cfg(feature = "usb")]
    fn hear_host(&mut self) -> bool {
        let Some(request) = self.usb.as_ref().and_then(Usb::next) else { return false };
        let is_granted = match request {
            // The former client of the pipe was closed by a request before.
            Request::Open(number) => self.open_pipe(number),
            Request::Reset => {
                self.close_pipes(|_| true);
                true
            }
            Request::Left => {
                self.close_pipes(|_| true);
                self.hub.forget(Machine::Usb);
                true
            }
            Request::Close(number) => {
                self.close_pipes(|pipe| pipe == number);
                true
            }
        };
        if let Some(usb) = &self.usb {
            usb.answer(is_granted, std::mem::take(&mut self.closed));
        }
        true
    }

    #[cfg(feature = "usb")]
    fn open_pipe(&mut self, number: u8) -> bool {
        let peer = Peer::Usb(number);
        if let Err(why) = self.make_room(peer.machine()) {
            self.journal.note(ServerEvent::TurnedAway(peer, why));
            return false;
        }
        match self.usb.as_ref().map(|usb| usb.pipe(number)) {
            Some(Ok(pipe)) => self.add(Link::Usb(pipe), peer),
            Some(Err(error)) => {
                let (device, error) = (peer.to_string(), error.to_string());
                self.journal.note(ServerEvent::Failed { device, error });
                false
            }
            None => false,
        }
    }

    /// Ends the clients of these pipes.
    #[cfg(feature = "usb")]
    fn close_pipes(&mut self, is_chosen: impl Fn(u8) -> bool) {
        for index in (0..self.clients.len()).rev() {
            if matches!(self.clients[index].peer, Peer::Usb(pipe) if is_chosen(pipe)) {
                self.remove(index);
            }
        }
    }

    /// Turns the news of devices into events.
    fn hear(&mut self) {
        for news in self.hub.take_news() {
            let device = match &news {
                News::Lost { device, .. }
                | News::LostEvents { device, .. }
                | News::Refused { device, .. }
                | News::Failed { device, .. } => &self.hub.context.devices[*device],
            };
            let device = device.shown().to_owned();
            self.journal.note(match news {
                News::Failed { error, .. } => {
                    ServerEvent::Failed { device, error: error.to_string() }
                }
                News::Lost { host, lost, .. } => ServerEvent::Lost { device, host, lost },
                News::LostEvents { host, lost, .. } => {
                    ServerEvent::LostEvents { device, host, lost }
                }
                News::Refused { host, why, .. } => ServerEvent::Refused { device, host, why },
            });
        }
    }
}

/// Readable while a turn has something to do.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hub.watch.as_fd()
    }
}

/// `NAME=SOURCE`, or a source alone.
fn split_name(text: &str) -> (Option<&str>, &str) {
    let kind = text.find(':').unwrap_or(text.len());
    match text[..kind].split_once('=') {
        Some((name, _)) => (Some(name), &text[name.len() + 1..]),
        None => (None, text),
    }
}

/// A device of the library's own: its usual name, its samples, and where they come from.
fn made(source: &str) -> Result<(String, Format, Origin)> {
    if let Some(pattern) = source.strip_prefix("synth:") {
        let format = synth::format(pattern)?;
        let name = pattern.split('?').next().unwrap_or(pattern).to_owned();
        let rate = format.rate;
        return Ok((name, format, Origin::Synth(source.into(), rate)));
    }
    if let Some(path) = source.strip_prefix("file:") {
        let recording = Recording::open(path)?;
        let format = recording.format().clone();
        let name = std::path::Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".sigmf-meta").trim_end_matches(".sigmf-data").to_owned();
        let rate = format.rate;
        return Ok((name, format, Origin::Recording(path.into(), rate)));
    }
    Err(Error::invalid(
        "a device to serve",
        source,
        "[NAME=]synth:PATTERN, [NAME=]file:NAME, iio:NAME",
    ))
}

/// Gives ids to the devices that the library makes: those that devices of the machine do not have.
fn number(context: &mut Context, origins: &[Origin]) {
    let taken: Vec<_> = context
        .devices
        .iter()
        .zip(origins)
        .filter(|(_, origin)| matches!(origin, Origin::Machine))
        .map(|(device, _)| device.id.clone())
        .collect();
    let mut free =
        (0..).map(|number| format!("iio:device{number}")).filter(|id| !taken.contains(id));
    for (device, origin) in context.devices.iter_mut().zip(origins) {
        if !matches!(origin, Origin::Machine)
            && let Some(id) = free.next()
        {
            device.id = id;
        }
    }
}

// Tokens of clients are below those of devices.
const _: () = assert!(FIRST < DEVICES);
