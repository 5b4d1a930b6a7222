//! Answers to netlink requests, and their options (`<linux/netlink.h>`).

use std::ffi::c_int;
use std::os::fd::AsFd;

use rustix::io;

use crate::call::set_option;

/// Flag of a message: it ends with attributes of an explanation (`NLM_F_ACK_TLVS`).
pub const EXPLAINED: u16 = 0x200;
/// Attribute of an explanation: text (`NLMSGERR_ATTR_MSG`).
pub const TEXT: u16 = 1;
/// Attribute of an explanation: position of the attribute of the request that is refused, `u32`
/// (`NLMSGERR_ATTR_OFFS`).
pub const CULPRIT: u16 = 2;

const CAP_ACK: c_int = 10;
const EXT_ACK: c_int = 11;

/// Makes the kernel explain refusals, after the header of the request (`NETLINK_EXT_ACK`,
/// `NETLINK_CAP_ACK`).
pub fn explain(socket: impl AsFd) -> io::Result<()> {
    [CAP_ACK, EXT_ACK]
        .into_iter()
        .try_for_each(|option| set_option(&socket, libc::SOL_NETLINK, option, 1))
}

/// The generic family that describes the others (`<linux/genetlink.h>`).
pub mod control {
    /// Number of the family.
    pub const FAMILY: u16 = 16;
    /// Command: dumps the attributes that a command has.
    pub const GET_POLICY: u8 = 10;
    /// Number of a family, `u16`.
    pub const FAMILY_ID: u16 = 1;
    /// Number of a command, `u32`.
    pub const COMMAND: u16 = 10;
    /// Dumped: nested by its number, a policy; nested by its number, an attribute; its [`TYPE`].
    pub const POLICY: u16 = 8;
    /// Dumped: nested by its number, a command; its policy as [`DO`].
    pub const COMMAND_POLICY: u16 = 9;
    /// Number of the policy of a request that is not a dump, `u32`.
    pub const DO: u16 = 1;
    /// Type of an attribute, `u32`; see [`FLAG`].
    pub const TYPE: u16 = 1;
    /// The type of an attribute without a value.
    pub const FLAG: u32 = 1;
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn only_netlink_explains() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(explain(&null), Err(Errno::NOTSOCK));
    }
}
