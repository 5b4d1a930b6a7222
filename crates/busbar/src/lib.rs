//! Busbar: the short, low-resistance path for data on Linux.
//!
//! One module for each path: [`endpoint`] talks to a coprocessor, [`bulk`] sends it large blocks,
//! [`wait`] waits, [`stream`] takes samples from a converter, [`receive`] takes data from the network.
//! [`block`] is the memory that they share, and [`pipeline`] joins them.

pub mod block;
pub mod bulk;
pub mod endpoint;
mod error;
mod netlink;
pub mod pipeline;
mod poll;
pub mod receive;
pub mod stream;
pub mod wait;

pub use error::{Error, Result};
