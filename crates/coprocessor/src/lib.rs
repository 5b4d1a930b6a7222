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

pub mod buffer;
mod core;
pub mod machine;
pub mod message;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod name_service;
pub mod remoteproc;
pub mod ring;
mod run;
pub mod service;
mod stop;
pub mod table;
mod wire;

pub use self::core::Core;
pub use machine::{Notice, Statistics};
pub use run::Options;
pub use stop::{Stop, StopHandle};
