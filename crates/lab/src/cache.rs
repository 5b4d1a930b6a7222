//! Where results are kept. An unfinished result is never taken for a finished one.

use std::env;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use busbar::{Error, Result};

use crate::at;

/// The lab's directory of built files.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Directories where the guest has file systems of its own, and does not see the host's.
const HIDDEN: [&str; 7] = ["/dev", "/proc", "/run", "/sys", "/var/cache", "/var/log", "/var/tmp"];

/// A lock is held for less than this if nothing is built.
const UNSAID: Duration = Duration::from_secs(3);

/// Console logs of past runs that are kept.
const CONSOLES: usize = 20;

/// A guest that runs may have written nothing to its console for as long as this.
const SILENT: Duration = Duration::from_secs(24 * 60 * 60);

impl Cache {
    /// `$BUSBAR_CACHE`, else `$XDG_CACHE_HOME/busbar`, else `~/.cache/busbar`.
    pub fn open() -> Result<Self> {
        let variable =
            |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = variable("BUSBAR_CACHE")
            .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("busbar")))
            .or_else(|| Some(variable("HOME")?.join(".cache/busbar")));
        let Some(root) = root else {
            return Err(Error::invalid("HOME", "", "the folder for ~/.cache/busbar")
                .help("or set BUSBAR_CACHE"));
        };
        let cache = Self::rooted(&root)?;
        match HIDDEN.iter().find(|hidden| cache.root.starts_with(hidden)) {
            None => Ok(cache),
            Some(hidden) => Err(Error::invalid(
                "BUSBAR_CACHE",
                root.display(),
                format!("a folder outside {hidden}, which the guest cannot see"),
            )),
        }
    }

    /// A cache in the folder `root`.
    pub fn rooted(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(at("create", root))?;
        let root = root.canonicalize().map_err(at("find", root))?;
        Ok(Self { root })
    }

    /// A path in the cache.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// The finished folder `name`, made by `make` if it is not there yet.
    ///
    /// `make` gets a folder of another name to work in. It is renamed to the finished one when
    /// `make` has succeeded and all of it is on disk. The caller holds a lock.
    pub fn folder(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let done = self.path(name);
        if done.is_dir() {
            return Ok(done);
        }
        let partial = self.path(format!("{name}.partial"));
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(at("create", &partial))?;
        make(&partial)?;
        let folder = File::open(&partial).map_err(at("open", &partial))?;
        rustix::fs::syncfs(&folder).map_err(|error| at("sync", &partial)(error.into()))?;
        fs::rename(&partial, &done).map_err(at("rename", &partial))?;
        Ok(done)
    }

    /// Takes the lock `name`; other processes wait until the result is dropped.
    pub fn lock(&self, name: &str) -> Result<File> {
        let path = self.path(format!("{name}.lock"));
        let file = File::create(&path).map_err(at("create", &path))?;
        let start = Instant::now();
        while start.elapsed() < UNSAID {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(20)),
                Err(TryLockError::Error(error)) => return Err(at("lock", &path)(error)),
            }
        }
        eprintln!("busbar: waiting for another process that builds ({name})");
        file.lock().map_err(at("lock", &path))?;
        Ok(file)
    }

    /// Removes everything from `folder` except the named entries; returns the bytes on disk that it took.
    pub fn retain(&self, folder: &str, names: &[String]) -> Result<u64> {
        let folder = self.path(folder);
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(0) };
        let mut bytes = 0;
        for entry in entries {
            let entry = entry.map_err(at("read", &folder))?;
            if !names.iter().any(|name| entry.file_name() == name.as_str()) {
                bytes += size(&entry.path());
                remove(&entry.path())?;
            }
        }
        Ok(bytes)
    }

    /// A new file for a guest's console; the oldest ones of days before are removed.
    pub fn console(&self) -> Result<PathBuf> {
        let folder = self.path("console");
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        prune(&folder, CONSOLES - 1, SILENT)?;
        let (_, path) = tempfile::Builder::new()
            .prefix("console-")
            .suffix(".log")
            .tempfile_in(&folder)
            .and_then(|file| Ok(file.keep()?))
            .map_err(at("create a file in", &folder))?;
        Ok(path)
    }
}

/// Removes the oldest entries of `folder` beyond `keep` that are older than `age`.
pub(crate) fn prune(folder: &Path, keep: usize, age: Duration) -> Result<()> {
    let mut entries: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)
        .map_err(at("read", folder))?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    entries.sort();
    entries.reverse();
    let old = |time: &SystemTime| time.elapsed().is_ok_and(|elapsed| elapsed >= age);
    for (_, path) in entries.iter().skip(keep).filter(|(time, _)| old(time)) {
        remove(path)?;
    }
    Ok(())
}

/// Bytes on disk of a file, or of a folder with its contents.
fn size(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    // What a link leads to is not in the folder, and may lead back to it.
    let entries = metadata.is_dir().then(|| fs::read_dir(path)).into_iter().flatten();
    let inside: u64 = entries.flatten().flatten().map(|entry| size(&entry.path())).sum();
    inside + metadata.blocks() * 512
}

/// Removes a file, or a folder with its contents, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(at("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::rooted(dir.path()).unwrap();
        (dir, cache)
    }

    #[test]
    fn a_folder_appears_only_when_it_is_complete() {
        let (_dir, cache) = cache();
        let failed = cache.folder("x", |path| {
            fs::write(path.join("half"), "").unwrap();
            Err(Error::invalid("x", 1, 2))
        });
        assert!(failed.is_err());
        assert!(!cache.path("x").exists());

        let path = cache.folder("x", |path| {
            assert!(!path.join("half").exists(), "left over from the attempt that failed");
            fs::write(path.join("whole"), "").unwrap();
            Ok(())
        });
        assert!(path.unwrap().join("whole").exists());
        assert!(!cache.path("x.partial").exists());
        cache.folder("x", |_| panic!("made twice")).unwrap();
    }

    #[test]
    fn a_lock_is_exclusive_until_it_is_dropped() {
        let (_dir, cache) = cache();
        let held = cache.lock("a").unwrap();
        let other = File::open(cache.path("a.lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        cache.lock("b").unwrap();
        drop(held);
        other.try_lock().unwrap();
    }

    #[test]
    fn what_is_not_named_goes() {
        let (_dir, cache) = cache();
        for name in ["kernel/a/b", "kernel/c/d"] {
            fs::create_dir_all(cache.path(name)).unwrap();
            fs::write(cache.path(name).join("file"), [1; 10_000]).unwrap();
        }
        // As in a guest's root, where /usr/bin/X11 is a link to its own folder.
        std::os::unix::fs::symlink(cache.path("kernel"), cache.path("kernel/c/link")).unwrap();
        let bytes = cache.retain("kernel", &["a".to_owned()]).unwrap();
        assert!((10_000..100_000).contains(&bytes), "{bytes}");
        assert!(cache.path("kernel/a/b/file").exists());
        assert!(!cache.path("kernel/c").exists());
        assert_eq!(cache.retain("no-such-folder", &[]).unwrap(), 0);
    }

    #[test]
    fn consoles_of_long_ago_go() {
        let (_dir, cache) = cache();
        let consoles = || fs::read_dir(cache.path("console")).unwrap().count();
        let paths: Vec<_> = (0..CONSOLES + 5).map(|_| cache.console().unwrap()).collect();
        assert_eq!(consoles(), paths.len(), "their guests may run");
        let old = SystemTime::now() - SILENT;
        for path in &paths[..7] {
            File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        }
        let new = cache.console().unwrap();
        assert_eq!(consoles(), CONSOLES);
        assert!(new.exists() && paths[7..].iter().all(|path| path.exists()));
    }
}
