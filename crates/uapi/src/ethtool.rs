//! Settings of network devices that only the older interface of ethtool has
//! (`<linux/ethtool.h>`, `SIOCETHTOOL` on any socket).

use std::os::fd::AsFd;

use rustix::io::{self, Errno};
use rustix::ioctl::{Opcode, Updater, ioctl};

/// `SIOCETHTOOL`.
const CALL: Opcode = 0x8946;
const GFLAGS: u32 = 0x25;
const SFLAGS: u32 = 0x26;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
const GRXFHINDIR: u32 = 0x38;
const SRXFHINDIR: u32 = 0x39;

/// Flag of [`flags`]: n-tuple rules are switched on (`ETH_FLAG_NTUPLE`).
pub const NTUPLE: u32 = 1 << 27;
/// [`FlowSpec::flow_type`]: TCP over IPv4 (`TCP_V4_FLOW`).
pub const TCP_V4_FLOW: u32 = 1;
/// [`FlowSpec::flow_type`]: TCP over IPv6 (`TCP_V6_FLOW`).
pub const TCP_V6_FLOW: u32 = 5;
/// [`FlowSpec::location`]: the driver chooses (`RX_CLS_LOC_ANY`).
pub const LOCATION_ANY: u32 = 0xffff_ffff;
/// Flag of [`RuleTable::size`]: the driver supports [`LOCATION_ANY`] (`RX_CLS_LOC_SPECIAL`).
const LOCATION_SPECIAL: u32 = 0x8000_0000;

/// An n-tuple rule (`struct ethtool_rx_flow_spec`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// The kind of traffic, such as [`TCP_V4_FLOW`].
    pub flow_type: u32,
    /// Fields to match: for TCP over IPv4 source and destination (4 bytes each), their ports (2 bytes
    /// each), all as in the frame; for IPv6 the same with 16 bytes each.
    pub fields: [u8; 52],
    /// More fields to match.
    pub more_fields: [u8; 20],
    /// Bits of [`fields`](Self::fields) that have to match.
    pub mask: [u8; 52],
    /// Bits of [`more_fields`](Self::more_fields) that have to match.
    pub more_mask: [u8; 20],
    /// The queue, or another action.
    pub ring_cookie: u64,
    /// Number of the rule.
    pub location: u32,
}

impl FlowSpec {
    /// Matches everything of this type.
    #[must_use]
    pub fn new(flow_type: u32) -> Self {
        Self {
            flow_type,
            fields: [0; 52],
            more_fields: [0; 20],
            mask: [0; 52],
            more_mask: [0; 20],
            ring_cookie: 0,
            location: LOCATION_ANY,
        }
    }
}

/// The rule table of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleTable {
    /// Number of rules.
    pub used: u32,
    /// Maximum number of rules; 0 if the driver does not report it.
    pub size: u32,
    /// Whether the driver supports [`LOCATION_ANY`].
    pub knows_any: bool,
}

/// `struct ifreq`, at least as long.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: usize,
    rest: [usize; 3],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_rxnfc` without the rule numbers after it.
#[repr(C)]
struct Rules {
    cmd: u32,
    flow_type: u32,
    data: u64,
    spec: FlowSpec,
    count: u32,
}

impl Rules {
    fn new(cmd: u32, spec: FlowSpec) -> Self {
        Self { cmd, flow_type: 0, data: 0, spec, count: 0 }
    }

    fn at(cmd: u32, location: u32) -> Self {
        Self::new(cmd, FlowSpec { location, ..FlowSpec::new(0) })
    }
}

/// Makes the call that the first number of `data` names.
///
/// # Safety
///
/// `data` has to be as long as that call says.
unsafe fn call<T: ?Sized>(socket: impl AsFd, device: &str, data: &mut T) -> io::Result<()> {
    let mut name = [0; 16];
    // The last byte ends the name.
    name[..15].get_mut(..device.len()).ok_or(Errno::NODEV)?.copy_from_slice(device.as_bytes());
    let data = (&raw mut *data).cast::<u8>().expose_provenance();
    let mut request = Request { name, data, rest: [0; 3] };
    // SAFETY: the request is a `struct ifreq` whose data is as the caller says.
    unsafe { ioctl(socket, Updater::<CALL, _>::new(&mut request)) }
}

/// `ETHTOOL_GFLAGS`: what is switched on, [`NTUPLE`] among others.
pub fn flags(socket: impl AsFd, device: &str) -> io::Result<u32> {
    let mut value = Value { cmd: GFLAGS, data: 0 };
    // SAFETY: the call updates a `struct ethtool_value`.
    unsafe { call(socket, device, &mut value) }?;
    Ok(value.data)
}

/// `ETHTOOL_SFLAGS`: switches on and off, all at once.
pub fn set_flags(socket: impl AsFd, device: &str, flags: u32) -> io::Result<()> {
    let mut value = Value { cmd: SFLAGS, data: flags };
    // SAFETY: the call reads a `struct ethtool_value`.
    unsafe { call(socket, device, &mut value) }
}

/// `ETHTOOL_GRXFHINDIR`: the queue for each hash.
pub fn indirection(socket: impl AsFd, device: &str) -> io::Result<Vec<u32>> {
    let mut size = [GRXFHINDIR, 0];
    // SAFETY: the call updates a `struct ethtool_rxfh_indir` that says that it has no entries.
    unsafe { call(&socket, device, &mut size) }?;
    let mut table = vec![0; size[1] as usize + 2];
    table[..2].copy_from_slice(&[GRXFHINDIR, size[1]]);
    // SAFETY: as above, with as many entries as it says.
    unsafe { call(&socket, device, table.as_mut_slice()) }?;
    table.drain(..2);
    Ok(table)
}

/// `ETHTOOL_SRXFHINDIR`: sets the queue for each hash, of as many as there are; none: to what the
/// driver begins with.
pub fn set_indirection(socket: impl AsFd, device: &str, table: &[u32]) -> io::Result<()> {
    let size = u32::try_from(table.len()).map_err(|_| Errno::INVAL)?;
    let mut table = [&[SRXFHINDIR, size], table].concat();
    // SAFETY: the call reads a `struct ethtool_rxfh_indir` with as many entries as it says.
    unsafe { call(socket, device, table.as_mut_slice()) }
}

/// `ETHTOOL_GRXCLSRLCNT`: how many rules there are and can be.
pub fn rule_table(socket: impl AsFd, device: &str) -> io::Result<RuleTable> {
    let mut rules = Rules::at(GRXCLSRLCNT, 0);
    // SAFETY: the call updates a `struct ethtool_rxnfc`.
    unsafe { call(socket, device, &mut rules) }?;
    let size = u32::try_from(rules.data).map_err(|_| Errno::RANGE)?;
    let knows_any = size & LOCATION_SPECIAL != 0;
    Ok(RuleTable { used: rules.count, size: size & !LOCATION_SPECIAL, knows_any })
}

/// `ETHTOOL_GRXCLSRLALL`: numbers of the rules, of which there are `count`.
pub fn locations(socket: impl AsFd, device: &str, count: u32) -> io::Result<Vec<u32>> {
    /// Where `struct ethtool_rxnfc` has the number of rules and, behind it, the rules.
    const COUNT: usize = std::mem::offset_of!(Rules, count) / 4;
    let mut words = vec![0; size_of::<Rules>() / 4 + count as usize];
    (words[0], words[COUNT]) = (GRXCLSRLALL, count);
    // SAFETY: the call updates a `struct ethtool_rxnfc` with room for as many rules as it says.
    unsafe { call(socket, device, words.as_mut_slice()) }?;
    let found = words[COUNT].min(count) as usize;
    Ok(words[COUNT + 1..][..found].to_vec())
}

/// `ETHTOOL_GRXCLSRULE`: the rule of this number.
pub fn rule(socket: impl AsFd, device: &str, location: u32) -> io::Result<FlowSpec> {
    let mut rules = Rules::at(GRXCLSRULE, location);
    // SAFETY: the call updates a `struct ethtool_rxnfc`.
    unsafe { call(socket, device, &mut rules) }?;
    Ok(rules.spec)
}

/// `ETHTOOL_SRXCLSRLINS`: adds a rule, or replaces that of its number; returns its number.
pub fn insert_rule(socket: impl AsFd, device: &str, spec: FlowSpec) -> io::Result<u32> {
    let mut rules = Rules::new(SRXCLSRLINS, spec);
    // SAFETY: the call updates a `struct ethtool_rxnfc`.
    unsafe { call(socket, device, &mut rules) }?;
    Ok(rules.spec.location)
}

/// `ETHTOOL_SRXCLSRLDEL`: removes the rule of this number.
pub fn delete_rule(socket: impl AsFd, device: &str, location: u32) -> io::Result<()> {
    let mut rules = Rules::at(SRXCLSRLDEL, location);
    // SAFETY: the call updates a `struct ethtool_rxnfc`.
    unsafe { call(socket, device, &mut rules) }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert!(size_of::<Request>() >= size_of::<libc::ifreq>());
        if align_of::<u64>() < 8 {
            // i386 is the only processor with another layout, which its kernel and compilers agree on.
            assert_eq!((size_of::<FlowSpec>(), offset_of!(FlowSpec, ring_cookie)), (160, 148));
            return;
        }
        // As printed by a C program that includes them.
        assert_eq!(size_of::<FlowSpec>(), 168);
        assert_eq!(offset_of!(FlowSpec, ring_cookie), 152);
        assert_eq!(offset_of!(FlowSpec, location), 160);
        assert_eq!(size_of::<Rules>(), 192);
        assert_eq!((offset_of!(Rules, spec), offset_of!(Rules, count)), (16, 184));
    }

    #[test]
    fn a_device_without_queues_of_its_own_has_nothing_to_set() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(flags(&socket, "lo").map(|flags| flags & NTUPLE), Ok(0));
        assert_eq!(indirection(&socket, "lo"), Err(Errno::OPNOTSUPP));
        assert_eq!(rule_table(&socket, "lo"), Err(Errno::OPNOTSUPP));
        assert_eq!(locations(&socket, "lo", 4), Err(Errno::OPNOTSUPP));
        assert_eq!(rule(&socket, "lo", 0), Err(Errno::OPNOTSUPP));
        for none in ["busbar-none", "", "longer than any name"] {
            assert_eq!(flags(&socket, none), Err(Errno::NODEV));
        }
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(set_flags(&null, "lo", 0), Err(Errno::NOTTY));
        assert_eq!(set_indirection(&null, "lo", &[]), Err(Errno::NOTTY));
        assert_eq!(insert_rule(&null, "lo", FlowSpec::new(TCP_V4_FLOW)), Err(Errno::NOTTY));
        assert_eq!(delete_rule(&null, "lo", 0), Err(Errno::NOTTY));
    }
}
