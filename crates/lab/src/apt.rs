//! What apt knows: that of the host, or one with its state in the cache, for another processor.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use busbar::{Error, Result};

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::progress::Progress;
use crate::tools;

/// Debian's release whose packages are unpacked for another processor.
pub(crate) const SUITE: &str = "bookworm";

/// Configures a state in `$1` for suite `$2` and architecture `$3`, and reads its index once a day.
const STATE: &str = concat!(
    include_str!("../../../tools/debian"),
    "cache=${1%/}\nconfigure \"$2\" \"$3\"\nupdate\n"
);

/// A state of apt.
pub(crate) struct Apt {
    /// Of a state in the cache; without one, the host's.
    config: Option<PathBuf>,
    /// What is appended to the name of a package for its processor.
    suffix: String,
}

impl Apt {
    /// The host's.
    pub fn host() -> Result<Self> {
        tools::require(&[("apt-cache", "apt")])?;
        Ok(Self { config: None, suffix: String::new() })
    }

    /// One for the packages of a suite, such as `debian/bookworm`, and a processor. The machine's own is not touched.
    pub fn of(suite: &str, architecture: Architecture, cache: &Cache) -> Result<Self> {
        tools::require(&[("apt-cache", "apt")])?;
        let _lock = cache.lock("apt")?;
        let _progress = Progress::new("reading Debian's index", None);
        let mut command = tools::bound("sh", "TERM");
        command.args(["-euc", STATE, "lab"]).arg(cache.path(""));
        command.args([suite, architecture.debian()]);
        let output = command.output().map_err(|error| Error::new("run", "sh", error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new("read", format!("index of {suite}"), io::Error::other(said)));
        }
        let state = cache.path(state(suite, architecture));
        let suffix = format!(":{}", architecture.debian());
        Ok(Self { config: Some(state.join("apt.conf")), suffix })
    }

    /// Descriptions of those `packages` that it knows.
    pub fn show(&self, packages: &[String]) -> Result<String> {
        let mut command = self.command("apt-cache");
        command.args(["show", "--no-all-versions"]).args(packages);
        let output = command.output().map_err(|error| Error::new("run", "apt-cache", error))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Downloads `packages` into a folder.
    pub fn download(
        &self,
        packages: &[String],
        to: &Path,
        log: &Path,
        progress: &mut Progress,
    ) -> Result<()> {
        let mut command = self.command("apt-get");
        // apt's own user has no access there.
        command.args(["-qq", "-o", "APT::Sandbox::User=root", "download"]);
        command.args(packages).current_dir(to);
        tools::step(&mut command, "download packages for", log, progress)
            .map_err(|error| error.help("with package lists of today: apt-get update"))
    }

    /// The name by which it knows a package for its processor; that of one for the host needs no more.
    pub fn name(&self, package: &str) -> String {
        format!("{package}{}", self.suffix)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = tools::bound(program, "TERM");
        if let Some(config) = &self.config {
            command.env("APT_CONFIG", config);
        }
        command
    }
}

/// Whether a state is in the cache.
pub(crate) fn is_there(suite: &str, architecture: Architecture, cache: &Cache) -> bool {
    cache.path(state(suite, architecture)).join("updated").exists()
}

/// Where `tools/debian` puts a state.
fn state(suite: &str, architecture: Architecture) -> String {
    let name = suite.rsplit('/').next().unwrap_or(suite);
    format!("apt/{name}-{}", architecture.debian())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A cache with a state whose index was read just now, so that no server is asked.
    fn read(suite: &str) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::rooted(folder.path()).unwrap();
        let state = cache.path(state(suite, Architecture::Arm64));
        fs::create_dir_all(&state).unwrap();
        fs::write(state.join("updated"), "").unwrap();
        (folder, cache)
    }

    #[test]
    fn a_state_of_its_own_is_for_another_processor() {
        let suite = "debian-security/bookworm-security";
        let (_folder, cache) = read(suite);
        assert!(is_there(suite, Architecture::Arm64, &cache));
        assert!(!is_there("debian/bookworm", Architecture::Arm64, &cache));
        let apt = Apt::of(suite, Architecture::Arm64, &cache).unwrap();
        assert_eq!(apt.name("linux-image-6.12-arm64"), "linux-image-6.12-arm64:arm64");
        let output = apt.command("apt-config").args(["dump"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("APT::Architectures:: \"arm64\""), "{text}");
        assert!(text.contains(cache.path("apt/bookworm-security-arm64").to_str().unwrap()));
        // It knows no package, as it has read nothing.
        assert_eq!(apt.show(&["bash".to_owned()]).unwrap(), "");
    }

    #[test]
    fn a_suite_that_cannot_be_read_is_named() {
        let (folder, cache) = read("debian/bookworm");
        // A file where the state would be.
        fs::write(folder.path().join("apt/other-arm64"), "").unwrap();
        let error = Apt::of("debian/other", Architecture::Arm64, &cache).err().unwrap().to_string();
        assert!(error.contains("debian/other"), "{error}");
    }
}
