//! The losses of a recording, in bounded memory.

use super::meta::{Annotation, Capture, Missing};
use crate::stream::format::Lost;

/// Most losses that are kept apart. Their metadata takes some 8 MB, and less than a second to write.
pub(super) const MOST: usize = 1 << 14;

/// The losses of a recording, in their order. When there are more than [`MOST`], each two neighbours become
/// one, so that all parts of the recording keep the same precision.
#[derive(Debug, Default)]
pub(super) struct Losses(Vec<Loss>);

/// A loss, or several that became one.
#[derive(Clone, Debug)]
struct Loss {
    /// The sample after the first loss.
    start: u64,
    /// The sample after the last loss; if it is unknown, the sample after those that it covers.
    end: u64,
    /// Samples known to be missing.
    known: u64,
    /// Whether more may be missing.
    has_unknown: bool,
    /// How many losses became this one.
    count: u64,
    /// The capture after the last known loss.
    capture: Option<Capture>,
}

impl Losses {
    /// Adds a loss before sample `at`; an unknown one covers `count` samples from there on. `capture` begins
    /// there.
    pub(super) fn add(&mut self, lost: Lost, at: u64, count: u64, capture: Option<Capture>) {
        let (known, end) = match lost {
            Lost::Samples(known) => (known, at),
            Lost::Unknown => (0, at.saturating_add(count)),
        };
        let has_unknown = lost == Lost::Unknown;
        let one = Loss { start: at, end, known, has_unknown, count: 1, capture };
        match self.0.last_mut() {
            Some(before) if before.goes_on_in(&one) => before.end = one.end,
            _ => self.0.push(one),
        }
        if self.0.len() > MOST {
            self.0 = self.0.chunks(2).filter_map(Loss::merged).collect();
        }
    }

    pub(super) fn captures(&self) -> impl Iterator<Item = Capture> {
        self.0.iter().filter_map(|loss| loss.capture.clone())
    }

    pub(super) fn annotations(&self) -> impl Iterator<Item = Annotation> {
        self.0.iter().map(Loss::annotation)
    }
}

impl Loss {
    /// Whether this and the next are one unknown loss.
    fn goes_on_in(&self, next: &Self) -> bool {
        let has_samples = next.start < next.end;
        self.is_unknown() && next.is_unknown() && has_samples && self.end == next.start
    }

    fn is_unknown(&self) -> bool {
        self.has_unknown && self.count == 1
    }

    fn merged(some: &[Self]) -> Option<Self> {
        some.iter().cloned().reduce(|one, next| Self {
            start: one.start,
            end: one.end.max(next.end),
            known: one.known.saturating_add(next.known),
            has_unknown: one.has_unknown || next.has_unknown,
            count: one.count.saturating_add(next.count),
            capture: next.capture.or(one.capture),
        })
    }

    fn annotation(&self) -> Annotation {
        let Self { known, count, .. } = self;
        let places =
            format!("{known} samples are missing in {count} places, from here to the next");
        let (label, comment) = match (self.has_unknown, count) {
            (false, 1) => ("lost", format!("{known} samples are missing before this one")),
            (false, _) => ("lost", places),
            (true, 1) => ("loss unknown", "samples may be missing before and between these".into()),
            (true, _) => ("loss unknown", format!("{places}, and perhaps others")),
        };
        let lost = if self.has_unknown { Missing::Unknown } else { Missing::Known(*known) };
        Annotation {
            sample_start: self.start,
            sample_count: Some(self.end - self.start),
            label: Some(label.into()),
            comment: Some(comment),
            lost: Some(lost),
            known: (self.has_unknown && *count > 1).then_some(*known),
        }
    }
}
