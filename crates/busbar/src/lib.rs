//! Busbar: the short, low-resistance path for data on Linux.
//!
//! One module for each path: [`endpoint`] talks to a coprocessor.

pub mod endpoint;
mod error;

pub use error::{Error, Result};
