//! A search for servers: a question from a port of its own, which is answered to that port (RFC 6762, 5.1 and 6.7).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SERVICE;
use super::network::{Link, until};
use super::wire::{self, Data, MOST_MESSAGE, Message, Name, PTR, Writer};
use crate::poll::{Deadline, later};
use crate::{Error, Result};

/// Most servers that are listed.
const MOST_SERVERS: usize = 1024;
/// Addresses of servers, by their names and the indices of the networks.
type Found = BTreeMap<(String, u32), SocketAddr>;
/// How often the question is asked, if the time allows it.
const AGAIN: Duration = Duration::from_millis(700);

/// A server on the local network, as [`servers`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The name that it is announced with.
    pub name: String,
    /// One of its addresses, and its port, as [`devices`](super::super::devices) takes it.
    pub address: SocketAddr,
}

/// Asks the local networks for servers, and collects the answers for `time`. Names and addresses are what the answers
/// say: any neighbour can give any answer. Servers of one name on several networks are all listed. At most 1024 are listed,
/// in the order of their names.
///
/// # Errors
///
/// Those of the network interfaces.
pub fn servers(time: Duration) -> Result<Vec<ServerInfo>> {
    let failed = |why: io::Error| Error::new("search", "the local network", why);
    let links = Link::all().map_err(failed)?;
    let open = |link: Link| link.open(0).map(|socket| (link, socket));
    let opened: Vec<io::Result<_>> = links.into_iter().map(open).collect();
    let (networks, errors): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    let networks: Vec<_> = networks.into_iter().flatten().collect();
    if let (true, Some(Err(why))) = (networks.is_empty(), errors.into_iter().next()) {
        return Err(failed(why));
    }
    let mut found = Found::new();
    let (end, mut next) = (Deadline::after(time), Instant::now());
    let mut buffer = vec![0; MOST_MESSAGE];
    while !end.has_passed() {
        if Instant::now() >= next {
            next = later(Instant::now(), AGAIN);
            for (link, socket) in &networks {
                let _ = socket.send_to(&question(), link.group());
            }
        }
        let left = until(next);
        wait(&networks, end.remaining().map_or(left, |it| it.min(left)));
        for (link, socket) in &networks {
            // One message of each, in turn.
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
            if let Some(message) = wire::parse(&buffer[..len]).filter(|_| link.is_near(from.ip())) {
                for (name, address) in read(&message, link.index) {
                    keep(&mut found, (name, link.index), address);
                }
            }
        }
    }
    Ok(listed(found))
}

/// The servers, each once, though several networks may lead to it.
fn listed(found: Found) -> Vec<ServerInfo> {
    let servers = found.into_iter().map(|((name, _), address)| (name, address));
    let servers = servers.collect::<BTreeSet<_>>().into_iter();
    servers.map(|(name, address)| ServerInfo { name, address }).collect()
}

fn question() -> Vec<u8> {
    let mut writer = Writer::query();
    writer.question(&Name::of(SERVICE), PTR);
    writer.finish()
}

fn wait(networks: &[(Link, UdpSocket)], time: Duration) {
    let all = networks.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN));
    let timeout = Timespec::try_from(time).unwrap_or_default();
    // After a failure, the time passes all the same.
    let _ = poll(&mut all.collect::<Vec<_>>(), Some(&timeout));
}

/// The servers of an answer.
fn read(message: &Message, index: u32) -> Vec<(String, SocketAddr)> {
    if !message.is_answer {
        return Vec::new();
    }
    let kind = Name::of(SERVICE);
    let names = message.records.iter().filter(|it| it.name == kind);
    let names =
        names.filter_map(|it| if let Data::Name(name) = &it.data { Some(name) } else { None });
    let server = |name: &Name| {
        let service = message.records.iter().find_map(|it| match &it.data {
            Data::Service { port, host } if it.name == *name => Some((*port, host)),
            _ => None,
        });
        let (port, host) = service?;
        let addresses = message.records.iter().filter_map(|it| match it.data {
            Data::Address(address) if it.name == *host => Some(address),
            _ => None,
        });
        let address = match addresses.min_by_key(rank)? {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, index).into()
            }
            address => (address, port).into(),
        };
        Some((instance(name), address))
    };
    names.filter_map(server).take(MOST_SERVERS).collect()
}

/// Keeps the best address of a server.
fn keep(found: &mut Found, key: (String, u32), address: SocketAddr) {
    if found.len() >= MOST_SERVERS && !found.contains_key(&key) {
        return;
    }
    let kept = found.entry(key).or_insert(address);
    if rank(&address.ip()) < rank(&kept.ip()) {
        *kept = address;
    }
}

/// Those that are most likely to be reached first.
fn rank(address: &IpAddr) -> u8 {
    match address {
        IpAddr::V4(ip) => u8::from(ip.is_link_local()),
        IpAddr::V6(ip) => 2 + u8::from(ip.is_unicast_link_local()),
    }
}

/// The first label of a name, as it may be printed.
pub(super) fn instance(name: &Name) -> String {
    let label = String::from_utf8_lossy(name.label());
    label.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::iiod::dns_sd::wire::{A, AAAA, SRV, name_data, service_data};

    #[test]
    fn an_answer_names_a_server_and_its_best_address() {
        let (service, host) = (Name::new("a\u{1b}.b", SERVICE), Name::of("vm.local"));
        let mut writer = Writer::answer(0);
        writer.record(1, (&Name::of(SERVICE), PTR, false), 1, &name_data(&service));
        let nothing = Name::new("nothing", SERVICE);
        writer.record(1, (&Name::of(SERVICE), PTR, false), 1, &name_data(&nothing));
        writer.record(2, (&service, SRV, true), 1, &service_data(4000, &host));
        let six: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        writer.record(2, (&host, AAAA, true), 1, &six.octets());
        let bytes = writer.finish();
        let found = read(&wire::parse(&bytes).unwrap(), 3);
        let local = SocketAddrV6::new(six, 4000, 0, 3);
        assert_eq!(found, [("a?.b".to_owned(), local.into())]);

        let (mut all, four) = (Found::new(), SocketAddr::from(([10, 0, 0, 1], 4000)));
        for address in [local.into(), four, local.into()] {
            keep(&mut all, ("a?.b".into(), 3), address);
        }
        // The same server by another network, and another one by a third.
        keep(&mut all, ("a?.b".into(), 4), four);
        keep(&mut all, ("a?.b".into(), 5), ([10, 0, 1, 1], 4000).into());
        let addresses: Vec<_> = listed(all).into_iter().map(|it| it.address).collect();
        assert_eq!(addresses, [four, ([10, 0, 1, 1], 4000).into()]);
        let mut writer = Writer::answer(0);
        writer.record(1, (&host, A, true), 1, &[10, 0, 0, 1]);
        assert_eq!(read(&wire::parse(&writer.finish()).unwrap(), 3), []);
    }
}
