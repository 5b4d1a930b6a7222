//! `busbar coprocessor`: runs the firmware of a virtual coprocessor.

// The crate for its memory supports 64 bits only.
#[cfg(target_pointer_width = "64")]
mod run;

#[cfg(not(target_pointer_width = "64"))]
mod run {
    use std::io::{Error as IoError, ErrorKind};
    use std::process::ExitCode;

    use busbar::{Error, Result};

    /// Fails: there are no rings here.
    pub fn run(args: &super::RunArgs) -> Result<ExitCode> {
        let super::RunArgs { device, services: _, no_start: _, blocks: _, json: _ } = args;
        let name = device.as_ref().map(|node| node.display().to_string());
        let why =
            IoError::new(ErrorKind::Unsupported, "a virtual coprocessor needs a 64-bit program");
        Err(Error::new("run", name.unwrap_or_else(|| "a virtual coprocessor".to_owned()), why)
            .help("try it on a 64-bit machine: busbar lab shell"))
    }
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use busbar::{Error, Result};
use busbar_coprocessor::remoteproc::{Coprocessor, Remoteproc};
use busbar_coprocessor::service::Spec;
use busbar_coprocessor::table::Image;
use serde_json::{Value, json};

use crate::print::print_line;

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
        Verb::Run(args) => return run::run(&args),
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

fn list(json: bool) -> Result<()> {
    let coprocessors = Coprocessor::all()?;
    if json {
        let array = coprocessors.iter().map(coprocessor_json).collect::<Result<Value>>()?;
        return print_line(&array.to_string());
    }
    print_line(&format!("{:<16}{:<14}{:<10}PROCESS", "DEVICE", "REMOTEPROC", "STATE"))?;
    for each in &coprocessors {
        let process = if each.attached { "attached" } else { "free" };
        let (node, Remote { name, state }) = (each.node.display().to_string(), remote(each)?);
        print_line(&format!("{node:<16}{name:<14}{state:<10}{process}"))?;
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
