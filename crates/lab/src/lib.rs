//! Builds the lab's kernels, or uses Debian's, and runs programs in them.
//!
//! The lab is a real kernel under QEMU, booted through virtme-ng with the host's files as its own,
//! `udevd` running and Busbar's modules installed for `modprobe`. [`Lab::build`] makes kernel and
//! modules, [`Lab::run`] runs a command. [`accelerator`] tells a program where it runs.

mod accelerator;
mod apt;
mod architecture;
mod cache;
mod config;
mod console;
mod guest;
mod host;
mod job;
mod kernel;
mod key;
mod machine;
mod modules;
mod patience;
mod process;
mod progress;
mod root;
mod source;
pub mod stage;
mod stock;
mod tools;
mod transport;
mod tsc;
mod variant;
mod virtme;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};
use serde::Serialize;

pub use accelerator::{Accelerator, Choice, accelerator};
pub use architecture::Architecture;
pub use console::reports;
pub use job::{End, Job, Outcome, Stdio};
pub use variant::{Series, Variant};

use cache::Cache;
use kernel::Kernel;
use modules::{Base, Modules};
use root::Root;
use source::Source;
use stock::Stock;

/// How a kernel is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// Built as for ordinary use: for benchmarks.
    Release,
    /// With everything that finds errors in kernel code: for tests.
    Debug,
    /// With KCSAN, which finds data races and excludes KASAN.
    Race,
    /// Debian's own kernel 6.12, without patches, for 64-bit processors.
    Stock,
}

impl Flavour {
    /// The name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Debug => "debug",
            Self::Race => "race",
            Self::Stock => "stock",
        }
    }

    /// The end of the kernel's release.
    fn suffix(self) -> &'static str {
        match self {
            Self::Release => "-busbar",
            Self::Debug => "-busbar-debug",
            Self::Race => "-busbar-race",
            Self::Stock => "",
        }
    }

    /// The file in `kernel/lab/` that it has besides those of the release kernel.
    fn fragment(self) -> Option<&'static str> {
        match self {
            Self::Debug => Some("debug.config"),
            Self::Race => Some("race.config"),
            Self::Release | Self::Stock => None,
        }
    }

    /// Objects of the kernel whose coverage KCOV records: those that the patches and the modules build on.
    fn covered(self) -> &'static [&'static str] {
        match self {
            Self::Debug => &[
                "eventpoll.o",
                "devmem.o",
                "sock.o",
                "tcp.o",
                "netdev-genl.o",
                "rpmsg_ctrl.o",
                "industrialio-buffer.o",
                "industrialio-buffer-dma.o",
            ],
            Self::Release | Self::Race | Self::Stock => &[],
        }
    }

    /// Lines that `make` prints, for the progress bar: counted once, close enough for any kernel.
    fn steps(self) -> u64 {
        match self {
            Self::Release => 2_680,
            Self::Debug | Self::Race => 2_850,
            Self::Stock => 0,
        }
    }
}

/// A kernel with its modules, ready to boot.
#[derive(Clone, Debug, Serialize)]
pub struct Built {
    /// The series of Linux.
    pub series: Series,
    /// For which processor.
    pub architecture: Architecture,
    /// How it is built.
    pub flavour: Flavour,
    /// The output of `uname -r` in the guest.
    pub release: String,
    /// The image that is booted.
    pub image: PathBuf,
    /// The initial file system, if the drivers of the root file system are modules.
    pub initrd: Option<PathBuf>,
    /// The configured and built tree, for building modules: `make -C <build> M=<module>`.
    pub build: PathBuf,
    /// The folder that the guest has as `/lib/modules/<release>`.
    pub modules: PathBuf,
    /// The root file system of the guest: the host's, or one for a foreign processor, which is also
    /// the `--sysroot` for linking programs.
    pub root: PathBuf,
    /// Changes with any input of the kernel.
    pub key: String,
}

/// The lab of one project.
#[derive(Clone, Debug)]
pub struct Lab {
    kernel: PathBuf,
    /// The folder around `kernel`, unless the user has named that one.
    project: Option<PathBuf>,
    cache: Cache,
}

impl Lab {
    /// Finds the project and the cache.
    ///
    /// The project's `kernel/` folder is `$BUSBAR_KERNEL`, else that of the first folder upwards
    /// from the current one that has one, else that of the tree this program was built in. The
    /// cache is `$BUSBAR_CACHE`, else `busbar` in `$XDG_CACHE_HOME` or `~/.cache`.
    ///
    /// # Errors
    /// No such folder, or the cache is where the guest could not see it.
    pub fn open() -> Result<Self> {
        let cache = Cache::open()?;
        if let Some(path) = env::var_os("BUSBAR_KERNEL") {
            return Ok(Self { kernel: named(Path::new(&path))?, project: None, cache });
        }
        let kernel = found()?;
        let project = kernel.parent().map(Path::to_path_buf);
        Ok(Self { kernel, project, cache })
    }

    /// Builds those of kernel and modules that are not in the cache.
    ///
    /// Prints progress on stderr. A kernel takes minutes, Debian's own one a minute, a changed module
    /// seconds.
    ///
    /// # Errors
    /// Source or tools are missing (it names the packages), Kconfig did not honour a setting, a
    /// patch does not apply, or the compiler fails; the error has the end of its output.
    pub fn build(&self, variant: Variant) -> Result<Built> {
        variant.check()?;
        let _lock = self.cache.lock(&variant.to_string())?;
        match variant.flavour {
            Flavour::Stock => self.unpack(variant.architecture),
            _ => self.compile(variant),
        }
    }

    fn compile(&self, variant: Variant) -> Result<Built> {
        let Variant { series, architecture, flavour } = variant;
        let source = Source::find(series, &self.cache, &self.kernel)?;
        let kernel = Kernel::find(variant, &self.kernel, &source)?;
        if architecture.is_foreign() {
            tools::require(architecture.tools())?;
        }
        let root = Root::of(architecture).made(&self.cache)?;
        let folder = kernel.built(&self.cache, &source)?;
        let build = folder.join("build");
        let file = build.join("include/config/kernel.release");
        let release = fs::read_to_string(&file).map_err(at("read", &file))?.trim().to_owned();
        let base = Base {
            name: kernel.name(),
            architecture,
            modules: folder.join("root/lib/modules").join(&release),
            symbols: Some(build.join("System.map")),
            compiler: None,
            build,
            release,
        };
        let stage = Modules::find(&self.kernel)?.staged(&self.cache, &base)?;
        Ok(Built {
            series,
            architecture,
            flavour,
            image: base.build.join(architecture.image().1),
            initrd: None,
            root,
            modules: stage.join("lib/modules").join(&base.release),
            key: kernel.key().to_owned(),
            release: base.release,
            build: base.build,
        })
    }

    fn unpack(&self, architecture: Architecture) -> Result<Built> {
        let stock = Stock::find(architecture, &self.cache)?;
        let kernel = stock.unpacked(&self.cache)?;
        let modules = Modules::find(&self.kernel)?.with(&kernel.drivers(&self.kernel))?;
        let base = kernel.base(stock.name());
        let stage = modules.staged(&self.cache, &base)?;
        Ok(Built {
            series: Series::default(),
            architecture,
            flavour: Flavour::Stock,
            root: Root::of(architecture).made(&self.cache)?,
            image: kernel.image(),
            initrd: Some(kernel.initrd()),
            modules: stage.join("lib/modules").join(&base.release),
            key: stock.key().to_owned(),
            release: base.release,
            build: base.build,
        })
    }

    /// Whether the kernel is in the cache, so that [`Lab::build`] does not build it.
    ///
    /// # Errors
    /// The source cannot be found or read.
    pub fn has(&self, variant: Variant) -> Result<bool> {
        variant.check()?;
        if variant.flavour == Flavour::Stock {
            return Ok(Stock::find(variant.architecture, &self.cache)?.is_in(&self.cache));
        }
        let source = Source::find(variant.series, &self.cache, &self.kernel)?;
        let kernel = Kernel::find(variant, &self.kernel, &source)?;
        Ok(kernel.is_in(&self.cache))
    }

    /// Removes kernels, modules and source that the project no longer uses; returns the bytes freed.
    ///
    /// Must not be called while a guest runs one of them.
    ///
    /// # Errors
    /// The current source cannot be found, or something cannot be removed.
    pub fn clean(&self) -> Result<u64> {
        let _locks = Variant::all()
            .map(|variant| self.cache.lock(&variant.to_string()))
            .collect::<Result<Vec<_>>>()?;
        // If there is no source or compiler for one, or apt does not know one, there is none to keep.
        let is_needed =
            |&series: &Series| series == Series::default() || source::is_there(series, &self.cache);
        let sources: Vec<_> = Series::ALL
            .into_iter()
            .filter(is_needed)
            .map(|series| Ok((series, Source::find(series, &self.cache, &self.kernel)?)))
            .collect::<Result<_>>()?;
        let has_compiler = |architecture: Architecture| {
            !architecture.is_foreign() || tools::find(architecture.compiler()).is_some()
        };
        let mut kernels: Vec<_> = Variant::stock()
            .map(|variant| variant.architecture)
            .filter(|&one| Stock::is_known(one, &self.cache))
            .filter_map(|one| Some(Stock::find(one, &self.cache).ok()?.name()))
            .collect();
        for (series, source) in &sources {
            let compiled = |variant: &Variant| {
                variant.flavour != Flavour::Stock
                    && variant.series == *series
                    && has_compiler(variant.architecture)
            };
            for variant in Variant::all().filter(compiled) {
                kernels.push(Kernel::find(variant, &self.kernel, source)?.name());
            }
        }
        let roots: Vec<_> =
            Architecture::ALL.iter().filter_map(|&one| Root::of(one).name()).collect();
        let keys: Vec<_> = sources.iter().map(|(_, source)| source.key().to_owned()).collect();
        Ok(self.cache.retain("kernel", &kernels)?
            + self.cache.retain("modules", &kernels)?
            + self.cache.retain("root", &roots)?
            + self.cache.retain("source", &keys)?)
    }
}

fn is_kernel(path: &Path) -> bool {
    path.join("lab/release.config").is_file()
}

/// The folder that the user has named.
fn named(path: &Path) -> Result<PathBuf> {
    if is_kernel(path) {
        return path.canonicalize().map_err(at("find", path));
    }
    let wanted = "a folder with lab/release.config in it";
    Err(Error::invalid("BUSBAR_KERNEL", path.display(), wanted))
}

/// The project's folder upwards from here, or the one that this was built in.
fn found() -> Result<PathBuf> {
    let here = env::current_dir().map_err(|error| Error::new("find", "current folder", error))?;
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel");
    let folders = here.ancestors().map(|folder| folder.join("kernel")).chain([built_in]);
    if let Some(path) = folders.into_iter().find(|path| is_kernel(path)) {
        return path.canonicalize().map_err(at("find", &path));
    }
    let error = io::Error::new(io::ErrorKind::NotFound, "not here or in a folder above");
    Err(Error::new("find", "kernel/lab/release.config", error)
        .help("run it in Busbar's source, or set BUSBAR_KERNEL to its kernel/ folder"))
}

/// For `map_err`: the operation and the file.
fn at(tried: &'static str, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |error| Error::new(tried, &path, error)
}

/// Writes a small file completely or not at all.
fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    let write = || -> io::Result<()> {
        let file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&file, value)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(at("write", path))
}
