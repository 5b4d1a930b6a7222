//! The IIO devices of a machine, and their attributes by a connection that stays.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::context::{self, Context};
use super::remote::{self, Connection, WHOLE};
use super::sysfs::Roots;
use crate::stream::device;
use crate::stream::format::Channel;
use crate::stream::scan;
use crate::{Error, Result};

/// A device, as [`devices`] and [`Devices`] list it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// `iio:deviceN`.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its label, if it has one: where several devices have one name.
    pub label: Option<String>,
    /// All its channels: those of a sample first, in its order.
    pub channels: Vec<ChannelInfo>,
    /// Channels to receive from, as [`StreamSetup`](crate::stream::StreamSetup) names them, in the order and at the places
    /// of a sample that has them all.
    pub inputs: Vec<Channel>,
    /// Channels to transmit to.
    pub outputs: Vec<Channel>,
    /// Names of its attributes and those of its channels, as their files in Linux have them.
    pub attributes: Vec<String>,
    /// Names of its own attributes.
    pub own_attributes: Vec<String>,
    /// Names of the attributes of its buffer.
    pub buffer_attributes: Vec<String>,
    /// Names of its attributes in debugfs, such as `direct_reg_access`.
    pub debug_attributes: Vec<String>,
    /// Samples per second, if the device tells.
    pub rate: Option<f64>,
}

/// A channel of a device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChannelInfo {
    /// Such as `voltage0`.
    pub id: String,
    /// The name that its driver has given it, if it has one.
    pub name: Option<String>,
    /// Whether it transmits.
    pub is_output: bool,
    /// How its values are stored, and where in a sample that has all channels, if it can be in one.
    pub format: Option<Channel>,
    /// Short names of its attributes, such as `scale`, and those that their files in Linux have.
    pub attributes: Vec<(String, String)>,
}

/// What an attribute belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner<'a> {
    /// The device or any of its channels: the name is that of the file in Linux, such as `in_voltage0_scale`.
    Any,
    /// The device itself.
    Device,
    /// A channel, by its id or name.
    Channel {
        /// Its id or name.
        id: &'a str,
        /// Whether it transmits.
        is_output: bool,
    },
    /// The buffer.
    Buffer,
    /// The device, in debugfs.
    Debug,
}

/// The IIO devices of this machine, or of another one where `iiod` or [`busbar serve`](super::Server) runs.
///
/// For another machine there is one connection, which stays: reading an attribute takes one round trip. If the server
/// closes it, or a call fails by it, the next call connects anew; nothing is sent twice. What is listed is as it was at
/// first. Calls of several threads are made one after the other.
///
/// ```
/// use std::time::Duration;
///
/// use busbar::stream::iiod::{Devices, Owner};
///
/// # fn main() -> busbar::Result<()> {
/// let devices = Devices::open(None, Duration::from_secs(10))?;
/// for device in devices.list() {
///     for name in &device.own_attributes {
///         println!("{} {name}: {:?}", device.id, devices.read(&device.id, Owner::Device, name).ok());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Devices {
    roots: Roots,
    context: Context,
    list: Vec<DeviceInfo>,
    far: Option<Far>,
}

/// Another machine.
#[derive(Debug)]
struct Far {
    /// `HOST[:PORT]`.
    host: String,
    /// How long a call may take.
    time: Duration,
    /// `None` after a failure.
    connection: Mutex<Option<Connection>>,
}

/// Lists the IIO devices of this machine, or of another one: `HOST[:PORT]`. Triggers are left out.
///
/// # Errors
///
/// Those of the network; `EACCES`.
pub fn devices(host: Option<&str>) -> Result<Vec<DeviceInfo>> {
    Devices::open(host, WHOLE).map(|devices| devices.list)
}

impl Devices {
    /// Lists the devices of this machine, or of another one, `HOST[:PORT]`. `time` is how long this and each call may
    /// take on the network, without the time that a name server takes; for this machine it has no meaning.
    ///
    /// # Errors
    ///
    /// Those of the network, such as `ECONNREFUSED` and `ETIMEDOUT`; `EBADMSG` if what answers has another protocol;
    /// `EACCES`.
    pub fn open(host: Option<&str>, time: Duration) -> Result<Self> {
        Self::below(Roots::default(), host, time)
    }

    fn below(roots: Roots, host: Option<&str>, time: Duration) -> Result<Self> {
        let (far, context) = if let Some(host) = host {
            let (connection, context) = remote::list(host, time)?;
            let connection = Mutex::new(Some(connection));
            (Some(Far { host: host.into(), time, connection }), context)
        } else {
            let context = Context::of_machine(&roots);
            (None, context.map_err(|why| Error::new("list", "IIO devices", why))?)
        };
        let mut devices = Self { roots, context, list: Vec::new(), far };
        let all = devices.context.devices.iter().filter(|device| !device.is_trigger());
        devices.list = all.map(|device| devices.info(device)).collect::<Result<_>>()?;
        Ok(devices)
    }

    /// The devices, by their ids. Triggers are left out.
    #[must_use]
    pub fn list(&self) -> &[DeviceInfo] {
        &self.list
    }

    /// The names of the triggers.
    pub fn triggers(&self) -> impl Iterator<Item = &str> {
        let triggers = self.context.devices.iter().filter(|device| device.is_trigger());
        triggers.filter_map(|trigger| trigger.name.as_deref())
    }

    /// The value of an attribute of a device, which is given by its id, label or name, without the newline at its end.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such device, channel or attribute; what the driver returns; those of [`open`](Self::open).
    pub fn read(&self, device: &str, owner: Owner<'_>, name: &str) -> Result<String> {
        let place = self.place(device, owner, name)?;
        match &self.far {
            Some(far) => far.call(|connection| connection.read(&place.command, &place.label)),
            None => {
                device::attribute(&place.file).map_err(|why| Error::new("read", place.label, why))
            }
        }
    }

    /// Writes a value to an attribute, also one that it has already.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); what the driver returns, such as `EINVAL`, or `EBUSY` while the device is used, unless
    /// the attribute has the value already. After an error of the network it is not known whether it was written.
    pub fn write(&self, device: &str, owner: Owner<'_>, name: &str, value: &str) -> Result<()> {
        let place = self.place(device, owner, name)?;
        match &self.far {
            Some(far) => {
                far.call(|connection| connection.write(&place.command, value, &place.label))
            }
            None => device::write_attribute(&place.file, value, &place.label),
        }
    }

    /// The name of the trigger of a device, if it has one.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); `ENOENT` if the device knows no triggers.
    pub fn trigger(&self, device: &str) -> Result<Option<String>> {
        let (device, label) = self.trigger_of(device)?;
        if let Some(far) = &self.far {
            return far.call(|connection| connection.trigger(&device.id, &label));
        }
        let name = device::attribute(&self.trigger_file(device));
        let name = name.map_err(|why| Error::new("read", label, why))?;
        Ok(Some(name).filter(|name| !name.is_empty()))
    }

    /// Sets the trigger of a device, one of [`triggers`](Self::triggers), or none.
    ///
    /// # Errors
    ///
    /// As [`trigger`](Self::trigger); bad input for another name; `EBUSY` while the device is used.
    pub fn set_trigger(&self, device: &str, trigger: Option<&str>) -> Result<()> {
        let (device, label) = self.trigger_of(device)?;
        if let Some(name) = trigger.filter(|name| !self.triggers().any(|known| known == *name)) {
            let allowed = self.triggers().collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(label, name, format!("one of: {allowed}")));
        }
        if let Some(far) = &self.far {
            return far.call(|connection| connection.set_trigger(&device.id, trigger, &label));
        }
        // An empty line is no trigger.
        device::write_attribute(&self.trigger_file(device), trigger.unwrap_or("\n"), &label)
    }

    fn trigger_of(&self, device: &str) -> Result<(&context::Device, String)> {
        let device = self.find(device)?;
        Ok((device, format!("the trigger of {}", self.label(device))))
    }

    fn trigger_file(&self, device: &context::Device) -> PathBuf {
        self.roots.devices.join(&device.id).join("trigger/current_trigger")
    }

    fn find(&self, device: &str) -> Result<&context::Device> {
        self.context.find(device).map(|index| &self.context.devices[index]).ok_or_else(|| {
            let names = self.list.iter().map(|it| it.name.as_ref().unwrap_or(&it.id).as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            Error::new("find", format!("IIO device `{device}`{}", self.at()), Errno::NOENT)
                .help(format!("there are: {names}"))
        })
    }

    /// What a device is in errors.
    fn label(&self, device: &context::Device) -> String {
        let name = device.name.as_ref().unwrap_or(&device.id);
        format!("IIO device `{name}` ({}){}", device.id, self.at())
    }

    fn at(&self) -> String {
        self.far.as_ref().map_or_else(String::new, |far| format!(" of {}", far.host))
    }

    /// Where an attribute is. Only what is listed is found, so a name is part of a command or path as it is.
    fn place(&self, device: &str, owner: Owner<'_>, name: &str) -> Result<Place> {
        let device = self.find(device)?;
        let dir = self.roots.devices.join(&device.id);
        let mut on = self.label(device);
        let (known, kind, file): (Vec<_>, _, _) = match owner {
            Owner::Any => return self.place_of_file(device, name),
            Owner::Device => (names(&device.attributes), String::new(), dir.join(name)),
            Owner::Buffer => {
                on = format!("the buffer of {on}");
                (names(&device.buffer_attributes), " BUFFER".into(), dir.join("buffer").join(name))
            }
            Owner::Debug => {
                let file = self.roots.debug.join(&device.id).join(name);
                (names(&device.debug_attributes), " DEBUG".into(), file)
            }
            Owner::Channel { id, is_output } => {
                on = format!("channel `{id}` of {on}");
                let channel = device.channel(id, is_output);
                let channel =
                    channel.ok_or_else(|| Error::new("find", on.as_str(), Errno::NOENT))?;
                let found = channel.attributes.iter().find(|(short, _)| short == name);
                let file = dir.join(found.map_or(name, |(_, file)| file));
                let way = if is_output { "OUTPUT" } else { "INPUT" };
                let known = channel.attributes.iter().map(|(short, _)| short.as_str()).collect();
                (known, format!(" {way} {}", channel.id), file)
            }
        };
        let label = format!("`{}` of {on}", name.escape_debug());
        if !known.contains(&name) {
            let error = Error::new("find", label, Errno::NOENT);
            return Err(error.help(format!("there are: {}", known.join(", "))));
        }
        Ok(Place { command: format!("{}{kind} {name}", device.id), file, label })
    }

    fn place_of_file(&self, device: &context::Device, file: &str) -> Result<Place> {
        let label = format!("`{}` of {}", file.escape_debug(), self.label(device));
        match remote::place(device, file) {
            Some(command) => {
                let file = self.roots.devices.join(&device.id).join(file);
                Ok(Place { command, file, label })
            }
            None => Err(Error::new("find", label, Errno::NOENT)),
        }
    }

    fn info(&self, device: &context::Device) -> Result<DeviceInfo> {
        let of_channels = device.channels.iter().flat_map(|it| &it.attributes);
        let files = device.attributes.iter().chain(of_channels.map(|(_, file)| file));
        let attributes: BTreeSet<_> = files.cloned().collect();
        let (inputs, outputs) = (scanned(device, false), scanned(device, true));
        let channel = |it: &context::Channel| {
            let all = if it.is_output { &outputs } else { &inputs };
            let name = it.scan.as_ref().map(|scan| &scan.name);
            ChannelInfo {
                id: it.id.clone(),
                name: it.name.clone(),
                is_output: it.is_output,
                format: name.and_then(|name| all.iter().find(|one| one.name == *name).cloned()),
                attributes: it.attributes.clone(),
            }
        };
        Ok(DeviceInfo {
            id: device.id.clone(),
            name: device.name.clone(),
            label: device.label.clone(),
            channels: device.channels.iter().map(channel).collect(),
            rate: self.rate(device)?,
            inputs,
            outputs,
            attributes: attributes.into_iter().collect(),
            own_attributes: device.attributes.clone(),
            buffer_attributes: device.buffer_attributes.clone(),
            debug_attributes: device.debug_attributes.clone(),
        })
    }

    fn rate(&self, device: &context::Device) -> Result<Option<f64>> {
        let Some((command, file)) = device.rate_place() else { return Ok(None) };
        let rate = match &self.far {
            Some(far) => far.call(|connection| connection.attribute(&command))?,
            None => device::attribute(&self.roots.devices.join(&device.id).join(file)).ok(),
        };
        let rate = rate.and_then(|text| text.trim().parse::<f64>().ok());
        Ok(rate.filter(|rate| rate.is_finite() && *rate > 0.0))
    }
}

/// Where an attribute is.
struct Place {
    /// In a command.
    command: String,
    /// On this machine.
    file: PathBuf,
    /// In errors.
    label: String,
}

fn names(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// The channels of a direction in a sample that has them all.
fn scanned(device: &context::Device, is_output: bool) -> Vec<Channel> {
    let channels = device.channels.iter().filter(|it| it.is_output == is_output);
    let scan = channels.filter_map(|it| it.scan.as_ref());
    let scan = scan.map(|scan| (scan.index, scan.name.clone(), scan.kind)).collect();
    scan::layout(scan).map(|(channels, _)| channels).unwrap_or_default()
}

impl Far {
    /// Makes a call by the connection, which is made anew if it was lost. It is given up if the call fails by it: what is
    /// left of an answer would be taken for the next one.
    fn call<T>(&self, call: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = held.take().and_then(|mut it| it.renew(self.time).then_some(it));
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::to(&self.host, self.time)?,
        };
        let result = call(&mut connection);
        if !connection.has_failed() {
            *held = Some(connection);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::{fs, thread};

    use super::*;

    const TIME: Duration = Duration::from_secs(60);
    const DEVICE: &str = "iio:device0";
    const XML: &str = "<context name=\"local\"><device id=\"iio:device0\" name=\"adc\" label=\"in\">\
        <channel id=\"voltage0\" type=\"input\">\
        <scan-element index=\"0\" format=\"le:s12/16&gt;&gt;4\"/>\
        <attribute name=\"scale\" filename=\"in_voltage0_scale\"/></channel>\
        <attribute name=\"gain\"/><buffer-attribute name=\"data_available\"/>\
        <debug-attribute name=\"direct_reg_access\"/></device>\
        <device id=\"trigger0\" name=\"clock\"/></context>";

    /// What the script of a server does after a command.
    type Answer = Box<dyn FnMut(&str) -> Option<String> + Send>;

    /// A server that answers by a script, one client after the other; without an answer it closes. What it was told, with a
    /// line for each client.
    fn server(mut answer: Answer) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tell, told) = channel();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket: TcpStream = socket.unwrap();
                let mut lines = BufReader::new(socket.try_clone().unwrap());
                let _ = tell.send("client".into());
                loop {
                    let mut line = String::new();
                    if lines.read_line(&mut line).unwrap_or(0) == 0 {
                        break;
                    }
                    let line = line.trim().to_owned();
                    let mut said = line.clone();
                    if let Some((_, len)) =
                        line.rsplit_once(' ').filter(|_| line.starts_with("WRITE"))
                    {
                        let mut value = vec![0; len.parse().unwrap()];
                        lines.read_exact(&mut value).unwrap();
                        said = format!("{line} {}", String::from_utf8_lossy(&value));
                    }
                    let answer = match line.as_str() {
                        "PRINT" => Some(value(XML)),
                        _ => answer(&line),
                    };
                    let _ = tell.send(said);
                    match answer {
                        Some(answer) => (&socket).write_all(answer.as_bytes()).unwrap(),
                        None => break,
                    }
                }
            }
        });
        (address, told)
    }

    fn value(text: &str) -> String {
        format!("{}\n{text}\n", text.len())
    }

    fn all(told: &Receiver<String>) -> Vec<String> {
        told.try_iter().filter(|line| line != "PRINT").collect()
    }

    #[test]
    fn attributes_of_another_machine_are_read_and_written_by_one_connection() {
        let (host, told) = server(Box::new(|line| {
            Some(match line {
                "READ iio:device0 gain" => value("7\0"),
                "READ iio:device0 INPUT voltage0 scale" => value("0.5\0"),
                "READ iio:device0 BUFFER data_available" => value("12\0"),
                "READ iio:device0 DEBUG direct_reg_access" => "-13\n".into(),
                _ => "0\n".into(),
            })
        }));
        let devices = Devices::open(Some(&host), TIME).unwrap();
        let info = &devices.list()[0];
        assert_eq!((info.id.as_str(), info.label.as_deref()), (DEVICE, Some("in")));
        let channel = &info.channels[0];
        assert_eq!((channel.id.as_str(), channel.is_output), ("voltage0", false));
        assert_eq!(channel.format.as_ref().map(|it| (it.bits, it.shift)), Some((12, 4)));
        let of_channel = Owner::Channel { id: "voltage0", is_output: false };
        assert_eq!(devices.read("adc", Owner::Device, "gain").unwrap(), "7");
        assert_eq!(devices.read("in", of_channel, "scale").unwrap(), "0.5");
        assert_eq!(devices.read("in", Owner::Any, "in_voltage0_scale").unwrap(), "0.5");
        assert_eq!(devices.read("in", Owner::Any, "gain").unwrap(), "7");
        assert_eq!(
            devices.read("in", Owner::Any, "scale").unwrap_err().errno(),
            Some(Errno::NOENT)
        );
        assert_eq!(devices.read(DEVICE, Owner::Buffer, "data_available").unwrap(), "12");
        let denied = devices.read(DEVICE, Owner::Debug, "direct_reg_access").unwrap_err();
        assert_eq!(denied.errno(), Some(Errno::ACCESS));
        assert_eq!(devices.triggers().collect::<Vec<_>>(), ["clock"]);
        assert_eq!(devices.trigger("adc").unwrap(), None);
        devices.set_trigger("adc", Some("clock")).unwrap();
        devices.set_trigger("adc", None).unwrap();
        assert!(devices.set_trigger("adc", Some("none")).unwrap_err().input().is_some());
        // The value that is there is written as well.
        devices.write("adc", Owner::Device, "gain", "7").unwrap();
        // What is not listed is not asked for.
        for name in ["other", "gain 1\r\nEXIT", "../name", ""] {
            let error = devices.read("adc", Owner::Device, name).unwrap_err();
            assert_eq!(
                (error.errno(), error.advice()),
                (Some(Errno::NOENT), Some("there are: gain"))
            );
        }
        let no_channel = Owner::Channel { id: "voltage0", is_output: true };
        assert_eq!(
            devices.read("adc", no_channel, "scale").unwrap_err().errno(),
            Some(Errno::NOENT)
        );
        assert_eq!(
            devices.read("dac", Owner::Device, "gain").unwrap_err().errno(),
            Some(Errno::NOENT)
        );
        let all = all(&told);
        assert_eq!(all.iter().filter(|line| *line == "client").count(), 1);
        assert!(
            all.ends_with(
                &[
                    "SETTRIG iio:device0 clock",
                    "SETTRIG iio:device0",
                    "WRITE iio:device0 gain 2 7\0"
                ]
                .map(String::from)
            ),
            "{all:?}"
        );
    }

    #[test]
    fn a_device_that_is_used_refuses_only_what_would_change_it() {
        let (host, told) = server(Box::new(|line| {
            Some(if line.starts_with("READ") { value("7.0\0") } else { "-16\n".into() })
        }));
        let devices = Devices::open(Some(&host), TIME).unwrap();
        devices.write("adc", Owner::Device, "gain", "7").unwrap();
        let refused = devices.write("adc", Owner::Device, "gain", "8").unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::BUSY));
        // The server has one client at a time.
        drop(devices);
        let name = format!("adc@ip:{host}");
        crate::stream::set_attribute(&name, "gain", "7").unwrap();
        let refused = crate::stream::set_attribute(&name, "gain", "8").unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::BUSY));
        // Each is tried.
        assert_eq!(all(&told).iter().filter(|line| line.starts_with("WRITE")).count(), 4);
    }

    #[test]
    fn a_connection_that_was_lost_is_made_anew_by_the_next_call() {
        let mut calls = 0;
        let (host, told) = server(Box::new(move |_| {
            calls += 1;
            match calls {
                2 => None,
                3 => Some("no number\n".into()),
                _ => Some(value(&format!("{calls}\0"))),
            }
        }));
        let devices = Devices::open(Some(&host), TIME).unwrap();
        let read = || devices.read("adc", Owner::Device, "gain");
        assert_eq!(read().unwrap(), "1");
        assert!(read().is_err());
        assert!(read().is_err());
        assert_eq!(read().unwrap(), "4");
        assert_eq!(read().unwrap(), "5");
        let clients = all(&told).iter().filter(|line| *line == "client").count();
        assert_eq!(clients, 3);
    }

    #[test]
    fn what_comes_unasked_is_no_answer() {
        let (host, _told) = server(Box::new(|_| Some(value("1\0") + &value("2\0"))));
        let devices = Devices::open(Some(&host), TIME).unwrap();
        for _ in 0..3 {
            assert_eq!(devices.read("adc", Owner::Device, "gain").unwrap(), "1");
        }
    }

    #[test]
    fn attributes_of_this_machine_are_files() {
        let machine = tempfile::tempdir().unwrap();
        let dir = machine.path().join("devices").join(DEVICE);
        let debug = machine.path().join("debug").join(DEVICE);
        for folder in ["buffer", "trigger"].map(|name| dir.join(name)).iter().chain([&debug]) {
            fs::create_dir_all(folder).unwrap();
        }
        for (file, text) in [
            ("name", "adc\n"),
            ("gain", "7\n"),
            ("in_voltage0_raw", "5\n"),
            ("buffer/data_available", "12\n"),
            ("trigger/current_trigger", "\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        fs::write(debug.join("direct_reg_access"), "0x1\n").unwrap();
        let roots =
            Roots { devices: machine.path().join("devices"), debug: machine.path().join("debug") };
        let devices = Devices::below(roots, None, TIME).unwrap();
        let of_channel = Owner::Channel { id: "voltage0", is_output: false };
        assert_eq!(devices.read("adc", of_channel, "raw").unwrap(), "5");
        assert_eq!(devices.read("adc", Owner::Any, "in_voltage0_raw").unwrap(), "5");
        assert_eq!(devices.read("adc", Owner::Buffer, "data_available").unwrap(), "12");
        assert_eq!(devices.read("adc", Owner::Debug, "direct_reg_access").unwrap(), "0x1");
        assert_eq!(devices.trigger("adc").unwrap(), None);
        assert!(devices.read("adc", Owner::Device, "../adc/gain").is_err());
        // The number that is there is written as well.
        devices.write("adc", Owner::Device, "gain", "7.0").unwrap();
        assert_eq!(fs::read_to_string(dir.join("gain")).unwrap(), "7.0");
        fs::remove_file(dir.join("gain")).unwrap();
        let gone = devices.write("adc", Owner::Device, "gain", "7").unwrap_err();
        assert_eq!(gone.errno(), Some(Errno::NOENT));
    }
}
