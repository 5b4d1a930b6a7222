//! Servers on the local network, by DNS-SD over multicast DNS (RFC 6762 and 6763): they are announced, and found.
//!
//! `iiod` leaves its announcement to the daemon Avahi, which many boards do not have. This works without it, and
//! beside it: both share the port, and the names differ. A responder alone needs no memory of what others say; that of the
//! crate `mdns-sd` had no limit when many names came. `libmdns` neither asks whether a name is free nor gives way.

mod browse;
mod network;
mod responder;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::browse::{ServerInfo, servers};

use self::network::{Link, PORT, until};
use self::responder::{Heard, Names, Responder};
use self::wire::{MOST_LABEL, MOST_MESSAGE, Name};
use super::ServerEvent;
use crate::poll::{Bell, later, spawn};
use crate::{Error, Result};

/// The kind of service, the same as `iiod`'s.
const SERVICE: &str = "_iio._tcp.local";
/// How often the networks of the machine are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Most messages of a network that are read in a second; others are lost.
const MOST_HEARD: u32 = 500;
/// Most messages of a network that are read at a time, so that the others and the end do not wait for it.
const MOST_AT_ONCE: u32 = 8;
const SECOND: Duration = Duration::from_secs(1);
/// So many messages that cannot be sent, with a second between them, are told: an address of IPv6 cannot be used in its
/// first two seconds.
const REFUSED: u32 = 4;
/// How long the end may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// After so many other names, the next one is tried after a minute.
const MOST_NAMES: u32 = 15;
const MINUTE: Duration = Duration::from_secs(60);
/// Most addresses of a network that are announced, so that they fit in a message.
const MOST_ADDRESSES: usize = 16;
/// Most events that wait.
const MOST_EVENTS: usize = 16;

/// The announcement of a server by a thread. It is withdrawn when this is dropped.
#[derive(Debug)]
pub(super) struct Announcement {
    stop: Arc<Bell>,
    events: Receiver<ServerEvent>,
}

impl Announcement {
    /// Announces the server that listens there, on the networks that reach it.
    pub(super) fn start(address: SocketAddr) -> Result<Self> {
        let stop = Arc::new(Bell::new()?);
        let (said, events) = sync_channel(MOST_EVENTS);
        let mut announcer = Announcer::new(address, said);
        let end = Arc::clone(&stop);
        spawn("busbar-dns-sd", move || announcer.run(&end))?;
        Ok(Self { stop, events })
    }

    /// What has happened since the last call.
    pub(super) fn events(&mut self) -> Vec<ServerEvent> {
        self.events.try_iter().collect()
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = self.stop.ring();
        let end = later(Instant::now(), FAREWELL);
        // The thread has ended once its end of the channel is gone. The process may end after that.
        while self.events.recv_timeout(until(end)).is_ok() {}
    }
}

/// A network, and what is said there.
struct Network {
    link: Link,
    socket: UdpSocket,
    responder: Responder,
    /// Messages that are still read in this second.
    left: u32,
    /// Messages, one after the other, that could not be sent.
    refused: u32,
}

struct Announcer {
    address: SocketAddr,
    names: Names,
    /// How many names were taken.
    conflicts: u32,
    networks: Vec<Network>,
    said: SyncSender<ServerEvent>,
    has_told: bool,
    /// What has failed, each once.
    failed: Vec<String>,
}

impl Announcer {
    fn new(address: SocketAddr, said: SyncSender<ServerEvent>) -> Self {
        let names = names(address.port(), 0);
        let (networks, failed) = (Vec::new(), Vec::new());
        Self { address, names, conflicts: 0, networks, said, has_told: false, failed }
    }

    fn run(&mut self, stop: &Bell) {
        let mut buffer = vec![0; MOST_MESSAGE];
        let (mut look, mut second) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            if now >= look {
                self.look(now);
                look = later(now, LOOK);
            }
            if now >= second {
                self.networks.iter_mut().for_each(|it| it.left = MOST_HEARD);
                second = later(now, SECOND);
            }
            self.send(now);
            let sends = self.networks.iter().filter_map(|it| it.responder.next());
            let is_full = self.networks.iter().any(|it| it.left == 0);
            let end = sends.chain([look]).chain(is_full.then_some(second)).min().unwrap_or(look);
            if self.wait(stop, end) {
                break;
            }
            let addresses = self.networks.iter().flat_map(|it| it.responder.addresses.clone());
            let own: Vec<_> = addresses.collect();
            for index in 0..self.networks.len() {
                self.hear(index, &own, &mut buffer);
            }
        }
        for network in &self.networks {
            if let Some(farewell) = network.responder.farewell(&self.names) {
                let _ = network.socket.send_to(&farewell, network.link.group());
            }
        }
    }

    /// Waits for a message, or until `end`. Returns whether it is to stop.
    fn wait(&self, stop: &Bell, end: Instant) -> bool {
        let sockets = self.networks.iter().filter(|it| it.left > 0).map(|it| &it.socket);
        let mut all = vec![PollFd::new(stop, PollFlags::IN)];
        all.extend(sockets.map(|it| PollFd::new(it, PollFlags::IN)));
        let timeout = Timespec::try_from(until(end)).unwrap_or_default();
        poll(&mut all, Some(&timeout)).is_ok() && !all[0].revents().is_empty()
    }

    /// Finds the networks that there are now.
    fn look(&mut self, now: Instant) {
        let links = match Link::all() {
            Ok(links) => links,
            // Those that are known stay.
            Err(why) => return self.fail("list", "network interfaces", why),
        };
        let links: Vec<_> = links.into_iter().filter_map(|link| self.reached(link)).collect();
        self.networks.retain(|it| links.iter().any(|link| it.link.is_same(link)));
        for link in links {
            if self.networks.iter().any(|it| it.link.is_same(&link)) {
                continue;
            }
            match link.open(PORT) {
                Ok(socket) => {
                    let responder = Responder::new(link.addresses.clone(), now);
                    self.networks.push(Network {
                        link,
                        socket,
                        responder,
                        left: MOST_HEARD,
                        refused: 0,
                    });
                }
                Err(why) => self.fail("use UDP port 5353 of", &link.name, why),
            }
        }
    }

    /// A network, with the addresses that the server listens on; none if it listens elsewhere.
    fn reached(&self, mut link: Link) -> Option<Link> {
        let wanted = self.address.ip().to_canonical();
        if wanted.is_unspecified() {
            link.addresses.retain(|it| it.is_ipv4() || self.address.is_ipv6());
        } else {
            link.addresses.retain(|it| *it == wanted);
        }
        link.addresses.truncate(MOST_ADDRESSES);
        (!link.addresses.is_empty()).then_some(link)
    }

    /// Tells a failure, the same one once.
    fn fail(&mut self, tried: &str, on: &str, why: io::Error) {
        let error = Error::new(tried, on, why).to_string();
        if self.failed.len() < MOST_EVENTS && !self.failed.contains(&error) {
            self.failed.push(error.clone());
            let _ = self.said.try_send(ServerEvent::NotAnnounced(error));
        }
    }

    fn send(&mut self, now: Instant) {
        for index in 0..self.networks.len() {
            let network = &mut self.networks[index];
            let Some(message) = network.responder.due(&self.names, now) else { continue };
            if let Err(why) = network.socket.send_to(&message, network.link.group()) {
                // Nobody has heard it, so all begins again.
                network.responder.restart(later(now, SECOND));
                network.refused = network.refused.saturating_add(1);
                if network.refused >= REFUSED {
                    let name = network.link.name.clone();
                    self.fail("announce the server on", &name, why);
                }
                continue;
            }
            network.refused = 0;
            if network.responder.is_announced() && !self.has_told {
                self.has_told = true;
                let name = browse::instance(&self.names.service);
                let _ = self.said.try_send(ServerEvent::Announced(name));
            }
        }
    }

    /// Reads what has come from a network. `own`: the addresses of all.
    fn hear(&mut self, index: usize, own: &[IpAddr], buffer: &mut [u8]) {
        let network = &mut self.networks[index];
        for _ in 0..network.left.min(MOST_AT_ONCE) {
            let Ok((len, from)) = network.socket.recv_from(buffer) else { return };
            network.left -= 1;
            let Some(message) = wire::parse(&buffer[..len]) else { continue };
            let (is_peer, now) = (from.port() == PORT, Instant::now());
            match network.responder.hear(&self.names, &message, is_peer, own, now) {
                Heard::Nothing => {}
                Heard::Reply(reply) => drop(network.socket.send_to(&reply, from)),
                Heard::Conflict => return self.rename(now),
            }
        }
    }

    /// Takes another name on all networks.
    fn rename(&mut self, now: Instant) {
        self.conflicts = self.conflicts.saturating_add(1);
        self.names = names(self.address.port(), self.conflicts);
        self.has_told = false;
        let wait = if self.conflicts > MOST_NAMES { MINUTE } else { Duration::ZERO };
        self.networks.iter_mut().for_each(|it| it.responder.restart(later(now, wait)));
    }
}

/// The names of the server and of its host, if so many were taken. The host's is not the name that Avahi gives the machine,
/// whose addresses would be forgotten with those of the server; and it differs from that of other servers of the machine.
fn names(port: u16, taken: u32) -> Names {
    let system = rustix::system::uname();
    let machine = system.nodename().to_string_lossy();
    let machine = machine.split('.').next().unwrap_or_default();
    let is_allowed = |it: &char| it.is_ascii_alphanumeric() || *it == '-';
    let machine: String = machine.chars().filter(is_allowed).collect();
    let machine = if machine.is_empty() { "linux" } else { &machine };
    let (after, tail) = match taken {
        0 => (String::new(), format!("-iio{port}")),
        _ => (format!(" ({})", taken.saturating_add(1)), format!("-iio{port}-{taken}")),
    };
    let label = |before: &str, after: &str| {
        let room = MOST_LABEL - before.len() - after.len();
        format!("{before}{}{after}", &machine[..machine.len().min(room)])
    };
    Names {
        kind: Name::of(SERVICE),
        service: Name::new(&label("busbar on ", &after), SERVICE),
        host: Name::new(&label("", &tail), "local"),
        port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sent_is_told_once_and_tried_again() {
        let (said, events) = sync_channel(MOST_EVENTS);
        let mut announcer = Announcer::new(([0, 0, 0, 0], 4000).into(), said);
        // This socket cannot send to addresses of the other version.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let responder = Responder::new(Vec::new(), Instant::now());
        let link = Link::of_v6("eth7");
        announcer.networks.push(Network { link, socket, responder, left: 0, refused: 0 });
        for _ in 0..20 {
            let now = announcer.networks[0].responder.next().unwrap();
            announcer.send(now);
            let responder = &announcer.networks[0].responder;
            assert!(!responder.is_announced() && responder.next() >= Some(now + SECOND));
        }
        let told: Vec<_> = events.try_iter().collect();
        let [ServerEvent::NotAnnounced(why)] = &*told else { panic!("{told:?}") };
        assert!(why.contains("eth7"), "{why}");
    }

    #[test]
    fn names_are_labels_of_dns() {
        for taken in [0, 1, u32::MAX] {
            let Names { service, host, .. } = names(65535, taken);
            assert!(service.label().starts_with(b"busbar on "));
            assert!(!host.label().contains(&b'.'), "{host:?}");
            assert_eq!(wire::name_data(&host)[host.label().len() + 1..], *b"\x05local\0");
        }
        assert!(names(1, 0).service != names(1, 1).service && names(1, 0).host != names(1, 1).host);
    }
}
