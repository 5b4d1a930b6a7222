//! `busbar receive`.

mod output;
mod report;
mod session;
mod verify;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use busbar::block::{Block, Memory};
use busbar::receive::{Queues, ReceiveSetup, Receiver, Tokens};
use busbar::{Error, Result};

use self::output::To;
use crate::quantity::{seconds, size};

/// The value for ordinary receive on any device.
const HOST: &str = "host";

#[derive(clap::Args)]
#[command(after_help = "\
Destinations:
  null:             nothing
  file:NAME         the bytes of one connection
  verify:           nothing, but every byte is verified: a counter, 64-bit numbers from 0, the
                    least significant byte first
  verify:N          as `ncdevmem -v N`: 1, 2, … N-1, 0, 1, …; N is 2 to 256

Example, with the lab's virtual pair, as root:
  modprobe vnic && ip link add nic0 type vnic
  ip netns add far && ip link set vnic0 netns far
  ip addr add 10.0.0.1/24 dev nic0 && ip link set nic0 up
  ip -n far addr add 10.0.0.2/24 dev vnic0 && ip -n far link set vnic0 up
  busbar receive --device nic0 --port 5201 --dst verify:7 &
  yes $(printf '\\1\\2\\3\\4\\5\\6') | tr '\\n' '\\0' | head -c 1G | ip netns exec far nc -N 10.0.0.1 5201")]
pub struct Args {
    /// Network device whose queues receive into device memory; `host`: every device, by ordinary receive
    #[arg(long, value_name = "DEVICE", default_value = HOST)]
    device: String,
    /// Port to listen on; 0: any free one
    #[arg(long, value_name = "PORT")]
    port: u16,
    /// Address to listen on [default: all]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Queues of the device: how many, or which, such as 8,9 or 8-15
    #[arg(long, value_name = "N|LIST", default_value = "1")]
    queues: Queues,
    /// Bytes of the memory to receive into, such as 32M
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "32M")]
    memory: usize,
    /// Kind of this memory: pages, huge, heap:NAME or, without a device, memfd
    #[arg(long, value_name = "MEMORY")]
    memory_from: Option<Memory>,
    /// How the kernel counts the device's tokens: default, index or autorelease
    #[arg(long, value_name = "MODE", default_value = "default")]
    tokens: Tokens,
    /// Destination of the data
    #[arg(long, value_name = "DST", default_value = "null:")]
    dst: To,
    /// End after so many connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Print one JSON object per line: where it listens, progress each second, and a summary
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if matches!(args.dst, To::File(_)) && args.connections > 1 {
        let allowed = "1 with file:, which has the bytes of one connection";
        return Err(Error::invalid("--connections", args.connections, allowed));
    }
    args.dst.check()?;
    session::run(args)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn receiver(&self) -> Result<Receiver> {
        let is_host = self.device == HOST;
        let usual = if is_host { Memory::Memfd } else { Memory::Pages };
        let block = Block::with(self.memory, self.memory_from.as_ref().unwrap_or(&usual));
        if is_host {
            return Receiver::host(block?);
        }
        // Errors of the device are reported before errors of the memory for it.
        let block = block.or_else(|error| Receiver::offered(&self.device).and(Err(error)))?;
        let setup = ReceiveSetup::new().queues(self.queues.clone()).tokens(self.tokens);
        Receiver::open(&self.device, block, &setup)
    }

    fn address(&self) -> SocketAddr {
        (self.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), self.port).into()
    }
}
