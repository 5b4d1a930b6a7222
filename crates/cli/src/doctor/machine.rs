//! Files of this machine that answer questions.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::Answer;

/// Where a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    Loaded,
    BuiltIn,
    /// `modprobe` would find it.
    Installed,
    Absent,
}

impl Module {
    /// Whether it is in the running kernel.
    pub fn answer(self) -> Answer {
        match self {
            Self::Loaded => Ok("loaded".into()),
            Self::BuiltIn => Ok("built into the kernel".into()),
            Self::Installed => Err("not loaded, but installed".into()),
            Self::Absent => Err("not installed".into()),
        }
    }
}

/// The files below a root: `/`, except in tests.
pub struct Machine {
    root: PathBuf,
    kernel: String,
    name: String,
    programs: Vec<PathBuf>,
}

impl Machine {
    pub fn this() -> Self {
        let uname = rustix::system::uname();
        let path = env::var_os("PATH").unwrap_or_default();
        Self {
            root: "/".into(),
            kernel: uname.release().to_string_lossy().into_owned(),
            name: uname.machine().to_string_lossy().into_owned(),
            programs: env::split_paths(&path).collect(),
        }
    }

    #[cfg(test)]
    pub fn at(root: &std::path::Path) -> Self {
        let programs = vec![root.join("bin")];
        Self { root: root.into(), kernel: "6.12.0".into(), name: "x86_64".into(), programs }
    }

    /// Release of the running kernel.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Kind of processor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether there is such a file or directory.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory that begin with `prefix`, in order.
    pub fn entries(&self, dir: &str, prefix: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(dir)) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort();
        names
    }

    /// The trimmed text of a file.
    pub fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// The names that are there, or that there are none.
    pub fn listed(&self, dir: &str, prefix: &str) -> Answer {
        let names = self.entries(dir, prefix);
        if names.is_empty() { Err("none".into()) } else { Ok(names.join(", ")) }
    }

    /// Where a module is.
    pub fn module(&self, name: &str) -> Module {
        let modules = format!("lib/modules/{}", self.kernel);
        if self.lists_module(&format!("{modules}/modules.builtin"), name) {
            Module::BuiltIn
        } else if self.has(&format!("sys/module/{name}")) {
            Module::Loaded
        } else if self.lists_module(&format!("{modules}/modules.dep"), name) {
            Module::Installed
        } else {
            Module::Absent
        }
    }

    /// How to get a module of Busbar into the kernel, unless it is there.
    pub fn how_to_load(&self, name: &str) -> Option<String> {
        match self.module(name) {
            Module::Loaded | Module::BuiltIn => None,
            Module::Installed => Some(format!("modprobe {name}")),
            Module::Absent => Some(format!(
                "make install-modules MODULES={name} in Busbar's source (docs/kernels.md), then \
                 modprobe {name}"
            )),
        }
    }

    /// The same for a module of Linux itself, which `option` of the kernel's configuration makes.
    pub fn how_to_load_in_tree(&self, name: &str, option: &str) -> Option<String> {
        match self.module(name) {
            Module::Loaded | Module::BuiltIn => None,
            Module::Installed => Some(format!("modprobe {name}")),
            Module::Absent => Some(format!("a kernel with {option}, which makes {name}")),
        }
    }

    /// Where a program is.
    pub fn program(&self, name: &str) -> Answer {
        let found = self.programs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        found.map(|path| path.display().to_string()).ok_or_else(|| "not in PATH".into())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn lists_module(&self, list: &str, name: &str) -> bool {
        let text = self.read(list).unwrap_or_default();
        text.lines().any(|line| module_name(line).as_deref() == Some(name))
    }
}

/// `rpmsg_char` from `kernel/drivers/rpmsg/rpmsg-char.ko.xz: kernel/...`.
fn module_name(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_the_name_that_the_kernel_gives_them() {
        let name = |line| module_name(line);
        assert_eq!(name("kernel/a/rpmsg-char.ko.xz: kernel/b/c.ko").as_deref(), Some("rpmsg_char"));
        assert_eq!(name("updates/vcoproc.ko:").as_deref(), Some("vcoproc"));
        assert_eq!(name("kernel/drivers/rpmsg/rpmsg_ns.ko").as_deref(), Some("rpmsg_ns"));
        assert_eq!(name(""), None);
    }

    #[test]
    fn a_module_is_loaded_built_in_installed_or_absent() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/module/vcoproc/refcnt", "0");
        // A built-in module has a folder there, too, if it has parameters.
        put("sys/module/udmabuf/parameters/size_limit_mb", "64");
        let built_in = "kernel/drivers/remoteproc/remoteproc.ko\nkernel/drivers/a/udmabuf.ko\n";
        put("lib/modules/6.12.0/modules.builtin", built_in);
        put("lib/modules/6.12.0/modules.dep", "updates/rpmsg_eptfd.ko: kernel/b.ko\n");
        let machine = Machine::at(root.path());
        for (name, module) in [
            ("vcoproc", Module::Loaded),
            ("udmabuf", Module::BuiltIn),
            ("remoteproc", Module::BuiltIn),
            ("rpmsg_eptfd", Module::Installed),
            ("rpmsg_char", Module::Absent),
            ("eptfd", Module::Absent),
        ] {
            assert_eq!(machine.module(name), module, "{name}");
        }
    }

    #[test]
    fn what_is_missing_comes_with_the_command_that_brings_it() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("lib/modules/6.12.0/modules.dep", "updates/vconv.ko:\nkernel/a/rpmsg_tty.ko:\n");
        put("sys/module/vnic/refcnt", "0");
        let machine = Machine::at(root.path());
        assert_eq!(machine.how_to_load("vnic"), None);
        assert_eq!(machine.how_to_load("vconv").unwrap(), "modprobe vconv");
        let absent = machine.how_to_load("vcoproc").unwrap();
        for part in ["make install-modules MODULES=vcoproc", "docs/kernels.md", "modprobe vcoproc"]
        {
            assert!(absent.contains(part), "{absent}");
        }
        let in_tree = |name| machine.how_to_load_in_tree(name, "CONFIG_RPMSG_TTY").unwrap();
        assert_eq!(in_tree("rpmsg_tty"), "modprobe rpmsg_tty");
        assert!(in_tree("rpmsg_char").contains("CONFIG_RPMSG_TTY"));
    }

    #[test]
    fn programs_are_looked_for_in_the_path() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/vng"), "").unwrap();
        let machine = Machine::at(root.path());
        assert!(machine.program("vng").unwrap().ends_with("bin/vng"));
        assert!(machine.program("qemu").is_err());
    }
}
