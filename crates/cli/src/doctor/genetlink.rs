//! What a family of generic netlink offers.

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Message type of the family that describes the others, `GENL_ID_CTRL`.
const CONTROL: u16 = 0x10;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_NAME`, `CTRL_ATTR_OPS` and `CTRL_ATTR_OP_ID`.
const NAME: u16 = 2;
const OPERATIONS: u16 = 6;
const OPERATION_ID: u16 = 1;

/// The numbers of the operations of this family; `NOENT` if the kernel does not have it.
pub fn operations(family: &str) -> Result<Vec<u32>, Errno> {
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, Some(GENERIC))?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &request(family), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 8192];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    parse(&answer[..length])
}

fn request(family: &str) -> Vec<u8> {
    let name = [family.as_bytes(), &[0]].concat();
    let mut body = vec![GET_FAMILY, 1, 0, 0];
    put(&mut body, 4 + name.len(), NAME);
    body.extend(&name);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut message = Vec::new();
    // Length, type, flags, sequence number and sender.
    message.extend(u32::try_from(16 + body.len()).unwrap_or(u32::MAX).to_ne_bytes());
    message.extend(CONTROL.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn put(body: &mut Vec<u8>, length: usize, kind: u16) {
    body.extend(u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
}

fn parse(message: &[u8]) -> Result<Vec<u32>, Errno> {
    let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match kind {
        Some(ERROR) => Err(error(message)),
        Some(CONTROL) => Ok(attributes(message.get(20..).unwrap_or_default())
            .filter(|(kind, _)| *kind == OPERATIONS)
            .flat_map(|(_, operations)| attributes(operations))
            .flat_map(|(_, operation)| attributes(operation))
            .filter(|(kind, _)| *kind == OPERATION_ID)
            .filter_map(|(_, id)| Some(u32::from_ne_bytes(id.try_into().ok()?)))
            .collect()),
        _ => Err(Errno::BADMSG),
    }
}

fn error(message: &[u8]) -> Errno {
    let number = message.get(16..20).and_then(|bytes| bytes.try_into().ok());
    match number.map(i32::from_ne_bytes) {
        Some(number @ -4095..0) => Errno::from_raw_os_error(-number),
        _ => Errno::BADMSG,
    }
}

/// Kind and content of each attribute, up to the first malformed one.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (kind, _) = after.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let content = rest.get(4..length)?;
        // The upper two bits are flags.
        let kind = u16::from_ne_bytes(*kind) & 0x3fff;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_control_family_offers_what_was_just_used() {
        let all = operations("nlctrl").unwrap();
        assert!(all.contains(&u32::from(GET_FAMILY)), "{all:?}");
    }

    #[test]
    fn an_unknown_family_is_not_there() {
        assert_eq!(operations("busbar-none"), Err(Errno::NOENT));
    }

    #[test]
    fn requests_are_whole_and_padded() {
        let message = request("netdev");
        assert_eq!(message.len(), 16 + 4 + 4 + 8);
        assert_eq!(message[..4], 32u32.to_ne_bytes());
        assert_eq!(message[20..22], 11u16.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn no_answer_panics_or_hangs(bytes: Vec<u8>, kind in prop::sample::select(vec![ERROR, CONTROL])) {
            let mut message = vec![0; 20];
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message.extend(bytes);
            let _ = parse(&message);
            let _ = parse(&message[..message.len().min(5)]);
        }
    }
}
