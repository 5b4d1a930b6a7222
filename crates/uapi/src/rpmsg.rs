//! rpmsg control and endpoint files (`<linux/rpmsg.h>` and `kernel/uapi/linux/rpmsg_eptfd.h`).

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Setter, Updater, ioctl, opcode};

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
        let made = create_ept_fd(&null, EndpointFdInfo::default());
        assert_eq!(made.map(drop), Err(Errno::NOTTY));
    }
}
