//! The figures that a ratio is compared with.

/// A figure that a ratio is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    pub of: Whose,
    pub value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Measured by the seed's author.
    Seed,
    /// A target that Busbar set before the work.
    Target,
}

impl Whose {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Target => "target",
        }
    }
}
