//! Reads recordings.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::datatype::Datatype;
use super::meta::{Annotation, Capture, Meta, Missing};
use super::paths::{BEGUN, beside, paths};
use super::time;
use crate::block::{self, BytesMut};
use crate::stream::format::{Format, Lost};
use crate::{Error, Result};

/// Bytes of the longest metadata that is read. As values, they take about six times as much memory.
pub(super) const MAX_META: u64 = 32 << 20;
const MAX_CHANNELS: usize = 256;

/// A place where samples are missing or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The sample after it; the number of samples if it is after the last one.
    pub at: u64,
    /// What is missing. [`Lost::Unknown`]: samples may be missing there or in the samples up to `end`.
    pub lost: Lost,
    /// The first sample after it.
    pub end: u64,
    /// Samples that are known to be missing, in all.
    pub known: u64,
}

/// A recording that was opened.
#[derive(Debug)]
pub struct Recording {
    data: File,
    path: PathBuf,
    format: Format,
    datatype: Datatype,
    hw: Option<String>,
    samples: u64,
    gaps: Vec<Gap>,
    begin: Option<SystemTime>,
    is_complete: bool,
}

impl Recording {
    /// Opens the recording that `path` names, with either extension or none.
    ///
    /// # Errors
    ///
    /// Bad input or [`InvalidData`](std::io::ErrorKind::InvalidData) for metadata that is invalid or not
    /// supported: floating point, headers between samples, samples in other files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (data_path, meta_path) = paths(path.as_ref());
        // A power cut may have left the name of the newest metadata, and lost its content.
        let meta = read(&meta_path)
            .or_else(|error| read(&beside(&meta_path, BEGUN)).map_err(|_| error))?;
        let unusable = |field: &str, value: &dyn std::fmt::Display, allowed: &str| {
            Error::invalid(format!("`{field}` of {}", meta_path.display()), value, allowed)
        };
        let datatype: Datatype = meta.global.datatype.parse()?;
        let count = meta.global.num_channels;
        if !(1..=MAX_CHANNELS).contains(&count) {
            return Err(unusable("core:num_channels", &count, "1 to 256"));
        }
        if let Some(rate) = meta.global.sample_rate.filter(|rate| !rate.is_finite() || *rate <= 0.0)
        {
            return Err(unusable("core:sample_rate", &rate, "more than 0"));
        }
        if let Some(other) = &meta.global.dataset {
            return Err(unusable("core:dataset", &other.escape_debug(), "nothing"));
        }
        if meta.captures.iter().any(|capture| capture.header_bytes.unwrap_or(0) > 0) {
            return Err(unusable("core:header_bytes", &"more than 0", "0"));
        }
        let failed = |why| Error::new("open", data_path.display().to_string(), why);
        let data = File::open(&data_path).map_err(failed)?;
        let bytes = data.metadata().map_err(failed)?.len();
        let bytes = bytes.saturating_sub(meta.global.trailing_bytes.unwrap_or(0));
        let rate = meta.global.sample_rate;
        let format =
            datatype.format(count, meta.global.channels.as_deref(), meta.global.bits, rate);
        let samples = bytes / format.sample_len as u64;
        let gaps = gaps(&meta, samples);
        let is_complete = meta.global.recorded.is_none();
        let begin = meta.captures.first().and_then(|first| time::parse(first.datetime.as_ref()?));
        let hw = meta.global.hw;
        Ok(Self { data, path: data_path, format, datatype, hw, samples, gaps, begin, is_complete })
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// What a value is.
    #[must_use]
    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// The hardware that has made the samples, if the metadata names it.
    #[must_use]
    pub fn hw(&self) -> Option<&str> {
        self.hw.as_deref()
    }

    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The places where samples are missing, in their order.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Whether the recording was ended in order. Otherwise it is still being recorded, or a crash or a power cut has ended
    /// it: its last gap is an unknown loss, and what is missing at the end is not known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The time of the first sample.
    #[must_use]
    pub fn begin(&self) -> Option<SystemTime> {
        self.begin
    }

    /// Reads whole samples from number `at` on into `bytes`, as many as fit and exist. Returns the number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file has become shorter.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<usize> {
        self.read_into(at, BytesMut::from(bytes))
    }

    /// As [`read`](Self::read), into a block.
    pub(super) fn read_into(&self, at: u64, mut bytes: BytesMut<'_>) -> Result<usize> {
        let len = self.format.sample_len;
        let left = usize::try_from(self.samples.saturating_sub(at)).unwrap_or(usize::MAX);
        let count = (bytes.len() / len).min(left);
        block::read_exact_at(&self.data, bytes.slice(..count * len), at.saturating_mul(len as u64))
            .map_err(|why| Error::new("read", self.path.display().to_string(), why))?;
        Ok(count * len)
    }
}

fn read(path: &Path) -> Result<Meta> {
    let failed = |why| Error::new("read", path.display().to_string(), why);
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_META + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_META {
        let allowed = format!("up to {MAX_META} bytes");
        return Err(Error::invalid(path.display().to_string(), "more", allowed));
    }
    serde_json::from_slice(&text)
        .map_err(|why| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, why)))
}

/// The gaps that captures and annotations describe. For a single loss, the capture counts. For several losses
/// that became one, only the annotation has their beginning.
fn gaps(meta: &Meta, samples: u64) -> Vec<Gap> {
    let mut merged: Vec<_> =
        meta.annotations.iter().filter_map(|it| several(it, samples)).collect();
    merged.sort_by_key(|gap| gap.at);
    // A single loss may be right behind several.
    let mut single: Vec<_> = meta.annotations.iter().filter_map(single_place).collect();
    single.sort_unstable();
    let is_single = |at: u64| single.binary_search(&at).is_ok();
    let mut captures: Vec<_> = meta.captures.iter().collect();
    captures.sort_by_key(|capture| capture.sample_start);
    let mut lost = 0;
    let known =
        captures.into_iter().filter_map(|Capture { sample_start: at, global_index, .. }| {
            let missing = global_index.as_ref()?.saturating_sub(*at);
            let gap = missing.saturating_sub(lost);
            lost = lost.max(missing);
            let is_there = *at <= samples && gap > 0 && (is_single(*at) || !is_in(&merged, *at));
            let lost = Lost::Samples(gap);
            is_there.then_some(Gap { at: *at, lost, end: *at, known: gap })
        });
    let mut gaps: Vec<Gap> = known.collect();
    let mut end_is_known = gaps.last().is_some_and(|gap| gap.at == samples);
    for Annotation { sample_start: at, sample_count, lost, known, .. } in &meta.annotations {
        let end = at.saturating_add(sample_count.unwrap_or(0)).min(samples);
        match lost {
            Some(Missing::Unknown) if *at <= samples && known.is_none() => {
                gaps.push(Gap { at: *at, lost: Lost::Unknown, end, known: 0 });
            }
            // There is no capture after the last sample.
            Some(Missing::Known(lost)) if *at == samples && *lost > 0 && !end_is_known => {
                end_is_known = true;
                gaps.push(Gap { at: *at, lost: Lost::Samples(*lost), end, known: *lost });
            }
            _ => {}
        }
    }
    gaps.extend(merged);
    // What came later was not noted yet, and samples may be missing at the end.
    gaps.extend(meta.global.recorded.map(|recorded| Gap {
        at: recorded.min(samples),
        lost: Lost::Unknown,
        end: samples,
        known: 0,
    }));
    gaps.sort_by_key(|gap| gap.at);
    gaps
}

/// An annotation of several losses that became one.
fn several(annotation: &Annotation, samples: u64) -> Option<Gap> {
    let Annotation { sample_start: at, sample_count, lost, known, .. } = annotation;
    let known = match lost {
        Some(Missing::Known(lost)) => *lost,
        Some(Missing::Unknown) => (*known)?,
        None => return None,
    };
    let end = at.saturating_add(sample_count.unwrap_or(0)).min(samples);
    (*at < end).then_some(Gap { at: *at, lost: Lost::Unknown, end, known })
}

/// Where a known loss is that stands alone.
fn single_place(annotation: &Annotation) -> Option<u64> {
    let is_single = matches!(annotation.lost, Some(Missing::Known(_)))
        && annotation.sample_count.unwrap_or(0) == 0;
    is_single.then_some(annotation.sample_start)
}

/// Whether a place is that of one of several losses; they are in their order.
fn is_in(merged: &[Gap], at: u64) -> bool {
    let before = merged.partition_point(|gap| gap.at <= at);
    merged[..before].last().is_some_and(|gap| at <= gap.end)
}
