//! `busbar coprocessor run`: the services, and what is printed of them.

use std::path::Path;
use std::process::ExitCode;

use busbar::Result;
use busbar_coprocessor::machine::{Notice, Statistics};
use busbar_coprocessor::name_service::Channel;
use busbar_coprocessor::remoteproc::Coprocessor;
use busbar_coprocessor::service::{ServiceStatistics, Services, Transfer};
use busbar_coprocessor::{Core, Options};
use serde_json::{Value, json};

use super::RunArgs;
use crate::print::{complain, json_line, print_line};
use crate::progress::interruption;

/// Runs the services until a signal comes, or the reader of standard output has left.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
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
    let stop = interruption(true)?;
    let remoteproc = Some(&coprocessor.remoteproc).filter(|_| !args.no_start);
    let options = Options { stop: Some(&stop), remoteproc, ..Options::default() };
    let name = coprocessor.name.as_str();
    let mut told = Ok(());
    let (statistics, result) = core.run(&mut services, &options, &mut |notice| {
        if matches!(notice, Notice::Transferred { .. }) && !args.blocks {
            return;
        }
        if told.is_ok() {
            told = say(
                args.json,
                || notice_json(name, &notice),
                || format!("{name}: {}", notice_text(&notice)),
            );
        }
    });
    if args.json || statistics.boots > 0 {
        let line = || json!({ "event": "statistics", "device": name, "statistics": statistics });
        told = told.and_then(|()| say(args.json, line, || statistics_text(name, &statistics)));
    }
    result.and(told).map(|()| ExitCode::SUCCESS)
}

/// Prints a line of one kind or the other.
fn say(json: bool, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<()> {
    if json { json_line(&value()) } else { print_line(&text()) }
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
