//! Builds the project's modules for a kernel of the lab and installs them for `modprobe`.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use busbar::{Error, Result};

use crate::architecture::Architecture;
use crate::at;
use crate::cache::{Cache, prune};
use crate::kernel;
use crate::key::Key;
use crate::progress::Progress;
use crate::tools;

/// Part of the key of a set of modules. Increment it when a change here results in other modules.
const RECIPE: &str = "1";
/// The folder that [`Drivers`] are built in, beside the project's.
const DRIVERS: &str = "drivers";

/// Modules without type information, which would need another tool, and not compressed, as an emulated
/// processor would need long to unpack them. Debian's configuration enables both.
const PLAIN: [&str; 3] =
    ["CONFIG_DEBUG_INFO_BTF_MODULES=", "CONFIG_MODULE_COMPRESS_ALL=", "CONFIG_MODULE_SIG_ALL="];

/// After this time no guest uses a set any more, and it may be removed.
const OLD: Duration = Duration::from_secs(24 * 3600);
/// Number of sets that are kept, however old they are.
const KEPT: usize = 3;

/// A snapshot of the modules' sources, which someone may be editing.
pub(crate) struct Modules {
    /// Relative to `kernel/`.
    folders: Vec<PathBuf>,
    files: Vec<Source>,
    /// Options of the compiler.
    flags: &'static str,
}

/// The kernel that modules are built on.
pub(crate) struct Base {
    /// Its name in the cache.
    pub name: String,
    pub architecture: Architecture,
    /// The directory for `make -C`.
    pub build: PathBuf,
    /// The folder of its own modules.
    pub modules: PathBuf,
    /// The output of `uname -r`.
    pub release: String,
    /// The kernel's symbols, with which `depmod` checks each module; without them, only `make` checks.
    pub symbols: Option<PathBuf>,
    /// The folder in which Debian's cross compiler is unpacked, if that has compiled the kernel.
    pub compiler: Option<PathBuf>,
}

impl Base {
    /// `make` in its build directory.
    fn make(&self) -> Command {
        let mut make = kernel::make(&self.build);
        match &self.compiler {
            None => make.args(self.architecture.make()),
            Some(root) => {
                let path = env::var_os("PATH").unwrap_or_default();
                let own = root.join("usr/bin");
                let all = env::join_paths([own].into_iter().chain(env::split_paths(&path)));
                // The headers name processor and compiler. Its assembler has libraries of its own.
                let library = format!("usr/lib/{}", Architecture::default().gnu());
                make.env("PATH", all.unwrap_or(path)).env("LD_LIBRARY_PATH", root.join(library))
            }
        };
        make
    }
}

/// Drivers of Linux that the kernel was built without.
pub(crate) struct Drivers {
    /// The directory with their sources.
    pub sources: PathBuf,
    /// The directory with the files that build them as modules.
    pub recipe: PathBuf,
    /// Options of the compiler, for these and all other modules.
    pub flags: &'static str,
}

struct Source {
    /// Relative to `kernel/`.
    name: PathBuf,
    content: Vec<u8>,
}

impl Modules {
    /// Every folder in `kernel/modules` with a `Kbuild` or `Makefile`, the lab's own module, and
    /// what they share in `kernel/compat` and `kernel/uapi`.
    pub fn find(kernel: &Path) -> Result<Self> {
        let mut folders = Vec::new();
        for name in list(&kernel.join("modules"))? {
            let folder = Path::new("modules").join(name);
            if ["Kbuild", "Makefile"].iter().any(|file| kernel.join(&folder).join(file).is_file()) {
                folders.push(folder);
            }
        }
        folders.push(PathBuf::from("lab/selftest"));
        let mut files = Vec::new();
        let shared = ["compat", "uapi"].map(Path::new);
        for folder in folders.iter().map(PathBuf::as_path).chain(shared) {
            sources(kernel, folder, &mut files)?;
        }
        Ok(Self { folders, files, flags: "" })
    }

    /// Adds modules that the others need.
    pub fn with(mut self, drivers: &Drivers) -> Result<Self> {
        for folder in [&drivers.sources, &drivers.recipe] {
            for entry in list(folder)?.into_iter().filter(|name| is_source(name)) {
                let path = folder.join(&entry);
                let content = fs::read(&path).map_err(at("read", &path))?;
                self.files.push(Source { name: Path::new(DRIVERS).join(entry), content });
            }
        }
        self.folders.insert(0, DRIVERS.into());
        self.flags = drivers.flags;
        Ok(self)
    }

    fn key(&self) -> String {
        let mut key = Key::default();
        key.part(RECIPE);
        if !self.flags.is_empty() {
            key.part(self.flags);
        }
        for file in &self.files {
            key.part(file.name.as_os_str().as_encoded_bytes()).part(&file.content);
        }
        key.finish()
    }

    /// A folder with `lib/modules/<release>` in it, built if this set is not there yet.
    ///
    /// The caller holds the lock.
    pub fn staged(&self, cache: &Cache, base: &Base) -> Result<PathBuf> {
        let sets = format!("modules/{}/sets", base.name);
        let done = cache.folder(&format!("{sets}/{}", self.key()), |stage| {
            let work = cache.path(format!("modules/{}/work", base.name));
            self.copy(&work)?;
            make(base, &work, stage)?;
            index(stage, base)
        })?;
        // The modification time tells when it was last used.
        fs::File::open(&done)
            .and_then(|folder| folder.set_modified(std::time::SystemTime::now()))
            .map_err(at("touch", &done))?;
        prune(&cache.path(sets), KEPT, OLD)?;
        Ok(done)
    }

    /// Copies what has changed into `work`, so that `make` rebuilds only that, and the project's
    /// own folders stay clean.
    fn copy(&self, work: &Path) -> Result<()> {
        let manifest = work.join("files");
        let names = lines(self.files.iter().map(|file| file.name.display().to_string()));
        if fs::read_to_string(&manifest).ok().as_ref() != Some(&names) {
            // A deleted file must not remain in a module.
            crate::cache::remove(work)?;
        }
        for file in &self.files {
            let to = work.join(&file.name);
            if fs::read(&to).ok().as_ref() != Some(&file.content) {
                write(&to, &file.content)?;
            }
        }
        let folders = self.folders.iter().map(|name| format!("obj-m += {}/", name.display()));
        let flags = (!self.flags.is_empty()).then(|| format!("subdir-ccflags-y += {}", self.flags));
        let kbuild = lines(flags.into_iter().chain(folders));
        write(&work.join("Kbuild"), kbuild.as_bytes())?;
        write(&manifest, names.as_bytes())
    }
}

/// Builds what is in `work` against the kernel `base` and installs it into `stage`.
fn make(base: &Base, work: &Path, stage: &Path) -> Result<()> {
    let log = work.join("make.log");
    crate::cache::remove(&log)?;
    let mut progress = Progress::new("building modules", None);
    let module = format!("M={}", work.display());
    let mut make = base.make();
    make.args([&module, "KCFLAGS=-Werror"]).args(PLAIN).arg("modules");
    tools::step(&mut make, "build the modules of", &log, &mut progress)?;
    let mut install = base.make();
    let root = format!("INSTALL_MOD_PATH={}", stage.display());
    // depmod runs when all modules are together.
    install.args([&module, &root, "INSTALL_MOD_DIR=updates", "DEPMOD=true", "modules_install"]);
    install.args(PLAIN);
    tools::step(&mut install, "install the modules of", &log, &mut progress)
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

/// Adds the in-tree modules to those in `stage` and writes the index that `modprobe` reads.
fn index(stage: &Path, base: &Base) -> Result<()> {
    copy_tree(&base.modules, &stage.join("lib/modules").join(&base.release))?;
    let mut depmod = tools::bound("depmod", "TERM");
    depmod.arg("-b").arg(stage);
    if let Some(symbols) = &base.symbols {
        depmod.args(["-e", "-F"]).arg(symbols);
    }
    let output = depmod
        .arg(&base.release)
        .output()
        .map_err(|error| Error::new("run", "depmod", error).help("apt-get install kmod"))?;
    // For a module with an undefined symbol, depmod only prints a line on stderr.
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && said.trim().is_empty() {
        return Ok(());
    }
    Err(at("index the modules in", stage)(io::Error::other(said.trim().to_owned())))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(at("create", to))?;
    for name in list(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        // `build` and `source` point to where the modules were made.
        if from.is_symlink() {
            continue;
        }
        if from.is_dir() {
            copy_tree(&from, &to)?;
        } else if !is_module(&from) || fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).map_err(at("copy", &from))?;
        }
    }
    Ok(())
}

/// Files that are not written to after they are installed.
fn is_module(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "ko")
}

/// The names in a folder, in order; none if it does not exist.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at("read", folder))?,
    };
    let mut names: Vec<_> =
        entries.filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name()))).collect();
    names.sort();
    Ok(names)
}

/// Collects the sources of a module, without the files that a `make` in place has left.
fn sources(kernel: &Path, folder: &Path, files: &mut Vec<Source>) -> Result<()> {
    for entry in list(&kernel.join(folder))? {
        let name = folder.join(&entry);
        let path = kernel.join(&name);
        if path.is_dir() {
            sources(kernel, &name, files)?;
        } else if is_source(&entry) {
            let content = fs::read(&path).map_err(at("read", &path))?;
            files.push(Source { name, content });
        }
    }
    Ok(())
}

fn is_source(name: &Path) -> bool {
    let Some(name) = name.to_str() else { return false };
    let made = name.starts_with('.') || name.ends_with(".mod.c");
    let source =
        ["c", "h", "S"].iter().any(|end| Path::new(name).extension() == Some(end.as_ref()));
    !made && (source || ["Kbuild", "Makefile"].contains(&name))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(at("create", folder))?;
    }
    let mut file = fs::File::create(path).map_err(at("create", path))?;
    file.write_all(content).map_err(at("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            write(&dir.path().join(name), content.as_bytes()).unwrap();
        }
        dir
    }

    const FILES: [(&str, &str); 8] = [
        ("modules/a/Kbuild", "obj-m := a.o"),
        ("modules/a/a.c", "a"),
        ("modules/a/a.ko", "made in place"),
        ("modules/a/a.mod.c", "made in place"),
        ("modules/a/README.md", "words"),
        ("modules/not-yet/notes.c", "no Kbuild"),
        ("lab/selftest/Kbuild", "obj-m := lab_selftest.o"),
        ("uapi/linux/x.h", "x"),
    ];

    #[test]
    fn modules_are_folders_with_a_kbuild() {
        let dir = project(&FILES);
        let modules = Modules::find(dir.path()).unwrap();
        assert_eq!(modules.folders, [Path::new("modules/a"), Path::new("lab/selftest")]);
        let files = ["modules/a/Kbuild", "modules/a/a.c", "lab/selftest/Kbuild", "uapi/linux/x.h"];
        let found: Vec<_> = modules.files.iter().map(|file| file.name.as_path()).collect();
        assert_eq!(found, files.map(Path::new));
    }

    #[test]
    fn a_header_changes_the_key_and_a_readme_does_not() {
        let dir = project(&FILES);
        let key = || Modules::find(dir.path()).unwrap().key();
        let before = key();
        write(&dir.path().join("modules/a/README.md"), b"other words").unwrap();
        assert_eq!(before, key());
        write(&dir.path().join("uapi/linux/x.h"), b"y").unwrap();
        assert_ne!(before, key());
    }

    #[test]
    fn drivers_that_the_kernel_lacks_are_built_with_the_modules() {
        let dir = project(&FILES);
        let alone = Modules::find(dir.path()).unwrap();
        let place = project(&[("sources/b.c", "b"), ("recipe/Kbuild", "b"), ("recipe/init", "x")]);
        let at = |name: &str| place.path().join(name);
        let drivers = Drivers { sources: at("sources"), recipe: at("recipe"), flags: "-DB" };
        let modules = Modules::find(dir.path()).unwrap().with(&drivers).unwrap();
        assert_ne!(alone.key(), modules.key());
        let work = place.path().join("work");
        modules.copy(&work).unwrap();
        let kbuild = fs::read_to_string(work.join("Kbuild")).unwrap();
        assert!(kbuild.starts_with("subdir-ccflags-y += -DB\nobj-m += drivers/\n"), "{kbuild}");
        assert!(work.join("drivers/b.c").exists() && work.join("drivers/Kbuild").exists());
        assert!(!work.join("drivers/init").exists());
    }

    #[test]
    fn only_what_changed_is_copied_and_what_is_gone_goes() {
        let dir = project(&FILES);
        let work = tempfile::tempdir().unwrap();
        let work = work.path().join("work");
        let copy = || Modules::find(dir.path()).unwrap().copy(&work).unwrap();
        copy();
        let time = |name: &str| work.join(name).metadata().unwrap().modified().unwrap();
        let (a, x) = (time("modules/a/a.c"), time("uapi/linux/x.h"));
        write(&work.join("modules/a/a.o"), b"built").unwrap();
        write(&dir.path().join("uapi/linux/x.h"), b"y").unwrap();
        copy();
        assert_eq!(time("modules/a/a.c"), a);
        assert_ne!(time("uapi/linux/x.h"), x);
        assert!(work.join("modules/a/a.o").exists());
        fs::remove_file(dir.path().join("modules/a/a.c")).unwrap();
        copy();
        assert!(!work.join("modules/a/a.c").exists() && !work.join("modules/a/a.o").exists());
    }
}
