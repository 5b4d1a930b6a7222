//! `busbar stream list`.

use busbar::stream::Channel;
use busbar::stream::iiod::{self, DeviceInfo};
use busbar::{Error, Result};
use serde::Serialize;

use crate::print::{print_json, print_line};

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  busbar stream list
  busbar stream list ip:pluto.local")]
pub struct Args {
    /// Where: ip:HOST[:PORT], or local: [default: local:]
    #[arg(value_name = "URI", default_value = "local:")]
    uri: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A device as `--json` prints it.
#[derive(Serialize)]
struct Listed {
    id: String,
    name: Option<String>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    rate: Option<f64>,
}

fn names(channels: Vec<Channel>) -> Vec<String> {
    channels.into_iter().map(|channel| channel.name).collect()
}

pub fn run(args: &Args) -> Result<()> {
    let host = match args.uri.strip_prefix("ip:") {
        Some(host) if !host.is_empty() => Some(host),
        None if args.uri == "local:" => None,
        _ => return Err(Error::invalid("a place of devices", &args.uri, "local:, ip:HOST[:PORT]")),
    };
    let devices = iiod::devices(host)?;
    if args.json {
        let listed = |it: DeviceInfo| Listed {
            id: it.id,
            name: it.name,
            inputs: names(it.inputs),
            outputs: names(it.outputs),
            rate: it.rate,
        };
        return print_json(&devices.into_iter().map(listed).collect::<Vec<_>>());
    }
    if devices.is_empty() {
        return print_line("no IIO device");
    }
    for device in devices {
        let name = device.name.as_deref().unwrap_or("-");
        let rate = device.rate.map_or(String::new(), |rate| format!("  {rate} samples/s"));
        print_line(&format!("{}  {name}{rate}", device.id))?;
        for (what, channels) in [("receives", device.inputs), ("transmits", device.outputs)] {
            if !channels.is_empty() {
                print_line(&format!("    {what} {}", names(channels).join(", ")))?;
            }
        }
    }
    Ok(())
}
