//! Virtual coprocessors in sysfs: their state, and how Linux starts and stops them.
//!
//! `/sys/class/vcoproc/vcoprocN` is the coprocessor that a process can be; its
//! `device/remoteproc/remoteprocM` is what Linux starts and stops.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};

const CLASS: &str = "/sys/class/vcoproc";
const NODES: &str = "/dev";

/// What to do if there is no coprocessor.
pub(crate) const NO_MODULE: &str = "load it: modprobe vcoproc; install it: make install-modules MODULES=vcoproc; or run in the \
     lab: busbar lab run -- …";

/// State of a remoteproc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started.
    Offline,
    /// Started. Without a process, messages from Linux wait for one.
    Running,
    /// Crashed: about to be recovered, or not if recovery is disabled.
    Crashed,
    /// Another state, in Linux's words.
    Other(String),
}

impl State {
    fn from_word(word: &str) -> Self {
        match word {
            "offline" => Self::Offline,
            "running" => Self::Running,
            "crashed" => Self::Crashed,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offline => "offline",
            Self::Running => "running",
            Self::Crashed => "crashed",
            Self::Other(word) => word,
        })
    }
}

/// `/sys/class/remoteproc/remoteprocN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remoteproc {
    path: PathBuf,
}

impl Remoteproc {
    /// The remoteproc of a directory in sysfs, such as `/sys/class/remoteproc/remoteproc0`.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The name, such as `remoteproc0`.
    #[must_use]
    pub fn name(&self) -> String {
        file_name(&self.path)
    }

    /// The directory in sysfs.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state.
    pub fn state(&self) -> Result<State> {
        Ok(State::from_word(&read(&self.path.join("state"))?))
    }

    /// The file that Linux loads at a start, relative to the directories of firmware.
    pub fn firmware(&self) -> Result<String> {
        read(&self.path.join("firmware"))
    }

    /// Whether Linux restarts it after a crash.
    pub fn recovers(&self) -> Result<bool> {
        Ok(read(&self.path.join("recovery"))? == "enabled")
    }

    /// Starts it. Returns once Linux has set up the rings, without waiting for the process.
    pub fn start(&self) -> Result<()> {
        self.write_state("start").map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let firmware = self.firmware().unwrap_or_else(|_| "vcoproc.fw".to_owned());
                let path = format!("/lib/firmware/{firmware}");
                error.help(format!("write its firmware: busbar coprocessor firmware {path}"))
            }
            io::ErrorKind::InvalidInput => {
                error.help("is its firmware what `busbar coprocessor firmware` writes?")
            }
            _ => error,
        })
    }

    /// Stops it. Waits until the process acknowledges, so the thread that runs the core must not call it.
    pub fn stop(&self) -> Result<()> {
        self.write_state("stop")
    }

    fn write_state(&self, word: &'static str) -> Result<()> {
        let path = self.path.join("state");
        fs::write(&path, word).map_err(|error| {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let error = Error::new(word, path.display().to_string(), error);
            if denied { error.help("it needs root, or a udev rule") } else { error }
        })
    }
}

/// A coprocessor that a process can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coprocessor {
    /// The name, such as `vcoproc0`.
    pub name: String,
    /// The device node.
    pub node: PathBuf,
    /// Whether a process is the core.
    pub attached: bool,
    /// Linux's side.
    pub remoteproc: Remoteproc,
}

impl Coprocessor {
    /// All coprocessors, by number. Fails where the module is not there.
    pub fn all() -> Result<Vec<Self>> {
        all_in(Path::new(CLASS), Path::new(NODES))
    }

    /// The coprocessor behind a device node or with a name, such as `vcoproc0`.
    pub fn find(node: &Path) -> Result<Self> {
        let real = fs::canonicalize(node).unwrap_or_else(|_| node.to_owned());
        let name = file_name(&real);
        let all = Self::all()?;
        let names: Vec<_> = all.iter().map(|each| each.node.display().to_string()).collect();
        all.into_iter()
            .find(|each| each.name == name)
            .ok_or_else(|| Error::invalid("coprocessor device", node.display(), names.join(", ")))
    }
}

fn all_in(class: &Path, nodes: &Path) -> Result<Vec<Coprocessor>> {
    let mut names: Vec<_> = list(class)?.into_iter().filter(|n| number(n).is_some()).collect();
    names.sort_by_key(|name| number(name));
    names.into_iter().map(|name| one_in(class, nodes, name)).collect()
}

fn one_in(class: &Path, nodes: &Path, name: String) -> Result<Coprocessor> {
    let folder = class.join(&name);
    let attached = read(&folder.join("attached"))? == "1";
    let parent = folder.join("device/remoteproc");
    let remoteproc = list(&parent)?.into_iter().next().ok_or_else(|| {
        let none = io::Error::from(io::ErrorKind::NotFound);
        Error::new("find a remoteproc in", parent.display().to_string(), none)
    })?;
    let node = nodes.join(&name);
    let remoteproc = Remoteproc::at(parent.join(remoteproc));
    Ok(Coprocessor { name, node, attached, remoteproc })
}

fn number(name: &str) -> Option<u32> {
    name.strip_prefix("vcoproc")?.parse().ok()
}

fn list(folder: &Path) -> Result<Vec<String>> {
    let names = || -> io::Result<Vec<String>> {
        fs::read_dir(folder)?.map(|entry| Ok(file_name(&entry?.path()))).collect()
    };
    names().map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        let error = Error::new("list", folder.display().to_string(), error);
        if missing { error.help(NO_MODULE) } else { error }
    })
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::new("read", path.display().to_string(), error))?;
    Ok(text.trim_end().to_owned())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with coprocessors of these numbers; the last one is attached and running.
    fn sysfs(numbers: &[u32]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (index, number) in numbers.iter().enumerate() {
            let last = index + 1 == numbers.len();
            let folder = root.path().join(format!("vcoproc{number}"));
            let remoteproc = folder.join(format!("device/remoteproc/remoteproc{index}"));
            fs::create_dir_all(&remoteproc).unwrap();
            fs::write(folder.join("attached"), if last { "1\n" } else { "0\n" }).unwrap();
            let state = if last { "running\n" } else { "offline\n" };
            fs::write(remoteproc.join("state"), state).unwrap();
            fs::write(remoteproc.join("recovery"), "enabled\n").unwrap();
        }
        root
    }

    #[test]
    fn coprocessors_are_listed_by_number() {
        let root = sysfs(&[10, 2, 0]);
        let all = all_in(root.path(), Path::new("/dev")).unwrap();
        let names: Vec<_> = all.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names, ["vcoproc0", "vcoproc2", "vcoproc10"]);
        assert_eq!(all[0].node, Path::new("/dev/vcoproc0"));
        assert_eq!((all[0].attached, all[1].attached), (true, false));
        assert_eq!(all[0].remoteproc.name(), "remoteproc2");
        assert_eq!(all[0].remoteproc.state().unwrap(), State::Running);
        assert_eq!(all[1].remoteproc.state().unwrap(), State::Offline);
        assert!(all[1].remoteproc.recovers().unwrap());
    }

    #[test]
    fn start_and_stop_are_written_to_the_state() {
        let root = sysfs(&[0]);
        let remoteproc = all_in(root.path(), Path::new("/dev")).unwrap().remove(0).remoteproc;
        remoteproc.stop().unwrap();
        assert_eq!(remoteproc.state().unwrap(), State::Other("stop".to_owned()));
        remoteproc.start().unwrap();
        assert_eq!(remoteproc.state().unwrap(), State::Other("start".to_owned()));
    }

    #[test]
    fn a_missing_module_is_explained() {
        let error = all_in(Path::new("/nonexistent"), Path::new("/dev")).unwrap_err();
        assert!(error.to_string().contains("modprobe vcoproc"), "{error}");
    }
}
