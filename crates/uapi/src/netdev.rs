//! Generic netlink families of network devices: `netdev` (`<linux/netdev.h>`, with the attribute
//! for tokens of `kernel/patches/6.12`) and a part of `ethtool` (`<linux/ethtool_netlink.h>`).

/// Name of the family.
pub const FAMILY: &str = "netdev";

/// Commands.
pub mod command {
    /// Dumps the queues of a device; see [`queue`](super::queue).
    pub const QUEUE_GET: u8 = 10;
    /// Dumps counters; see [`stats`](super::stats).
    pub const QSTATS_GET: u8 = 12;
    /// Binds a DMABUF to queues until the socket is closed; see [`dmabuf`](super::dmabuf).
    pub const BIND_RX: u8 = 13;
}

/// Attributes of a queue.
pub mod queue {
    /// Its number, `u32`.
    pub const ID: u16 = 1;
    /// Index of the device, `u32`.
    pub const IFINDEX: u16 = 2;
    /// [`RX`] or 1, `u32`.
    pub const TYPE: u16 = 3;
    /// The binding whose memory it has, `u32`; absent where it has none.
    pub const DMABUF: u16 = 5;
    /// A queue that receives.
    pub const RX: u32 = 0;
}

/// Attributes of counters.
pub mod stats {
    /// Index of the device, `u32`.
    pub const IFINDEX: u16 = 1;
    /// [`queue::RX`](super::queue::RX) or 1, `u32`.
    pub const QUEUE_TYPE: u16 = 2;
    /// Number of the queue, `u32`.
    pub const QUEUE_ID: u16 = 3;
    /// [`QUEUE`] for the counters of each queue, an integer of 32 bits.
    pub const SCOPE: u16 = 4;
    /// Frames that were dropped because memory was short, an integer of 32 or 64 bits.
    pub const RX_ALLOC_FAIL: u16 = 12;
    /// Counters of each queue.
    pub const QUEUE: u32 = 1;
}

/// Attributes of a binding.
pub mod dmabuf {
    /// Index of the device, `u32`.
    pub const IFINDEX: u16 = 1;
    /// A queue, [`queue::ID`](super::queue::ID) and [`queue::TYPE`](super::queue::TYPE); as many as
    /// there are queues.
    pub const QUEUES: u16 = 2;
    /// Descriptor of the DMABUF, `u32`.
    pub const FD: u16 = 3;
    /// Answered: the binding, `u32`.
    pub const ID: u16 = 4;
    /// Flag: tokens belong to the socket. If the kernel has the attribute and it is absent, they are indices
    /// into the binding. In both cases the kernel takes them back when the socket is closed. The number is
    /// far from those of upstream Linux, which has another attribute 5.
    pub const AUTORELEASE: u16 = 64;
}

/// The family `ethtool`.
pub mod ethtool {
    /// Name of the family.
    pub const FAMILY: &str = "ethtool";
    /// Command: the rings of a device.
    pub const RINGS_GET: u8 = 15;
    /// Command: changes those whose attributes are given.
    pub const RINGS_SET: u8 = 16;
    /// Nested [`DEV_INDEX`].
    pub const RINGS_HEADER: u16 = 1;
    /// Header split, `u8`: 0 or absent if it is not known,
    /// [`SPLIT_DISABLED`] or [`SPLIT_ENABLED`].
    pub const TCP_DATA_SPLIT: u16 = 11;
    /// Index of the device, `u32`.
    pub const DEV_INDEX: u16 = 1;
    /// Header split is off.
    pub const SPLIT_DISABLED: u8 = 1;
    /// Header split is on.
    pub const SPLIT_ENABLED: u8 = 2;
}
