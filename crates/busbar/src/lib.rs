//! Busbar moves data between a coprocessor (rpmsg), an ADC or DAC (IIO) and TCP on Linux with few or no
//! copies.
//!
//! There is one module for each path: [`endpoint`] exchanges messages with a coprocessor, [`bulk`] sends it
//! large blocks, [`wait`] waits for descriptors, [`stream`] moves samples from and to a converter, [`receive`]
//! receives data from the network. [`block`] is the memory that they share, and [`pipeline`] joins them.
//!
//! # Waiting
//!
//! An operation that may have to wait has three methods. Their names follow one rule in every type, that of
//! [`std::sync::mpsc::Receiver`]:
//!
//! | method | waits | if there is nothing |
//! |---|---|---|
//! | `next()`, `recv()`, `wait()` | as long as it takes | |
//! | `try_next()`, `try_recv()`, `try_wait()` | not at all | `None`, `false` or 0 |
//! | `next_timeout(timeout)`, `recv_timeout(timeout)`, `wait_timeout(timeout)` | for this [`Duration`](std::time::Duration) at most | `None`, `false` or 0 |
//!
//! * A timeout is not an error, unless a part of the work may be done by then: transfers of [`bulk`] and
//!   connecting in [`receive`] end with [`Reason::TimedOut`].
//! * Where data has an end that is not an error, `next()` returns `None` there, and `is_finished()`
//!   distinguishes the end from a timeout.
//! * A timeout that the clock cannot represent means no timeout.
//! * Each of these types is a descriptor ([`AsFd`](std::os::fd::AsFd)) that can be waited for together with
//!   others, for example by [`wait::Poller`]. When it is ready, call the method that begins with `try_`.
//! * [`wait::Poller::wait_timeout`] also takes a point in time of a clock.
//!
//! # Errors
//!
//! Every function that can fail returns [`Error`]: what was tried, on what, why it failed, and what to do
//! about it, as text. A program distinguishes errors by [`Error::reason`], which is the same for every path
//! and each of its interfaces to the kernel.
//!
//! # Features
//!
//! Each module has a feature, which brings the modules that it needs. All of them are on by default. A
//! program that selects features compiles only what those need:
//!
//! ```toml
//! busbar = { version = "0.1", default-features = false, features = ["wait"] }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `wait`, `block`, `endpoint` | [`wait`], [`block`], [`endpoint`]; no crate but `rustix` and `busbar-uapi` |
//! | `bulk` | [`bulk`], `block`, `endpoint`; CRC, netlink |
//! | `receive` | [`receive`], `block`; netlink |
//! | `stream` | [`stream`], `receive`, `block`; CRC, JSON |
//! | `iiod` | `stream::iiod` and `stream` |
//! | `pipeline` | [`pipeline`] and all of the above; TOML, histograms |
//! | `usb` | `stream::usb`, and a USB host as a client of `stream::iiod`, not by default; nusb, usb-gadget |
//! | `dns-sd` | servers of `stream::iiod` announce themselves, and are found; not by default; fastrand, if-addrs, socket2 |
//! | `picture` | `stream::picture`, not by default; drawing, PNG |
//! | `tokio` | `endpoint::AsyncEndpoint`, not by default; tokio |

// Sums of times that panic; see clippy.toml.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// Paths share private code; with some features off, a part of it has no user.
#![cfg_attr(not(feature = "pipeline"), allow(dead_code, unused_imports))]

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
#[cfg(any(feature = "block", feature = "endpoint", feature = "wait"))]
mod poll;
#[cfg(feature = "receive")]
pub mod receive;
#[cfg(feature = "stream")]
pub mod stream;
#[cfg(feature = "wait")]
pub mod wait;

pub use error::{Error, Input, Reason, Result};
#[cfg(any(feature = "block", feature = "endpoint", feature = "wait"))]
pub use poll::{later, quit_when};
/// The error numbers of the system, as [`Error::errno`] returns them.
pub use rustix::io::Errno;

/// The program of README is compiled.
#[cfg(all(doctest, feature = "pipeline"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
