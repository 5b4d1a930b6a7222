//! Configures and builds the kernel.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use busbar::{Error, Result};

use crate::architecture::Architecture;
use crate::at;
use crate::cache::{Cache, remove};
use crate::config;
use crate::key::Key;
use crate::progress::Progress;
use crate::source::Source;
use crate::tools;
use crate::variant::Variant;

/// Part of the cache key. Increment it when a change here results in another kernel.
const RECIPE: &str = "1";

/// Where Debian's ccache has links with the names of compilers.
const CCACHE: &str = "/usr/lib/ccache";

/// One kernel, built or to be built.
pub(crate) struct Kernel {
    variant: Variant,
    fragments: Vec<PathBuf>,
    wanted: config::Settings,
    key: String,
}

impl Kernel {
    /// `kernel` is the project's `kernel/` folder.
    pub fn find(variant: Variant, kernel: &Path, source: &Source) -> Result<Self> {
        let fragments = fragments(variant, &kernel.join("lab"));
        let mut wanted = config::Settings::new();
        for path in &fragments {
            let text = fs::read_to_string(path).map_err(at("read", path))?;
            wanted.extend(config::settings(&text));
        }
        let mut key = Key::default();
        key.part(RECIPE).part(variant.flavour.name()).part(source.key());
        key.part(compiler(variant.architecture)?);
        for (option, value) in &wanted {
            key.part(option).part(value.as_deref().unwrap_or("n"));
        }
        for object in variant.flavour.covered() {
            key.part(object);
        }
        Ok(Self { variant, fragments, wanted, key: key.finish() })
    }

    /// The hash of all its inputs.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its name in the cache.
    pub fn name(&self) -> String {
        format!("{}-{}", self.variant, self.key)
    }

    /// Whether it is built.
    pub fn is_in(&self, cache: &Cache) -> bool {
        cache.path(format!("kernel/{}", self.name())).is_dir()
    }

    /// The folder of the finished build, built if it does not exist yet.
    pub fn built(&self, cache: &Cache, source: &Source) -> Result<PathBuf> {
        let name = format!("kernel/{}", self.name());
        cache.folder(&name, |folder| {
            tools::require(&[tools::BUILD, self.variant.architecture.tools()].concat())?;
            let source = source.unpacked(cache)?;
            // Inside of the source, so that the compiler's command line has the same relative paths for each set of
            // patches: ccache looks results up by it.
            let output = source.join(".build").join(self.name());
            remove(&output)?;
            let objects = cache.path("ccache");
            let make = Make { source: &source, folder, output, objects, variant: self.variant };
            self.configure(&make)?;
            make.kernel()?;
            make.install_modules()?;
            drop_objects(&make.output)?;
            let build = folder.join("build");
            fs::rename(&make.output, &build).map_err(at("rename", &make.output))?;
            move_makefile(&build, &make.output, &cache.path(&name).join("build"))
        })
    }

    fn configure(&self, make: &Make) -> Result<()> {
        let what = "configure the kernel of";
        let mut progress = Progress::new("configuring the kernel", None);
        make.run(what, &["tinyconfig"], &mut progress)?;
        let output = &make.output;
        let mut merge = tools::bound("sh", "TERM");
        merge.arg(make.source.join("scripts/kconfig/merge_config.sh"));
        merge.args(["-m", "-O"]).arg(output).arg(output.join(".config"));
        merge.args(&self.fragments).current_dir(output);
        tools::step(&mut merge, what, &make.log(), &mut progress)?;
        make.run(what, &["olddefconfig"], &mut progress)?;
        self.check(&output.join(".config"))
    }

    fn check(&self, file: &Path) -> Result<()> {
        let text = fs::read_to_string(file).map_err(at("read", file))?;
        let unmet = config::unmet(&self.wanted, &config::settings(&text));
        if unmet.is_empty() {
            return Ok(());
        }
        let name = |path: &PathBuf| path.file_name().map(|name| name.display().to_string());
        let names: Vec<_> = self.fragments.iter().filter_map(name).collect();
        let names = names.join(" and ");
        let error = io::Error::other(format!("Kconfig did not honour\n  {}", unmet.join("\n  ")));
        Err(Error::new("use", format!("kernel/lab/{names}"), error)
            .help("an option that it depends on is off, or has another name in this kernel"))
    }
}

/// The files in `folder` that make a kernel, in order; the last three where an architecture or a series needs them.
fn fragments(variant: Variant, folder: &Path) -> Vec<PathBuf> {
    let Variant { series, architecture, flavour } = variant;
    let own = architecture.name();
    let mut paths = vec![folder.join("release.config"), folder.join(format!("{own}.config"))];
    paths.extend(flavour.fragment().map(|name| folder.join(name)));
    let both = folder.join(format!("{own}-{}.config", flavour.name()));
    let newer = format!("linux-{}.config", series.name());
    let three = [both, folder.join(&newer), folder.join(format!("{own}-{newer}"))];
    paths.extend(three.into_iter().filter(|path| path.exists()));
    paths
}

/// The compiler's version: modules must be built with the one that built the kernel.
fn compiler(architecture: Architecture) -> Result<String> {
    let name = architecture.compiler();
    let output = Command::new(name).arg("--version").output();
    let advice = format!("apt-get install {name}");
    let output = output.map_err(|error| Error::new("run", name, error).help(advice))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// `make` for one build.
struct Make<'a> {
    source: &'a Path,
    folder: &'a Path,
    output: PathBuf,
    objects: PathBuf,
    variant: Variant,
}

impl Make<'_> {
    fn log(&self) -> PathBuf {
        self.folder.join("make.log")
    }

    fn run(&self, what: &str, arguments: &[&str], progress: &mut Progress) -> Result<()> {
        let output = &self.output;
        fs::create_dir_all(output).map_err(at("create", output))?;
        let mut command = make(self.source);
        command.args(self.variant.architecture.make()).envs(self.ccache());
        command.arg(format!("O={}", output.display())).args(arguments);
        // Otherwise it would contain who built it, where and when.
        command.env("KBUILD_BUILD_USER", "busbar").env("KBUILD_BUILD_HOST", "lab");
        command.env("KBUILD_BUILD_TIMESTAMP", "1970-01-01").env("KBUILD_BUILD_VERSION", "1");
        command.arg(format!("LOCALVERSION={}", self.variant.flavour.suffix()));
        command.args(
            self.variant.flavour.covered().iter().map(|name| format!("KCOV_INSTRUMENT_{name}=y")),
        );
        tools::step(&mut command, what, &self.log(), progress)
    }

    /// Variables by which ccache, where it is installed, compiles only what differs from the kernels built before.
    fn ccache(&self) -> Vec<(&'static str, OsString)> {
        if !Path::new(CCACHE).is_dir() {
            return Vec::new();
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let all = iter::once(PathBuf::from(CCACHE)).chain(env::split_paths(&path));
        vec![
            // It has no folder with a colon in its name.
            ("PATH", env::join_paths(all).unwrap_or(path)),
            ("CCACHE_DIR", self.objects.clone().into()),
            ("CCACHE_MAXSIZE", "5G".into()),
            ("CCACHE_BASEDIR", self.source.into()),
            ("CCACHE_NOHASHDIR", "1".into()),
        ]
    }

    fn kernel(&self) -> Result<()> {
        let what = format!("building the {} kernel", self.variant);
        let mut progress = Progress::new(&what, Some(self.variant.flavour.steps()));
        self.run(
            "build the kernel of",
            &[self.variant.architecture.image().0, "modules"],
            &mut progress,
        )
    }

    fn install_modules(&self) -> Result<()> {
        let mut progress = Progress::new("installing modules", None);
        let root = format!("INSTALL_MOD_PATH={}", self.folder.join("root").display());
        // depmod runs when all modules are together.
        let arguments = ["modules_install", &root, "DEPMOD=true"];
        self.run("install the modules of", &arguments, &mut progress)
    }
}

/// `make` in a folder, with as many jobs as there are processors.
pub(crate) fn make(folder: &Path) -> Command {
    let mut command = tools::bound("make", "TERM");
    let jobs = available_parallelism().map_or(1, usize::from);
    command.arg(format!("-j{jobs}")).arg("-C").arg(folder);
    command
}

/// Removes files that only building the kernel itself needs, and keeps those that modules need.
fn drop_objects(build: &Path) -> Result<()> {
    for entry in fs::read_dir(build).map_err(at("read", build))? {
        let path = entry.map_err(at("read", build))?.path();
        let tools = ["scripts", "tools"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !path.is_symlink() && !tools {
            drop_objects(&path)?;
        } else if path.extension().is_some_and(|name| ["o", "a", "ko"].iter().any(|x| name == *x)) {
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
    }
    Ok(())
}

/// Linux 7.3 writes into the Makefile of a build where it is, and this one is going to be moved.
fn move_makefile(build: &Path, from: &Path, to: &Path) -> Result<()> {
    let path = build.join("Makefile");
    let text = fs::read_to_string(&path).map_err(at("read", &path))?;
    let text = text.replace(&*from.to_string_lossy(), &to.to_string_lossy());
    fs::write(&path, text).map_err(at("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_makefile_moves_with_its_build() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("Makefile");
        fs::write(&file, "export KBUILD_OUTPUT = /a/x.partial/build\ninclude /b/Makefile\n")
            .unwrap();
        move_makefile(dir.path(), Path::new("/a/x.partial"), Path::new("/a/x")).unwrap();
        let moved = "export KBUILD_OUTPUT = /a/x/build\ninclude /b/Makefile\n";
        assert_eq!(fs::read_to_string(&file).unwrap(), moved);
    }

    #[test]
    fn objects_go_and_tools_stay() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["kernel", "scripts/mod", "include"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let files =
            ["kernel/a.o", "kernel/built-in.a", "vmlinux", "scripts/mod/x.o", "include/a.h"];
        for file in files {
            fs::write(dir.path().join(file), "").unwrap();
        }
        drop_objects(dir.path()).unwrap();
        let left: Vec<_> = files.iter().filter(|file| dir.path().join(file).exists()).collect();
        assert_eq!(left, [&"vmlinux", &"scripts/mod/x.o", &"include/a.h"]);
    }
}
