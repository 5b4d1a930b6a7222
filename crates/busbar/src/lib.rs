//! Busbar: the short, low-resistance path for data on Linux.
//!
//! One module for each path: [`endpoint`] talks to a coprocessor. [`block`] is the memory that they
//! share.

pub mod block;
pub mod bulk;
pub mod endpoint;
mod error;
mod poll;
pub mod wait;

pub use error::{Error, Result};
