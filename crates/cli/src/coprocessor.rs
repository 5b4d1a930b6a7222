//! `busbar coprocessor`: runs the firmware of a virtual coprocessor.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use busbar::{Error, Result};
use busbar_coprocessor::machine::{Notice, Statistics};
use busbar_coprocessor::name_service::Channel;
use busbar_coprocessor::remoteproc::{Coprocessor, Remoteproc};
use busbar_coprocessor::service::{ServiceStatistics, Services, Spec, Transfer};
use busbar_coprocessor::table::Image;
use busbar_coprocessor::{Core, Options};
use serde_json::{Value, json};

use crate::print::complain;
use crate::progress::interruption;

#[derive(clap::Args)]
#[command(after_help = "\
Example, in the lab:
  modprobe vcoproc; modprobe rpmsg_eptfd replace=1
  busbar coprocessor run --service echo,sink &
  busbar coprocessor list")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Run firmware services on a coprocessor until Ctrl-C
    #[command(after_help = services_help())]
    Run(RunArgs),
    /// List the virtual coprocessors, their states, and whether a process runs them
    #[command(after_help = "\
Example:
  busbar coprocessor list
  busbar coprocessor list --json | jq -r .[].device")]
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Write the firmware image that Linux loads: /lib/firmware/vcoproc.fw
    #[command(after_help = "\
Example, as root, before modprobe vcoproc:
  busbar coprocessor firmware /lib/firmware/vcoproc.fw")]
    Firmware {
        /// Where to write it
        file: PathBuf,
        /// Buffers for each direction, a power of two from 2 to 256
        #[arg(long, default_value_t = Image::MAX_ENTRIES, value_parser = buffers)]
        buffers: u16,
        /// Offer event indices, which save kicks if the firmware supports them too
        #[arg(long)]
        event_index: bool,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// Device node [default: the first free one]
    #[arg(long)]
    device: Option<PathBuf>,
    /// Services: `KIND[=ANNOUNCED][@ADDRESS][+OPTION=N]…`, several with commas
    #[arg(long = "service", value_name = "SERVICE", required = true, value_delimiter = ',')]
    services: Vec<Spec>,
    /// Do not start the remoteproc if it is offline, nor stop it at the end
    #[arg(long)]
    no_start: bool,
    /// Also print each block that is received or sent, with its checksum
    #[arg(long)]
    blocks: bool,
    /// Print one JSON object per line: events, and statistics at the end
    #[arg(long)]
    json: bool,
}

fn services_help() -> String {
    format!(
        "Services, what they are announced as, and what they do:\n{}\n\
         Options of control, for the commands and events that it sends:\n{}\n\
         Options of the services for blocks, to test the other side:\n{}\n\
         Addresses go up from 0x400 in the order of the services.\n\n\
         Example, then one at an address of its own, and one that answers 5 ms late:\n  \
         busbar coprocessor run --service echo\n  \
         busbar coprocessor run --service sink@0x500,bulk+delay=5",
        Spec::kinds(),
        Spec::control_options(),
        Spec::options()
    )
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::Run(args) => return run_core(&args),
        Verb::List { json } => list(json)?,
        Verb::Firmware { file, buffers, event_index } => {
            let image = Image::default().entries(buffers)?.event_index(event_index);
            write_firmware(&file, image)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parsed with the arguments, so that a bad number is a usage error.
fn buffers(text: &str) -> Result<u16> {
    let number =
        text.parse().map_err(|_| Error::invalid("number of buffers", text, "a power of two"))?;
    Ok(Image::default().entries(number)?.count())
}

fn run_core(args: &RunArgs) -> Result<ExitCode> {
    let mut services = Services::default();
    for spec in &args.services {
        if let Err(error) = spec.add_to(&mut services) {
            complain(&format!("busbar: {error}"));
            return Ok(ExitCode::from(2));
        }
    }
    let core = match &args.device {
        Some(node) => Core::open(node)?,
        None => Core::open_free()?,
    };
    let coprocessor = Coprocessor::find(core.node().unwrap_or(Path::new("")))?;
    let stop = interruption()?;
    let remoteproc = Some(&coprocessor.remoteproc).filter(|_| !args.no_start);
    let options = Options { stop: Some(&stop), remoteproc, ..Options::default() };
    let name = coprocessor.name.as_str();
    let (statistics, result) = core.run(&mut services, &options, &mut |notice| {
        if matches!(notice, Notice::Transferred { .. }) && !args.blocks {
            return;
        }
        if args.json {
            say(&notice_json(name, &notice));
        } else {
            say(&format_args!("{name}: {}", notice_text(&notice)));
        }
    });
    if args.json {
        say(&json!({ "event": "statistics", "device": name, "statistics": statistics }));
    } else if statistics.boots > 0 {
        say(&statistics_text(name, &statistics));
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Prints a line, and ignores an error: a coprocessor runs on without a reader.
fn say(line: &dyn Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn notice_text(notice: &Notice<'_>) -> String {
    match notice {
        Notice::Started { boot } => format!("started by Linux, boot {boot}"),
        Notice::Ready { channels } => {
            let of = |channel: &Channel| format!("{} {:#x}", channel.name, channel.address);
            format!("ready: {}", channels.iter().map(of).collect::<Vec<_>>().join(", "))
        }
        Notice::Channel { announcement, change } => {
            let Channel { name, address } = announcement.channel;
            let does = if announcement.withdrawn { "withdraws" } else { "announces" };
            format!("Linux {does} {name} {address:#x} ({change:?})").to_lowercase()
        }
        Notice::Failed { channel, error } => format!("{}: {error}", channel.name),
        Notice::Transferred { channel, transfer } => {
            let Transfer { peer, length, crc, .. } = transfer;
            let does = if transfer.sent { "sent to" } else { "taken from" };
            let shared = if transfer.shared { ", in a shared buffer" } else { "" };
            let name = channel.name;
            format!("{name}: {length} bytes {does} {peer:#x}, CRC-16 {crc:#06x}{shared}")
        }
        Notice::Stopped => "stopped by Linux".to_owned(),
        Notice::Crashed { reason } => format!("crashed: {reason}"),
    }
}

fn notice_json(device: &str, notice: &Notice<'_>) -> Value {
    let of =
        |channel: &Channel| json!({ "name": channel.name.to_string(), "address": channel.address });
    match notice {
        Notice::Started { boot } => json!({ "event": "started", "device": device, "boot": boot }),
        Notice::Ready { channels } => {
            let services: Vec<_> = channels.iter().map(of).collect();
            json!({ "event": "ready", "device": device, "services": services })
        }
        Notice::Channel { announcement, change } => json!({
            "event": "channel",
            "device": device,
            "channel": of(&announcement.channel),
            "withdrawn": announcement.withdrawn,
            "change": format!("{change:?}").to_lowercase(),
        }),
        Notice::Failed { channel, error } => json!({
            "event": "failed",
            "device": device,
            "service": of(channel),
            "error": error.to_string(),
        }),
        Notice::Transferred { channel, transfer } => json!({
            "event": "block",
            "device": device,
            "service": of(channel),
            "peer": transfer.peer,
            "sent": transfer.sent,
            "shared": transfer.shared,
            "length": transfer.length,
            "crc": transfer.crc,
        }),
        Notice::Stopped => json!({ "event": "stopped", "device": device }),
        Notice::Crashed { reason } => {
            json!({ "event": "crashed", "device": device, "reason": reason })
        }
    }
}

fn statistics_text(name: &str, statistics: &Statistics) -> String {
    let Statistics { boots, crashes, kicks, waits, dropped, services } = statistics;
    let mut lines =
        vec![format!("{name}: {boots} boots, {crashes} crashes, {kicks} kicks, {waits} waits")];
    let wrong = dropped.buffers + dropped.messages + dropped.announcements;
    if wrong + dropped.strays != 0 {
        let strays = dropped.strays;
        lines.push(format!("{name}: dropped {wrong} malformed messages, {strays} to no service"));
    }
    lines.extend(services.iter().map(|service| {
        let ServiceStatistics { name: service, address, received, sent, errors } = service;
        format!(
            "{name}: {service} {address:#x}: received {} messages, {} bytes; \
             sent {} messages, {} bytes; {errors} errors",
            received.messages, received.bytes, sent.messages, sent.bytes
        )
    }));
    lines.join("\n")
}

fn list(json: bool) -> Result<()> {
    let coprocessors = Coprocessor::all()?;
    if json {
        let array = coprocessors.iter().map(coprocessor_json).collect::<Result<Value>>()?;
        say(&array);
        return Ok(());
    }
    say(&format_args!("{:<16}{:<14}{:<10}PROCESS", "DEVICE", "REMOTEPROC", "STATE"));
    for each in &coprocessors {
        let process = if each.attached { "attached" } else { "free" };
        let (node, Remote { name, state }) = (each.node.display().to_string(), remote(each)?);
        say(&format_args!("{node:<16}{name:<14}{state:<10}{process}"));
    }
    Ok(())
}

/// What is printed about a remoteproc.
struct Remote {
    name: String,
    state: String,
}

fn remote(coprocessor: &Coprocessor) -> Result<Remote> {
    let remoteproc: &Remoteproc = &coprocessor.remoteproc;
    Ok(Remote { name: remoteproc.name(), state: remoteproc.state()?.to_string() })
}

fn coprocessor_json(coprocessor: &Coprocessor) -> Result<Value> {
    let Remote { name, state } = remote(coprocessor)?;
    Ok(json!({
        "device": coprocessor.node,
        "remoteproc": name,
        "state": state,
        "attached": coprocessor.attached,
    }))
}

fn write_firmware(file: &Path, image: Image) -> Result<()> {
    fs::write(file, image.build())
        .map_err(|error| Error::new("write", file.display().to_string(), error))
}
