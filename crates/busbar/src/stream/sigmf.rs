//! Recordings in the Signal Metadata Format, which common tools for software radio open
//! (<https://sigmf.org>, version 1.2).
//!
//! A recording `NAME` is two files: `NAME.sigmf-data`, the samples as they came, and
//! `NAME.sigmf-meta`, JSON. A [`Recorder`] writes them, a [`Recording`] reads them, and a [`Player`]
//! is a recording as a source of blocks.
//!
//! Losses are recorded as well:
//!
//! * after a known loss a new capture begins, with the time of its first sample; its `core:global_index` counts
//!   the missing samples, and an annotation `lost` says how many they are;
//! * an annotation `loss unknown` covers samples of which it is not known whether some are missing;
//! * at most 16384 losses are kept apart, so that metadata stays below some 8 MB. When there are more, each
//!   two neighbours become one: an annotation `lost` that covers the samples from the first to the last
//!   of them, with the sum of the missing samples, and one capture, after the last. If one of them is not known,
//!   the annotation is `loss unknown`. Such samples are played as an unknown loss; [`Gap::known`] is
//!   the sum.
//!
//! `SigMF` has values of 8, 16 and 32 bits, all of one type and without gaps, so not all channels of a
//! converter can be recorded together. The error says which can.
//!
//! Extension `busbar` (optional): `busbar:channels`, the channels' names in the order of their
//! values; `busbar:bits`, the valid bits of a value where it has fewer than it takes up;
//! `busbar:lost`, in an annotation, the samples missing before it and between its samples, or `null` for
//! unknown; `busbar:known`, beside a `null` of several losses, the samples missing in those that are known;
//! `busbar:recorded`, until the recording is complete, the samples up to which the metadata has all losses.

mod datatype;
mod losses;
mod meta;
mod paths;
mod player;
mod recorder;
mod recording;
mod time;

pub use self::datatype::Datatype;
pub use self::player::Player;
pub use self::recorder::Recorder;
pub use self::recording::{Gap, Recording};

#[cfg(test)]
mod tests;
