//! An IIO device in sysfs: its name, its channels, the settings of its buffer.
//!
//! Values from sysfs are checked like any other input.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::format::Format;
use super::scan::{self, Type};
use super::values::Scale;
use crate::{Error, Result};

/// Bytes of the longest attribute: a page.
const ATTRIBUTE: u64 = 4096;

/// Which way samples go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Receive,
    Transmit,
}

impl Direction {
    fn prefix(self) -> &'static str {
        match self {
            Self::Receive => "in_",
            Self::Transmit => "out_",
        }
    }

    /// The event of a file of the driver when a block is done.
    pub(super) fn events(self) -> EventFlags {
        match self {
            Self::Receive => EventFlags::IN,
            Self::Transmit => EventFlags::OUT,
        }
    }
}

/// One device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// `iio:deviceN`.
    pub id: String,
    /// Its attribute `name`.
    pub name: String,
    dir: PathBuf,
    /// The directory of the channels' settings.
    scan: PathBuf,
    /// The directory of the buffer's settings.
    buffer: PathBuf,
}

/// A channel that can be selected.
#[derive(Clone, Debug)]
struct Element {
    index: u32,
    name: String,
    kind: Type,
    is_on: bool,
}

impl Device {
    /// The device of this name or number below `root`, usually `/sys`.
    pub(super) fn find(root: &Path, wanted: &str) -> Result<Self> {
        let found = Self::all(root).map_err(|why| {
            Error::new("list", "IIO devices", why).help("the kernel needs CONFIG_IIO")
        })?;
        let number = wanted.strip_prefix("iio:").unwrap_or(wanted);
        let is_it = |device: &Self| device.id.strip_prefix("iio:") == Some(number);
        let by_id = found.iter().find(|device| is_it(device)).cloned();
        let mut fitting = by_id
            .into_iter()
            .chain(found.iter().filter(|device| !is_it(device) && device.name == wanted).cloned());
        match (fitting.next(), fitting.next()) {
            (Some(one), Some(other)) if !is_it(&one) => {
                let allowed = format!("by number: {}, {}, …", one.id, other.id);
                Err(Error::invalid("the name of an IIO device that several have", wanted, allowed))
            }
            (Some(device), _) => Ok(device),
            (None, _) => {
                let names: Vec<_> = found.into_iter().map(|device| device.name).collect();
                Err(Error::new("find", format!("IIO device `{wanted}`"), Errno::NOENT)
                    .help(format!("there are: {}; see `busbar doctor`", names.join(", "))))
            }
        }
    }

    fn all(root: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(root.join("bus/iio/devices"))? {
            let Ok(id) = entry?.file_name().into_string() else { continue };
            if id.strip_prefix("iio:device").is_some_and(|number| number.parse::<u32>().is_ok()) {
                found.extend(Self::at(&root.join("bus/iio/devices").join(&id), id));
            }
        }
        found.sort_by_key(|device| (device.id.len(), device.id.clone()));
        Ok(found)
    }

    /// `None` if the device has gone meanwhile.
    fn at(link: &Path, id: String) -> Option<Self> {
        let dir = link.canonicalize().ok()?;
        let name = attribute(&dir.join("name")).unwrap_or_default();
        // Since Linux 5.13 there may be many buffers, in directories of their own.
        let first = dir.join("buffer0");
        let (scan, buffer) = if first.is_dir() {
            (first.clone(), first)
        } else {
            (dir.join("scan_elements"), dir.join("buffer"))
        };
        Some(Self { id, name, dir, scan, buffer })
    }

    /// The name of the device in errors.
    pub(super) fn label(&self) -> String {
        format!("IIO device `{}` ({})", self.name, self.id)
    }

    /// An attribute of the device, if it has one of this name.
    pub(super) fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.dir.join(name)).ok()
    }

    /// Whether the device still exists. If that cannot be found out now, it counts as there.
    fn exists(&self) -> bool {
        self.buffer.try_exists().unwrap_or(true)
    }

    fn elements(&self, direction: Direction) -> Result<Vec<Element>> {
        let failed = |why| Error::new("list the channels of", self.label(), why);
        let entries = match fs::read_dir(&self.scan) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return Err(
                    failed(why).help("it has no buffer, or its driver needs a trigger first")
                );
            }
            entries => entries.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let file = entry.map_err(failed)?.file_name();
            let Some(name) = file
                .to_str()
                .and_then(|file| file.strip_prefix(direction.prefix())?.strip_suffix("_en"))
            else {
                continue;
            };
            found.push(self.element(direction, name)?);
        }
        found.sort_by_key(|element| element.index);
        Ok(found)
    }

    fn element(&self, direction: Direction, name: &str) -> Result<Element> {
        let read = |what: &str| {
            let path = self.scan.join(format!("{}{name}_{what}", direction.prefix()));
            let text = attribute(&path)
                .map_err(|why| Error::new("read", path.display().to_string(), why))?;
            Ok::<_, Error>((path, text))
        };
        let bad = |(path, text): (PathBuf, String), allowed| {
            Error::invalid(path.display().to_string(), text, allowed)
        };
        let kind = read("type")?;
        let kind = Type::parse(&kind.1).ok_or_else(|| {
            bad(kind, "[be|le]:[s|u]BITS/STORAGE[XREPEAT][>>SHIFT], lengths powers of 2")
        })?;
        let index = read("index")?;
        let index = index.1.parse().map_err(|_| bad(index, "a number"))?;
        let is_on = read("en")?.1 == "1";
        Ok(Element { index, name: name.to_owned(), kind, is_on })
    }

    /// How to convert the values of a channel into a unit. Attributes that the device does not have get
    /// the defaults of IIO.
    pub(super) fn scale(&self, direction: Direction, channel: &str) -> Scale {
        let Scale { offset, scale } = Scale::default();
        let number = |what| self.number(direction, channel, what);
        Scale {
            offset: number("offset").unwrap_or(offset),
            scale: number("scale").unwrap_or(scale),
        }
    }

    /// An attribute of a channel, or the one that it shares with others: of `in_voltage0_i_scale`,
    /// `in_voltage_i_scale`, `in_voltage0_scale`, `in_voltage_scale`, `in_scale` and `scale` the first.
    fn number(&self, direction: Direction, channel: &str, what: &str) -> Option<f64> {
        let mut names = Vec::new();
        let mut rest = Some(channel);
        while let Some(name) = rest {
            names.push(format!("{}{name}_{what}", direction.prefix()));
            let shared = name.replace(|letter: char| letter.is_ascii_digit(), "");
            names.push(format!("{}{shared}_{what}", direction.prefix()));
            rest = name.rsplit_once('_').map(|(before, _)| before);
        }
        names.push(format!("{}{what}", direction.prefix()));
        names.push(what.to_owned());
        let found =
            names.iter().find_map(|name| self.attribute(name)?.trim().parse::<f64>().ok())?;
        found.is_finite().then_some(found)
    }

    /// The sampling rate, if the device has one.
    fn rate(&self, direction: Direction) -> Option<f64> {
        let names = ["", direction.prefix(), &format!("{}voltage_", direction.prefix())]
            .map(|prefix| format!("{prefix}sampling_frequency"));
        let rate = names.iter().find_map(|name| self.attribute(name)?.parse::<f64>().ok())?;
        (rate.is_finite() && rate > 0.0).then_some(rate)
    }
}

/// Whether two values of an attribute are the same, as numbers or as text.
fn is_same(one: &str, other: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other).is_eq(),
        _ => one.trim() == other.trim(),
    }
}

/// The device, and what its attribute is in errors.
fn owner(device: &str, attribute: &str) -> Result<(Device, String)> {
    let device = Device::find(Path::new("/sys"), device)?;
    let on = format!("`{attribute}` of {}", device.label());
    if attribute.is_empty() || attribute.contains('/') {
        return Err(Error::invalid(on, attribute.escape_debug(), "the name of an attribute"));
    }
    Ok((device, on))
}

/// The value of an attribute of a device.
pub(super) fn get_attribute(device: &str, name: &str) -> Result<String> {
    let (device, on) = owner(device, name)?;
    attribute(&device.dir.join(name)).map_err(|why| Error::new("read", on, why))
}

/// Writes a value to an attribute of a device.
pub(super) fn set_attribute(device: &str, attribute: &str, value: &str) -> Result<()> {
    let (device, on) = owner(device, attribute)?;
    write_attribute(&device.dir.join(attribute), value, &on)
}

/// Writes a value to the file of an attribute, which is `on` in errors.
pub(super) fn write_attribute(path: &Path, value: &str, on: &str) -> Result<()> {
    // The kernel takes an attribute in one write.
    let write = |mut file: File| file.write_all(value.as_bytes());
    let written = File::options().write(true).open(path).and_then(write);
    unless_set(written, value, || attribute(path).ok())
        .map_err(|why| Error::new(format!("write `{value}` to"), on, why))
}

/// The result of a write. While a device is used, many drivers refuse every write, even of the value that is set: that is
/// no failure. All other writes are the driver's business, as one of the same value may have an effect.
pub(super) fn unless_set(
    written: io::Result<()>,
    value: &str,
    read: impl FnOnce() -> Option<String>,
) -> io::Result<()> {
    match written {
        Err(why)
            if Errno::from_io_error(&why) == Some(Errno::BUSY)
                && read().is_some_and(|found| is_same(&found, value)) =>
        {
            Ok(())
        }
        written => written,
    }
}

/// The value in the file of an attribute, without the newline at its end.
pub(super) fn attribute(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(ATTRIBUTE).read_to_end(&mut text)?;
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// The settings of the channels and the buffer of a device. Dropping it restores them.
#[derive(Debug)]
pub(super) struct Control {
    device: Device,
    /// The attribute `enable`. It stays open so that a process without free descriptors can check and stop
    /// the device.
    enable: File,
    /// The attribute `data_available`, if the driver has it.
    available: Option<File>,
    /// The settings before, in the order in which they were changed.
    before: Vec<(PathBuf, String)>,
    is_on: bool,
}

impl Control {
    /// Takes over a buffer that no other program uses. Its last user may have died before it disabled
    /// the buffer.
    pub(super) fn new(device: Device) -> Result<Self> {
        if !device.exists() {
            return Err(
                Error::new("use", device.label(), Errno::OPNOTSUPP).help("it has no buffer")
            );
        }
        let failed = |name: &str, why| {
            Error::new("open", device.buffer.join(name).display().to_string(), why)
        };
        let enable = File::options().read(true).write(true).open(device.buffer.join("enable"));
        let enable = enable.map_err(|why| failed("enable", why))?;
        let available = match File::open(device.buffer.join("data_available")) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(|why| failed("data_available", why))?),
        };
        let control = Self { device, enable, available, before: Vec::new(), is_on: false };
        if control.is_enabled() == Ok(true) {
            control.set_enabled("0")?;
        }
        Ok(control)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Switches these channels on and all others off; returns what a sample is then.
    pub(super) fn select(&mut self, direction: Direction, names: &[String]) -> Result<Format> {
        let elements = self.device.elements(direction)?;
        let on = wanted(&self.device, &elements, names)?;
        let switch = |name: &str| self.device.scan.join(format!("{}{name}_en", direction.prefix()));
        // Off first: devices do not allow all combinations.
        let off = elements.iter().filter(|one| one.is_on && !on.contains(&one.name.as_str()));
        let changes: Vec<_> = off
            .map(|one| (switch(&one.name), "0"))
            .chain(
                elements
                    .iter()
                    .filter(|one| on.contains(&one.name.as_str()) && !one.is_on)
                    .map(|one| (switch(&one.name), "1")),
            )
            .collect();
        for (path, value) in changes {
            self.set(&path, value)?;
        }
        self.format(direction)
    }

    /// What a sample is with the channels that are on.
    fn format(&self, direction: Direction) -> Result<Format> {
        let elements = self.device.elements(direction)?;
        let scan = elements.into_iter().filter(|one| one.is_on);
        let (channels, sample_len) = scan::layout(
            scan.map(|one| (one.index, one.name, one.kind)).collect(),
        )
        .ok_or_else(|| {
            Error::new("use", self.device.label(), io::ErrorKind::InvalidData)
                .help("its channels do not fit beside each other in a sample")
        })?;
        Ok(Format { channels, sample_len, rate: self.device.rate(direction) })
    }

    /// Sets how many samples the driver's own buffer holds, if that can be set.
    pub(super) fn set_length(&mut self, samples: usize) -> Result<()> {
        let path = self.device.buffer.join("length");
        self.set(&path, &samples.to_string())
    }

    /// Sets how many samples make the file readable, if that can be set.
    pub(super) fn set_watermark(&mut self, samples: usize) {
        let path = self.device.buffer.join("watermark");
        // Without it, the file is readable earlier.
        let _ = self.set(&path, &samples.to_string());
    }

    pub(super) fn enable(&mut self) -> Result<()> {
        self.set_enabled("1")?;
        self.is_on = true;
        Ok(())
    }

    /// Disables the buffer. Returns when the driver has given up all blocks. If it fails, it can be tried
    /// again.
    pub(super) fn disable(&mut self) -> Result<()> {
        if self.is_on {
            self.unless_gone(self.set_enabled("0"))?;
            self.is_on = false;
        }
        Ok(())
    }

    /// Makes a driver that another program has disabled give up the blocks that it got after that. It
    /// does so when it is disabled the next time, so this enables it.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.is_on && self.is_enabled() == Ok(false) { self.enable() } else { Ok(()) }
    }

    /// Whether another program has disabled the buffer, or the device has gone. Other failures to read the
    /// state do not count: the next check may succeed.
    pub(super) fn has_stopped(&self) -> bool {
        matches!(self.is_enabled(), Ok(false) | Err(Errno::NODEV)) || !self.device.exists()
    }

    /// Whether the buffer is enabled; `ENODEV` if the device has gone.
    fn is_enabled(&self) -> Result<bool, Errno> {
        Ok(read(&self.enable)? == "1")
    }

    /// The attribute `data_available`, if the driver has it.
    pub(super) fn available(&self) -> Result<Option<usize>, Errno> {
        let Some(file) = &self.available else { return Ok(None) };
        Ok(read(file)?.parse().ok())
    }

    /// Disables the buffer and restores all settings. What could not be restored is tried again by the next
    /// call.
    pub(super) fn restore(&mut self) -> Result<()> {
        let mut result = self.disable();
        let mut left = Vec::new();
        while let Some((path, value)) = self.before.pop() {
            let done = self.unless_gone(self.write(&path, &value));
            if done.is_err() {
                left.push((path, value));
            }
            result = result.and(done);
        }
        left.reverse();
        self.before = left;
        result
    }

    /// A device that has gone is disabled and has no settings.
    fn unless_gone(&self, done: Result<()>) -> Result<()> {
        if self.device.exists() { done } else { Ok(()) }
    }

    fn set(&mut self, path: &Path, value: &str) -> Result<()> {
        let before =
            attribute(path).map_err(|why| Error::new("read", path.display().to_string(), why))?;
        if before == value {
            return Ok(());
        }
        self.write(path, value)?;
        if !self.before.iter().any(|(known, _)| known == path) {
            self.before.push((path.to_owned(), before));
        }
        Ok(())
    }

    #[allow(clippy::unused_self)] // a setting is one of this device
    fn write(&self, path: &Path, value: &str) -> Result<()> {
        let file = File::options().write(true).truncate(true).open(path);
        let file = file.map_err(|why| not_written(path, value, why))?;
        write(&file, value).map_err(|errno| not_written(path, value, errno.into()))
    }

    fn set_enabled(&self, value: &str) -> Result<()> {
        let path = self.device.buffer.join("enable");
        write(&self.enable, value).map_err(|errno| not_written(&path, value, errno.into()))
    }
}

/// An attribute that is kept open, as it is now.
fn read(file: &File) -> Result<String, Errno> {
    let mut text = [0; 32];
    let count = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut text, 0))?;
    Ok(String::from_utf8_lossy(&text[..count]).trim_end().to_owned())
}

/// One call: the kernel takes each write as a whole value.
fn write(file: &File, value: &str) -> Result<(), Errno> {
    rustix::io::pwrite(file, value.as_bytes(), 0).map(drop)
}

fn not_written(path: &Path, value: &str, why: io::Error) -> Error {
    let error = Error::new(format!("write {value} to"), path.display().to_string(), why);
    match error.errno() {
        Some(Errno::BUSY) => error.help("another program uses the device"),
        Some(Errno::INVAL) if path.ends_with("enable") => {
            error.help("no channel is on, or the device has no trigger: trigger/current_trigger")
        }
        _ => error,
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // No caller is left to handle an error.
        let _ = self.restore();
    }
}

/// The names of the channels to switch on.
fn wanted<'a>(device: &Device, elements: &'a [Element], names: &[String]) -> Result<Vec<&'a str>> {
    let all = || elements.iter().map(|one| one.name.as_str());
    if let Some(name) = names.iter().find(|name| !all().any(|known| known == name.as_str())) {
        let known: Vec<_> = all().collect();
        let field = format!("a channel of {}", device.label());
        return Err(Error::invalid(field, name, known.join(", ")));
    }
    if !names.is_empty() {
        return Ok(all().filter(|name| names.iter().any(|wanted| wanted == name)).collect());
    }
    let voltages: Vec<_> = all().filter(|name| name.starts_with("voltage")).collect();
    if !voltages.is_empty() {
        return Ok(voltages);
    }
    Ok(all().filter(|name| *name != "timestamp").collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs of files.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(fake.0.path().join("bus/iio/devices")).unwrap();
            fake
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn get(&self, path: &str) -> String {
            fs::read_to_string(self.0.path().join(path)).unwrap().trim_end().to_owned()
        }

        /// Device `number` with this name and these channels, all off but the first.
        fn device(&self, number: u32, name: &str, channels: &[(&str, &str)]) {
            let dir = format!("devices/iio:device{number}");
            self.put(&format!("{dir}/name"), name);
            for (file, text) in [("enable", "0"), ("length", "2"), ("watermark", "1")] {
                self.put(&format!("{dir}/buffer0/{file}"), text);
            }
            for (index, (channel, kind)) in channels.iter().enumerate() {
                let prefix = format!("{dir}/buffer0/{channel}");
                self.put(&format!("{prefix}_en"), if index == 0 { "1" } else { "0" });
                self.put(&format!("{prefix}_type"), kind);
                self.put(&format!("{prefix}_index"), &index.to_string());
            }
            let link = self.0.path().join(format!("bus/iio/devices/iio:device{number}"));
            symlink(self.0.path().join(dir), link).unwrap();
        }

        fn find(&self, name: &str) -> Result<Device> {
            Device::find(self.0.path(), name)
        }

        fn control(&self, name: &str) -> Control {
            Control::new(self.find(name).unwrap()).unwrap()
        }
    }

    const CHANNELS: [(&str, &str); 4] = [
        ("in_accel_x", "be:s12/16>>4"),
        ("in_voltage0_i", "le:s16/16>>0"),
        ("in_voltage0_q", "le:s16/16>>0"),
        ("in_timestamp", "le:s64/64>>0"),
    ];

    fn names(format: &Format) -> Vec<(&str, usize)> {
        format.channels.iter().map(|one| (one.name.as_str(), one.offset)).collect()
    }

    #[test]
    fn devices_are_found_by_name_and_by_number() {
        let fake = Fake::new();
        fake.device(0, "vconv0", &CHANNELS);
        fake.device(11, "vconv1", &CHANNELS);
        symlink("nowhere", fake.0.path().join("bus/iio/devices/iio:device3")).unwrap();
        symlink("nowhere", fake.0.path().join("bus/iio/devices/trigger0")).unwrap();
        assert_eq!(fake.find("vconv1").unwrap().id, "iio:device11");
        assert_eq!(fake.find("iio:device0").unwrap().name, "vconv0");
        let error = fake.find("vconv").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert!(error.to_string().contains("vconv0, vconv1"), "{error}");
        let error = Device::find(Path::new("/nonexistent"), "x").unwrap_err();
        assert!(error.to_string().contains("CONFIG_IIO"), "{error}");
    }

    #[test]
    fn a_name_that_two_have_is_no_name_and_a_number_goes_before_a_name() {
        let fake = Fake::new();
        fake.device(0, "same", &CHANNELS);
        fake.device(1, "same", &CHANNELS);
        fake.device(2, "iio:device0", &CHANNELS);
        let error = fake.find("same").unwrap_err();
        assert!(error.to_string().contains("iio:device0, iio:device1"), "{error}");
        assert_eq!(fake.find("iio:device0").unwrap().id, "iio:device0");
    }

    #[test]
    fn a_scale_is_that_of_the_channel_or_the_one_that_it_shares() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let device = fake.find("one").unwrap();
        let is = |offset, scale| {
            assert_eq!(device.scale(Direction::Receive, "voltage0_i"), Scale { offset, scale });
        };
        is(0.0, 1.0);
        let mut next = 1.0;
        for name in ["scale", "in_scale", "in_voltage_scale", "in_voltage0_scale"] {
            next *= 0.5;
            fake.put(&format!("devices/iio:device0/{name}"), &format!("{next}\n"));
            is(0.0, next);
        }
        fake.put("devices/iio:device0/in_voltage_i_scale", "0.061035156");
        fake.put("devices/iio:device0/in_voltage0_i_offset", "-2048");
        is(-2048.0, 0.061_035_156);
        // Of others: channel 1, the way out, and what is no number.
        for name in ["in_voltage1_i_scale", "out_voltage0_i_scale"] {
            fake.put(&format!("devices/iio:device0/{name}"), "7");
        }
        fake.put("devices/iio:device0/in_voltage0_i_scale", "inf");
        is(-2048.0, 1.0);
    }

    #[test]
    fn channels_are_switched_and_put_back() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let mut control = fake.control("one");
        let format = control.select(Direction::Receive, &[]).unwrap();
        assert_eq!(
            (names(&format), format.sample_len),
            (vec![("voltage0_i", 0), ("voltage0_q", 2)], 4)
        );
        assert_eq!(fake.get("devices/iio:device0/buffer0/in_accel_x_en"), "0");
        control.set_length(100).unwrap();
        control.set_length(50).unwrap();
        control.enable().unwrap();
        assert_eq!(control.is_enabled(), Ok(true));
        drop(control);
        let now = ["in_accel_x_en", "in_voltage0_i_en", "length", "enable"]
            .map(|file| fake.get(&format!("devices/iio:device0/buffer0/{file}")));
        assert_eq!(now, ["1", "0", "2", "0"]);
    }

    #[test]
    fn channels_are_chosen_by_name_in_the_order_of_the_device() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let mut control = fake.control("one");
        let chosen = ["timestamp", "accel_x"].map(str::to_owned);
        let format = control.select(Direction::Receive, &chosen).unwrap();
        assert_eq!(
            (names(&format), format.sample_len),
            (vec![("accel_x", 0), ("timestamp", 8)], 16)
        );
        assert!(format.channels[0].big_endian && format.channels[0].shift == 4);
        let error = control.select(Direction::Receive, &["voltage7".into()]).unwrap_err();
        assert!(error.to_string().contains("accel_x, voltage0_i"), "{error}");
        let error = control.select(Direction::Transmit, &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn a_device_without_voltages_gives_all_but_the_time() {
        let fake = Fake::new();
        fake.device(0, "one", &[CHANNELS[0], CHANNELS[3]]);
        let format = fake.control("one").select(Direction::Receive, &[]).unwrap();
        assert_eq!(names(&format), [("accel_x", 0)]);
    }

    #[test]
    fn a_rate_is_a_number_above_0() {
        for (text, rate) in [
            ("1000000", Some(1e6)),
            ("52.5", Some(52.5)),
            ("0", None),
            ("-1", None),
            ("inf", None),
            ("", None),
        ] {
            let fake = Fake::new();
            fake.device(0, "one", &CHANNELS);
            fake.put("devices/iio:device0/in_voltage_sampling_frequency", text);
            let format = fake.control("one").select(Direction::Receive, &[]).unwrap();
            assert_eq!(format.rate, rate, "{text}");
        }
    }

    #[test]
    fn what_is_no_type_or_index_is_an_error_that_names_the_file() {
        for (file, text) in [("in_voltage0_i_type", "le:s99/16"), ("in_accel_x_index", "-1")] {
            let fake = Fake::new();
            fake.device(0, "one", &CHANNELS);
            fake.put(&format!("devices/iio:device0/buffer0/{file}"), text);
            let error = fake.control("one").select(Direction::Receive, &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(file), "{error}");
        }
    }

    #[test]
    fn a_buffer_that_was_left_on_is_switched_off() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        fake.put("devices/iio:device0/buffer0/enable", "1");
        let control = fake.control("one");
        assert_eq!(control.is_enabled(), Ok(false));
    }

    #[test]
    fn older_kernels_have_their_files_elsewhere() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let dir = fake.0.path().join("devices/iio:device0");
        fs::rename(dir.join("buffer0"), dir.join("scan_elements")).unwrap();
        fake.put("devices/iio:device0/buffer/enable", "0");
        let mut control = fake.control("one");
        assert_eq!(control.select(Direction::Receive, &[]).unwrap().channels.len(), 2);
        control.enable().unwrap();
        assert_eq!(fake.get("devices/iio:device0/buffer/enable"), "1");
    }

    #[test]
    fn values_are_the_same_as_numbers_or_as_text() {
        assert!(is_same("48000.000000\n", "48000") && is_same("sine", "sine\n"));
        assert!(!is_same("0.5", "0.25") && !is_same("sine", "noise") && !is_same("1", "one"));
    }

    #[test]
    fn a_device_that_has_gone_is_off() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let mut control = fake.control("one");
        control.select(Direction::Receive, &[]).unwrap();
        control.enable().unwrap();
        fs::remove_dir_all(fake.0.path().join("devices/iio:device0")).unwrap();
        assert!(control.has_stopped());
        control.restore().unwrap();
    }

    #[test]
    fn a_device_is_checked_and_stopped_without_a_new_descriptor() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        fake.put("devices/iio:device0/buffer0/data_available", "7");
        let mut control = fake.control("one");
        control.enable().unwrap();
        // Whoever opens the files now fails, as at EMFILE.
        let dir = fake.0.path().join("devices/iio:device0/buffer0");
        for file in ["enable", "data_available"] {
            fs::rename(dir.join(file), dir.join(format!("no_{file}"))).unwrap();
        }
        assert!(!control.has_stopped());
        assert_eq!(control.available(), Ok(Some(7)));
        control.disable().unwrap();
        assert_eq!(fake.get("devices/iio:device0/buffer0/no_enable"), "0");
        assert!(control.has_stopped());
    }

    #[test]
    fn what_could_not_be_restored_is_restored_by_the_next_call() {
        let fake = Fake::new();
        fake.device(0, "one", &CHANNELS);
        let mut control = fake.control("one");
        control.select(Direction::Receive, &[]).unwrap();
        control.set_length(100).unwrap();
        let path = fake.0.path().join("devices/iio:device0/buffer0/length");
        fs::rename(&path, path.with_extension("kept")).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(control.restore().is_err());
        assert!(control.restore().is_err());
        fs::remove_dir(&path).unwrap();
        fs::rename(path.with_extension("kept"), &path).unwrap();
        control.restore().unwrap();
        let now = ["in_accel_x_en", "in_voltage0_i_en", "length"]
            .map(|file| fake.get(&format!("devices/iio:device0/buffer0/{file}")));
        assert_eq!(now, ["1", "0", "2"]);
    }
}
