//! Recordings in the Signal Metadata Format, which the usual tools of software radio open
//! (<https://sigmf.org>, version 1.2).
//!
//! A recording `NAME` is two files: `NAME.sigmf-data`, the samples as they came, and
//! `NAME.sigmf-meta`, JSON. A [`Recorder`] writes them, a [`Recording`] reads them, and a [`Player`]
//! is a recording as a source of blocks.
//!
//! What was lost is in there, too:
//!
//! * after a known loss a new capture begins, whose `core:global_index` counts what is missing, with
//!   the time of its first sample; an annotation `lost` says how many samples are missing;
//! * where it is not known whether something is missing, an annotation `loss unknown` covers the
//!   samples;
//! * at most 16384 losses are kept apart, so that metadata stays below some 8 MB, whatever is lost. When
//!   there are more, each two that follow each other become one: an annotation `lost` that covers the
//!   samples from the first to the last of them, with the sum of what is missing, and one capture, behind
//!   the last. If one of them is not known, it is an annotation `loss unknown`. Such samples are played as a
//!   loss that is not known; [`Gap::known`] tells the sum.
//!
//! `SigMF` has 8, 16 and 32 bits for a value, all of one type and without gaps: so not every scan of a
//! converter can be recorded. An error then says which channels can be, together.
//!
//! Extension `busbar` (optional): `busbar:channels`, the channels' names in the order of their
//! values; `busbar:bits`, the valid bits of a value where it has fewer than it takes up;
//! `busbar:lost`, in an annotation, the samples missing before it and between its samples, or `null` for
//! unknown; `busbar:known`, beside a `null` of several losses, the samples missing in those that are known.

mod datatype;
mod losses;
mod meta;
mod player;
mod recorder;
mod recording;
mod time;

use std::path::{Path, PathBuf};

pub use self::datatype::Datatype;
pub use self::player::Player;
pub use self::recorder::Recorder;
pub use self::recording::{Gap, Recording};

/// The two files of a recording, whichever of them, or neither's extension, `path` names.
fn paths(path: &Path) -> (PathBuf, PathBuf) {
    let ends = ["sigmf-meta", "sigmf-data"];
    let named = path.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
    let base = if named { path.with_extension("") } else { path.to_owned() };
    let with = |end: &str| {
        let mut name = base.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    };
    (with(".sigmf-data"), with(".sigmf-meta"))
}

#[cfg(test)]
mod tests;
