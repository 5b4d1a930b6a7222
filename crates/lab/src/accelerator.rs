//! Hardware virtualisation or emulation.
//!
//! A `/dev/kvm` may exist and still fail to run an ordinary kernel. KVM is used only if a trial boot of
//! this kernel on this host has succeeded in time; the answer is remembered.

use std::env;
use std::fs::{self, OpenOptions};
use std::path::Path;

use busbar::Result;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::key::Key;
use crate::{Built, write_json};

/// The variable that tells a program in the guest.
pub(crate) const VARIABLE: &str = "BUSBAR_ACCELERATOR";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's emulation.
    Tcg,
    /// QEMU's emulation, with the guest's time counted in instructions: slow, but repeatable, however
    /// busy the host is.
    Icount,
}

impl Accelerator {
    /// The name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
            Self::Icount => "icount",
        }
    }
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// KVM if a trial boot has succeeded, otherwise emulation.
    #[default]
    Auto,
    /// This one.
    Use(Accelerator),
}

/// Where this program runs: `kvm`, `tcg` or `icount` in the lab's guest, `native` elsewhere.
#[must_use]
pub fn accelerator() -> &'static str {
    match env::var(VARIABLE).as_deref() {
        Ok("kvm") => "kvm",
        Ok("tcg") => "tcg",
        Ok("icount") => "icount",
        _ => "native",
    }
}

/// The answers that are remembered for this host and kernel.
pub(crate) struct Trials<'a> {
    cache: &'a Cache,
    key: String,
    is_foreign: bool,
}

impl<'a> Trials<'a> {
    pub fn new(cache: &'a Cache, built: &Built) -> Self {
        let mut key = Key::default();
        key.part(&built.key).part(rustix::system::uname().release().to_bytes()).part(processor());
        Self { cache, key: key.finish(), is_foreign: built.architecture.is_foreign() }
    }

    /// The accelerator to use; `trial` boots with KVM and says whether it worked.
    pub fn choose(
        &self,
        choice: Choice,
        trial: impl FnOnce() -> Result<bool>,
    ) -> Result<Accelerator> {
        match choice {
            Choice::Use(accelerator) => Ok(accelerator),
            // KVM has only the host's own processor.
            Choice::Auto if self.is_foreign => Ok(Accelerator::Tcg),
            Choice::Auto if !can_open(Path::new("/dev/kvm")) => Ok(Accelerator::Tcg),
            Choice::Auto => self.remembered(trial),
        }
    }

    fn remembered(&self, trial: impl FnOnce() -> Result<bool>) -> Result<Accelerator> {
        let folder = self.cache.path("accelerator");
        let path = folder.join(format!("{}.json", self.key));
        let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let Some(accelerator) = known {
            return Ok(accelerator);
        }
        let accelerator = if trial()? { Accelerator::Kvm } else { Accelerator::Tcg };
        fs::create_dir_all(&folder).map_err(crate::at("create", &folder))?;
        write_json(&path, &accelerator)?;
        Ok(accelerator)
    }
}

fn can_open(device: &Path) -> bool {
    OpenOptions::new().read(true).write(true).open(device).is_ok()
}

/// The processor's name, if the kernel tells it.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    name.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(key: &str) -> Built {
        Built {
            series: crate::Series::default(),
            architecture: crate::Architecture::default(),
            flavour: crate::Flavour::Release,
            release: String::new(),
            image: "".into(),
            initrd: None,
            build: "".into(),
            modules: "".into(),
            root: "/".into(),
            key: key.to_owned(),
        }
    }

    #[test]
    fn a_trial_is_made_once_for_each_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::rooted(dir.path()).unwrap();
        let remembered = |key: &str, trial: &dyn Fn() -> Result<bool>| {
            Trials::new(&cache, &built(key)).remembered(trial).unwrap()
        };
        assert_eq!(remembered("a", &|| Ok(false)), Accelerator::Tcg);
        assert_eq!(remembered("a", &|| panic!("tried again")), Accelerator::Tcg);
        assert_eq!(remembered("b", &|| Ok(true)), Accelerator::Kvm);
        assert_eq!(remembered("b", &|| panic!("tried again")), Accelerator::Kvm);
    }

    #[test]
    fn a_trial_that_was_broken_off_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::rooted(dir.path()).unwrap();
        let trials = Trials { cache: &cache, key: "k".to_owned(), is_foreign: false };
        let broken_off = || Err(busbar::Error::invalid("a", "b", "c"));
        assert!(trials.remembered(broken_off).is_err());
        assert_eq!(trials.remembered(|| Ok(true)).unwrap(), Accelerator::Kvm);
    }

    #[test]
    fn what_the_user_wants_needs_no_trial() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::rooted(dir.path()).unwrap();
        let trials = Trials { cache: &cache, key: "k".to_owned(), is_foreign: false };
        for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
            let chosen = trials.choose(Choice::Use(accelerator), || panic!("tried"));
            assert_eq!(chosen.unwrap(), accelerator);
        }
    }
}
