//! Two virtual coprocessors side by side, in the guest: one control device with `rpmsg_eptfd`, one
//! with the in-tree pair.
//!
//! Demo, benchmarks and tests run on it. It works in any kernel with the modules, as root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use busbar::{Error, Result};
use rustix::process::Pid;

const MODULES: [&str; 8] = [
    "virtio_rpmsg_bus",
    "rpmsg_ns",
    "rpmsg_char",
    "rpmsg_ctrl",
    "rpmsg_tty",
    "rpmsg_eptfd",
    "rpmsg_netlink",
    "vcoproc",
];
const DRIVERS: &str = "/sys/bus/rpmsg/drivers";
/// Long enough for an emulated debug kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// The driver of a control device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `rpmsg_eptfd`: endpoints as descriptors.
    Eptfd,
    /// The in-tree `rpmsg_ctrl`: endpoints as device nodes.
    InTree,
}

impl Driver {
    fn name(self) -> &'static str {
        match self {
            Self::Eptfd => "rpmsg_eptfd",
            Self::InTree => "rpmsg_ctrl",
        }
    }
}

/// A coprocessor with its process and its control device.
#[derive(Debug)]
pub struct Side {
    driver: Driver,
    core: PathBuf,
    remoteproc: PathBuf,
    program: PathBuf,
    services: Vec<String>,
    child: Option<Child>,
    controller: PathBuf,
}

/// Both sides.
#[derive(Debug)]
pub struct Stage {
    /// `/dev/vcoproc0`, with `rpmsg_eptfd`.
    pub eptfd: Side,
    /// `/dev/vcoproc1`, with the in-tree pair.
    pub in_tree: Side,
}

impl Stage {
    /// Starts both coprocessors with the same `services`; `program` is the `busbar` command.
    pub fn up(program: &Path, services: &[&str]) -> Result<Self> {
        Ok(Self {
            eptfd: Side::up(0, Driver::Eptfd, program, services)?,
            in_tree: Side::up(1, Driver::InTree, program, services)?,
        })
    }
}

impl Side {
    /// Loads the modules and starts coprocessor `index` with `services`.
    pub fn up(index: u32, driver: Driver, program: &Path, services: &[&str]) -> Result<Self> {
        load_modules(&MODULES)?;
        let device = PathBuf::from(format!("/sys/class/vcoproc/vcoproc{index}/device/remoteproc"));
        let mut side = Self {
            driver,
            core: format!("/dev/vcoproc{index}").into(),
            remoteproc: only_entry(&device, "remoteproc")?,
            program: program.into(),
            services: services.iter().map(ToString::to_string).collect(),
            child: None,
            controller: PathBuf::new(),
        };
        side.start()?;
        Ok(side)
    }

    /// The control device, `/dev/rpmsg_ctrlN`.
    #[must_use]
    pub fn controller(&self) -> &Path {
        &self.controller
    }

    /// The core, `/dev/vcoprocN`.
    #[must_use]
    pub fn core(&self) -> &Path {
        &self.core
    }

    /// The directory of the remoteproc in sysfs.
    #[must_use]
    pub fn remoteproc(&self) -> &Path {
        &self.remoteproc
    }

    /// The coprocessor's process, while there is one.
    #[must_use]
    pub fn process(&self) -> Option<Pid> {
        self.child.as_ref().map(Pid::from_child)
    }

    /// Starts the coprocessor's process, and waits until its services are announced and the
    /// control device has its driver.
    pub fn start(&mut self) -> Result<()> {
        let child = Command::new(&self.program)
            .args(["coprocessor", "run", "--device"])
            .arg(&self.core)
            .args(["--service", &self.services.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|why| Error::new("start", self.program.display().to_string(), why))?;
        self.child = Some(child);
        self.wait("announce the services of", |side| side.announced() == side.services.len())?;
        self.bind()
    }

    /// Kills the coprocessor's process with `SIGKILL`, a crash, and waits until its channels are
    /// gone.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let on = format!("process {}", child.id());
            child.kill().and_then(|()| child.wait()).map_err(|why| Error::new("kill", on, why))?;
        }
        self.gone()
    }

    /// Waits until the channels of a coprocessor that has crashed are gone: before that, its control device is the old one.
    pub fn gone(&mut self) -> Result<()> {
        // Without recovery the channels stay; that is right.
        if fs::read_to_string(self.remoteproc.join("recovery"))
            .is_ok_and(|on| on.trim() != "enabled")
        {
            return Ok(());
        }
        self.wait("see the channels go of", |side| side.channels() == 0)
    }

    /// Binds the driver to the control device. A recovery creates the device again, with the in-tree driver.
    pub fn bind(&mut self) -> Result<()> {
        self.wait("see the control device of", |side| side.control_device().is_some())?;
        let device = self.control_device().ok_or_else(|| self.vanished())?;
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let driver = self.driver.name();
        let bound = bound_to(&device);
        if bound.as_deref() != Some(driver) {
            if let Some(other) = bound {
                write(&Path::new(DRIVERS).join(other).join("unbind"), &name)?;
            }
            write(&device.join("driver_override"), driver)?;
            write(&Path::new(DRIVERS).join(driver).join("bind"), &name)?;
        }
        let node = only_entry(&device.join("rpmsg"), "rpmsg_ctrl")?;
        self.controller = Path::new("/dev").join(node.file_name().unwrap_or_default());
        self.wait("see the device node of", |side| side.controller.exists())
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !done(self) {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                let why = io::Error::other(format!("the coprocessor has ended: {status}"));
                return Err(Error::new(what, self.core.display().to_string(), why));
            }
            if Instant::now() > until {
                let on = self.core.display().to_string();
                return Err(Error::new(what, on, io::ErrorKind::TimedOut));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn vanished(&self) -> Error {
        let on = self.core.display().to_string();
        Error::new("find the control device of", on, io::ErrorKind::NotFound)
    }

    /// The rpmsg devices of this coprocessor, control device and name service included, and those that
    /// are being created or removed.
    fn folders(&self) -> Vec<PathBuf> {
        entries(&self.remoteproc, "rproc-virtio")
            .into_iter()
            .flat_map(|bus| entries(&bus, "virtio"))
            .flat_map(|virtio| entries(&virtio, "virtio"))
            .collect()
    }

    /// Channels of services. One that is being removed loses its bus and its name before its driver
    /// lets go of it, and its folder, `virtio0.echo.-1.1024`, after that.
    fn channels(&self) -> usize {
        let is_own = |folder: &&PathBuf| {
            let folder = folder.file_name().unwrap_or_default().to_string_lossy();
            !folder.contains(".rpmsg_ctrl.") && !folder.contains(".rpmsg_ns.")
        };
        self.folders().iter().filter(is_own).count()
    }

    /// A device that is being created has its name shortly before its bus, and does not count before
    /// that.
    fn devices(&self) -> Vec<PathBuf> {
        self.folders().into_iter().filter(|device| device.join("subsystem").exists()).collect()
    }

    fn control_device(&self) -> Option<PathBuf> {
        self.devices().into_iter().find(|device| name_of(device) == "rpmsg_ctrl")
    }

    fn announced(&self) -> usize {
        let own = |name: &str| name != "rpmsg_ctrl" && name != "rpmsg_ns" && !name.is_empty();
        self.devices().iter().filter(|device| own(&name_of(device))).count()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::write(self.remoteproc.join("state"), "stop");
    }
}

/// Loads the virtual converter, `vconv0`.
pub fn load_converter() -> Result<()> {
    load_modules(&["vconv"])
}

/// Loads the virtual NIC: `ip link add type vnic`.
pub fn load_nic() -> Result<()> {
    load_modules(&["vnic"])
}

/// With one process, and with none if all are loaded: starting one takes half a second in emulation.
fn load_modules(modules: &[&str]) -> Result<()> {
    let is_live = |module: &str| {
        let state = fs::read_to_string(format!("/sys/module/{module}/initstate"));
        state.is_ok_and(|state| state.trim() == "live")
    };
    let missing: Vec<_> = modules.iter().copied().filter(|module| !is_live(module)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let output = Command::new("modprobe")
        .arg("-a")
        .args(&missing)
        .output()
        .map_err(|why| Error::new("run", "modprobe", why).help("apt-get install kmod"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(
        "load modules",
        missing.join(" "),
        why(&String::from_utf8_lossy(&output.stderr)),
    )
    .help(
        "run it in the lab: busbar lab run -- COMMAND; on a board: make install-modules \
             (docs/kernels.md)",
    ))
}

/// The message of `modprobe`, without a line for each module that it has not found.
fn why(said: &str) -> io::Error {
    if said.lines().all(|line| line.contains(" not found in directory ")) {
        return io::Error::new(io::ErrorKind::NotFound, "not installed for this kernel");
    }
    io::Error::other(said.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|why| Error::new("write to", path.display().to_string(), why))
}

fn bound_to(device: &Path) -> Option<String> {
    let driver = fs::read_link(device.join("driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

fn name_of(device: &Path) -> String {
    fs::read_to_string(device.join("name")).unwrap_or_default().trim().to_string()
}

fn entries(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect()
}

fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    entries(directory, prefix).pop().ok_or_else(|| {
        let on = format!("{prefix}* in {}", directory.display());
        Error::new("find", on, io::ErrorKind::NotFound)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_service_counts_once_its_bus_has_it() {
        let remoteproc = tempfile::tempdir().unwrap();
        let device = remoteproc.path().join("rproc-virtio.1.auto/virtio0/virtio0.echo.-1.1024");
        fs::create_dir_all(&device).unwrap();
        let side = Side {
            driver: Driver::InTree,
            core: PathBuf::new(),
            remoteproc: remoteproc.path().into(),
            program: PathBuf::new(),
            services: vec!["echo".into()],
            child: None,
            controller: PathBuf::new(),
        };
        fs::write(device.join("name"), "echo\n").unwrap();
        assert_eq!((side.announced(), side.channels()), (0, 1));
        symlink(remoteproc.path(), device.join("subsystem")).unwrap();
        assert_eq!(side.announced(), 1);
        // As it is removed.
        fs::remove_file(device.join("subsystem")).unwrap();
        fs::remove_file(device.join("name")).unwrap();
        assert_eq!((side.announced(), side.channels()), (0, 1));
        fs::remove_dir(device).unwrap();
        assert_eq!(side.channels(), 0);
    }

    #[test]
    fn what_is_not_installed_is_said_once() {
        let said = "modprobe: WARNING: Module a not found in directory /lib/modules/6.12\n\
                    modprobe: WARNING: Module b not found in directory /lib/modules/6.12\n";
        assert_eq!(why(said).to_string(), "not installed for this kernel");
        let said = format!("{said}modprobe: ERROR: could not insert 'c': Operation not permitted");
        assert!(why(&said).to_string().ends_with("Operation not permitted"));
    }
}
