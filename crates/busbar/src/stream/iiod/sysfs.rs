//! The IIO devices of this machine as libiio sees them, and their attributes.
//!
//! Linux has a file for each attribute. Which channel a file belongs to follows from its name:
//! `in_voltage0_i_scale` is `scale` of the input `voltage0_i`, `in_voltage_scale` that of all voltages.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::context::{Channel, Context, Device, Scan};
use crate::stream::scan::Type;

/// What may follow the number of a channel, `include/uapi/linux/iio/types.h`.
const MODIFIERS: [&str; 45] = [
    "x",
    "y",
    "z",
    "x&y",
    "x&z",
    "y&z",
    "x&y&z",
    "x|y",
    "x|z",
    "y|z",
    "x|y|z",
    "sqrt(x^2+y^2)",
    "x^2+y^2+z^2",
    "both",
    "ir",
    "clear",
    "red",
    "green",
    "blue",
    "uv",
    "duv",
    "quaternion",
    "ambient",
    "object",
    "from_north_magnetic",
    "from_north_true",
    "from_north_magnetic_tilt_comp",
    "from_north_true_tilt_comp",
    "running",
    "jogging",
    "walking",
    "still",
    "sqrt(x^2+y^2+z^2)",
    "i",
    "q",
    "co2",
    "ethanol",
    "h2",
    "o2",
    "voc",
    "pm1",
    "pm2p5",
    "pm4",
    "pm10",
    "",
];
/// Attributes of every device of Linux.
const NOT_SHOWN: [&str; 2] = ["dev", "uevent"];
/// Attributes of a buffer that opening it sets.
const RESERVED: [&str; 3] = ["length", "enable", "watermark"];
/// Most devices: a mask of keys of the server.
const MOST_DEVICES: usize = 1024;

/// What libiio is configured by: attributes of the context are in one of its sections.
const CONFIG: &str = "/etc/libiio.ini";
const SECTION: &str = "[Context Attributes]";
/// Most bytes of this file that are read, and most attributes of it.
const MOST_CONFIG: u64 = 16 << 10;
const MOST_CONFIGURED: usize = 128;

/// Where the kernel shows its devices.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    pub devices: PathBuf,
    pub debug: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { devices: "/sys/bus/iio/devices".into(), debug: "/sys/kernel/debug/iio".into() }
    }
}

impl Roots {
    /// The ids of the devices that there are, sorted. Asks no driver, so this does not wait. A kernel without IIO has none.
    pub(super) fn ids(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.devices) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut ids = Vec::new();
        for entry in entries.take(MOST_DEVICES) {
            ids.extend(entry?.file_name().into_string());
        }
        ids.sort();
        Ok(ids)
    }
}

impl Context {
    /// This machine, without its devices.
    pub(super) fn of_system() -> Self {
        let system = rustix::system::uname();
        let parts = [
            system.sysname(),
            system.nodename(),
            system.release(),
            system.version(),
            system.machine(),
        ];
        let description: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
        let release = system.release().to_string_lossy().into_owned();
        let mut attributes = configured(Path::new(CONFIG));
        attributes.extend([("local,kernel".into(), release), ("uri".into(), "local:".into())]);
        Self { description: description.join(" "), attributes, devices: Vec::new() }
    }

    /// This machine and its IIO devices. A kernel without IIO has none.
    pub(super) fn of_machine(roots: &Roots) -> io::Result<Self> {
        // A device that goes meanwhile is left out.
        let devices = roots.ids()?.into_iter().filter_map(|id| Device::of_machine(roots, id).ok());
        Ok(Self { devices: devices.collect(), ..Self::of_system() })
    }
}

/// The attributes of the context that a file lists, as libiio reads it. Without the file there are none, and what is too
/// long is left out.
fn configured(path: &Path) -> Vec<(String, String)> {
    let mut text = Vec::new();
    // A file that cannot be read is no reason not to serve: libiio goes on without it as well.
    let read = File::open(path).and_then(|file| file.take(MOST_CONFIG).read_to_end(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    if text.len() as u64 == MOST_CONFIG {
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    }
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines = lines.skip_while(|line| !line.starts_with(SECTION)).skip(1);
    // What is no pair ends the section.
    let pairs = lines.map_while(|line| line.split_once('=').filter(|_| !line.starts_with('[')));
    let blank = [' ', '\t'];
    let pair = |(name, value): (&str, &str)| {
        (name.trim_end_matches(blank).into(), value.trim_start_matches(blank).into())
    };
    pairs.map(pair).take(MOST_CONFIGURED).collect()
}

/// A channel while its files are collected.
#[derive(Debug, Default)]
struct Files {
    id: String,
    name: Option<String>,
    is_output: bool,
    is_in_scan: bool,
    /// Short names, and files.
    attributes: Vec<(String, String)>,
    /// The same of the scan: `en`, `index`, `type`.
    scan: Vec<(String, String)>,
    /// The same of its events.
    events: Vec<(String, String)>,
}

impl Device {
    fn of_machine(roots: &Roots, id: String) -> io::Result<Self> {
        let dir = roots.devices.join(&id);
        if !dir.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mut device = Self { id, ..Self::default() };
        let (mut channels, mut shared) = (Vec::new(), Vec::new());
        for file in files(&dir)? {
            match file.as_str() {
                "name" => device.name = text(&dir.join("name")),
                "label" => device.label = text(&dir.join("label")),
                _ if is_of_channel(&file) => Files::add(&mut channels, &file, &file, false),
                _ if !NOT_SHOWN.contains(&file.as_str()) => shared.push(file),
                _ => {}
            }
        }
        device.buffer_attributes = files(&dir.join("buffer")).unwrap_or_default();
        device.buffer_attributes.retain(|name| !RESERVED.contains(&name.as_str()));
        for file in files(&dir.join("scan_elements")).unwrap_or_default() {
            Files::add(&mut channels, &file, &format!("scan_elements/{file}"), true);
        }
        for file in files(&dir.join("events")).unwrap_or_default() {
            device.event_attributes.extend(Files::add_event(&mut channels, file));
        }
        channels.iter_mut().for_each(Files::find_name);
        device.attributes = share(&mut channels, shared);
        device.channels = channels.into_iter().map(|files| files.into_channel(&dir)).collect();
        order(&mut device.channels);
        device.debug_attributes = files(&roots.debug.join(&device.id)).unwrap_or_default();
        Ok(device)
    }
}

/// The names of regular files in a folder, sorted.
fn files(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_file = fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file());
        if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// An attribute, without its end of line.
fn text(path: &Path) -> Option<String> {
    let mut value = read(path, 1024).ok()?;
    value.pop();
    String::from_utf8(value).ok()
}

/// The length of the modifier at the beginning, if there is one.
fn modifier(text: &str) -> Option<usize> {
    let is_it = |known: &&&str| {
        let rest = text.strip_prefix(**known);
        !known.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    MODIFIERS.iter().find(is_it).map(|known| known.len())
}

/// A file without `in_` or `out_`.
fn without_direction(file: &str) -> Option<&str> {
    file.strip_prefix("in_").or_else(|| file.strip_prefix("out_"))
}

/// Whether a file belongs to one channel: the channel has a number or a modifier.
fn is_of_channel(file: &str) -> bool {
    if file.starts_with("in_timestamp_") {
        return true;
    }
    let Some((channel, rest)) = without_direction(file).and_then(|name| name.split_once('_'))
    else {
        return false;
    };
    channel.ends_with(|last: char| last.is_ascii_digit()) || modifier(rest).is_some()
}

/// The channel of a file, and the rest of its name.
fn split(file: &str) -> Option<(&str, &str)> {
    let name = without_direction(file)?;
    let end = name.find('_')?;
    let end = end + modifier(&name[end + 1..]).map_or(0, |len| len + 1);
    Some((&name[..end], name.get(end + 1..).unwrap_or_default()))
}

impl Files {
    /// Adds a file to its channel, which may be new.
    fn add(all: &mut Vec<Self>, file: &str, path: &str, is_in_scan: bool) {
        let Some((id, _)) = split(file) else { return };
        let is_output = file.starts_with("out_");
        let found = all.iter().position(|it| it.id == id && it.is_output == is_output);
        let index = found.unwrap_or_else(|| {
            all.push(Self { id: id.into(), is_output, ..Self::default() });
            all.len() - 1
        });
        all[index].push(file, path, is_in_scan);
    }

    fn push(&mut self, file: &str, path: &str, is_in_scan: bool) {
        let Some((_, mut short)) = split(file) else { return };
        if let Some(rest) =
            self.name.as_deref().and_then(|name| short.strip_prefix(name)?.strip_prefix('_'))
        {
            short = rest;
        }
        self.is_in_scan |= is_in_scan;
        let to = if is_in_scan { &mut self.scan } else { &mut self.attributes };
        to.push((short.into(), path.into()));
    }

    /// Adds a file of an event to its channel. Returns it if it belongs to none, as if several have the same event.
    fn add_event(all: &mut [Self], file: String) -> Option<String> {
        let Some((id, short)) = split(&file) else { return Some(file) };
        let is_output = file.starts_with("out_");
        let found = all.iter_mut().find(|it| it.id == id && it.is_output == is_output);
        let Some(channel) = found else { return Some(file) };
        channel.events.push((short.into(), file));
        None
    }

    /// What all files of a channel begin with is the name that its driver has given it.
    fn find_name(&mut self) {
        let all: Vec<_> =
            self.attributes.iter().chain(&self.scan).map(|(name, _)| name.as_str()).collect();
        let (Some(first), true) = (all.first(), all.len() >= 2) else { return };
        let ends = first.match_indices('_').map(|(at, _)| at);
        let end =
            ends.take_while(|end| all.iter().all(|name| name.starts_with(&first[..=*end]))).last();
        let Some(end) = end else { return };
        self.name = Some(first[..end].into());
        for (name, _) in self.attributes.iter_mut().chain(&mut self.scan) {
            name.drain(..=end);
        }
    }

    /// How a file that no channel has for itself belongs to this one: 2 by the name of its driver, 1 by its
    /// type, 0 not at all.
    fn shares(&self, file: &str) -> u8 {
        let prefix = if self.is_output { "out_" } else { "in_" };
        let Some((kind, rest)) = file.strip_prefix(prefix).and_then(|name| name.split_once('_'))
        else {
            return 0;
        };
        let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
        // The two ends of a differential channel: `voltage-voltage` of `voltage0-voltage1`.
        if let (Some((one, other)), Some((mine, yours))) =
            (kind.split_once('-'), self.id.split_once('-'))
            && mine.strip_prefix(one).is_some_and(is_number)
            && yours.strip_prefix(other).is_some_and(is_number)
        {
            return 1;
        }
        let Some(after) = self.id.strip_prefix(kind) else { return 0 };
        if is_number(after) {
            let named =
                self.name.as_deref().and_then(|name| rest.strip_prefix(name)?.strip_prefix('_'));
            return if named.is_some() { 2 } else { 1 };
        }
        u8::from(after.strip_prefix('_').is_some_and(|rest| modifier(rest).is_some()))
    }

    fn into_channel(self, dir: &Path) -> Channel {
        let Self { id, name, is_output, is_in_scan, mut attributes, scan, events } = self;
        attributes.sort();
        let file =
            |wanted: &str| scan.iter().find(|(name, _)| name == wanted).map(|(_, file)| file);
        let value = |wanted: &str| text(&dir.join(file(wanted)?));
        // A driver without a file `scale` for the channel may have one for the device.
        let scale =
            attributes.iter().find(|(name, _)| name == "scale").map_or("scale", |(_, file)| file);
        let scan = is_in_scan.then(|| {
            let enable = file("en")?.strip_prefix("scan_elements/")?;
            Some(Scan {
                index: value("index")?.parse().ok()?,
                kind: Type::parse(&value("type")?)?,
                scale: text(&dir.join(scale)).and_then(|text| float(&text)),
                name: without_direction(enable)?.strip_suffix("_en")?.into(),
            })
        });
        let scan = scan.flatten();
        Channel { id, name, is_output, scan, attributes, event_attributes: events }
    }
}

/// Gives attributes to the channels that they belong to. Returns those of the device itself.
fn share(channels: &mut Vec<Files>, files: Vec<String>) -> Vec<String> {
    let mut rest = Vec::new();
    for file in files {
        let how = channels.iter().map(|channel| channel.shares(&file)).max().unwrap_or(0);
        if how == 0 {
            rest.push(file);
            continue;
        }
        for channel in channels.iter_mut().filter(|channel| channel.shares(&file) == how) {
            channel.push(&file, &file, false);
        }
    }
    // Channels without a number.
    rest.retain(|file| {
        let is_channel = without_direction(file).is_some_and(|name| name.contains('_'));
        if is_channel {
            Files::add(channels, file, file, false);
        }
        !is_channel
    });
    rest
}

/// Channels of the scan come first, by their index and then their shift.
fn order(channels: &mut [Channel]) {
    channels.sort_by_key(|channel| {
        channel.scan.as_ref().map_or((true, 0, 0), |scan| (false, scan.index, scan.kind.shift))
    });
}

/// The number at the beginning of a text.
fn float(text: &str) -> Option<f32> {
    let text = text.trim_start();
    let ends = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    let found = ends.take(64).find_map(|end| text[..end].parse::<f32>().ok())?;
    found.is_finite().then_some(found)
}

/// The value of an attribute as the protocol has it: its last byte is 0 instead of the end of line.
///
/// # Errors
///
/// `EFBIG` if it has `most` bytes or more, `EIO` if it has none; the driver's error.
pub(super) fn read(path: &Path, most: usize) -> Result<Vec<u8>, Errno> {
    let mut value = Vec::new();
    let file = File::open(path).map_err(|why| errno(&why))?;
    file.take(most as u64).read_to_end(&mut value).map_err(|why| errno(&why))?;
    if value.len() >= most {
        return Err(Errno::FBIG);
    }
    *value.last_mut().ok_or(Errno::IO)? = 0;
    Ok(value)
}

/// Writes an attribute in one call. Returns the length.
pub(super) fn write(path: &Path, value: &[u8]) -> Result<usize, Errno> {
    let file = File::options().write(true).truncate(true).open(path);
    let mut file = file.map_err(|why| match errno(&why) {
        // Where files cannot be created, this is what creating one returns.
        Errno::NOENT if path.parent().is_some_and(Path::is_dir) => Errno::ACCESS,
        errno => errno,
    })?;
    if value.is_empty() {
        return Err(Errno::IO);
    }
    file.write_all(value).map_err(|why| errno(&why))?;
    Ok(value.len())
}

fn errno(why: &io::Error) -> Errno {
    Errno::from_io_error(why).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like that of a device, with these files and contents.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let root = tempfile::tempdir().unwrap();
        let roots =
            Roots { devices: root.path().join("devices"), debug: root.path().join("debug") };
        for (name, content) in files {
            let path = roots.devices.join("iio:device0").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{content}\n")).unwrap();
        }
        fs::create_dir_all(roots.debug.join("iio:device0")).unwrap();
        fs::write(roots.debug.join("iio:device0/direct_reg_access"), "0\n").unwrap();
        (root, roots)
    }

    fn device(files: &[(&str, &str)]) -> Device {
        let (_root, roots) = machine(files);
        Context::of_machine(&roots).unwrap().devices.remove(0)
    }

    fn names(channel: &Channel) -> Vec<&str> {
        channel.attributes.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn files_belong_to_the_device_one_channel_or_all_of_a_type() {
        let device = device(&[
            ("name", "adc"),
            ("label", "left"),
            ("uevent", "x"),
            ("pattern", "counter"),
            ("in_voltage0_i_raw", "7"),
            ("in_voltage_scale", "0.25"),
            ("in_temp_input", "20"),
            ("in_timestamp_mode", "x"),
            ("out_voltage0_raw", "1"),
            ("in_sampling_frequency_available", "1 2"),
            ("sampling_frequency", "1000"),
            ("buffer/enable", "0"),
            ("buffer/data_available", "0"),
            ("scan_elements/in_voltage0_i_en", "0"),
            ("scan_elements/in_voltage0_i_index", "1"),
            ("scan_elements/in_voltage0_i_type", "le:s12/16>>4"),
            ("scan_elements/in_timestamp_en", "0"),
            ("scan_elements/in_timestamp_index", "2"),
            ("scan_elements/in_timestamp_type", "le:s64/64>>0"),
            ("scan_elements/in_voltage0_q_en", "0"),
            ("scan_elements/in_voltage0_q_index", "0"),
            ("scan_elements/in_voltage0_q_type", "le:s16/16>>0"),
        ]);
        assert_eq!((device.name.as_deref(), device.label.as_deref()), (Some("adc"), Some("left")));
        assert_eq!(device.attributes, ["pattern", "sampling_frequency"]);
        assert_eq!(device.buffer_attributes, ["data_available"]);
        assert_eq!(device.debug_attributes, ["direct_reg_access"]);
        let ids: Vec<_> = device.channels.iter().map(|it| (it.id.as_str(), it.is_output)).collect();
        let expected = [
            ("voltage0_q", false),
            ("voltage0_i", false),
            ("timestamp", false),
            ("voltage0", true),
            ("temp", false),
            ("sampling", false),
        ];
        assert_eq!(ids[..3], expected[..3]);
        assert!(expected.iter().all(|one| ids.contains(one)), "{ids:?}");
        let i = device.channel("voltage0_i", false).unwrap();
        assert_eq!(names(i), ["raw", "scale"]);
        assert_eq!(i.attributes[1].1, "in_voltage_scale");
        let scan = i.scan.as_ref().unwrap();
        assert_eq!((scan.index, scan.scale, scan.name.as_str()), (1, Some(0.25), "voltage0_i"));
        assert_eq!(device.channel("timestamp", false).unwrap().attributes[0].0, "mode");
        // An attribute of inputs is none of an output.
        assert_eq!(names(device.channel("voltage0", true).unwrap()), ["raw"]);
        assert_eq!(names(device.channel("temp", false).unwrap()), ["input"]);
    }

    #[test]
    fn what_all_files_of_a_channel_begin_with_is_its_name() {
        let device = device(&[
            ("in_voltage0_vref_high_raw", "7"),
            ("in_voltage0_vref_high_offset", "7"),
            ("in_voltage1_raw", "7"),
            ("in_voltage_vref_high_scale", "2"),
            ("in_voltage_range", "2"),
        ]);
        let named = device.channel("voltage0", false).unwrap();
        assert_eq!(named.name.as_deref(), Some("vref_high"));
        assert_eq!(names(named), ["offset", "range", "raw", "scale"]);
        let other = device.channel("voltage1", false).unwrap();
        assert_eq!((other.name.as_deref(), names(other)), (None, vec!["range", "raw"]));
        assert_eq!(device.channel("vref_high", false), Some(named));
    }

    #[test]
    fn events_belong_to_a_channel_or_the_device() {
        let device = device(&[
            ("in_voltage0_raw", "7"),
            ("out_voltage0_raw", "7"),
            ("in_accel_x_raw", "7"),
            ("in_steps_input", "7"),
            ("events/in_voltage0_thresh_rising_en", "0"),
            ("events/in_voltage0_thresh_rising_value", "0"),
            ("events/in_accel_x_mag_falling_en", "0"),
            ("events/in_accel_x&y&z_mag_falling_en", "0"),
            ("events/in_voltage_thresh_falling_en", "0"),
            ("events/in_steps_change_en", "0"),
            ("events/odd", "0"),
        ]);
        assert!(device.has_events());
        let events = |id| {
            let channel = device.channel(id, false).unwrap();
            let all = channel.event_attributes.iter();
            all.map(|(name, file)| (name.as_str(), file.as_str())).collect::<Vec<_>>()
        };
        let expected = [
            ("thresh_rising_en", "in_voltage0_thresh_rising_en"),
            ("thresh_rising_value", "in_voltage0_thresh_rising_value"),
        ];
        assert_eq!(events("voltage0"), expected);
        assert_eq!(events("accel_x"), [("mag_falling_en", "in_accel_x_mag_falling_en")]);
        assert_eq!(device.channel("voltage0", true).unwrap().event_attributes, []);
        let shared = [
            "in_accel_x&y&z_mag_falling_en",
            "in_steps_change_en",
            "in_voltage_thresh_falling_en",
            "odd",
        ];
        assert_eq!(device.event_attributes, shared);
    }

    #[test]
    fn the_ends_of_a_differential_channel_share_attributes() {
        let device =
            device(&[("in_voltage0-voltage1_raw", "7"), ("in_voltage-voltage_scale", "2")]);
        assert_eq!(names(&device.channels[0]), ["raw", "scale"]);
    }

    #[test]
    fn values_end_with_zero_and_errors_are_those_of_the_system() {
        let (_root, roots) = machine(&[("name", "adc"), ("long", &"x".repeat(100))]);
        let dir = roots.devices.join("iio:device0");
        assert_eq!(read(&dir.join("name"), 1024).unwrap(), b"adc\0");
        assert_eq!(read(&dir.join("long"), 101), Err(Errno::FBIG));
        assert_eq!(read(&dir.join("long"), 102).unwrap().len(), 101);
        assert_eq!(read(&dir.join("nothing"), 1024), Err(Errno::NOENT));
        assert_eq!(read(&dir, 1024), Err(Errno::ISDIR));
        fs::write(dir.join("empty"), "").unwrap();
        assert_eq!(read(&dir.join("empty"), 1024), Err(Errno::IO));
        assert_eq!(write(&dir.join("name"), b"dac\0"), Ok(4));
        assert_eq!(read(&dir.join("name"), 1024).unwrap(), b"dac\0");
        assert_eq!(write(&dir.join("new"), b"x"), Err(Errno::ACCESS));
        assert_eq!(write(&dir.join("trigger/current_trigger"), b"x"), Err(Errno::NOENT));
        assert!(!dir.join("new").exists());
        assert_eq!(write(&dir.join("name"), b""), Err(Errno::IO));
    }

    #[test]
    fn a_machine_without_devices_has_none() {
        let roots = Roots { devices: "/nowhere".into(), debug: "/nowhere".into() };
        let context = Context::of_machine(&roots).unwrap();
        assert_eq!(context.devices, []);
        assert!(context.description.starts_with("Linux "));
    }

    #[test]
    fn attributes_of_the_context_are_those_that_libiio_reads() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("libiio.ini");
        assert_eq!(configured(&path), []);
        let pairs = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let pairs = configured(&path).into_iter();
            pairs.map(|(name, value)| format!("{name}|{value}")).collect::<Vec<_>>()
        };
        let text = b"# a board\n[Other]\nx=1\n\n[Context Attributes]\r\n# model\nhw_model = Demo <board> = 1\r\n\n\
            hw_serial=0001\nad9361-phy,model=ad9363a\n[More]\ny=2\n";
        let expected = ["hw_model|Demo <board> = 1", "hw_serial|0001", "ad9361-phy,model|ad9363a"];
        assert_eq!(pairs(text), expected);
        assert_eq!(pairs(b"[Context Attributes]\na=1\nno pair\nb=2\n"), ["a|1"]);
        assert!(pairs(b"a=1\n[Context]\nb=2\n").is_empty());
        assert!(pairs(b"").is_empty() && pairs(b"\xff\0[").is_empty());
        // What a huge file has is bounded, and no value is cut.
        let huge = format!("[Context Attributes]\n{}", "name=0123456789abcdef\n".repeat(1 << 14));
        let found = pairs(huge.as_bytes());
        assert_eq!(found.len(), MOST_CONFIGURED);
        let long = format!("[Context Attributes]\na=1\nb={}\n", "x".repeat(1 << 20));
        assert_eq!(pairs(long.as_bytes()), ["a|1"]);
    }

    #[test]
    fn the_number_before_a_unit_is_a_scale() {
        for (text, expected) in [
            ("0.5", Some(0.5)),
            (" 2 V", Some(2.0)),
            ("x", None),
            ("", None),
            ("inf", None),
            ("1e99", None),
        ] {
            assert_eq!(float(text), expected, "{text:?}");
        }
    }
}
