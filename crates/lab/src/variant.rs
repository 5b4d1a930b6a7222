//! Which kernel: series, processor, flavour.

use std::fmt;

use busbar::{Error, Result};
use serde::Serialize;

use crate::Flavour;
use crate::architecture::Architecture;

/// A series of Linux, for which there are patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Series {
    /// That of Debian 13, and of Debian 12's backports.
    #[default]
    #[serde(rename = "6.12")]
    V6_12,
    /// That of Debian 13's backports.
    #[serde(rename = "7.3")]
    V7_3,
}

impl Series {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V6_12, Self::V7_3];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }

    /// The start of names in the cache.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::V6_12 => "",
            Self::V7_3 => "7.3-",
        }
    }
}

/// One of the lab's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The series of Linux.
    pub series: Series,
    /// For which processor.
    pub architecture: Architecture,
    /// How it is built.
    pub flavour: Flavour,
}

impl Variant {
    /// That of the default series for the host's processor.
    #[must_use]
    pub fn own(flavour: Flavour) -> Self {
        Self { series: Series::default(), architecture: Architecture::default(), flavour }
    }

    /// Those that are compiled, and Debian's own.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Series::ALL
            .into_iter()
            .flat_map(|series| Architecture::ALL.map(|architecture| (series, architecture)))
            .flat_map(|(series, architecture)| {
                [Flavour::Release, Flavour::Debug, Flavour::Race].map(|flavour| Self {
                    series,
                    architecture,
                    flavour,
                })
            })
            .chain(Self::stock())
    }

    /// Debian's own: for the host's processor, and for 64-bit ARM.
    pub(crate) fn stock() -> impl Iterator<Item = Self> {
        Architecture::ALL
            .into_iter()
            .filter(|one| !one.is_foreign() || *one == Architecture::Arm64)
            .map(|architecture| Self { architecture, ..Self::own(Flavour::Stock) })
    }

    /// Fails if there is no such kernel.
    pub(crate) fn check(self) -> Result<()> {
        if self.flavour != Flavour::Stock || Self::stock().any(|one| one == self) {
            return Ok(());
        }
        let own = Series::default();
        if self.series != own {
            let wanted = format!("{}: Debian's own kernel is of this series only", own.name());
            return Err(Error::invalid("linux", self.series.name(), wanted));
        }
        let names: Vec<_> = Self::stock().map(|one| one.architecture.name()).collect();
        let wanted = format!("{}, for Debian's own kernel", names.join(" or "));
        Err(Error::invalid("arch", self.architecture.name(), wanted))
    }
}

/// The name, for the cache and for messages.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { series, architecture, flavour } = self;
        write!(f, "{}{}{}", architecture.prefix(), series.prefix(), flavour.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kernel_has_a_name_of_its_own() {
        let labels: Vec<_> = Variant::all().map(|variant| variant.to_string()).collect();
        assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len(), "{labels:?}");
        assert_eq!(Variant::own(Flavour::Debug).to_string(), "debug");
        let newer = Variant { series: Series::V7_3, ..Variant::own(Flavour::Debug) };
        assert_eq!(newer.to_string(), "7.3-debug");
    }

    #[test]
    fn debians_own_kernel_is_of_one_series_and_for_64_bits() {
        let own = Variant::own(Flavour::Stock);
        for architecture in [own.architecture, Architecture::Arm64] {
            Variant { architecture, ..own }.check().unwrap();
        }
        let newer = Variant { series: Series::V7_3, ..own }.check().unwrap_err().to_string();
        assert!(newer.contains("linux") && newer.contains("7.3"), "{newer}");
        let other = Variant { architecture: Architecture::Armv7, ..own };
        let other = other.check().unwrap_err().to_string();
        assert!(other.contains("arch") && other.contains("arm64"), "{other}");
    }
}
