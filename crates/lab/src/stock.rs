//! Debian's own kernel, from its packages: nothing of Linux is compiled except a few drivers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};

use crate::apt::{self, Apt};
use crate::architecture::Architecture;
use crate::at;
use crate::cache::{Cache, remove};
use crate::key::Key;
use crate::modules::{Base, Drivers};
use crate::progress::Progress;
use crate::source;
use crate::tools;
use crate::variant::Series;

/// Part of the cache key. Increment it when a change here results in another kernel.
const RECIPE: &str = "2";

/// The release that is taken where apt knows it, so that it is the same one tomorrow.
const TESTED: &str = include_str!("../../../kernel/lab/stock/release");

/// The program that mounts the root, before there is a C library.
const BUSYBOX: &str = "busybox-static";
/// Debian's archives with the kernel for another processor, and with everything else.
const ARCHIVES: [&str; 2] = ["debian-security/bookworm-security", "debian/bookworm"];

/// The first program in the guest.
const INIT: &str = include_str!("../../../kernel/lab/stock/init");
/// The modules that it loads, relative to `kernel/`.
const FIRST: [&str; 6] = [
    "drivers/virtio/virtio_mmio.ko",
    "fs/netfs/netfs.ko",
    "net/9p/9pnet.ko",
    "net/9p/9pnet_virtio.ko",
    "fs/9p/9p.ko",
    "fs/overlayfs/overlay.ko",
];

/// Drivers of hardware, relative to `kernel/`, which are left out. They take long to unpack, and in an
/// emulated guest `udevd` would spend a minute on loading some of them: for disks, keyboard, mouse, processor
/// and watchdog. KVM stays, and what its module for AMD's processors needs (`ccp`): it works in a guest of QEMU.
const LEFT_OUT: [&str; 37] = [
    "arch/x86/crypto",
    "drivers/accel",
    "drivers/ata",
    "drivers/bluetooth",
    "drivers/cdrom",
    "drivers/comedi",
    "drivers/cpufreq",
    "drivers/crypto/[!c]*",
    "drivers/edac",
    "drivers/gpu",
    "drivers/hid",
    "drivers/hwmon",
    "drivers/i2c",
    "drivers/infiniband",
    "drivers/input",
    "drivers/isdn",
    "drivers/leds",
    "drivers/md",
    "drivers/media",
    "drivers/message",
    "drivers/mmc",
    "drivers/mtd",
    "drivers/net/can",
    "drivers/net/ethernet",
    "drivers/net/hamradio",
    "drivers/net/usb",
    "drivers/net/wireless",
    "drivers/net/wwan",
    "drivers/nvme",
    "drivers/platform",
    "drivers/scsi",
    "drivers/staging",
    "drivers/target",
    "drivers/thunderbolt",
    "drivers/video",
    "drivers/watchdog",
    "sound",
];

/// Drivers that Debian's configuration omits, as files in the source's `drivers/`.
/// `kernel/lab/stock` builds them as modules.
const DRIVERS: [&str; 18] = [
    "iio/buffer/industrialio-buffer-dma.c",
    "iio/industrialio-sw-device.c",
    "remoteproc/remoteproc_core.c",
    "remoteproc/remoteproc_coredump.c",
    "remoteproc/remoteproc_debugfs.c",
    "remoteproc/remoteproc_elf_helpers.h",
    "remoteproc/remoteproc_elf_loader.c",
    "remoteproc/remoteproc_internal.h",
    "remoteproc/remoteproc_sysfs.c",
    "remoteproc/remoteproc_virtio.c",
    "rpmsg/rpmsg_char.c",
    "rpmsg/rpmsg_char.h",
    "rpmsg/rpmsg_core.c",
    "rpmsg/rpmsg_ctrl.c",
    "rpmsg/rpmsg_internal.h",
    "rpmsg/rpmsg_ns.c",
    "rpmsg/virtio_rpmsg_bus.c",
    "tty/rpmsg_tty.c",
];
/// Options that the headers test, as the configuration does not have these drivers, or not all of them.
const FLAGS: &str =
    "-DCONFIG_RPMSG_MODULE=1 -DCONFIG_RPMSG_CHAR_MODULE=1 -DCONFIG_IIO_SW_DEVICE_MODULE=1";

/// Tools for unpacking, with their Debian packages.
const TOOLS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("cpio", "cpio"),
    ("make", "make"),
    ("ld", "binutils"),
    ("depmod", "kmod"),
];

/// Debian's kernel, in the cache or not.
pub(crate) struct Stock {
    architecture: Architecture,
    sources: Sources,
    packages: Packages,
    key: String,
}

/// Where the packages are from.
struct Sources {
    kernel: Apt,
    others: Apt,
}

/// The kernel's packages.
#[derive(Debug, PartialEq, Eq)]
struct Packages {
    /// The output of `uname -r`.
    release: String,
    image: String,
    headers: Headers,
    /// The compiler for modules.
    compiler: Compiler,
    /// Each package that was asked for, with its version.
    versions: Vec<(String, String)>,
}

/// The packages of headers.
#[derive(Debug, PartialEq, Eq)]
struct Headers {
    /// Those for one processor.
    own: String,
    /// Those for each, and programs that the host executes.
    common: Vec<String>,
}

/// The compiler for modules, which is the one that Debian has compiled the kernel with.
#[derive(Debug, PartialEq, Eq)]
enum Compiler {
    /// The program of a package of the same name, which the host has.
    Host(String),
    /// Packages of a cross compiler. They are only unpacked, as they conflict with `gcc-multilib`.
    Cross(Vec<String>),
}

impl Stock {
    /// Asks apt for the kernel that Busbar was tested with, or else for the newest of the series.
    pub fn find(architecture: Architecture, cache: &Cache) -> Result<Self> {
        let sources = Sources::of(architecture, cache).map_err(|error| advice(&error))?;
        let kernel = &sources.kernel;
        let tested = format!("linux-image-{}-{}", TESTED.trim(), architecture.debian());
        let image = if find(&kernel.show(&[kernel.name(&tested)])?, &tested).is_some() {
            tested
        } else {
            let meta = meta(architecture).map(|name| kernel.name(&name));
            let image = newest(&kernel.show(&meta)?).ok_or_else(unknown)?;
            eprintln!("busbar: apt does not know {tested}: taking {image}");
            image
        };
        let release = image.trim_start_matches("linux-image-").to_owned();
        let headers = format!("linux-headers-{release}");
        let own = [&image, &headers].map(|name| kernel.name(name));
        let mut text =
            kernel.show(&own)? + &sources.others.show(&[sources.others.name(BUSYBOX)])?;
        if architecture.is_foreign() {
            let compiler = compiler(&text, &headers).ok_or_else(unknown)?;
            text += &sources.others.show(&cross(&compiler, architecture))?;
        }
        let packages = Packages::read(&text, release, architecture).ok_or_else(unknown)?;
        let mut key = Key::default();
        key.part(RECIPE).part(INIT);
        for (name, version) in &packages.versions {
            key.part(name).part(version);
        }
        Ok(Self { architecture, sources, packages, key: key.finish() })
    }

    /// Whether there may be one in the cache: finding out which is the newest then downloads no index for nothing.
    pub fn is_known(architecture: Architecture, cache: &Cache) -> bool {
        !architecture.is_foreign()
            || ARCHIVES.iter().all(|suite| apt::is_there(suite, architecture, cache))
    }

    /// The hash of all its inputs.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its name in the cache.
    pub fn name(&self) -> String {
        format!("{}stock-{}", self.architecture.prefix(), self.key)
    }

    /// Whether it is unpacked.
    pub fn is_in(&self, cache: &Cache) -> bool {
        cache.path(format!("kernel/{}", self.name())).is_dir()
    }

    /// The folder of the unpacked kernel, downloaded if it does not exist yet.
    pub fn unpacked(&self, cache: &Cache) -> Result<Unpacked> {
        let (architecture, release) = (self.architecture, self.packages.release.clone());
        let folder = cache.folder(&format!("kernel/{}", self.name()), |folder| {
            tools::require(TOOLS)?;
            // A cross compiler uses libraries of the host's one.
            let compiler = match &self.packages.compiler {
                Compiler::Host(name) => name.as_str(),
                Compiler::Cross(_) => "gcc",
            };
            tools::require(&[(compiler, compiler)])?;
            let folder = folder.to_path_buf();
            let unpacked = Unpacked { folder, architecture, release: release.clone() };
            self.packages.unpack(&self.sources, &unpacked)?;
            unpacked.relocate_headers()?;
            unpacked.take_drivers(cache, &self.sources.kernel)?;
            unpacked.make_initrd()
        })?;
        Ok(Unpacked { folder, architecture, release })
    }
}

impl Sources {
    fn of(architecture: Architecture, cache: &Cache) -> Result<Self> {
        let apt = |suite| {
            if architecture.is_foreign() {
                Apt::of(suite, architecture, cache)
            } else {
                Apt::host()
            }
        };
        let [kernel, others] = ARCHIVES;
        Ok(Self { kernel: apt(kernel)?, others: apt(others)? })
    }
}

impl Packages {
    /// Parses the output of `apt-cache show` for image, headers, busybox and cross compiler.
    fn read(text: &str, release: String, architecture: Architecture) -> Option<Self> {
        let (image, own) = (format!("linux-image-{release}"), format!("linux-headers-{release}"));
        let compiler = compiler(text, &own)?;
        let compiler = if architecture.is_foreign() {
            Compiler::Cross(cross(&compiler, architecture))
        } else {
            Compiler::Host(compiler)
        };
        let names = [image.as_str(), &own, BUSYBOX].into_iter();
        let versions = names
            .chain(compiler.packages().iter().map(String::as_str))
            .map(|name| Some((name.to_owned(), field(find(text, name)?, "Version")?.to_owned())))
            .collect::<Option<_>>()?;
        let common =
            depends(find(text, &own)?).into_iter().filter(|name| is_common(name)).collect();
        Some(Self { release, image, headers: Headers { own, common }, compiler, versions })
    }

    /// Downloads and unpacks them. Nothing is installed.
    fn unpack(&self, from: &Sources, to: &Unpacked) -> Result<()> {
        let files = to.folder.join("packages");
        fs::create_dir_all(&files).map_err(at("create", &files))?;
        let mut progress = Progress::new("downloading Debian's kernel", None);
        let own = [&self.image, &self.headers.own].map(|name| from.kernel.name(name));
        let kernel = [&own[..], &self.headers.common].concat();
        let others = [&[from.others.name(BUSYBOX)][..], self.compiler.packages()].concat();
        for (apt, packages) in [(&from.kernel, kernel), (&from.others, others)] {
            apt.download(&packages, &files, &to.log(), &mut progress)?;
        }
        let mut progress = Progress::new("unpacking Debian's kernel", None);
        let left_out = LEFT_OUT.map(|name| format!("--exclude=./*lib/modules/*/kernel/{name}"));
        let mut unpack = tools::bound("sh", "TERM");
        unpack.args(["-euc", UNPACK, "sh"]).arg(to.root()).args(left_out).current_dir(&files);
        tools::step(&mut unpack, "unpack the kernel of", &to.log(), &mut progress)?;
        remove(&files)
    }
}

impl Compiler {
    /// Those that are unpacked.
    fn packages(&self) -> &[String] {
        match self {
            Self::Host(_) => &[],
            Self::Cross(packages) => packages,
        }
    }
}

/// Unpacks every package here into `$1`, except what the other arguments exclude, and decompresses the
/// modules: an emulated processor would need long to do that.
const UNPACK: &str = r#"root=$1; shift; mkdir "$root"
for file in *.deb; do dpkg-deb --fsys-tarfile "$file" | tar -x -C "$root" "$@"; done
find "$root" -name '*.ko.xz' -print0 | xargs -0 -r -n 100 -P "$(nproc)" xz --decompress"#;

/// Debian's kernel, unpacked.
pub(crate) struct Unpacked {
    folder: PathBuf,
    architecture: Architecture,
    release: String,
}

impl Unpacked {
    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("unpack.log")
    }

    /// The image that is booted.
    pub fn image(&self) -> PathBuf {
        self.root().join(format!("boot/vmlinuz-{}", self.release))
    }

    /// The initial file system, which mounts the root.
    pub fn initrd(&self) -> PathBuf {
        self.folder.join("initrd")
    }

    /// The tree that modules are built against.
    pub fn build(&self) -> PathBuf {
        self.root().join(format!("usr/src/linux-headers-{}", self.release))
    }

    /// The kernel that modules are built for, with its name in the cache.
    pub fn base(&self, name: String) -> Base {
        Base {
            name,
            architecture: self.architecture,
            build: self.build(),
            modules: self.modules(),
            release: self.release.clone(),
            symbols: None,
            compiler: self.architecture.is_foreign().then(|| self.root()),
        }
    }

    /// The drivers that Debian leaves out; `kernel` is the project's `kernel/` folder.
    pub fn drivers(&self, kernel: &Path) -> Drivers {
        Drivers {
            sources: self.folder.join("drivers"),
            recipe: kernel.join("lab/stock"),
            flags: FLAGS,
        }
    }

    /// Debian 13 has them in `/usr/lib`.
    fn modules(&self) -> PathBuf {
        let in_root = |lib: &str| self.root().join(lib).join(&self.release);
        let (old, new) = (in_root("lib/modules"), in_root("usr/lib/modules"));
        if old.is_dir() { old } else { new }
    }

    /// The headers refer to each other by the paths at which they would be installed.
    fn relocate_headers(&self) -> Result<()> {
        let file = self.build().join("Makefile");
        let text = fs::read_to_string(&file).map_err(at("read", &file))?;
        fs::write(&file, relocated(&text)).map_err(at("write", &file))
    }

    fn take_drivers(&self, cache: &Cache, apt: &Apt) -> Result<()> {
        let folder = self.folder.join("drivers");
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        let names = DRIVERS.map(|name| format!("drivers/{name}"));
        if source::is_there(Series::default(), cache) {
            return source::extract(cache, &names, &folder, &self.log());
        }
        let package = self.folder.join("source");
        fs::create_dir_all(&package).map_err(at("create", &package))?;
        let mut progress = Progress::new("downloading the kernel's source", None);
        let name = format!("linux-source-{}", Series::default().name());
        apt.download(&[name], &package, &self.log(), &mut progress)?;
        let mut unpack = tools::bound("sh", "TERM");
        unpack.args(["-euc", TARBALL]).current_dir(&package);
        tools::step(&mut unpack, "unpack the source of", &self.log(), &mut progress)?;
        source::extract_from(&package.join("tarball"), &names, &folder, &self.log())?;
        remove(&package)
    }

    /// An initial file system with everything that mounting the root needs.
    fn make_initrd(&self) -> Result<()> {
        let files = self.folder.join("initrd.files");
        for folder in ["bin", "modules", "newroot", "proc"] {
            let folder = files.join(folder);
            fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        }
        let copy =
            |from: &Path, to: PathBuf| fs::copy(from, to).map(drop).map_err(at("copy", from));
        copy(&self.busybox(), files.join("bin/busybox"))?;
        for name in FIRST {
            let from = self.modules().join("kernel").join(name);
            // A built-in module has no file.
            if let (true, Some(name)) = (from.exists(), from.file_name()) {
                copy(&from, files.join("modules").join(name))?;
            }
        }
        let mut pack = tools::bound("sh", "TERM");
        pack.args(["-euc", PACK, "sh", INIT]).arg(self.initrd()).current_dir(&files);
        let mut progress = Progress::new("preparing Debian's kernel", None);
        tools::step(&mut pack, "make the initial file system of", &self.log(), &mut progress)?;
        remove(&files)
    }

    fn busybox(&self) -> PathBuf {
        let in_root = |bin: &str| self.root().join(bin).join("busybox");
        let (old, new) = (in_root("bin"), in_root("usr/bin"));
        if old.exists() { old } else { new }
    }
}

/// Takes the tarball out of a package of the kernel's source.
const TARBALL: &str = "dpkg-deb --fsys-tarfile *.deb | tar -x -O --wildcards './usr/src/linux-source-*.tar.xz' >tarball";

/// Makes an archive `$2` of this folder, with the text `$1` as its program.
const PACK: &str = r#"printf %s "$1" >init; chmod 755 init
find . | cpio --quiet -o -H newc -R 0:0 >"$2""#;

/// A `Makefile` with its absolute includes made relative to its own folder.
fn relocated(makefile: &str) -> String {
    makefile.replace("include /usr/src/", "include $(dir $(lastword $(MAKEFILE_LIST)))../")
}

/// Packages that depend on the newest kernel of the series: where Debian offers several series, and where
/// this is the default.
fn meta(architecture: Architecture) -> [String; 2] {
    let (series, end) = (Series::default().name(), architecture.debian());
    [format!("linux-image-{series}-{end}"), format!("linux-image-{end}")]
}

/// The description of one package.
fn find<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split("\n\n").find(|text| field(text, "Package") == Some(name))
}

/// The compiler that a package of headers depends on.
fn compiler(text: &str, headers: &str) -> Option<String> {
    depends(find(text, headers)?).into_iter().find(|name| name.starts_with("gcc-"))
}

/// The packages of a compiler for another processor.
fn cross(compiler: &str, architecture: Architecture) -> Vec<String> {
    // No name of a package has an underscore.
    let end = architecture.gnu().replace('_', "-");
    let preprocessor = compiler.replacen("gcc", "cpp", 1);
    [compiler, &preprocessor, "binutils"].map(|name| format!("{name}-{end}")).to_vec()
}

/// The value of a field of a package's description.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Names of the packages that one depends on; the first of alternatives.
fn depends(text: &str) -> Vec<String> {
    let all = field(text, "Depends").unwrap_or_default();
    let name = |one: &str| one.split_whitespace().next().map(str::to_owned);
    all.split(',').filter_map(name).collect()
}

/// The kernel of the series that a package in `text` depends on.
fn newest(text: &str) -> Option<String> {
    let start = format!("linux-image-{}.", Series::default().name());
    text.split("\n\n").flat_map(depends).find(|name| name.starts_with(&start))
}

/// Whether this is a package of headers for each processor, or of the programs that they need.
fn is_common(name: &str) -> bool {
    name.starts_with("linux-kbuild-")
        || (name.starts_with("linux-headers-") && name.contains("common"))
}

fn unknown() -> Error {
    let why = io::Error::new(io::ErrorKind::NotFound, "apt does not know it");
    let series = Series::default().name();
    advice(&Error::new("find", format!("a package with Debian's kernel {series}"), why))
}

fn advice(error: &Error) -> Error {
    Error::new("find", "Debian's kernel", io::Error::other(error.to_string())).help(
        "on Debian 12 or 13: apt-get update; elsewhere the lab compiles a kernel: the same \
         command without --stock",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: &str = "6.12.117+deb12-amd64";
    /// The output of `apt-cache show` on Debian 12, shortened.
    const SHOWN: &str = "\
Package: linux-image-6.12.117+deb12-amd64
Source: linux-signed-6.12-amd64 (6.12.117+1~deb12u1)
Version: 6.12.117-1~deb12u1
Depends: kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool
Description-en: Linux 6.12 for 64-bit PCs (signed)
 Version: in the text

Package: linux-headers-6.12.117+deb12-amd64
Version: 6.12.117-1~deb12u1
Depends: linux-base (>= 4.12~), linux-headers-6.12.117+deb12-common (= 6.12.117-1~deb12u1), \
linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1) | linux-image-6.12.117+deb12-amd64-unsigned \
(= 6.12.117-1~deb12u1), linux-kbuild-6.12.117+deb12, gcc-12

Package: busybox-static
Version: 1:1.35.0-4+deb12u1+b1
Depends: 

";

    #[test]
    fn the_newest_kernel_is_what_the_meta_package_depends_on() {
        let meta = |name: &str, on: &str| format!("Package: {name}\nDepends: {on}\n\n");
        let text = meta("linux-image-amd64", "linux-image-6.1.0-37-amd64 (= 6.1.140-1)")
            + &meta(
                "linux-image-6.12-amd64",
                "linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1)",
            );
        assert_eq!(newest(&text).as_deref(), Some("linux-image-6.12.117+deb12-amd64"));
        assert_eq!(newest(&meta("linux-image-amd64", "linux-image-6.120.1-amd64")), None);
        assert_eq!(newest(""), None);
    }

    #[test]
    fn packages_are_those_that_the_headers_depend_on() {
        let packages = Packages::read(SHOWN, RELEASE.to_owned(), Architecture::default()).unwrap();
        assert_eq!(packages.image, "linux-image-6.12.117+deb12-amd64");
        assert_eq!(packages.headers.own, "linux-headers-6.12.117+deb12-amd64");
        let common = ["linux-headers-6.12.117+deb12-common", "linux-kbuild-6.12.117+deb12"];
        assert_eq!(packages.headers.common, common);
        assert_eq!(packages.compiler, Compiler::Host("gcc-12".to_owned()));
        let versions: Vec<_> =
            packages.versions.iter().map(|(_, version)| version.as_str()).collect();
        assert_eq!(versions, ["6.12.117-1~deb12u1", "6.12.117-1~deb12u1", "1:1.35.0-4+deb12u1+b1"]);
    }

    #[test]
    fn another_processor_has_the_same_compiler_as_a_cross_compiler() {
        let Some(other) = Architecture::ALL.into_iter().find(|one| one.is_foreign()) else {
            return;
        };
        let read = |text: &str| Packages::read(text, RELEASE.to_owned(), other);
        assert_eq!(read(SHOWN), None, "apt does not know the cross compiler");
        let names = cross("gcc-12", other);
        let described = |name: &String| format!("Package: {name}\nVersion: 12.2\n\n");
        let text = SHOWN.to_owned() + &names.iter().map(described).collect::<String>();
        let packages = read(&text).unwrap();
        assert_eq!(packages.versions.len(), 6, "{packages:?}");
        assert_eq!(packages.compiler, Compiler::Cross(names));
        assert_eq!(
            cross("gcc-12", Architecture::Arm64),
            ["gcc-12", "cpp-12", "binutils"].map(|name| format!("{name}-aarch64-linux-gnu"))
        );
    }

    #[test]
    fn a_package_that_apt_does_not_know_is_missed() {
        let without = SHOWN.replace("Package: busybox-static", "Package: other");
        let read = |text| Packages::read(text, RELEASE.to_owned(), Architecture::default());
        assert_eq!(read(&without), None);
        assert_eq!(read(""), None);
        assert!(unknown().to_string().contains("apt-get update"), "{}", unknown());
    }

    #[test]
    fn headers_find_each_other_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["headers-common", "headers"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let text = relocated("include /usr/src/headers-common/Makefile\n");
        fs::write(dir.path().join("headers/Makefile"), text).unwrap();
        fs::write(dir.path().join("headers-common/Makefile"), "all:\n\t@echo found\n").unwrap();
        let output = tools::bound("make", "TERM")
            .args(["-s", "-C"])
            .arg(dir.path().join("headers"))
            .output();
        assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), "found\n");
    }
}
