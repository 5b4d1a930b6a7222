//! `busbar stream list`.

use std::time::Duration;

use busbar::stream::Channel;
use busbar::stream::iiod::{self, DeviceInfo, ServerInfo};
use busbar::{Error, Result};
use serde::Serialize;

use crate::print::{print_json, print_line};

/// How long servers on the local network may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  busbar stream list
  busbar stream list ip:
  busbar stream list ip:pluto.local")]
pub struct Args {
    /// Where: ip:HOST[:PORT], or local:; with ip: alone, the servers on the local network
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

/// A server as `--json` prints it.
#[derive(Serialize)]
struct Found {
    uri: String,
    name: String,
}

fn names(channels: Vec<Channel>) -> Vec<String> {
    channels.into_iter().map(|channel| channel.name).collect()
}

pub fn run(args: &Args) -> Result<()> {
    const PLACES: &str = "local:, ip:HOST[:PORT], ip:";
    let host = match args.uri.strip_prefix("ip:") {
        Some("") => return servers(args.json),
        Some(host) => Some(host),
        None if args.uri == "local:" => None,
        None => return Err(Error::invalid("a place of devices", &args.uri, PLACES)),
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

/// Lists the servers that answer.
fn servers(json: bool) -> Result<()> {
    let found = |it: ServerInfo| Found { uri: format!("ip:{}", it.address), name: it.name };
    let found: Vec<_> = iiod::servers(PATIENCE)?.into_iter().map(found).collect();
    if json {
        return print_json(&found);
    }
    if found.is_empty() {
        return print_line("no server has answered");
    }
    found.iter().try_for_each(|it| print_line(&format!("{}  {}", it.uri, it.name)))
}
