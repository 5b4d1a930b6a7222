//! Busbar's benchmarks: one file for each path, one report.
//!
//! Each runs the usual way and Busbar's in turn (A B A B …), both doing the same work to the end,
//! and checks the data on both sides.

pub mod bulk;
mod clock;
mod elsewhere;
pub mod endpoint;
pub mod figures;
pub mod iiod;
pub mod languages;
pub mod page;
pub mod receive;
mod report;
pub mod stream;
pub mod usual;
pub mod wait;
mod words;

pub use report::{Case, Report, Spread};
use serde::{Deserialize, Serialize};

/// The benchmarks: one for each path, one for the languages, and one for clients of `iiod`.
pub const PATHS: [&str; 7] = ["endpoint", "bulk", "wait", "stream", "receive", "languages", "iiod"];

/// The extent of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// Under a minute: shows that the benchmark works.
    Quick,
    /// The figures of the documentation.
    #[default]
    Normal,
    /// All sizes and counts of the published figures.
    Full,
}

/// The control devices that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Controllers<'a> {
    /// One with the in-tree driver.
    pub in_tree: &'a std::path::Path,
    /// One with `rpmsg_eptfd`.
    pub eptfd: &'a std::path::Path,
}
