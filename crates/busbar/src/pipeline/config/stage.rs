//! Stages.

use super::edge::Edge;

/// A stage, which processes samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageConfig {
    /// Its name.
    pub name: String,
    /// The edge that its samples come from.
    pub input: Edge,
    /// What it does.
    pub work: Work,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Keeps every Nth sample, without a filter.
    Decimate(u32),
    /// Keeps these channels.
    Select(Vec<String>),
    /// Lets blocks through while it is open.
    Gate(Gate),
    /// Computes the CRC-32C of each block. A `tcp:` sink sends it, and a `verify:` sink compares it.
    Checksum,
}

/// A gate for blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gate {
    /// The control whose events open and close it.
    pub control: String,
    /// The event that opens it.
    pub open_on: String,
    /// The event that closes it.
    pub close_on: Option<String>,
    /// Number of samples after which it closes: after the block that reaches it.
    pub samples: Option<u64>,
    /// Whether it is open at the start.
    pub is_open: bool,
}

impl StageConfig {
    /// A stage behind `input`.
    #[must_use]
    pub fn new(name: impl Into<String>, input: Edge, work: Work) -> Self {
        Self { name: name.into(), input, work }
    }
}

impl Gate {
    /// A gate that is closed until the event `open_on` of `control`.
    #[must_use]
    pub fn new(control: impl Into<String>, open_on: impl Into<String>) -> Self {
        Self { control: control.into(), open_on: open_on.into(), ..Self::default() }
    }
}
