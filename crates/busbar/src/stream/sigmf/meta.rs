//! The metadata of a recording, as JSON.

use serde::{Deserialize, Serialize};

/// The version of the specification.
pub(super) const VERSION: &str = "1.2.6";

/// The metadata. Fields of other programs are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) global: Global,
    pub(super) captures: Vec<Capture>,
    pub(super) annotations: Vec<Annotation>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Global {
    #[serde(rename = "core:datatype")]
    pub(super) datatype: String,
    #[serde(rename = "core:version")]
    pub(super) version: String,
    #[serde(rename = "core:num_channels", default = "one")]
    pub(super) num_channels: usize,
    #[serde(rename = "core:sample_rate", default, skip_serializing_if = "Option::is_none")]
    pub(super) sample_rate: Option<f64>,
    #[serde(rename = "core:recorder", default, skip_serializing_if = "Option::is_none")]
    pub(super) recorder: Option<String>,
    #[serde(rename = "core:hw", default, skip_serializing_if = "Option::is_none")]
    pub(super) hw: Option<String>,
    #[serde(rename = "core:dataset", default, skip_serializing_if = "Option::is_none")]
    pub(super) dataset: Option<String>,
    #[serde(rename = "core:metadata_only", default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata_only: Option<bool>,
    #[serde(rename = "core:trailing_bytes", default, skip_serializing_if = "Option::is_none")]
    pub(super) trailing_bytes: Option<u64>,
    #[serde(rename = "core:extensions", default)]
    pub(super) extensions: Vec<Extension>,
    #[serde(rename = "busbar:channels", default, skip_serializing_if = "Option::is_none")]
    pub(super) channels: Option<Vec<String>>,
    #[serde(rename = "busbar:bits", default, skip_serializing_if = "Option::is_none")]
    pub(super) bits: Option<u8>,
    /// While it is recorded: the samples up to which all losses are in this metadata.
    #[serde(rename = "busbar:recorded", default, skip_serializing_if = "Option::is_none")]
    pub(super) recorded: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Extension {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) optional: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Capture {
    #[serde(rename = "core:sample_start")]
    pub(super) sample_start: u64,
    #[serde(rename = "core:global_index", default, skip_serializing_if = "Option::is_none")]
    pub(super) global_index: Option<u64>,
    #[serde(rename = "core:header_bytes", default, skip_serializing_if = "Option::is_none")]
    pub(super) header_bytes: Option<u64>,
    #[serde(rename = "core:datetime", default, skip_serializing_if = "Option::is_none")]
    pub(super) datetime: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Annotation {
    #[serde(rename = "core:sample_start")]
    pub(super) sample_start: u64,
    #[serde(rename = "core:sample_count", default, skip_serializing_if = "Option::is_none")]
    pub(super) sample_count: Option<u64>,
    #[serde(rename = "core:label", default, skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    #[serde(rename = "core:comment", default, skip_serializing_if = "Option::is_none")]
    pub(super) comment: Option<String>,
    #[serde(
        rename = "busbar:lost",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "given"
    )]
    pub(super) lost: Option<Missing>,
    #[serde(rename = "busbar:known", default, skip_serializing_if = "Option::is_none")]
    pub(super) known: Option<u64>,
}

/// A number, or `null` for unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<u64>", into = "Option<u64>")]
pub(super) enum Missing {
    Known(u64),
    Unknown,
}

impl From<Option<u64>> for Missing {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Unknown, Self::Known)
    }
}

impl From<Missing> for Option<u64> {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Known(number) => Some(number),
            Missing::Unknown => None,
        }
    }
}

fn one() -> usize {
    1
}

/// A field that is `null` is unknown; without the field, nothing is lost.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Missing>, D::Error> {
    Missing::deserialize(from).map(Some)
}
