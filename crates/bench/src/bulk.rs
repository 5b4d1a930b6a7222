//! `bulk`: the cost of bringing a block to a coprocessor, by every transport.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `netlink` | TTY of the in-tree `rpmsg_tty` | `rpmsg_netlink` |
//! | `fd` | device node of the in-tree pair | endpoint that is a descriptor |
//! | `buffer` | `rpmsg_netlink` | shared buffer, every byte read and compared where it lies |
//! | `hand-over` | `rpmsg_netlink` | shared buffer, given and returned unread |
//!
//! A block has arrived when the coprocessor has acknowledged it and, except with `hand-over`, has verified
//! it: in messages by its checksum, in a shared buffer byte by byte. All six transports are measured in turn,
//! size by size: the sizes of the published figures (docs/measuring.md), and longer ones. Device node and TTY
//! belong to a second coprocessor with the same process behind it.
//!
//! Each block is also fetched again once, and compared; this is not measured.

use std::io;
use std::path::Path;
use std::time::Duration;

use busbar::block::Block;
use busbar::bulk::packet::Direction;
use busbar::bulk::{Link, Transport, Wanted, done};
use busbar::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use busbar::{Error, Result};
use serde_json::Value;

use crate::clock::clocked;
use crate::{Case, Controllers, Extent, Report, Spread};

/// The services that both coprocessors need.
pub const SERVICES: [&str; 5] = ["bulk", "bulk-tty", "bulk-netlink", "check", "handover"];

/// The seed's sizes, in bytes, then longer ones.
const SIZES: [u64; 11] =
    [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 64 << 10, 256 << 10, 1 << 20, 16 << 20];

/// Time limit for a block.
const PATIENCE: Duration = Duration::from_secs(300);

struct Plan {
    rows: usize,
    sizes: &'static [u64],
    /// Bytes of one run of one way, at least one block and at most `blocks` of them.
    bytes: u64,
    blocks: u64,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        match extent {
            Extent::Quick => Self { rows: 3, sizes: &[512, 32_768], bytes: 65_536, blocks: 4 },
            Extent::Normal => Self { rows: 10, sizes: &SIZES, bytes: 1 << 20, blocks: 50 },
            Extent::Full => Self { rows: 10, sizes: &SIZES, bytes: 16 << 20, blocks: 500 },
        }
    }

    fn blocks(&self, size: u64) -> u64 {
        (self.bytes / size).clamp(1, self.blocks)
    }
}

/// Runs the benchmark. `progress` is called with the name of each step.
pub fn run(
    controllers: Controllers<'_>,
    extent: Extent,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let plan = Plan::of(extent);
    let mut ways = Ways::open(controllers)?;
    let mut cases = Vec::new();
    for &size in plan.sizes {
        progress(&format!("blocks of {size} bytes"));
        let bytes = content(size);
        let count = plan.blocks(size);
        ways.check(&bytes)?;
        let rows: Vec<Row> =
            (0..plan.rows).map(|_| ways.row(&bytes, count)).collect::<Result<_>>()?;
        let params = [("bytes", size), ("blocks", count)];
        let mut case = |name, against, pair: fn(&Row) -> (f64, f64)| {
            let runs: Vec<_> = rows.iter().map(pair).collect();
            cases.push(Case::new(name, &params, "us", against, &runs));
        };
        case("netlink", "tty", |row| (row.tty, row.netlink));
        case("fd", "device node", |row| (row.node, row.fd));
        case("buffer", "netlink", |row| (row.netlink, row.buffer));
        case("hand-over", "netlink", |row| (row.netlink, row.hand_over));
    }
    let summary = summary(&cases);
    Ok(Report { summary, ..Report::new("bulk", plan.rows, cases) })
}

const HEAD: &str = "\
| block | TTY | netlink | device node | descriptor | shared buffer, checked | handed over | TTY : netlink | node : fd | netlink : buffer |
|---|---|---|---|---|---|---|---|---|---|
";

/// Milliseconds for each block and megabytes per second, medians, size by size.
pub(crate) fn summary(cases: &[Case]) -> String {
    let mut text = HEAD.to_owned();
    for of_a_size in cases.chunks(4) {
        let [netlink, fd, buffer, hand_over] = of_a_size else { continue };
        let bytes = netlink.params.get("bytes").and_then(Value::as_f64).unwrap_or_default();
        let cell = |spread: Spread| {
            // Bytes per microsecond are megabytes per second.
            format!("{:.3} ms, {:.1} MB/s", spread.median / 1e3, bytes / spread.median)
        };
        let columns = [
            size_name(bytes),
            cell(netlink.baseline),
            cell(netlink.busbar),
            cell(fd.baseline),
            cell(fd.busbar),
            cell(buffer.busbar),
            format!("{:.3} ms", hand_over.busbar.median / 1e3),
            format!("{:.2}", netlink.ratio.median),
            format!("{:.2}", fd.ratio.median),
            format!("{:.1}", buffer.ratio.median),
        ];
        text.extend(["| ", &columns.join(" | "), " |\n"]);
    }
    text
}

fn size_name(bytes: f64) -> String {
    match bytes {
        1_048_576.0.. => format!("{} MiB", bytes / 1_048_576.0),
        1_024.0.. => format!("{} KiB", bytes / 1_024.0),
        _ => format!("{bytes} B"),
    }
}

/// Microseconds for each block.
struct Row {
    tty: f64,
    netlink: f64,
    node: f64,
    fd: f64,
    buffer: f64,
    hand_over: f64,
}

struct Ways {
    tty: Link,
    netlink: Link,
    node: Link,
    fd: Link,
    buffer: Giver,
    hand_over: Giver,
}

impl Ways {
    fn open(controllers: Controllers<'_>) -> Result<Self> {
        let open = |path: &Path| Controller::open(path);
        let (usual, busbar) = (open(controllers.in_tree)?, open(controllers.eptfd)?);
        Ok(Self {
            tty: Link::open(&usual, Transport::Tty)?,
            netlink: Link::open(&busbar, Transport::Netlink)?,
            node: Link::open(&usual, Transport::Node)?,
            fd: Link::open(&busbar, Transport::Fd)?,
            buffer: Giver::new(&busbar, "check")?,
            hand_over: Giver::new(&busbar, "handover")?,
        })
    }

    /// Every transport carries these bytes.
    fn check(&mut self, bytes: &[u8]) -> Result<()> {
        for link in [&mut self.tty, &mut self.netlink, &mut self.node, &mut self.fd] {
            link.send_timeout(bytes, PATIENCE)?;
            let came = link.recv_timeout(Wanted::Last, PATIENCE)?;
            compare(&came, bytes, link.transport())?;
        }
        self.hand_over.fill(bytes)?;
        self.hand_over.give(Direction::ToRemote)?;
        self.check_buffer(bytes.len())
    }

    /// Checks that the coprocessor compares with this pattern.
    fn check_buffer(&mut self, len: usize) -> Result<()> {
        let pattern: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
        self.buffer.fill(&vec![0xff; len])?;
        if self.buffer.give(Direction::ToRemote).is_ok() {
            return Err(wrong("a shared buffer", "other bytes were accepted"));
        }
        self.buffer.give(Direction::FromRemote)?;
        let found = self.buffer.block.read()?.bytes().slice(..len).to_vec();
        compare(&found, &pattern, Transport::Buffer)?;
        self.buffer.give(Direction::ToRemote)
    }

    fn row(&mut self, bytes: &[u8], count: u64) -> Result<Row> {
        Ok(Row {
            tty: clocked(count, || send(&mut self.tty, bytes))?,
            netlink: clocked(count, || send(&mut self.netlink, bytes))?,
            node: clocked(count, || send(&mut self.node, bytes))?,
            fd: clocked(count, || send(&mut self.fd, bytes))?,
            buffer: clocked(count, || self.buffer.give(Direction::ToRemote))?,
            hand_over: clocked(count, || self.hand_over.give(Direction::ToRemote))?,
        })
    }
}

fn send(link: &mut Link, bytes: &[u8]) -> Result<()> {
    link.send_timeout(bytes, PATIENCE)
}

/// A block that is in shared memory already, as a converter's would be.
struct Giver {
    endpoint: Endpoint,
    block: Block,
    len: usize,
}

impl Giver {
    fn new(controller: &Controller, service: &str) -> Result<Self> {
        let endpoint = controller.endpoint(service).create()?;
        let block = Block::new(1)?;
        endpoint.attach(&block)?;
        Ok(Self { endpoint, block, len: 1 })
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        if self.block.len() < bytes.len() {
            let block = Block::new(bytes.len())?;
            self.endpoint.attach(&block)?;
            self.endpoint.detach(&self.block)?;
            self.block = block;
        }
        self.len = bytes.len();
        self.block.write()?.bytes_mut().slice(..bytes.len()).copy_from(bytes);
        Ok(())
    }

    /// Gives it, and waits until it is returned and verified.
    fn give(&mut self, direction: Direction) -> Result<()> {
        let cookie = self.endpoint.give(&mut self.block, 0..self.len, direction)?;
        let mut message = [0; MAX_MESSAGE];
        let length = self.endpoint.recv_timeout(&mut message, PATIENCE)?.unwrap_or(0);
        let whole = done(&message[..length]).is_some_and(|done| {
            done.cookie == cookie && done.status == 0 && done.length == self.len as u64
        });
        if whole { Ok(()) } else { Err(wrong("a shared buffer", "it was not read completely")) }
    }
}

/// Bytes of which no two messages are alike.
fn content(size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    fastrand::Rng::with_seed(size).fill(&mut bytes);
    bytes
}

fn compare(received: &[u8], sent: &[u8], way: Transport) -> Result<()> {
    if received == sent { Ok(()) } else { Err(wrong(&way.to_string(), "other bytes came back")) }
}

fn wrong(way: &str, what: &str) -> Error {
    Error::new("trust", way, io::Error::new(io::ErrorKind::InvalidData, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_row_with_milliseconds_and_rates() {
        let case = |name, runs| Case::new(name, &[("bytes", 32_768)], "us", "", &[runs]);
        let cases = [
            case("netlink", (1_000.0, 500.0)),
            case("fd", (400.0, 200.0)),
            case("buffer", (500.0, 50.0)),
            case("hand-over", (500.0, 25.0)),
        ];
        let row = "| 32 KiB | 1.000 ms, 32.8 MB/s | 0.500 ms, 65.5 MB/s | 0.400 ms, 81.9 MB/s \
                   | 0.200 ms, 163.8 MB/s | 0.050 ms, 655.4 MB/s | 0.025 ms | 2.00 | 2.00 | 10.0 |\n";
        assert_eq!(summary(&cases), format!("{HEAD}{row}"));
        assert_eq!(size_name(512.0), "512 B");
        assert_eq!(size_name(16_777_216.0), "16 MiB");
    }
}
