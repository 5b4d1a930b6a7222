//! Multicast sockets, one for each network and version of IP.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use if_addrs::{IfAddr, Interface};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

/// The port of multicast DNS.
pub(super) const PORT: u16 = 5353;
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
/// Most networks: a machine with more has many virtual ones.
const MOST: usize = 64;

/// A network device of this machine, by the version of IP.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) is_v6: bool,
    /// Its addresses of both versions.
    pub(super) addresses: Vec<IpAddr>,
    /// The addresses of this version with their masks.
    near: Vec<IfAddr>,
}

impl Link {
    #[cfg(test)]
    pub(super) fn of_v6(name: &str) -> Self {
        Self { name: name.into(), index: 1, is_v6: true, addresses: Vec::new(), near: Vec::new() }
    }

    /// All of this machine but the loopback interface and point-to-point interfaces: a tunnel leads to a single machine,
    /// which need not be near.
    pub(super) fn all() -> io::Result<Vec<Self>> {
        let mut found = BTreeMap::new();
        let is_used = |it: &Interface| !it.is_loopback() && !it.is_p2p() && it.is_oper_up();
        let all: Vec<_> = if_addrs::get_if_addrs()?.into_iter().filter(is_used).collect();
        for Interface { name, addr, index, .. } in all {
            let Some(index) = index else { continue };
            for is_v6 in [false, true] {
                let new = || Self {
                    name: name.clone(),
                    index,
                    is_v6,
                    addresses: Vec::new(),
                    near: Vec::new(),
                };
                let link = found.entry((index, is_v6)).or_insert_with(new);
                link.addresses.push(addr.ip());
                if addr.ip().is_ipv6() == is_v6 {
                    link.near.push(addr.clone());
                }
            }
        }
        Ok(found.into_values().filter(|link| !link.near.is_empty()).take(MOST).collect())
    }

    /// Whether an address belongs to this network: others have no business to answer a question.
    pub(super) fn is_near(&self, address: IpAddr) -> bool {
        self.near.iter().any(|near| match (near, address) {
            (IfAddr::V4(near), IpAddr::V4(ip)) => {
                let mask = u32::from(near.netmask);
                u32::from(ip) & mask == u32::from(near.ip) & mask
            }
            (IfAddr::V6(near), IpAddr::V6(ip)) => {
                let mask = u128::from(near.netmask);
                u128::from(ip) & mask == u128::from(near.ip) & mask
            }
            _ => false,
        })
    }

    /// A socket that sends to and receives from this network alone.
    pub(super) fn open(&self, port: u16) -> io::Result<UdpSocket> {
        let domain = if self.is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        // Programs of this machine share the port.
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind_device(Some(self.name.as_bytes()))?;
        if self.is_v6 {
            socket.set_only_v6(true)?;
            socket.set_multicast_hops_v6(255)?;
            socket.set_unicast_hops_v6(255)?;
        } else {
            socket.set_multicast_ttl_v4(255)?;
            socket.set_ttl_v4(255)?;
        }
        // What is sent to this machine alone at the port of multicast DNS is left to other programs, such as Avahi.
        let at = match (port, self.is_v6) {
            (PORT, _) => self.group(),
            (_, true) => (Ipv6Addr::UNSPECIFIED, port).into(),
            (_, false) => (Ipv4Addr::UNSPECIFIED, port).into(),
        };
        socket.bind(&at.into())?;
        socket.set_nonblocking(true)?;
        if port == PORT {
            self.join(&socket)?;
        }
        Ok(socket.into())
    }

    fn join(&self, socket: &Socket) -> io::Result<()> {
        if self.is_v6 {
            return socket.join_multicast_v6(&GROUP_6, self.index);
        }
        socket.join_multicast_v4_n(&GROUP, &InterfaceIndexOrAddress::Index(self.index))
    }

    /// Where all of this network hear it.
    pub(super) fn group(&self) -> SocketAddr {
        if self.is_v6 {
            SocketAddrV6::new(GROUP_6, PORT, 0, self.index).into()
        } else {
            (GROUP, PORT).into()
        }
    }

    /// Whether the same device has the same addresses.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.index, self.is_v6, &self.addresses) == (other.index, other.is_v6, &other.addresses)
    }
}

/// How long until `at`, for `poll`.
pub(super) fn until(at: std::time::Instant) -> Duration {
    at.saturating_duration_since(std::time::Instant::now())
}
