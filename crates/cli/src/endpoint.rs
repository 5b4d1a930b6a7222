//! `busbar endpoint`.

mod cat;
mod list;
mod packet;
mod ping;
mod statistics;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use busbar::endpoint::{ADDR_ANY, Controller, ControllerInfo, Endpoint, Implementation};
use busbar::{Error, Result};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

#[derive(clap::Args)]
#[command(after_help = "\
Example, with `busbar coprocessor run --service echo` on the other side:
  busbar endpoint list
  busbar endpoint ping echo -c 3")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Show control devices and the services that their coprocessors have announced
    List(list::Args),
    /// Send messages to a service that echoes them, and time the replies
    Ping(ping::Args),
    /// Send standard input as messages and print the messages that arrive
    Cat(cat::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.verb {
        Verb::List(args) => list::run(&args),
        Verb::Ping(args) => ping::run(&args),
        Verb::Cat(args) => cat::run(&args),
    }
}

/// The destination of an endpoint, and its kind.
#[derive(clap::Args)]
struct Route {
    /// Name of an announced service, or an address such as 1024 or 0x400
    #[arg(value_name = "SERVICE|ADDR")]
    target: Target,

    /// Control device [default: the one whose coprocessor has the service]
    #[arg(long, value_name = "PATH")]
    controller: Option<PathBuf>,

    /// Kind of the endpoint
    #[arg(long, value_enum, default_value_t = Made::Auto)]
    implementation: Made,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Made {
    /// A descriptor if the kernel supports it, otherwise a device node
    Auto,
    /// A descriptor
    Fd,
    /// A device node
    Node,
}

impl From<Made> for Implementation {
    fn from(made: Made) -> Self {
        match made {
            Made::Auto => Self::Auto,
            Made::Fd => Self::Fd,
            Made::Node => Self::Node,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Service(String),
    Address(u32),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => text.parse(),
        };
        match number {
            Ok(ADDR_ANY) => Err("address 0xffffffff stands for no address".into()),
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if text.starts_with("0x") || text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err("allowed: an address of 32 bits, or the name of a service".into())
            }
            Err(_) => Ok(Self::Service(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address:#x}"),
        }
    }
}

/// An endpoint and what is printed about it.
struct Connection {
    endpoint: Endpoint,
    controller: PathBuf,
    address: u32,
}

impl Route {
    fn connect(&self) -> Result<Connection> {
        let path = match &self.controller {
            Some(path) => path.clone(),
            None => choose(&Controller::list()?, &self.target)?.to_owned(),
        };
        let controller = Controller::open(&path)?;
        let (name, address) = match &self.target {
            Target::Service(name) => (name.as_str(), controller.find(name)?.destination),
            Target::Address(address) => ("busbar", *address),
        };
        let endpoint = controller
            .endpoint(name)
            .destination(address)
            .implementation(self.implementation.into())
            .create()?;
        Ok(Connection { endpoint, controller: path, address })
    }
}

/// The one controller that leads to `target`.
fn choose<'a>(all: &'a [ControllerInfo], target: &Target) -> Result<&'a Path> {
    let leads = |one: &&ControllerInfo| match target {
        Target::Service(name) => one.channels.iter().any(|channel| channel.name == *name),
        Target::Address(_) => true,
    };
    let found: Vec<_> = all.iter().filter(leads).map(|one| one.path.as_path()).collect();
    match found.as_slice() {
        [path] => Ok(path),
        [] => Err(nowhere(all, target)),
        several => {
            let paths: Vec<_> = several.iter().map(|path| path.display().to_string()).collect();
            let why = io::Error::new(io::ErrorKind::InvalidInput, "more than one leads there");
            Err(Error::new("choose", format!("a control device for {target}"), why)
                .help(format!("give --controller {}", paths.join(" or "))))
        }
    }
}

fn nowhere(all: &[ControllerInfo], target: &Target) -> Error {
    let announced: Vec<_> =
        all.iter().flat_map(|one| &one.channels).map(|channel| channel.name.as_str()).collect();
    let help = match (all.is_empty(), announced.is_empty()) {
        (true, _) => "there is no rpmsg control device: is a coprocessor running? \
                      see `busbar doctor`"
            .into(),
        (false, true) => "no service is announced: give an address".into(),
        (false, false) => format!("announced: {}", announced.join(", ")),
    };
    let why = io::Error::new(io::ErrorKind::NotFound, "no coprocessor has announced it");
    Error::new("find", target.to_string(), why).help(help)
}

/// Waits for one of `fds`, for at most `timeout`; a signal may end it earlier.
fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<()> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) => Ok(()),
        Err(Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(errno) => Err(Error::new("wait for", "messages", errno)),
    }
}

/// [`MAX_MESSAGE`](busbar::endpoint::MAX_MESSAGE) as a limit of an argument.
const MAX_SIZE: i64 = 496;

/// Pause before another attempt when no buffer is free: a device node cannot say when one is.
const RETRY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use busbar::endpoint::ChannelInfo;

    use super::*;

    fn controller(path: &str, services: &[&str]) -> ControllerInfo {
        let channel = |name: &&str| ChannelInfo {
            name: (*name).into(),
            source: ADDR_ANY,
            destination: 0x400,
            driver: None,
        };
        ControllerInfo {
            path: path.into(),
            driver: None,
            remoteproc: None,
            channels: services.iter().map(channel).collect(),
        }
    }

    #[test]
    fn targets_are_services_or_addresses() {
        assert_eq!("echo".parse(), Ok(Target::Service("echo".into())));
        assert_eq!("0x400".parse(), Ok(Target::Address(0x400)));
        assert_eq!("1024".parse(), Ok(Target::Address(0x400)));
        assert_eq!("rpmsg-2".parse(), Ok(Target::Service("rpmsg-2".into())));
        for bad in ["0xffffffff", "4294967296", "0xecho", ""] {
            assert!(bad.parse::<Target>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_limit_of_arguments_is_that_of_messages() {
        assert_eq!(usize::try_from(MAX_SIZE), Ok(busbar::endpoint::MAX_MESSAGE));
    }

    #[test]
    fn a_service_leads_to_its_controller() {
        let all = [controller("/dev/a", &["echo"]), controller("/dev/b", &["echo", "sink"])];
        let choose = |target: &str| choose(&all, &target.parse().unwrap());
        assert_eq!(choose("sink").unwrap(), Path::new("/dev/b"));
        let text = choose("echo").unwrap_err().to_string();
        assert!(text.contains("--controller /dev/a or /dev/b"), "{text}");
        let text = choose("0x400").unwrap_err().to_string();
        assert!(text.contains("--controller /dev/a or /dev/b"), "{text}");
        let error = choose("source").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("announced: echo, echo, sink"), "{error}");
    }

    #[test]
    fn without_a_controller_the_error_says_so() {
        let text = choose(&[], &Target::Address(1)).unwrap_err().to_string();
        assert!(text.contains("no rpmsg control device"), "{text}");
        assert_eq!(choose(&[controller("/dev/a", &[])], &Target::Address(1)).unwrap(), "/dev/a");
    }
}
