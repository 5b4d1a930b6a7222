//! The root file system of a guest with a foreign processor, from Debian's packages.
//!
//! They are unpacked only: their scripts would need an emulator. It also serves as the `--sysroot` for
//! linking programs for the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use busbar::Result;

use crate::apt::SUITE;
use crate::architecture::Architecture;
use crate::at;
use crate::cache::{Cache, remove};
use crate::key::Key;
use crate::progress::Progress;
use crate::tools;

/// What virtme-ng, the lab's tests and a shell need, and what programs are linked with.
const PACKAGES: &str = "base-files,base-passwd,bash,coreutils,dash,debianutils,diffutils,ethtool,findutils,\
gawk,grep,gzip,hostname,iiod,iperf3,iproute2,iputils-ping,jq,kmod,libc-bin,libc6-dev,libgcc-12-dev,\
libiio-utils,mount,ncurses-base,ncurses-bin,perl-base,procps,python3,python3-usb,python3-yaml,sed,socat,strace,tar,udev,util-linux";
/// Makes it in `$1`, for architecture `$2`, and does what the packages' scripts would have done. virtme-ng
/// mounts something on `shadow` and `lvm`.
const MAKE: &str = r#"keys=/usr/share/keyrings/debian-archive-keyring.gpg
mmdebstrap --mode=root --variant=extract --format=directory --aptopt='APT::Sandbox::User "root"' \
    --architectures="$2" --include="$4" "$3" "$1" \
    "deb [signed-by=$keys] http://deb.debian.org/debian $3 main"
cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"
cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$1/etc/hosts"
ln -s gawk "$1/usr/bin/awk"
ln -s which.debianutils "$1/usr/bin/which"
touch "$1/etc/shadow"
mkdir "$1/etc/lvm"
rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale""#;

/// Start of the names of files that virtme-ng makes in the root, with the first commands of a guest.
const FIRST: &str = "virtme-init-";
/// No guest boots longer than this.
const OLD: Duration = Duration::from_secs(3600);

/// The root file system for one architecture.
pub(crate) struct Root(Architecture);

impl Root {
    pub fn of(architecture: Architecture) -> Self {
        Self(architecture)
    }

    /// Its name in the cache; `None` for the host's.
    pub fn name(&self) -> Option<String> {
        let mut key = Key::default();
        key.part(MAKE).part(SUITE).part(PACKAGES);
        self.0.is_foreign().then(|| format!("{}{}", self.0.prefix(), key.finish()))
    }

    /// The folder, made if it does not exist yet.
    ///
    /// The flavours of an architecture have it in common.
    pub fn made(&self, cache: &Cache) -> Result<PathBuf> {
        let Some(name) = self.name() else { return Ok(PathBuf::from("/")) };
        let _lock = cache.lock("root")?;
        let folder = cache.folder(&format!("root/{name}"), |folder| {
            tools::require(tools::ROOT)?;
            let mut progress = Progress::new("unpacking the guest's root file system", None);
            let mut make = tools::bound("sh", "TERM");
            make.args(["-euc", MAKE, "sh"]).arg(folder.join("root"));
            make.args([self.0.debian(), SUITE, PACKAGES]);
            let what = "make the root file system of";
            tools::step(&mut make, what, &folder.join("log"), &mut progress)
        })?;
        let root = folder.join("root");
        forget(&root)?;
        Ok(root)
    }
}

/// Removes the files that virtme-ng leaves in `root` when it is killed with its guest.
fn forget(root: &Path) -> Result<()> {
    let now = SystemTime::now();
    let old = |path: &Path| {
        let modified = path.metadata().and_then(|meta| meta.modified()).ok()?;
        Some(now.duration_since(modified).ok()? > OLD)
    };
    for entry in fs::read_dir(root).map_err(at("read", root))? {
        let entry = entry.map_err(at("read", root))?;
        let is_first = entry.file_name().to_string_lossy().starts_with(FIRST);
        if is_first && old(&entry.path()) == Some(true) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Makes the folders of `root` below which folders of the host are mounted.
pub(crate) fn prepare<'a>(root: &Path, folders: impl Iterator<Item = &'a Path>) -> Result<()> {
    for folder in folders {
        // Below the first one, the guest makes them itself.
        let first = root.join(folder.iter().skip(1).take(1).collect::<PathBuf>());
        fs::create_dir_all(&first).map_err(at("create", &first))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_architecture_has_a_root_of_its_own() {
        let own = |architecture: &&Architecture| Root::of(**architecture).name().is_some();
        let foreign: Vec<_> = Architecture::ALL.iter().filter(own).collect();
        assert!(!foreign.contains(&&Architecture::default()));
        assert_eq!(foreign.len(), Architecture::ALL.len() - 1);
    }

    #[test]
    fn folders_of_the_host_have_a_place_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path(), ["/work/a/b", "/home"].map(Path::new).into_iter()).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["home", "work"]);
    }

    #[test]
    fn what_virtme_ng_has_left_long_ago_goes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["virtme-init-old", "virtme-init-new", "else"] {
            fs::write(at(name), "").unwrap();
        }
        for name in ["virtme-init-old", "else"] {
            let file = fs::File::open(at(name)).unwrap();
            file.set_modified(SystemTime::now() - OLD - OLD).unwrap();
        }
        forget(root.path()).unwrap();
        assert!(!at("virtme-init-old").exists());
        assert!(at("virtme-init-new").exists() && at("else").exists());
    }
}
