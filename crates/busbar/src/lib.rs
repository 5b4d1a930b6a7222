//! Busbar: the short, low-resistance path for data on Linux.
//!
//! One module for each path: [`endpoint`] talks to a coprocessor, [`bulk`] sends it large blocks,
//! [`wait`] waits, [`stream`] takes samples from a converter, [`receive`] takes data from the network.
//! [`block`] is the memory that they share, and [`pipeline`] joins them.
//!
//! # Waiting
//!
//! What may have to wait has three methods, named by one rule in every type, that of
//! [`std::sync::mpsc::Receiver`]:
//!
//! | method | waits | if there is nothing |
//! |---|---|---|
//! | `next()`, `recv()`, `wait()` | as long as it takes | |
//! | `try_next()`, `try_recv()`, `try_wait()` | not at all | `None`, `false` or 0 |
//! | `next_timeout(timeout)`, `recv_timeout(timeout)`, `wait_timeout(timeout)` | for this [`Duration`](std::time::Duration) at most | `None`, `false` or 0 |
//!
//! * A timeout is not an error, unless half of the work may be done by then: transfers of
//!   [`bulk`], and calling somebody by [`receive`], end with [`Reason::TimedOut`].
//! * Where data has an end that is not an error, `next()` returns `None` there, and `is_finished()` tells
//!   the end from a timeout.
//! * A timeout that the clock cannot hold is none.
//! * Each of these types is a descriptor ([`AsFd`](std::os::fd::AsFd)) that can be waited for together with
//!   others, by [`wait::Poller`] for example; then call the method that begins with `try_`.
//! * [`wait::Poller::wait_timeout`] takes a point in time of a clock, too.
//!
//! # Errors
//!
//! Everything that can fail returns [`Error`]: what was tried, on what, why, and what to do about it, as
//! text. [`Error::reason`] is what a program can tell apart, the same for every path and every way that
//! a path has.
//!
//! # Features
//!
//! One for each module, and the modules that it is made of come with it. All are on by default; a
//! program that takes only what it uses compiles only what that needs:
//!
//! ```toml
//! busbar = { version = "0.1", default-features = false, features = ["wait"] }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `wait`, `block`, `endpoint` | [`wait`], [`block`], [`endpoint`]; no other crate than `rustix` and `busbar-uapi` |
//! | `bulk` | [`bulk`], `block`, `endpoint`; CRC, netlink |
//! | `receive` | [`receive`], `block`; netlink |
//! | `stream` | [`stream`], `receive`, `block`; CRC, JSON |
//! | `pipeline` | [`pipeline`] and all above; TOML, histograms |
//! | `picture` | `stream::picture`, not by default; drawing, PNG |
//! | `tokio` | `endpoint::AsyncEndpoint`, not by default; tokio |

// Paths share what is inside; without all of them, a part of it has no user.
#![cfg_attr(not(feature = "pipeline"), allow(dead_code))]

#[cfg(feature = "block")]
pub mod block;
#[cfg(feature = "bulk")]
pub mod bulk;
#[cfg(feature = "endpoint")]
pub mod endpoint;
mod error;
#[cfg(any(feature = "bulk", feature = "receive"))]
mod netlink;
#[cfg(feature = "pipeline")]
pub mod pipeline;
#[cfg(any(feature = "block", feature = "endpoint"))]
mod poll;
#[cfg(feature = "receive")]
pub mod receive;
#[cfg(feature = "stream")]
pub mod stream;
#[cfg(feature = "wait")]
pub mod wait;

pub use error::{Error, Input, Reason, Result};
/// The error numbers of the system, as [`Error::errno`] has them.
pub use rustix::io::Errno;
