//! N-tuple rules, which steer connections to queues.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use busbar_uapi::ethtool::{FlowSpec, LOCATION_ANY, TCP_V4_FLOW, TCP_V6_FLOW};
use rustix::io::Errno;

use super::ethtool::Device;
use crate::{Error, Result};

/// All rules of a receiver, which are removed when it is dropped.
#[derive(Debug)]
pub(super) struct Rules {
    device: Arc<Device>,
    all: Mutex<Vec<Weak<Steering>>>,
}

impl Rules {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device, all: Mutex::default() }
    }

    /// Steers connections to these local addresses to `queue`.
    pub(super) fn add(&self, local: &[SocketAddr], queue: u32) -> Result<Arc<Steering>> {
        let mut steering = Steering { device: Arc::clone(&self.device), placed: Mutex::default() };
        steering.add(local, queue)?;
        let steering = Arc::new(steering);
        let mut all = lock(&self.all);
        all.retain(|steering| steering.strong_count() > 0);
        all.push(Arc::downgrade(&steering));
        Ok(steering)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for steering in lock(&self.all).drain(..).rev() {
            if let Some(steering) = steering.upgrade() {
                steering.remove();
            }
        }
    }
}

/// No code panics while one of these is locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rules of a listener or a connection, which are removed when it or the receiver is dropped.
#[derive(Debug)]
pub(super) struct Steering {
    device: Arc<Device>,
    placed: Mutex<Vec<Placed>>,
}

#[derive(Debug)]
struct Placed {
    location: u32,
    /// The earlier rule for the same connections.
    found: Option<FlowSpec>,
}

impl Steering {
    fn add(&mut self, local: &[SocketAddr], queue: u32) -> Result<()> {
        for address in local {
            let placed = self.place(spec(address, queue))?;
            lock(&self.placed).push(placed);
        }
        Ok(())
    }

    fn place(&self, spec: FlowSpec) -> Result<Placed> {
        let device = &self.device;
        let table = device.rule_table().map_err(|errno| self.failed(errno))?;
        let rules = device.rules().map_err(|errno| self.failed(errno))?;
        let found = rules.iter().find(|rule| is_same(rule, &spec)).copied();
        let location = match found {
            Some(rule) => rule.location,
            None if table.knows_any => LOCATION_ANY,
            None => free(&rules, table.size).ok_or_else(|| {
                self.failed(Errno::NOSPC).help(format!(
                    "its {} rules are used up: `ethtool -n {}` lists them",
                    table.size, device.name
                ))
            })?,
        };
        let placed = device.insert_rule(FlowSpec { location, ..spec });
        let location = placed.map_err(|errno| self.failed(errno))?;
        Ok(Placed { location, found })
    }

    fn remove(&self) {
        for Placed { location, found } in lock(&self.placed).drain(..).rev() {
            // An error cannot be reported here.
            let _ = match found {
                Some(rule) => self.device.insert_rule(rule).map(drop),
                None => self.device.delete_rule(location),
            };
        }
    }

    fn failed(&self, errno: Errno) -> Error {
        self.device.failed("add an n-tuple rule to", errno)
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        self.remove();
    }
}
/// A rule for TCP to this port, and to this address unless it is unspecified.
fn spec(local: &SocketAddr, queue: u32) -> FlowSpec {
    let address = local.ip().to_canonical();
    // The offsets of the destination address, which follows the source, and of the port in the fields.
    let (kind, ip, at, port) = match &address {
        IpAddr::V4(ip) => (TCP_V4_FLOW, ip.octets().to_vec(), 4, 10),
        IpAddr::V6(ip) => (TCP_V6_FLOW, ip.octets().to_vec(), 16, 34),
    };
    let mut spec = FlowSpec { ring_cookie: queue.into(), ..FlowSpec::new(kind) };
    spec.fields[port..port + 2].copy_from_slice(&local.port().to_be_bytes());
    spec.mask[port..port + 2].fill(0xff);
    if !address.is_unspecified() {
        spec.fields[at..at + ip.len()].copy_from_slice(&ip);
        spec.mask[at..at + ip.len()].fill(0xff);
    }
    spec
}

/// Whether two rules match the same connections.
fn is_same(one: &FlowSpec, other: &FlowSpec) -> bool {
    let wanted = |spec: &FlowSpec| {
        let fields = spec.fields.iter().zip(&spec.mask).map(|(field, mask)| field & mask);
        fields.collect::<Vec<_>>()
    };
    one.flow_type == other.flow_type && one.mask == other.mask && wanted(one) == wanted(other)
}

/// The lowest number that no rule has: rules with lower numbers take precedence.
fn free(rules: &[FlowSpec], size: u32) -> Option<u32> {
    (0..size).find(|location| rules.iter().all(|rule| rule.location != *location))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(address: &str, queue: u32, location: u32) -> FlowSpec {
        FlowSpec { location, ..spec(&address.parse().unwrap(), queue) }
    }

    #[test]
    fn rules_are_for_the_port_and_the_address_if_there_is_one() {
        let any = rule("0.0.0.0:5201", 7, 0);
        assert_eq!((any.flow_type, any.ring_cookie), (TCP_V4_FLOW, 7));
        assert_eq!(any.fields[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0x51]);
        assert_eq!(any.mask[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let one = rule("10.1.2.3:5201", 7, 0);
        assert_eq!(one.fields[4..8], [10, 1, 2, 3]);
        assert_eq!(one.mask[4..8], [0xff; 4]);
        assert_eq!(rule("[::ffff:10.1.2.3]:5201", 7, 0), one);
        let six = rule("[2001:db8::5]:80", 1, 0);
        assert_eq!((six.flow_type, six.fields[16], six.fields[31]), (TCP_V6_FLOW, 0x20, 5));
        assert_eq!((&six.fields[34..36], &six.mask[34..36]), (&[0, 80][..], &[0xff, 0xff][..]));
        assert_eq!(rule("[::]:80", 1, 0).mask[..34], [0; 34]);
    }

    #[test]
    fn a_rule_for_the_same_is_known_wherever_it_leads() {
        let mut other = rule("0.0.0.0:5201", 3, 9);
        // Fields that are masked out do not count.
        other.fields[0] = 77;
        assert!(is_same(&other, &rule("0.0.0.0:5201", 7, 0)));
        for different in ["0.0.0.0:5202", "10.1.2.3:5201", "[::]:5201"] {
            assert!(!is_same(&other, &rule(different, 3, 9)), "{different}");
        }
    }

    #[test]
    fn the_first_free_place_is_taken() {
        let rules = [rule("0.0.0.0:1", 0, 0), rule("0.0.0.0:2", 0, 2)];
        assert_eq!((free(&rules, 4), free(&[], 4)), (Some(1), Some(0)));
        assert_eq!((free(&rules[..1], 1), free(&[], 0)), (None, None));
    }
}
