//! What the kernel and user space share: structures, numbers and thin calls, nothing else.
//!
//! Each module mirrors one header, of `kernel/uapi/linux` or of Linux itself.

// The calls are what this crate is for; each block says why it is sound.
#![allow(unsafe_code)]

mod call;
pub mod devmem;
pub mod dmabuf;
pub mod epoll;
pub mod ethtool;
pub mod functionfs;
pub mod iio;
pub mod netdev;
pub mod netlink;
pub mod rpmsg;
pub mod rpmsg_bulk;
pub mod rpmsg_netlink;
pub mod signal;
pub mod tcp;
pub mod time;
pub mod vcoproc;
pub mod vector;
pub mod zerocopy;
