//! `busbar serve`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::stream::Lost;
use busbar::stream::iiod::{Peer, Refusal, Server, ServerEvent, ServerSetup, Shortage};
use busbar::stream::usb::{Address, Gadget};
use busbar::{Error, Result, later};
use busbar_coprocessor::Stop;
use clap::value_parser;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde::Serialize;

use crate::print::{complain, json_line};
use crate::progress::{EACH, TICK, cpu, explain_listen, interruption};
use crate::quantity::{seconds, size};

#[derive(clap::Args)]
#[command(after_help = "\
Devices:
  iio:NAME                     an IIO device of this machine, by its name or number
  [NAME=]synth:PATTERN?KEY=…   generated: counter, sine or noise; rate=1M, channels=1, frequency=1k
  [NAME=]file:NAME             a SigMF recording, from its beginning each time that it is opened
Without any: the IIO devices of this machine, also those that come later; SIGUSR1 lists them anew.

Example: a device that any program of libiio reads
  busbar serve 'adc=synth:sine?rate=1M&frequency=5k' &
  iio_info -u ip:localhost
  iio_readdev -u ip:localhost -b 4096 -s 100000 adc voltage0_i voltage0_q > samples
The converters of a board, for a USB host
  busbar serve --usb usb: --listen 127.0.0.1:30431    # as root; on the host: iio_info -u usb:")]
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
pub struct Args {
    /// Devices to serve [default: the IIO devices of this machine]
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// Wait for the first device to come if this machine has none
    #[arg(long, conflicts_with = "devices")]
    wait: bool,
    /// Where to listen; without an address, on all of them
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "30431")]
    listen: String,
    /// Announce the server on the local network
    #[arg(long)]
    announce: bool,
    /// Serve a USB host as well, as the device usb:, usb:?udc=NAME or usb:?ffs=DIRECTORY
    #[arg(long, value_name = "ADDRESS", value_parser = gadget)]
    usb: Option<Gadget>,
    /// Connections of the USB host at a time, each a pair of endpoints
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=7), default_value_t = 3, requires = "usb")]
    usb_pipes: u8,
    /// Refuse to write attributes and to transmit
    #[arg(long)]
    read_only: bool,
    /// Most connections at a time; an eighth is for machines that have none
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024), default_value_t = 64)]
    clients: u16,
    /// Close a connection that says nothing while it should, or takes nothing, for so many seconds, from 5 on
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    silence: Duration,
    /// Bytes that the blocks of all devices may take
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "256M")]
    memory_limit: usize,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Print one JSON object per line: the address, events, and a summary
    #[arg(long)]
    json: bool,
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Listening { address: String, devices: Vec<(String, Option<String>)> },
    Client { what: &'static str, address: String, why: Option<String> },
    Clients { address: Option<String>, came: u64, gone: u64, turned_away: u64 },
    Device { what: &'static str, device: String },
    NotAccepted { error: String },
    Omitted { events: u64 },
    Lost { device: String, host: String, lost: Option<u64> },
    LostEvents { device: String, host: String, lost: u64 },
    Refused { device: String, host: String, why: String },
    Failed { device: String, error: String },
    Announced { name: String },
    NotAnnounced { error: String },
    Summary { sent: u64, copied: u64, seconds: f64, cpu_seconds: f64 },
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = interruption(args.json)?;
    // As iiod, which lists its devices anew.
    let list = Stop::new()?.on_signal(Signal::USR1.as_raw())?;
    allow_descriptors();
    let mut setup = ServerSetup::new()
        .listen(&*args.listen)
        .devices(&args.devices)
        .read_only(args.read_only)
        .wait(args.wait)
        .clients(args.clients.into())
        .silence(args.silence)
        .memory_limit(args.memory_limit)
        .announce(args.announce)
        .usb_pipes(args.usb_pipes);
    setup.usb.clone_from(&args.usb);
    let mut server = Server::open(&setup).map_err(explain_listen)?;
    let devices: Vec<_> =
        server.devices().map(|(id, name)| (id.to_owned(), name.map(ToOwned::to_owned))).collect();
    let begun = Instant::now();
    say(args, Line::Listening { address: server.address().to_string(), devices })?;
    let until = args.seconds.map(|seconds| later(begun, seconds));
    let mut next = Instant::now();
    while !has_come(&stop) && until.is_none_or(|until| Instant::now() < until) {
        server.turn_timeout(TICK)?;
        if has_come(&list) {
            server.list_devices();
        }
        if Instant::now() >= next {
            next = later(Instant::now(), EACH);
            server.take_events().into_iter().try_for_each(|event| say(args, event.into()))?;
        }
    }
    server.take_events().into_iter().try_for_each(|event| say(args, event.into()))?;
    let counters = server.counters();
    let (sent, copied) = (counters.sent, counters.copied);
    let seconds = begun.elapsed().as_secs_f64();
    say(args, Line::Summary { sent, copied, seconds, cpu_seconds: cpu() })?;
    Ok(ExitCode::SUCCESS)
}

/// The USB device that `usb:…` names.
fn gadget(name: &str) -> Result<Gadget> {
    match name.strip_prefix("usb:").map(str::parse) {
        Some(Ok(Address::Gadget(gadget))) if !gadget.raw => Ok(gadget),
        Some(Err(error)) => Err(error),
        _ => {
            let allowed = "usb:, usb:?udc=NAME&vid=VID&pid=PID&serial=TEXT, usb:?ffs=DIRECTORY";
            Err(Error::invalid("a USB address", name.escape_debug(), allowed))
        }
    }
}

/// Raises the limit of descriptors as far as the process may. Without that it serves fewer blocks.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Why a client was turned away, with the option that sets the limit.
fn reason(why: Refusal) -> String {
    let option = match why {
        Refusal::Full(_) | Refusal::Share(_) | Refusal::Idle => "--clients",
        Refusal::Silent(_) => "--silence",
        _ => return why.to_string(),
    };
    format!("{why} ({option})")
}

/// Whether a signal has come since the last call.
fn has_come(stop: &Stop) -> bool {
    rustix::io::read(stop, &mut [0; 8]).is_ok_and(|count| count > 0)
}

/// Prints a line: on standard output as JSON, else on standard error.
fn say(args: &Args, line: Line) -> Result<()> {
    if args.json {
        return json_line(&line);
    }
    complain(&match line {
        Line::Listening { address, devices } => {
            let names = devices.into_iter().map(|(id, name)| name.unwrap_or(id));
            let names: Vec<_> = names.collect();
            format!(
                "{address}: {}",
                if names.is_empty() { "no device".into() } else { names.join(", ") }
            )
        }
        Line::Client { what, address, why: None } => format!("{address} {what}"),
        Line::Client { what, address, why: Some(why) } => format!("{address} {what}: {why}"),
        Line::Clients { address, came, gone, turned_away } => format!(
            "{}: {came} more came, {gone} gone, {turned_away} turned away",
            address.as_deref().unwrap_or("other machines")
        ),
        Line::Device { what, device } => format!("{device} {what}"),
        Line::NotAccepted { error } => format!("connections wait: {error}"),
        Line::Omitted { events } => format!("{events} more events"),
        Line::Lost { device, host, lost: Some(lost) } => {
            format!("{device}: {host} has lost {lost} samples")
        }
        Line::Lost { device, host, lost: None } => {
            format!("{device}: {host} has lost samples; how many is not known")
        }
        Line::LostEvents { device, host, lost } => {
            format!("{device}: {host} has lost {lost} events")
        }
        Line::Refused { device, host, why } => format!("{device}: not opened for {host}: {why}"),
        Line::Failed { device, error } => format!("{device}: {error}"),
        Line::Announced { name } => format!("announced as `{name}`"),
        Line::NotAnnounced { error } => format!("not announced: {error}"),
        Line::Summary { sent, copied, seconds, cpu_seconds } => format!(
            "{sent} bytes sent, {copied} of them copied, in {seconds:.1} s; {cpu_seconds:.2} s of processor time"
        ),
    });
    Ok(())
}

impl From<ServerEvent> for Line {
    fn from(event: ServerEvent) -> Self {
        let client = |what, peer: Peer, why: Option<Refusal>| Self::Client {
            what,
            address: peer.to_string(),
            why: why.map(reason),
        };
        match event {
            ServerEvent::Came(peer) => client("came", peer, None),
            ServerEvent::Gone(peer) => client("gone", peer, None),
            ServerEvent::TurnedAway(peer, why) => client("turned away", peer, Some(why)),
            ServerEvent::Further { machine, came, gone, turned_away } => Self::Clients {
                address: machine.map(|machine| machine.to_string()),
                came,
                gone,
                turned_away,
            },
            ServerEvent::DeviceCame(device) => Self::Device { what: "came", device },
            ServerEvent::DeviceGone(device) => Self::Device { what: "gone", device },
            ServerEvent::NotAccepted(error) => Self::NotAccepted { error },
            ServerEvent::Omitted(events) => Self::Omitted { events },
            ServerEvent::Lost { device, host, lost } => {
                let lost = match lost {
                    Lost::Samples(lost) => Some(lost),
                    Lost::Unknown => None,
                };
                Self::Lost { device, host: host.to_string(), lost }
            }
            ServerEvent::LostEvents { device, host, lost } => {
                Self::LostEvents { device, host: host.to_string(), lost }
            }
            ServerEvent::Refused { device, host, why } => {
                let option = match why {
                    Shortage::Memory => " (--memory-limit)",
                    Shortage::Descriptors => " (ulimit -n)",
                    _ => "",
                };
                Self::Refused { device, host: host.to_string(), why: format!("{why}{option}") }
            }
            ServerEvent::Failed { device, error } => Self::Failed { device, error },
            ServerEvent::Announced(name) => Self::Announced { name },
            ServerEvent::NotAnnounced(error) => Self::NotAnnounced { error },
            other => Self::Failed { device: String::new(), error: other.to_string() },
        }
    }
}
