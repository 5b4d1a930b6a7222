//! `busbar endpoint list`.

use std::fmt::Write as _;
use std::process::ExitCode;

use busbar::Result;
use busbar::endpoint::{ADDR_ANY, ChannelInfo, Controller, ControllerInfo, Remoteproc};
use serde::Serialize;

use crate::print::{print_json, print_line};

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  busbar endpoint list
  busbar endpoint list --json | jq -r .[].channels[].service")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ControllerRow<'a> {
    path: String,
    driver: Option<&'a str>,
    remoteproc: Option<RemoteprocRow<'a>>,
    channels: Vec<ChannelRow<'a>>,
}

#[derive(Serialize)]
struct RemoteprocRow<'a> {
    device: &'a str,
    name: &'a str,
    state: &'a str,
}

#[derive(Serialize)]
struct ChannelRow<'a> {
    service: &'a str,
    /// Absent if it is any address.
    source: Option<u32>,
    destination: u32,
    driver: Option<&'a str>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let all = Controller::list()?;
    if args.json {
        print_json(&all.iter().map(row).collect::<Vec<_>>())?;
    } else if all.is_empty() {
        print_line("no rpmsg control devices: is a coprocessor running? see `busbar doctor`")?;
    } else {
        print_line(table(&all).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(one: &ControllerInfo) -> ControllerRow<'_> {
    ControllerRow {
        path: one.path.display().to_string(),
        driver: one.driver.as_deref(),
        remoteproc: one
            .remoteproc
            .as_ref()
            .map(|Remoteproc { device, name, state }| RemoteprocRow { device, name, state }),
        channels: one.channels.iter().map(channel_row).collect(),
    }
}

fn channel_row(channel: &ChannelInfo) -> ChannelRow<'_> {
    ChannelRow {
        service: &channel.name,
        source: (channel.source != ADDR_ANY).then_some(channel.source),
        destination: channel.destination,
        driver: channel.driver.as_deref(),
    }
}

const HEAD: [&str; 6] = ["CONTROLLER", "DRIVER", "REMOTEPROC", "STATE", "SERVICE", "ADDRESS"];

fn table(all: &[ControllerInfo]) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    for one in all {
        let remoteproc = one.remoteproc.as_ref();
        let mut left = [
            one.path.display().to_string(),
            text(one.driver.as_deref()),
            text(remoteproc.map(|it| it.device.as_str())),
            text(remoteproc.map(|it| it.state.as_str())),
        ];
        for (service, address) in services(one) {
            let [path, driver, device, state] = left;
            rows.push([path, driver, device, state, service, address]);
            // The next lines belong to the same controller.
            left = Default::default();
        }
    }
    aligned(&rows)
}

fn text(cell: Option<&str>) -> String {
    cell.unwrap_or("-").into()
}

fn services(one: &ControllerInfo) -> Vec<(String, String)> {
    let none = [("-".into(), "-".into())];
    let some = one.channels.iter().map(|it| (it.name.clone(), format!("{:#x}", it.destination)));
    if one.channels.is_empty() { none.into() } else { some.collect() }
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut lines = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        lines += line.trim_end();
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ControllerInfo {
        let channel = |name: &str, source, destination| ChannelInfo {
            name: name.into(),
            source,
            destination,
            driver: None,
        };
        ControllerInfo {
            path: "/dev/rpmsg_ctrl0".into(),
            driver: Some("rpmsg_eptfd".into()),
            remoteproc: Some(Remoteproc {
                device: "remoteproc0".into(),
                name: "vcoproc".into(),
                state: "running".into(),
            }),
            channels: vec![channel("echo", ADDR_ANY, 0x400), channel("sink", 0x404, 0x401)],
        }
    }

    #[test]
    fn a_controller_is_named_once_and_columns_line_up() {
        let bare = ControllerInfo {
            path: "/dev/rpmsg_ctrl10".into(),
            driver: None,
            remoteproc: None,
            channels: vec![],
        };
        let expected = "\
CONTROLLER         DRIVER       REMOTEPROC   STATE    SERVICE  ADDRESS
/dev/rpmsg_ctrl0   rpmsg_eptfd  remoteproc0  running  echo     0x400
                                                      sink     0x401
/dev/rpmsg_ctrl10  -            -            -        -        -
";
        assert_eq!(table(&[example(), bare]), expected);
    }

    #[test]
    fn json_tells_any_address_from_a_number() {
        let json = serde_json::to_value(row(&example())).unwrap();
        assert_eq!(json["channels"][0]["source"], serde_json::Value::Null);
        assert_eq!(json["channels"][1]["source"], 0x404);
        assert_eq!(json["remoteproc"]["state"], "running");
    }
}
