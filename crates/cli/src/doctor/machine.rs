//! Files of this machine that answer questions.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::Answer;

/// The files below a root, `/` but in tests.
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

    /// The text of a file without the white space around it.
    pub fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// Whether these names are there, and which.
    pub fn listed(&self, dir: &str, prefix: &str) -> Answer {
        let names = self.entries(dir, prefix);
        if names.is_empty() { Err("none".into()) } else { Ok(names.join(", ")) }
    }

    /// Whether the kernel has a module or could load it.
    pub fn module(&self, name: &str) -> Answer {
        if self.has(&format!("sys/module/{name}")) {
            return Ok("in the kernel".into());
        }
        let modules = format!("lib/modules/{}", self.kernel);
        if self.lists_module(&format!("{modules}/modules.builtin"), name) {
            return Ok("built into the kernel".into());
        }
        if self.lists_module(&format!("{modules}/modules.dep"), name) {
            return Ok(format!("to be loaded: modprobe {name}"));
        }
        Err("neither in the kernel nor installed".into())
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
    fn a_module_is_in_the_kernel_built_in_installed_or_absent() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/module/vcoproc/refcnt", "0");
        put("lib/modules/6.12.0/modules.builtin", "kernel/drivers/remoteproc/remoteproc.ko\n");
        put("lib/modules/6.12.0/modules.dep", "updates/rpmsg_eptfd.ko: kernel/b.ko\n");
        let machine = Machine::at(root.path());
        assert_eq!(machine.module("vcoproc").unwrap(), "in the kernel");
        assert_eq!(machine.module("remoteproc").unwrap(), "built into the kernel");
        assert!(machine.module("rpmsg_eptfd").unwrap().contains("modprobe rpmsg_eptfd"));
        assert!(machine.module("rpmsg_char").is_err());
        assert!(machine.module("eptfd").is_err());
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
