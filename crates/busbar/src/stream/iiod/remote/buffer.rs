//! The buffer of a device of another machine.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use rustix::io::Errno;

use super::{Connection, Remote, failure};
use crate::stream::device::Direction;
use crate::stream::format::Format;
use crate::stream::iiod::context::{Channel, Device};
use crate::stream::iiod::hub::Mask;
use crate::stream::iiod::{SILENCE, keep_alive};
use crate::stream::net::user_timeout;
use crate::stream::scan;
use crate::stream::setup::{Interface, StreamSetup};
use crate::{Error, Result};

/// How long the server may wait for the device beyond the time that its blocks take.
pub(super) const PATIENCE: Duration = Duration::from_millis(2500);
/// How much earlier than it may be silent a server has to answer.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest time that is computed from what a server tells, in seconds.
const LONGEST: f64 = 1e5;

/// A device, and the channels that are chosen.
pub(super) struct Buffer {
    connection: Connection,
    device: Device,
    direction: Direction,
    /// The name of the device in errors.
    pub label: String,
    pub mask: Mask,
    pub format: Format,
    /// Samples of a block.
    samples: usize,
}

impl Buffer {
    /// Connects, and finds the device and its channels.
    pub(super) fn find(remote: &Remote, setup: &StreamSetup, direction: Direction) -> Result<Self> {
        if let Some(asked) = setup.interface.filter(|interface| *interface != Interface::Iiod) {
            return Err(Error::invalid("the interface of a remote device", asked, "iiod"));
        }
        let (mut connection, device) = remote.connect()?;
        let label = remote.label();
        let (mask, chosen) = choose(&device, direction, &setup.channels, &label)?;
        let scans = chosen.iter().filter_map(|channel| channel.scan.as_ref());
        let scans = scans.map(|scan| (scan.index, scan.name.clone(), scan.kind)).collect();
        let (channels, sample_len) = scan::layout(scans).ok_or_else(|| {
            Error::new("use", label.as_str(), ErrorKind::InvalidData)
                .help("its channels do not fit beside each other in a sample")
        })?;
        let rate = rate(&mut connection, &device)?;
        let format = Format { channels, sample_len, rate };
        let samples = (setup.block_len / sample_len).max(1);
        Ok(Self { connection, device, direction, label, mask, format, samples })
    }

    /// The device in commands.
    pub(super) fn id(&self) -> &str {
        &self.device.id
    }

    /// Bytes of a block.
    pub(super) fn block_len(&self) -> usize {
        self.samples * self.format.sample_len
    }

    /// How long the samples of a block take, if the device tells its rate.
    pub(super) fn block_time(&self) -> Option<Duration> {
        // An estimate.
        #[allow(clippy::cast_precision_loss)]
        let seconds = self.format.rate.map(|rate| self.samples as f64 / rate);
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds.min(LONGEST)).unwrap_or_default())
    }

    /// Whether the device has an attribute.
    pub(super) fn has(&self, attribute: &str) -> bool {
        self.device.attributes.iter().any(|known| known == attribute)
    }

    /// Whether an attribute of the device has a value.
    pub(super) fn says(&mut self, attribute: &str, value: &str) -> Result<bool> {
        let place = format!("{} {attribute}", self.device.id);
        Ok(self.connection.attribute(&place)?.is_some_and(|found| found == value))
    }

    /// The commands that have the server use `count` buffers, and open the device.
    pub(super) fn commands(&self, count: usize) -> String {
        format!("{}\r\n{}\r\n", self.set(count), self.command())
    }

    fn set(&self, count: usize) -> String {
        format!("SET {} BUFFERS_COUNT {count}", self.device.id)
    }

    fn command(&self) -> String {
        format!("OPEN {} {} {}", self.device.id, self.samples, self.mask.text())
    }

    /// Opens the device. The server may take `patience` for a request, and is to answer earlier than it may be silent.
    /// Returns whether it has `count` buffers.
    pub(super) fn open(
        &mut self,
        patience: Duration,
        silence: Duration,
        count: usize,
    ) -> Result<bool> {
        // 0 would be for ever.
        let earlier = silence.saturating_sub((silence / 3).min(MARGIN));
        let patience = patience.min(earlier).max(Duration::from_millis(1));
        // Old servers may not know these.
        self.connection.ask(&format!("TIMEOUT {}", patience.as_millis()))?;
        let set = self.connection.ask(&self.set(count))?;
        let opened = self.connection.ask(&self.command())?;
        let Some(errno) = failure(opened) else { return Ok(failure(set).is_none()) };
        let error = Error::new("open", self.label.as_str(), errno);
        Err(match errno {
            Errno::BUSY => error.help("another program uses it"),
            Errno::PERM if self.direction == Direction::Transmit => {
                error.help("the server allows nobody to transmit")
            }
            _ => error,
        })
    }

    /// The socket of the connection, which has no answer left, non-blocking. The kernel closes it if the other machine
    /// does not acknowledge what was sent for the time `silence`.
    pub(super) fn into_socket(self, silence: Duration) -> Result<TcpStream> {
        let Self { connection, label, .. } = self;
        if !connection.socket.buffer().is_empty() {
            return Err(connection.wrong("an answer without a question"));
        }
        let socket = connection.socket.into_inner().0;
        let set = socket
            .set_nonblocking(true)
            .and_then(|()| keep_alive(&socket, SILENCE))
            .and_then(|()| user_timeout(&socket, silence));
        set.map_err(|why| Error::new("use", label, why))?;
        Ok(socket)
    }
}

/// The channels of these names, or all voltages, or all but the time.
fn choose<'a>(
    device: &'a Device,
    direction: Direction,
    names: &[String],
    label: &str,
) -> Result<(Mask, Vec<&'a Channel>)> {
    let is_output = direction == Direction::Transmit;
    let scan: Vec<_> = device
        .channels
        .iter()
        .enumerate()
        .filter(|(_, channel)| channel.scan.is_some() && channel.is_output == is_output)
        .collect();
    let (tried, way) =
        if is_output { ("transmit to", "output") } else { ("receive from", "input") };
    let none = || {
        let error = Error::new(tried, label, Errno::OPNOTSUPP);
        error.help(format!("it has no {way} channel that a buffer can have"))
    };
    if scan.is_empty() {
        return Err(none());
    }
    let is_named = |channel: &Channel, name: &str| {
        channel.id == name || channel.scan.as_ref().is_some_and(|scan| scan.name == name)
    };
    if let Some(name) = names.iter().find(|name| !scan.iter().any(|(_, it)| is_named(it, name))) {
        let known: Vec<_> = scan.iter().map(|(_, channel)| channel.id.as_str()).collect();
        return Err(Error::invalid(format!("a channel of {label}"), name, known.join(", ")));
    }
    let has_voltages = scan.iter().any(|(_, channel)| channel.id.starts_with("voltage"));
    let is_wanted = |channel: &Channel| match names {
        [] if has_voltages => channel.id.starts_with("voltage"),
        [] => channel.id != "timestamp",
        names => names.iter().any(|name| is_named(channel, name)),
    };
    let mut mask = Mask::none(device.channels.len());
    let mut chosen = Vec::new();
    for (index, channel) in scan.into_iter().filter(|(_, channel)| is_wanted(channel)) {
        mask.set(index);
        chosen.push(channel);
    }
    if chosen.is_empty() { Err(none()) } else { Ok((mask, chosen)) }
}

/// The sampling rate, if the device or one of its channels has one.
fn rate(connection: &mut Connection, device: &Device) -> Result<Option<f64>> {
    let Some((place, _)) = device.rate_place() else { return Ok(None) };
    let rate = connection.attribute(&place)?.and_then(|text| text.trim().parse::<f64>().ok());
    Ok(rate.filter(|rate| rate.is_finite() && *rate > 0.0))
}
