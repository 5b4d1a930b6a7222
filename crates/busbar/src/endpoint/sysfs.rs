//! Control devices, channels and device nodes in sysfs.
//!
//! A control device and the channels of one coprocessor are children of the same virtio device,
//! which lies below the remoteproc device:
//!
//! ```text
//! .../remoteproc/remoteproc0/rproc-virtio.1.auto/virtio0
//!     virtio0.rpmsg_ctrl.0.0/rpmsg/rpmsg_ctrl0/rpmsg3    a device node made through rpmsg_ctrl0
//!     virtio0.echo.-1.1024                                a channel
//! ```

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, minor};
use rustix::io::Errno;

/// Devices of the bus itself, without a service.
const INTERNAL: [&str; 2] = ["rpmsg_ctrl", "rpmsg_ns"];

/// A processor that the remoteproc framework manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remoteproc {
    /// `remoteprocN`.
    pub device: String,
    /// Its name, which its driver sets.
    pub name: String,
    /// `offline`, `running`, `crashed` and so on.
    pub state: String,
}

/// A service that a coprocessor has announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelInfo {
    /// Name of the service.
    pub name: String,
    /// Local address of the driver that uses it, or [`ADDR_ANY`](super::ADDR_ANY).
    pub source: u32,
    /// Address of the service.
    pub destination: u32,
    /// The kernel's driver that uses it.
    pub driver: Option<String>,
}

/// The directory of a control device, `/sys/devices/.../rpmsg_ctrlN`.
#[derive(Clone, Debug)]
pub(super) struct ControlDevice(PathBuf);

/// A device node made through a control device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub identity: Identity,
    /// Major and minor number, as in sysfs.
    pub number: String,
    pub name: String,
    pub source: u32,
    pub destination: u32,
}

/// Identifies a node: numbers are used again, so a name is not enough.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Name in sysfs and below `/dev`.
    pub file: String,
    inode: u64,
}

/// All control devices below `root`, usually `/sys`, by number.
pub(super) fn controllers(root: &Path) -> io::Result<Vec<ControlDevice>> {
    let entries = match fs::read_dir(root.join("class/rpmsg")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix("rpmsg_ctrl")?.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort_by_key(|(number, _): &(u32, _)| *number);
    // One that has disappeared since the directory was read is skipped.
    Ok(found
        .into_iter()
        .filter_map(|(_, path)| path.canonicalize().ok())
        .map(ControlDevice)
        .collect())
}

impl ControlDevice {
    /// The control device with this device number; `Unsupported` if that is another device.
    pub(super) fn by_number(root: &Path, device: Dev) -> io::Result<Self> {
        let link = root.join(format!("dev/char/{}:{}", major(device), minor(device)));
        let dir = link.canonicalize()?;
        match subsystem(&dir).as_deref() {
            Some("rpmsg") => Ok(Self(dir)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Name below `/dev`.
    pub(super) fn file(&self) -> String {
        last(&self.0)
    }

    /// The driver that serves it.
    pub(super) fn driver(&self) -> Option<String> {
        Some(last(&fs::read_link(self.0.join("device/driver")).ok()?))
    }

    /// The processor behind it.
    pub(super) fn remoteproc(&self) -> Option<Remoteproc> {
        let dir = self.0.ancestors().find(|dir| subsystem(dir).as_deref() == Some("remoteproc"))?;
        Some(Remoteproc {
            device: last(dir),
            name: attribute(dir, "name").unwrap_or_default(),
            state: attribute(dir, "state").unwrap_or_default(),
        })
    }

    /// The services that the coprocessor has announced, by name and destination.
    pub(super) fn channels(&self) -> io::Result<Vec<ChannelInfo>> {
        let mut channels = self.siblings()?;
        channels.retain(|channel| !INTERNAL.contains(&channel.name.as_str()));
        channels.sort_by(|a, b| (&a.name, a.destination).cmp(&(&b.name, b.destination)));
        Ok(channels)
    }

    /// Whether a driver in the kernel has an endpoint with this local address.
    pub(super) fn has_driver_at(&self, source: u32) -> io::Result<bool> {
        // The control device has an address, but no endpoint.
        let has = |one: &ChannelInfo| one.name != "rpmsg_ctrl" && one.driver.is_some();
        Ok(self.siblings()?.iter().any(|one| one.source == source && has(one)))
    }

    /// The TTY that a channel's driver has made, `ttyRPMSGN`: the one with the lowest number.
    pub(super) fn tty(&self) -> io::Result<Option<String>> {
        let mut found = Vec::new();
        for dir in self.bus()? {
            let ttys = unless_gone(|| directories(&dir.join("tty")).map(Some))?;
            found.extend(ttys.unwrap_or_default().iter().map(|tty| last(tty)));
        }
        Ok(found.into_iter().min_by_key(|name| (name.len(), name.clone())))
    }

    /// Whether the rpmsg device of this name is on the same bus.
    pub(super) fn has_sibling(&self, name: &str) -> io::Result<bool> {
        Ok(self.bus()?.iter().any(|dir| last(dir) == name))
    }

    /// All rpmsg devices of the same bus.
    fn siblings(&self) -> io::Result<Vec<ChannelInfo>> {
        let mut channels = Vec::new();
        for dir in self.bus()? {
            channels.extend(unless_gone(|| channel(&dir))?);
        }
        Ok(channels)
    }

    /// The directories of its bus, those of rpmsg devices among them.
    fn bus(&self) -> io::Result<Vec<PathBuf>> {
        let device = self.0.join("device").canonicalize()?;
        device.parent().map_or_else(|| Ok(Vec::new()), directories)
    }

    /// The device nodes made through it, opened or not, except those in `known`.
    pub(super) fn nodes(&self, known: &HashSet<Identity>) -> io::Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for identity in self.identities()? {
            if !known.contains(&identity) {
                nodes.extend(self.node(&identity)?);
            }
        }
        Ok(nodes)
    }

    /// The identities of the nodes, without reading each of them.
    pub(super) fn identities(&self) -> io::Result<HashSet<Identity>> {
        let mut identities = HashSet::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if let Ok(file) = entry.file_name().into_string()
                && file.starts_with("rpmsg")
            {
                identities.insert(Identity { file, inode: entry.ino() });
            }
        }
        Ok(identities)
    }

    /// The node as it is now; `None` if it has disappeared.
    pub(super) fn node(&self, identity: &Identity) -> io::Result<Option<Node>> {
        let dir = self.0.join(&identity.file);
        unless_gone(|| {
            if fs::metadata(&dir)?.ino() != identity.inode {
                return Ok(None);
            }
            Ok(Some(Node {
                identity: identity.clone(),
                number: attribute(&dir, "dev")?,
                name: attribute(&dir, "name")?,
                source: address(&attribute(&dir, "src")?)?,
                destination: address(&attribute(&dir, "dst")?)?,
            }))
        })
    }
}

/// `None` if the file has disappeared meanwhile.
fn unless_gone<T>(look: impl FnOnce() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let found = look();
    match found.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::NOENT | Errno::NODEV)) => Ok(None),
        _ => found,
    }
}

fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn channel(dir: &Path) -> io::Result<Option<ChannelInfo>> {
    if subsystem(dir).as_deref() != Some("rpmsg") {
        return Ok(None);
    }
    Ok(Some(ChannelInfo {
        name: attribute(dir, "name")?,
        source: address(&attribute(dir, "src")?)?,
        destination: address(&attribute(dir, "dst")?)?,
        driver: fs::read_link(dir.join("driver")).ok().map(|link| last(&link)),
    }))
}

fn attribute(dir: &Path, name: &str) -> io::Result<String> {
    let text = fs::read(dir.join(name))?;
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn subsystem(dir: &Path) -> Option<String> {
    Some(last(&fs::read_link(dir.join("subsystem")).ok()?))
}

fn last(path: &Path) -> String {
    path.file_name().unwrap_or(OsStr::new("")).to_string_lossy().into_owned()
}

/// Channels print addresses as `0x400`, device nodes as signed decimals.
fn address(text: &str) -> io::Result<u32> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse().or_else(|_| text.parse().map(i32::cast_unsigned)),
    };
    number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use busbar_uapi::rpmsg::ADDR_ANY;
    use proptest::prelude::*;
    use rustix::fs::makedev;

    use super::*;

    /// A coprocessor in a sysfs of files and links.
    pub(crate) struct Fake(pub tempfile::TempDir);

    impl Fake {
        pub(crate) fn new() -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(fake.path("class/rpmsg")).unwrap();
            fs::create_dir_all(fake.path("dev/char")).unwrap();
            fake
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn put(&self, dir: &str, files: &[(&str, &str)], links: &[(&str, &str)]) {
            fs::create_dir_all(self.path(dir)).unwrap();
            for (name, text) in files {
                fs::write(self.path(dir).join(name), format!("{text}\n")).unwrap();
            }
            for (name, target) in links {
                symlink(self.path(target), self.path(dir).join(name)).unwrap();
            }
        }

        fn controller(&self, n: u32, driver: &str) -> String {
            self.controller_of(driver, n, &format!("240:{n}"))
        }

        /// Control device `n` of coprocessor `n` with this device number; returns the virtio device.
        pub(crate) fn controller_of(&self, driver: &str, n: u32, number: &str) -> String {
            let remoteproc = format!("devices/vcoproc.{n}/remoteproc/remoteproc{n}");
            self.put(
                &remoteproc,
                &[("name", "vcoproc"), ("state", "running")],
                &[("subsystem", "class/remoteproc")],
            );
            let bus = format!("{remoteproc}/rproc-virtio.1.auto/virtio{n}");
            let device = format!("{bus}/virtio{n}.rpmsg_ctrl.0.0");
            self.put(
                &device,
                &[("name", "rpmsg_ctrl"), ("src", "0x0"), ("dst", "0x0")],
                &[("subsystem", "bus/rpmsg"), ("driver", &format!("bus/rpmsg/drivers/{driver}"))],
            );
            let control = format!("{device}/rpmsg/rpmsg_ctrl{n}");
            let links = [("device", device.as_str()), ("subsystem", "class/rpmsg")];
            self.put(&control, &[("dev", number)], &links);
            symlink(self.path(&control), self.path(&format!("class/rpmsg/rpmsg_ctrl{n}"))).unwrap();
            symlink(self.path(&control), self.path(&format!("dev/char/{number}"))).unwrap();
            bus
        }

        pub(crate) fn channel(&self, bus: &str, name: &str, source: &str, destination: &str) {
            self.put(
                &format!("{bus}/virtio.{name}.{source}.{destination}"),
                &[("name", name), ("src", source), ("dst", destination)],
                &[("subsystem", "bus/rpmsg")],
            );
        }
    }

    #[test]
    fn no_rpmsg_in_the_kernel_is_an_empty_list() {
        let empty = tempfile::tempdir().unwrap();
        assert!(controllers(empty.path()).unwrap().is_empty());
    }

    #[test]
    fn controllers_come_in_the_order_of_their_numbers() {
        let fake = Fake::new();
        fake.controller(10, "rpmsg_ctrl");
        fake.controller(2, "rpmsg_eptfd");
        symlink("nowhere", fake.path("class/rpmsg/rpmsg_ctrl3")).unwrap();
        symlink("nowhere", fake.path("class/rpmsg/rpmsg7")).unwrap();
        let found = controllers(fake.0.path()).unwrap();
        let names: Vec<_> = found.iter().map(|one| (one.file(), one.driver())).collect();
        assert_eq!(
            names,
            [
                ("rpmsg_ctrl2".into(), Some("rpmsg_eptfd".into())),
                ("rpmsg_ctrl10".into(), Some("rpmsg_ctrl".into()))
            ]
        );
    }

    #[test]
    fn the_processor_above_a_controller_is_found() {
        let fake = Fake::new();
        fake.controller(1, "rpmsg_ctrl");
        let control = ControlDevice::by_number(fake.0.path(), makedev(240, 1)).unwrap();
        let expected = Remoteproc {
            device: "remoteproc1".into(),
            name: "vcoproc".into(),
            state: "running".into(),
        };
        assert_eq!(control.remoteproc(), Some(expected));
    }

    #[test]
    fn channels_are_those_of_the_same_coprocessor_without_the_internal_ones() {
        let fake = Fake::new();
        let bus = fake.controller(0, "rpmsg_ctrl");
        let other = fake.controller(1, "rpmsg_ctrl");
        fake.channel(&bus, "rpmsg_ns", "0x35", "0x35");
        fake.channel(&bus, "sink", "0xffffffff", "0x401");
        fake.channel(&bus, "echo", "0x404", "0x400");
        fake.channel(&other, "elsewhere", "0x404", "0x400");
        let control = ControlDevice::by_number(fake.0.path(), makedev(240, 0)).unwrap();
        let channels = control.channels().unwrap();
        let short: Vec<_> =
            channels.iter().map(|one| (one.name.as_str(), one.source, one.destination)).collect();
        assert_eq!(short, [("echo", 0x404, 0x400), ("sink", ADDR_ANY, 0x401)]);
    }

    #[test]
    fn a_tty_is_that_of_a_channel_of_the_same_coprocessor() {
        let fake = Fake::new();
        let bus = fake.controller(0, "rpmsg_ctrl");
        let other = fake.controller(1, "rpmsg_ctrl");
        fake.channel(&bus, "echo", "0x404", "0x400");
        let control = ControlDevice::by_number(fake.0.path(), makedev(240, 0)).unwrap();
        assert_eq!(control.tty().unwrap(), None);
        for (bus, name) in [(&bus, "ttyRPMSG10"), (&bus, "ttyRPMSG9"), (&other, "ttyRPMSG0")] {
            fake.put(&format!("{bus}/virtio.rpmsg-tty.{name}/tty/{name}"), &[], &[]);
        }
        assert_eq!(control.tty().unwrap().as_deref(), Some("ttyRPMSG9"));
    }

    #[test]
    fn addresses_of_drivers_are_taken_those_of_the_control_device_and_of_nobody_are_not() {
        let fake = Fake::new();
        let bus = fake.controller(0, "rpmsg_ctrl");
        fake.channel(&bus, "rpmsg_ns", "0x35", "0x35");
        fake.channel(&bus, "unbound", "0x405", "0x400");
        let driver = format!("{bus}/virtio.rpmsg_ns.0x35.0x35/driver");
        symlink(fake.path("bus/rpmsg/drivers/rpmsg_ns"), fake.path(&driver)).unwrap();
        let control = ControlDevice::by_number(fake.0.path(), makedev(240, 0)).unwrap();
        let taken = [0x35, 0, 0x405, 0x400].map(|source| control.has_driver_at(source).unwrap());
        assert_eq!(taken, [true, false, false, false]);
    }

    #[test]
    fn nodes_are_told_from_the_other_entries() {
        let fake = Fake::new();
        let bus = fake.controller(0, "rpmsg_ctrl");
        let control = format!("{bus}/virtio0.rpmsg_ctrl.0.0/rpmsg/rpmsg_ctrl0");
        fake.put(
            &format!("{control}/rpmsg4"),
            &[("dev", "241:4"), ("name", "echo"), ("src", "-1"), ("dst", "1024")],
            &[],
        );
        fake.put(&format!("{control}/power"), &[("control", "auto")], &[]);
        fake.put(&format!("{control}/rpmsg_other"), &[("name", "no node")], &[]);
        let device = ControlDevice::by_number(fake.0.path(), makedev(240, 0)).unwrap();
        let nodes = device.nodes(&HashSet::new()).unwrap();
        let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
        assert_eq!((node.identity.file.as_str(), node.number.as_str()), ("rpmsg4", "241:4"));
        assert_eq!((node.name.as_str(), node.source, node.destination), ("echo", ADDR_ANY, 1024));
        assert_eq!(device.node(&node.identity).unwrap().as_ref(), Some(node));
        assert_eq!(device.nodes(&device.identities().unwrap()).unwrap(), []);
    }

    #[test]
    fn a_node_made_again_under_the_same_name_is_another_one() {
        let fake = Fake::new();
        let bus = fake.controller(0, "rpmsg_ctrl");
        let dir = format!("{bus}/virtio0.rpmsg_ctrl.0.0/rpmsg/rpmsg_ctrl0/rpmsg4");
        let files = [("dev", "241:4"), ("name", "echo"), ("src", "-1"), ("dst", "1024")];
        fake.put(&dir, &files, &[]);
        let device = ControlDevice::by_number(fake.0.path(), makedev(240, 0)).unwrap();
        let before = device.identities().unwrap();
        fs::rename(fake.path(&dir), fake.path("away")).unwrap();
        fake.put(&dir, &files, &[]);
        assert_eq!(device.nodes(&before).unwrap().len(), 1);
        let old = before.iter().next().unwrap();
        assert_eq!(device.node(old).unwrap(), None);
    }

    #[test]
    fn another_device_is_no_control_device() {
        let fake = Fake::new();
        fake.put("devices/virtual/mem/null", &[], &[("subsystem", "class/mem")]);
        symlink(fake.path("devices/virtual/mem/null"), fake.path("dev/char/1:3")).unwrap();
        let error = ControlDevice::by_number(fake.0.path(), makedev(1, 3)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn an_unknown_device_number_is_not_found() {
        let fake = Fake::new();
        let error = ControlDevice::by_number(fake.0.path(), makedev(1, 3)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn addresses_are_read_as_the_kernel_prints_them(value: u32) {
            prop_assert_eq!(address(&format!("0x{value:x}")).unwrap(), value);
            prop_assert_eq!(address(&format!("{}", value.cast_signed())).unwrap(), value);
            prop_assert_eq!(address(&format!("{value}")).unwrap(), value);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = address(&text);
        }
    }
}
