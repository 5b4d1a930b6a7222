//! Generic netlink family of blocks (`kernel/uapi/linux/rpmsg_netlink.h`, generated from
//! `kernel/modules/rpmsg_netlink/rpmsg_netlink.yaml`, which describes them).

/// Name of the family.
pub const FAMILY: &str = "rpmsg-netlink";
/// Version of the family.
pub const VERSION: u8 = 1;
/// Maximum number of bytes of a block in one message.
pub const PART_MAX: usize = 32768;
/// Bytes of a block that are received ahead of the client's fetches.
pub const WINDOW: u32 = 65536;
/// Milliseconds that a request may take by default.
pub const TIMEOUT: u32 = 30000;
/// Length of the longest block for the firmware of the STM32MP1 example.
pub const PLAIN_MAX: u32 = 32762;

/// Attributes of a channel.
pub mod channel {
    /// Its number, `u32`.
    pub const ID: u16 = 1;
    /// Its name, text.
    pub const NAME: u16 = 2;
    /// Its device in `/sys/bus/rpmsg/devices`, text.
    pub const DEVICE: u16 = 3;
    /// Its address in the coprocessor, `u32`.
    pub const ADDRESS: u16 = 4;
    /// Length of its longest message, `u32`.
    pub const MTU: u16 = 5;
}

/// Attributes of a block, or of a part of one.
pub mod block {
    /// Number of the channel, `u32`.
    pub const CHANNEL: u16 = 1;
    /// Length of the whole block, `u32`.
    pub const LENGTH: u16 = 2;
    /// Offset of the part in the block, `u32`.
    pub const OFFSET: u16 = 3;
    /// Check sum of the whole block, `u16`.
    pub const CRC: u16 = 4;
    /// Flag: take only as much as there is room for now.
    pub const NOWAIT: u16 = 5;
    /// 0, or a number of `errno.h`, `u32`.
    pub const STATUS: u16 = 6;
    /// Bytes of the block.
    pub const DATA: u16 = 7;
    /// Milliseconds until the request ends, `u32`; from 2^31 on, there is no limit.
    pub const TIMEOUT: u16 = 8;
}

/// Requests and notifications.
pub mod command {
    /// The channels, or one of them.
    pub const CHANNEL_GET: u8 = 1;
    /// A channel was added.
    pub const CHANNEL_ADD_NTF: u8 = 2;
    /// A channel was removed.
    pub const CHANNEL_DEL_NTF: u8 = 3;
    /// Sends a block, or the next part of one.
    pub const SEND: u8 = 4;
    /// The part is on its way.
    pub const SEND_NEXT_NTF: u8 = 5;
    /// The block has ended.
    pub const SEND_DONE_NTF: u8 = 6;
    /// Asks for a block.
    pub const RECEIVE: u8 = 7;
    /// Asks for the next part of it.
    pub const FETCH: u8 = 8;
    /// A part of a block.
    pub const DATA_NTF: u8 = 9;
    /// Ends the current transfer.
    pub const RESET: u8 = 10;
    /// A message of the coprocessor that no request has asked for.
    pub const MESSAGE_NTF: u8 = 11;
}

/// Multicast groups.
pub mod group {
    /// Channels that are added and removed.
    pub const CHANNELS: &str = "channels";
    /// Messages that no request has asked for.
    pub const MESSAGES: &str = "messages";
}
