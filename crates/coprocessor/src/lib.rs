//! A coprocessor that is a process: vrings, name service, firmware services.
//!
//! The kernel module `vcoproc` gives Linux a remote processor whose core is the process that opens
//! `/dev/vcoprocN`. This crate is such a core: [`Core::open`] takes one, [`Core::run`] answers
//! what Linux's unmodified rpmsg bus sends with [`service`]s. From the wire upwards:
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | the resource table: image for Linux to load, and what Linux made of it |
//! | [`ring`] | the device side of a vring, over any guest memory |
//! | [`message`], [`name_service`] | the content of the buffers |
//! | [`buffer`] | buffers that Linux shares |
//! | [`service`] | the services, behind one trait |
//! | [`machine`] | all of this together, one turn at a time, without a device |
//! | [`Core`] | the device, and the loop that waits for it |
//! | [`remoteproc`] | Linux's side in sysfs |
//!
//! On a 32-bit target there are no rings, and what is built on them is not compiled: `ring`, `machine`, [`Core`].
//!
//! ```no_run
//! use busbar_coprocessor::service::{Echo, Services};
//! use busbar_coprocessor::{Core, Options};
//!
//! # fn main() -> busbar::Result<()> {
//! let mut services = Services::default();
//! services.add(Echo::new("echo"))?;
//! let core = Core::open("/dev/vcoproc0")?;
//! let (statistics, result) = core.run(&mut services, &Options::default(), &mut |_| {});
//! println!("{statistics:?}");
//! result
//! # }
//! ```

// Sums of times that panic; see clippy.toml.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// What only the rings use.
#![cfg_attr(not(target_pointer_width = "64"), allow(dead_code))]

pub mod buffer;
#[cfg(target_pointer_width = "64")]
mod core;
#[cfg(target_pointer_width = "64")]
pub mod machine;
pub mod message;
#[cfg(all(target_pointer_width = "64", any(test, feature = "mock")))]
pub mod mock;
pub mod name_service;
pub mod remoteproc;
#[cfg(target_pointer_width = "64")]
pub mod ring;
#[cfg(target_pointer_width = "64")]
mod run;
pub mod service;
mod stop;
pub mod table;
mod wire;

#[cfg(target_pointer_width = "64")]
pub use self::core::Core;
#[cfg(target_pointer_width = "64")]
pub use machine::{Notice, Statistics};
#[cfg(target_pointer_width = "64")]
pub use run::Options;
pub use stop::{Stop, StopHandle};
