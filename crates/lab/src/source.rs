//! The kernel's source: Debian's package with Busbar's patches.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use busbar::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::at;
use crate::cache::Cache;
use crate::key::{Key, hex};
use crate::progress::Progress;
use crate::tools;
use crate::variant::Series;

/// Names the tarball of the default series.
const VARIABLE: &str = "BUSBAR_LINUX_SOURCE";

/// Debian compresses it in blocks, so that all processors can decompress it.
const UNPACK: &str = "--use-compress-program=xz --threads=0";

/// Source and patches, and the cache for the result.
pub(crate) struct Source {
    tarball: PathBuf,
    patches: Vec<PathBuf>,
    key: String,
}

impl Source {
    /// `kernel` is the project's `kernel/` folder.
    pub fn find(series: Series, cache: &Cache, kernel: &Path) -> Result<Self> {
        let tarball = tarball(series, cache)?;
        let patches = patches(&kernel.join("patches").join(series.name()))?;
        let mut key = Key::default();
        key.part(identity(series, cache, &tarball)?);
        for patch in &patches {
            key.file(Path::new(patch.file_name().unwrap_or_default()), patch)?;
        }
        Ok(Self { tarball, patches, key: key.finish() })
    }

    /// The hash of tarball and patches.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The folder with the patched source, unpacked if it does not exist yet.
    pub fn unpacked(&self, cache: &Cache) -> Result<PathBuf> {
        let _lock = cache.lock("source")?;
        cache.folder(&format!("source/{}", self.key), |folder| {
            unpack(&self.tarball, folder)?;
            self.patches.iter().try_for_each(|patch| apply(patch, folder))
        })
    }
}

/// Where the source is: where the variable says or Debian's package has it, or where `tools/source` puts it.
fn place(series: Series, cache: &Cache) -> PathBuf {
    let name = format!("linux-source-{}.tar.xz", series.name());
    match series {
        Series::V6_12 => {
            env::var_os(VARIABLE).map_or_else(|| Path::new("/usr/src").join(name), PathBuf::from)
        }
        Series::V7_3 => cache.path(format!("tarball/{name}")),
    }
}

/// Whether there is a source of this series.
pub(crate) fn is_there(series: Series, cache: &Cache) -> bool {
    place(series, cache).exists()
}

fn tarball(series: Series, cache: &Cache) -> Result<PathBuf> {
    let path = place(series, cache);
    let name = series.name();
    let Err(error) = File::open(&path) else { return Ok(path) };
    Err(at("open", &path)(error).help(match series {
        Series::V6_12 => format!(
            "it is in Debian's package linux-source-{name}: apt-get install linux-source-{name}; \
             {VARIABLE} names a tarball elsewhere"
        ),
        Series::V7_3 => format!("tools/source {name} fetches it from Debian 13's backports"),
    }))
}

fn patches(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at("read", folder))?,
    };
    let mut patches: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    patches.sort();
    Ok(patches)
}

/// The tarball's hash, with the path, size and time that it belongs to.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Memo {
    path: PathBuf,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
    inode: u64,
    sha256: String,
}

/// The SHA-256 of the tarball. It is remembered, as it takes a second or more.
fn identity(series: Series, cache: &Cache, tarball: &Path) -> Result<String> {
    let meta = tarball.metadata().map_err(at("read", tarball))?;
    let mut memo = Memo {
        path: tarball.to_path_buf(),
        size: meta.size(),
        seconds: meta.mtime(),
        nanoseconds: meta.mtime_nsec(),
        inode: meta.ino(),
        sha256: String::new(),
    };
    let file = cache.path(format!("{}tarball.json", series.prefix()));
    let known = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Memo>(&text).ok());
    if let Some(known) = known {
        memo.sha256.clone_from(&known.sha256);
        if known == memo {
            return Ok(memo.sha256);
        }
    }
    let mut hash = Sha256::new();
    let mut input = File::open(tarball).map_err(at("open", tarball))?;
    io::copy(&mut input, &mut Hasher(&mut hash)).map_err(at("read", tarball))?;
    memo.sha256 = hex(&hash.finalize());
    crate::write_json(&file, &memo)?;
    Ok(memo.sha256)
}

struct Hasher<'a>(&'a mut Sha256);

impl io::Write for Hasher<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unpack(tarball: &Path, folder: &Path) -> Result<()> {
    let mut input = File::open(tarball).map_err(at("open", tarball))?;
    let size = input.metadata().map_err(at("read", tarball))?.size();
    let mut progress = Progress::new("unpacking the kernel's source", Some(size));
    let mut tar = tools::bound("tar", "TERM")
        .args(["--extract", UNPACK, "--strip-components=1"])
        .arg("--directory")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Error::new("run", "tar", error))?;
    if let Some(mut output) = tar.stdin.take() {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = io::Read::read(&mut input, &mut buffer).map_err(at("read", tarball))?;
            // If tar fails, it prints why, and its exit code is checked below.
            if count == 0 || io::Write::write_all(&mut output, &buffer[..count]).is_err() {
                break;
            }
            progress.tick(count as u64);
        }
    }
    let status = tar.wait().map_err(|error| Error::new("wait for", "tar", error))?;
    if status.success() {
        return Ok(());
    }
    Err(at("unpack", tarball)(io::Error::other(format!("tar ended with {status}"))))
}

/// Extracts some files of the source, unpatched, into `folder` without their directories.
pub(crate) fn extract(cache: &Cache, names: &[String], folder: &Path, log: &Path) -> Result<()> {
    extract_from(&tarball(Series::default(), cache)?, names, folder, log)
}

/// The same from a tarball elsewhere.
pub(crate) fn extract_from(
    tarball: &Path,
    names: &[String],
    folder: &Path,
    log: &Path,
) -> Result<()> {
    let mut progress = Progress::new("unpacking drivers of the kernel's source", None);
    let mut tar = tools::bound("tar", "TERM");
    // tar ends when it has found each of them once.
    tar.args(["--extract", UNPACK, "--occurrence=1", "--wildcards", "--transform=s,.*/,,"]);
    tar.arg("--file").arg(tarball).arg("--directory").arg(folder);
    tar.args(names.iter().map(|name| format!("*/{name}")));
    tools::step(&mut tar, "unpack drivers of the kernel's source for", log, &mut progress)
}

fn apply(patch: &Path, folder: &Path) -> Result<()> {
    let output = Command::new("patch")
        .args(["-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "--input"])
        .arg(patch)
        .current_dir(folder)
        .output()
        .map_err(|error| Error::new("run", "patch", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Err(at("apply", patch)(io::Error::other(said.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little "kernel" tarball, its patches, and a cache.
    struct Place {
        dir: tempfile::TempDir,
        cache: Cache,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::create_dir_all(at("linux")).unwrap();
            fs::create_dir_all(at("patches")).unwrap();
            fs::write(at("linux/Makefile"), "one\ntwo\nthree\n").unwrap();
            let status = Command::new("tar")
                .args(["-cJf", "linux.tar.xz", "linux"])
                .current_dir(dir.path())
                .status();
            assert!(status.unwrap().success());
            let cache = Cache::rooted(&at("cache")).unwrap();
            Self { dir, cache }
        }

        fn patch(&self, name: &str, from: &str, to: &str) {
            let text = format!(
                "From 0 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\n---\n \
                 Makefile | 2 +-\n\ndiff --git a/Makefile b/Makefile\n--- a/Makefile\n\
                 +++ b/Makefile\n@@ -1,3 +1,3 @@\n one\n-{from}\n+{to}\n three\n-- \n2.39\n"
            );
            fs::write(self.dir.path().join("patches").join(name), text).unwrap();
        }

        fn source(&self) -> Source {
            let tarball = self.dir.path().join("linux.tar.xz");
            let patches = patches(&self.dir.path().join("patches")).unwrap();
            let mut key = Key::default();
            key.part(identity(Series::default(), &self.cache, &tarball).unwrap());
            for patch in &patches {
                key.file(Path::new(patch.file_name().unwrap()), patch).unwrap();
            }
            Source { tarball, patches, key: key.finish() }
        }
    }

    #[test]
    fn patches_are_applied_in_the_order_of_their_names() {
        let place = Place::new();
        place.patch("0002-b.patch", "2", "zwei");
        place.patch("0001-a.patch", "two", "2");
        let folder = place.source().unpacked(&place.cache).unwrap();
        assert_eq!(fs::read_to_string(folder.join("Makefile")).unwrap(), "one\nzwei\nthree\n");
        assert!(!folder.join("Makefile.orig").exists());
    }

    #[test]
    fn files_of_the_source_come_out_alone() {
        let place = Place::new();
        let folder = place.cache.path("files");
        fs::create_dir(&folder).unwrap();
        let log = place.cache.path("log");
        let tarball = place.dir.path().join("linux.tar.xz");
        let extract = |name: &str| extract_from(&tarball, &[name.to_owned()], &folder, &log);
        extract("Makefile").unwrap();
        assert_eq!(fs::read_to_string(folder.join("Makefile")).unwrap(), "one\ntwo\nthree\n");
        let error = extract("missing.c").unwrap_err().to_string();
        assert!(error.contains("missing.c"), "{error}");
    }

    #[test]
    fn a_patch_that_does_not_apply_fails_and_leaves_nothing() {
        let place = Place::new();
        place.patch("0001-a.patch", "four", "4");
        let source = place.source();
        let error = source.unpacked(&place.cache).unwrap_err().to_string();
        assert!(error.contains("0001-a.patch") && error.contains("FAILED"), "{error}");
        assert!(!place.cache.path(format!("source/{}", source.key)).exists());
    }

    #[test]
    fn the_key_changes_with_tarball_and_patches() {
        let place = Place::new();
        let plain = place.source().key;
        assert_eq!(plain, place.source().key);
        place.patch("0001-a.patch", "two", "2");
        let patched = place.source().key;
        assert_ne!(plain, patched);
        place.patch("0001-a.patch", "two", "II");
        assert_ne!(patched, place.source().key);
        fs::write(place.dir.path().join("linux.tar.xz"), "other").unwrap();
        assert_ne!(place.source().key, patched);
    }
}
