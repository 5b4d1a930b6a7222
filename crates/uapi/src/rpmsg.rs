//! rpmsg control and endpoint files (`<linux/rpmsg.h>` and `kernel/uapi/linux/rpmsg_eptfd.h`).

use std::marker::PhantomData;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Setter, Updater, ioctl, opcode};

use crate::call::{Call, count};

/// No particular address (`RPMSG_ADDR_ANY`).
pub const ADDR_ANY: u32 = 0xffff_ffff;
/// Bytes of a service name, the closing NUL included.
pub const NAME_SIZE: usize = 32;

const MAGIC: u8 = 0xb5;

/// `struct rpmsg_endpoint_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Name of the service, ended by a NUL byte.
    pub name: [u8; NAME_SIZE],
    /// Local address, or [`ADDR_ANY`].
    pub src: u32,
    /// Destination address.
    pub dst: u32,
}

/// `struct rpmsg_endpoint_fd_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointFdInfo {
    /// Name of the service, ended by a NUL byte.
    pub name: [u8; NAME_SIZE],
    /// Local address, or [`ADDR_ANY`].
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// A subset of `O_ACCMODE | O_NONBLOCK | O_CLOEXEC`.
    pub flags: u32,
    /// Returned: the descriptor that is the endpoint.
    pub fd: i32,
}

/// `RPMSG_CREATE_EPT_IOCTL`: makes a device node `/dev/rpmsgN` for an endpoint.
pub fn create_ept(ctrl: impl AsFd, info: EndpointInfo) -> io::Result<()> {
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_endpoint_info`.
    unsafe { ioctl(ctrl, Setter::<{ opcode::write::<EndpointInfo>(MAGIC, 0x1) }, _>::new(info)) }
}

/// `RPMSG_DESTROY_EPT_IOCTL`: destroys the endpoint behind `ept`.
pub fn destroy_ept(ept: impl AsFd) -> io::Result<()> {
    // SAFETY: the opcode is that of a call without an argument.
    unsafe { ioctl(ept, NoArg::<{ opcode::none(MAGIC, 0x2) }>::new()) }
}

/// `RPMSG_CREATE_DEV_IOCTL`: makes a local channel and announces it to the remote.
pub fn create_dev(ctrl: impl AsFd, info: EndpointInfo) -> io::Result<()> {
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_endpoint_info`.
    unsafe { ioctl(ctrl, Setter::<{ opcode::write::<EndpointInfo>(MAGIC, 0x3) }, _>::new(info)) }
}

/// `RPMSG_RELEASE_DEV_IOCTL`: removes a channel.
pub fn release_dev(ctrl: impl AsFd, info: EndpointInfo) -> io::Result<()> {
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_endpoint_info`.
    unsafe { ioctl(ctrl, Setter::<{ opcode::write::<EndpointInfo>(MAGIC, 0x4) }, _>::new(info)) }
}

/// `RPMSG_GET_OUTGOING_FLOWCONTROL`: whether the remote has asked for a pause.
pub fn outgoing_flow_control(ept: impl AsFd) -> io::Result<bool> {
    // SAFETY: the opcode is that of a call that fills an `int`.
    let paused = unsafe { ioctl(ept, Getter::<{ opcode::read::<i32>(MAGIC, 0x5) }, i32>::new()) }?;
    Ok(paused != 0)
}

/// `RPMSG_SET_INCOMING_FLOWCONTROL`: asks the remote to pause or to continue.
pub fn set_incoming_flow_control(ept: impl AsFd, pause: bool) -> io::Result<()> {
    // SAFETY: the call takes its argument by value, whatever its number says.
    unsafe {
        ioctl(
            ept,
            IntegerSetter::<{ opcode::read::<i32>(MAGIC, 0x6) }>::new_usize(usize::from(pause)),
        )
    }
}

/// `RPMSG_CREATE_EPT_FD_IOCTL`: makes an endpoint that is a descriptor.
///
/// `info.fd` is ignored. It fails with `EBADF` if the call succeeds without returning a descriptor.
pub fn create_ept_fd(ctrl: impl AsFd, mut info: EndpointFdInfo) -> io::Result<OwnedFd> {
    info.fd = -1;
    // SAFETY: the opcode is that of a call that reads and fills a `struct rpmsg_endpoint_fd_info`.
    unsafe {
        ioctl(
            ctrl,
            Updater::<{ opcode::read_write::<EndpointFdInfo>(MAGIC, 0x7) }, _>::new(&mut info),
        )?;
    }
    if info.fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: after success `fd` is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(info.fd) })
}

/// `RPMSG_MESSAGES_MAX`: the most messages that one call takes.
pub const MESSAGES_MAX: usize = 1024;

/// A message to send: `struct rpmsg_message`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Message<'a>(RawMessage, PhantomData<&'a [u8]>);

/// Room for a message to receive: `struct rpmsg_message`.
#[repr(transparent)]
#[derive(Debug)]
pub struct Room<'a>(RawMessage, PhantomData<&'a mut [u8]>);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawMessage {
    data: u64,
    length: u32,
    received: u32,
}

/// `struct rpmsg_messages`.
#[repr(C)]
struct Many {
    messages: u64,
    count: u32,
    flags: u32,
}

impl RawMessage {
    /// The kernel refuses a message of 4 GiB or more as it refuses one of 4 GiB less 1 byte.
    fn new(data: *const u8, len: usize) -> Self {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        Self { data: data.expose_provenance() as u64, length, received: 0 }
    }
}

impl<'a> Message<'a> {
    /// The bytes of a message.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(RawMessage::new(bytes.as_ptr(), bytes.len()), PhantomData)
    }
}

impl<'a> Room<'a> {
    /// Room for a message.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self(RawMessage::new(bytes.as_mut_ptr(), bytes.len()), PhantomData)
    }

    /// The length of the message that was received here last.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.received as usize
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.received == 0
    }
}

/// `RPMSG_SEND_MANY_IOCTL`: sends messages in order, of up to [`MESSAGES_MAX`]; returns how many.
///
/// Fails only if the first was not sent. Waits for room unless `wait` is false or the file is in
/// non-blocking mode.
pub fn send_many(ept: impl AsFd, messages: &[Message<'_>], wait: bool) -> io::Result<usize> {
    let messages = Many::new(messages.as_ptr().expose_provenance(), messages.len(), wait);
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_messages`, and the memory of the
    // messages, which are borrowed meanwhile.
    unsafe { ioctl(ept, Call::<{ opcode::write::<Many>(MAGIC, 0xa) }, _>(messages)) }.map(count)
}

/// `RPMSG_RECV_MANY_IOCTL`: receives messages in order, into up to [`MESSAGES_MAX`] rooms; returns how
/// many. Each of these rooms has the length of its message then.
///
/// Fails only if none was received. Waits for the first one unless `wait` is false or the file is in
/// non-blocking mode. A message that is longer than its room ends the call; as the first one it is
/// lost, with `EMSGSIZE`.
pub fn recv_many(ept: impl AsFd, rooms: &mut [Room<'_>], wait: bool) -> io::Result<usize> {
    let messages = Many::new(rooms.as_mut_ptr().expose_provenance(), rooms.len(), wait);
    // SAFETY: the opcode is that of a call that reads a `struct rpmsg_messages`, and writes into the
    // rooms, which are borrowed meanwhile.
    unsafe { ioctl(ept, Call::<{ opcode::write::<Many>(MAGIC, 0xb) }, _>(messages)) }.map(count)
}

impl Many {
    fn new(messages: usize, count: usize, wait: bool) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { messages: messages as u64, count, flags: u32::from(!wait) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn layout_is_that_of_the_headers() {
        assert_eq!(size_of::<EndpointInfo>(), 40);
        assert_eq!(size_of::<EndpointFdInfo>(), 48);
        assert_eq!(std::mem::offset_of!(EndpointFdInfo, src), 32);
        assert_eq!(std::mem::offset_of!(EndpointFdInfo, fd), 44);
        assert_eq!((size_of::<Message<'_>>(), align_of::<Room<'_>>()), (16, align_of::<u64>()));
        assert_eq!(std::mem::offset_of!(RawMessage, length), 8);
        assert_eq!(size_of::<Many>(), 16);
        assert_eq!(std::mem::offset_of!(Many, flags), 12);
    }

    #[test]
    fn numbers_are_those_of_the_headers() {
        // As printed by a C program that includes <linux/rpmsg.h> and rpmsg_eptfd.h.
        assert_eq!(opcode::write::<EndpointInfo>(MAGIC, 0x1), 0x4028_b501);
        assert_eq!(opcode::none(MAGIC, 0x2), 0x0000_b502);
        assert_eq!(opcode::write::<EndpointInfo>(MAGIC, 0x3), 0x4028_b503);
        assert_eq!(opcode::write::<EndpointInfo>(MAGIC, 0x4), 0x4028_b504);
        assert_eq!(opcode::read::<i32>(MAGIC, 0x5), 0x8004_b505);
        assert_eq!(opcode::read::<i32>(MAGIC, 0x6), 0x8004_b506);
        assert_eq!(opcode::read_write::<EndpointFdInfo>(MAGIC, 0x7), 0xc030_b507);
        assert_eq!(opcode::write::<Many>(MAGIC, 0xa), 0x4010_b50a);
        assert_eq!(opcode::write::<Many>(MAGIC, 0xb), 0x4010_b50b);
    }

    #[test]
    fn every_call_fails_on_a_file_that_is_no_endpoint() {
        let null = File::open("/dev/null").unwrap();
        let info = EndpointInfo::default();
        assert_eq!(create_ept(&null, info), Err(Errno::NOTTY));
        assert_eq!(create_dev(&null, info), Err(Errno::NOTTY));
        assert_eq!(release_dev(&null, info), Err(Errno::NOTTY));
        assert_eq!(destroy_ept(&null), Err(Errno::NOTTY));
        assert_eq!(outgoing_flow_control(&null), Err(Errno::NOTTY));
        assert_eq!(set_incoming_flow_control(&null, true), Err(Errno::NOTTY));
        assert_eq!(send_many(&null, &[], true), Err(Errno::NOTTY));
        assert_eq!(recv_many(&null, &mut [], true), Err(Errno::NOTTY));
        let made = create_ept_fd(&null, EndpointFdInfo::default());
        assert_eq!(made.map(drop), Err(Errno::NOTTY));
    }
}
