//! `receive`: the cost of the tokens of device memory, alone and in a stream.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `tokens` | fragments are given and returned with tokens of the socket's table (xarray) | with index tokens |
//! | `give`, `return` | the two halves of `tokens` | the same |
//! | `flows-cpu`, `flows-time` | streams into device memory with tokens of the table | with index tokens |
//! | `copy-cpu`, `copy-time` | ordinary receive into a block | device memory with index tokens |
//!
//! `tokens` peeks: `recvmsg` with `MSG_PEEK` gives fragments that wait in the socket, again and again,
//! and each is returned by a range of its own, 128 in a call. So there is no network in it, but there
//! are both calls and a control message for each fragment.
//!
//! The streams come from a namespace of its own over a pair of `vnic`. Its "DMA" is a copy that the
//! processor makes: it is in the time of both sides, and partly in the processor time of the receiving
//! threads, if the copy ran in their time slice.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Piece, Queues, ReceiveSetup, Receiver, Tokens};
use busbar::{Error, Result};
use busbar_uapi::devmem::{self, Control, MAX_RANGES, Range};
use rustix::time::ClockId;

use crate::clock::{float, now};
use crate::elsewhere::{DEVICE, Elsewhere, HERE, Link, join};
use crate::{Case, Extent, Report, Spread};

/// Bytes of device memory for each side.
const MEMORY: usize = 32 << 20;
/// Receive buffers of the sockets in bytes: 1 024 fragments, and more.
const KEPT: u32 = 16 << 20;
/// Fragments that are held at the same time.
const HELD: [usize; 4] = [1, 16, 128, 1_024];
/// Most bytes of a fragment.
const PAGE: usize = 4096;
/// Bytes of the pattern that streams consist of.
const PATTERN: usize = 1 << 20;

struct Plan {
    /// Runs of the tokens, and of the streams.
    rows: usize,
    stream_rows: usize,
    /// Fragments given in a run.
    fragments: usize,
    /// Bytes of each stream.
    bytes: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        match extent {
            Extent::Quick => Self { rows: 2, stream_rows: 2, fragments: 1_024, bytes: 2 << 20 },
            Extent::Normal => Self { rows: 5, stream_rows: 11, fragments: 16_384, bytes: 64 << 20 },
            Extent::Full => Self { rows: 11, stream_rows: 11, fragments: 262_144, bytes: 1 << 30 },
        }
    }
}

/// Runs the benchmark; needs `vnic`, and a kernel with index tokens. `progress` is called with the name of
/// each step.
pub fn run(extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let plan = Plan::of(extent);
    let _elsewhere = Elsewhere::new(Link::Vnic)?;
    let table = open(Tokens::Autorelease)?;
    let index = open(Tokens::Index)?;
    let mut cases = Vec::new();
    for sockets in [1, 4] {
        for held in HELD {
            progress(&format!("{held} fragments of {sockets} sockets"));
            cases.extend(tokens(&plan, &table, &index, sockets, held)?);
        }
    }
    let copy = Receiver::host(Block::with(MEMORY, &Memory::Pages)?)?;
    let mut idle = String::new();
    for flows in [1, 4] {
        progress(&format!("{flows} streams"));
        let (lines, said) = streams(&plan, "flows", "xarray tokens", flows, &table, &index)?;
        cases.extend(lines);
        idle += &said;
        progress(&format!("{flows} streams, copied"));
        let (lines, said) = streams(&plan, "copy", "recv()", flows, &copy, &index)?;
        cases.extend(lines);
        idle += &said;
    }
    let summary =
        format!("Share of the time in which receiving threads were idle, in percent:\n\n{idle}");
    Ok(Report { summary, ..Report::new("receive", plan.rows, cases) })
}

fn open(tokens: Tokens) -> Result<Receiver> {
    let block = Block::with(MEMORY, &Memory::Pages)?;
    Receiver::open(DEVICE, block, &ReceiveSetup::new().queues(Queues::Count(1)).tokens(tokens))
}

// -- Tokens alone

#[derive(Clone, Copy)]
enum Order {
    AsGiven,
    Reversed,
    Random,
}

impl Order {
    const ALL: [Self; 3] = [Self::AsGiven, Self::Reversed, Self::Random];

    fn name(self) -> &'static str {
        match self {
            Self::AsGiven => "in order",
            Self::Reversed => "reversed",
            Self::Random => "random",
        }
    }

    /// The order in which `count` tokens are returned. It is the same each time.
    fn of(self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        match self {
            Self::AsGiven => {}
            Self::Reversed => order.reverse(),
            Self::Random => fastrand::Rng::with_seed(6).shuffle(&mut order),
        }
        order
    }
}

/// Sockets in each of which enough fragments wait.
struct Waiting {
    connections: Vec<Connection>,
    held: usize,
    /// Buffer for ordinary bytes; its length limits what `recvmsg` returns.
    bytes: Vec<u8>,
    control: Vec<u8>,
    tokens: Vec<u32>,
    _sender: JoinHandle<Result<()>>,
}

/// Microseconds for a fragment.
#[derive(Clone, Copy, Default)]
struct TokenCost {
    give: f64,
    take_back: f64,
}

impl Waiting {
    fn new(receiver: &Receiver, sockets: usize, held: usize) -> Result<Self> {
        let listener = receiver.listen(format!("{HERE}:0").parse().expect("an address"))?;
        devmem::force_receive_buffer(&listener, KEPT)
            .map_err(|errno| Error::new("set the receive buffer of", "a socket", errno))?;
        let address = listener.local_addr()?;
        // Enough room for the fragments even if each is full.
        let len = held * PAGE;
        let sender = Elsewhere::run(move |ready| {
            let _ = ready.send(());
            let mut streams = Vec::new();
            for _ in 0..sockets {
                let mut stream = TcpStream::connect(address).map_err(failed)?;
                stream.write_all(&vec![0; len]).map_err(failed)?;
                streams.push(stream);
            }
            // The connections stay open until the other end has finished.
            for stream in streams {
                let _ = stream.peek(&mut [0]);
            }
            Ok(())
        })?;
        let accept = || listener.accept();
        let connections = (0..sockets).map(|_| accept()).collect::<Result<_>>()?;
        let mut waiting = Self {
            connections,
            held,
            bytes: vec![0; len],
            control: vec![0; held * devmem::CONTROL_SPACE],
            tokens: Vec::with_capacity(held),
            _sender: sender,
        };
        for index in 0..sockets {
            waiting.wait_for(index)?;
        }
        Ok(waiting)
    }

    /// Waits until all fragments have arrived.
    fn wait_for(&mut self, index: usize) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let given = self.give(index)?;
            self.take_back(index, &(0..given).collect::<Vec<_>>())?;
            if given == self.held {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let why = std::io::Error::from(std::io::ErrorKind::TimedOut);
        Err(Error::new("wait for fragments from", HERE, why))
    }

    /// Receives the fragments, and returns their number.
    fn give(&mut self, index: usize) -> Result<usize> {
        let socket = self.connections[index].socket();
        let got = match devmem::peek(socket, &mut self.bytes, &mut self.control) {
            Ok(got) => got,
            Err(rustix::io::Errno::AGAIN) => return Ok(0),
            Err(errno) => return Err(Error::new("peek into", "a socket", errno)),
        };
        self.tokens.clear();
        for control in devmem::controls(&self.control[..got.control_len]) {
            match control.map_err(|errno| Error::new("parse", "a control message", errno))? {
                Control::Device(fragment) => self.tokens.push(fragment.token),
                other => {
                    let allowed = "device memory only";
                    return Err(Error::invalid("a fragment", format!("{other:?}"), allowed));
                }
            }
        }
        Ok(self.tokens.len())
    }

    fn take_back(&self, index: usize, order: &[usize]) -> Result<()> {
        let socket = self.connections[index].socket();
        for some in order.chunks(MAX_RANGES) {
            let mut ranges = [Range { start: 0, count: 1 }; MAX_RANGES];
            for (range, place) in ranges.iter_mut().zip(some) {
                range.start = self.tokens[*place];
            }
            let taken = devmem::dont_need(socket, &ranges[..some.len()])
                .map_err(|errno| Error::new("return tokens to", "a socket", errno))?;
            if taken as usize != some.len() {
                let allowed = format!("{}", some.len());
                return Err(Error::invalid("the number of tokens taken back", taken, allowed));
            }
        }
        Ok(())
    }

    fn cost(&mut self, fragments: usize, order: &[usize]) -> Result<TokenCost> {
        let sockets = self.connections.len();
        let rounds = (fragments / self.held / sockets).max(1);
        let mut cost = TokenCost::default();
        for index in (0..rounds).flat_map(|_| 0..sockets) {
            let start = Instant::now();
            self.give(index)?;
            let given = Instant::now();
            self.take_back(index, order)?;
            cost.give += (given - start).as_secs_f64();
            cost.take_back += given.elapsed().as_secs_f64();
        }
        let each = 1e6 / float((rounds * sockets * self.held) as u64);
        Ok(TokenCost { give: cost.give * each, take_back: cost.take_back * each })
    }
}

fn tokens(
    plan: &Plan,
    table: &Receiver,
    index: &Receiver,
    sockets: usize,
    held: usize,
) -> Result<Vec<Case>> {
    let mut table = Waiting::new(table, sockets, held)?;
    let mut index = Waiting::new(index, sockets, held)?;
    let mut cases = Vec::new();
    for order in Order::ALL {
        let places = order.of(held);
        let mut turn =
            || Ok((table.cost(plan.fragments, &places)?, index.cost(plan.fragments, &places)?));
        turn()?;
        let runs: Vec<_> = (0..plan.rows).map(|_| turn()).collect::<Result<_>>()?;
        let case = |name: &str, pick: fn(&TokenCost) -> f64| {
            let runs: Vec<_> = runs.iter().map(|(a, b)| (pick(a), pick(b))).collect();
            let params = [("held", held as u64), ("sockets", sockets as u64)];
            let name = format!("{name} {}", order.name());
            Case::new(&name, &params, "us/fragment", "xarray", &runs)
        };
        cases.push(case("tokens", |cost| cost.give + cost.take_back));
        if matches!(order, Order::AsGiven) {
            cases.push(case("give", |cost| cost.give));
            cases.push(case("return", |cost| cost.take_back));
        }
        if held == 1 {
            // One fragment has only one order.
            break;
        }
    }
    Ok(cases)
}

fn failed(why: std::io::Error) -> Error {
    Error::new("send to", HERE, why)
}

// -- Streams

/// The cost of streams.
#[derive(Clone, Copy)]
struct StreamCost {
    /// Microseconds of the receiving threads' processor time for each MiB.
    cpu: f64,
    /// Microseconds for each MiB.
    time: f64,
    /// Share of the time in which the receiving threads were idle, in percent.
    idle: f64,
}

fn streams(
    plan: &Plan,
    name: &str,
    against: &str,
    flows: usize,
    usual: &Receiver,
    ours: &Receiver,
) -> Result<([Case; 2], String)> {
    transfer(usual, flows, 2 * PATTERN, true)?;
    transfer(ours, flows, 2 * PATTERN, true)?;
    let turn = || {
        let usual = transfer(usual, flows, plan.bytes, false)?;
        Ok((usual, transfer(ours, flows, plan.bytes, false)?))
    };
    turn()?;
    let runs: Vec<_> = (0..plan.stream_rows).map(|_| turn()).collect::<Result<_>>()?;
    let pairs = |pick: fn(&StreamCost) -> f64| -> Vec<_> {
        runs.iter().map(|(a, b)| (pick(a), pick(b))).collect()
    };
    let case = |what: &str, pick: fn(&StreamCost) -> f64| {
        let params = [("flows", flows as u64), ("bytes", plan.bytes as u64)];
        Case::new(&format!("{name}-{what}"), &params, "us/MiB", against, &pairs(pick))
    };
    let cases = [case("cpu", |cost| cost.cpu), case("time", |cost| cost.time)];
    let idle = pairs(|cost| cost.idle);
    let side = |pick: fn(&(f64, f64)) -> f64| {
        let values: Vec<_> = idle.iter().map(pick).collect();
        let Spread { min, median, max } = Spread::of(&values).expect("there were runs");
        format!("{median:.1} ({min:.1} to {max:.1})")
    };
    let (usual, ours) = (side(|run| run.0), side(|run| run.1));
    Ok((cases, format!("* {flows} flows: {against} {usual}, index tokens {ours}\n")))
}

/// Numbers that count up, as bytes.
fn pattern() -> Vec<u8> {
    (0..(PATTERN / 8) as u64).flat_map(u64::to_le_bytes).collect()
}

fn transfer(receiver: &Receiver, flows: usize, bytes: usize, check: bool) -> Result<StreamCost> {
    let listener = receiver.listen(format!("{HERE}:0").parse().expect("an address"))?;
    let address = listener.local_addr()?;
    let (go, start) = mpsc::channel::<()>();
    let sender = Elsewhere::run(move |ready| {
        let _ = ready.send(());
        send(address, flows, bytes, &start)
    })?;
    let accept = || listener.accept();
    let connections = (0..flows).map(|_| accept()).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    drop(go);
    let threads: Vec<_> = connections
        .into_iter()
        .map(|connection| thread::spawn(move || take(connection, bytes, check)))
        .collect();
    let mut cpu = 0.0;
    for thread in threads {
        cpu += join(thread)?.as_secs_f64();
    }
    let time = begin.elapsed().as_secs_f64();
    join(sender)?;
    let each = 1e6 / float((flows * bytes / PATTERN) as u64);
    let idle = 100.0 * (1.0 - cpu / (time * float(flows as u64)));
    Ok(StreamCost { cpu: cpu * each, time: time * each, idle })
}

/// Sends on all connections at once, after all were made.
fn send(address: SocketAddr, flows: usize, bytes: usize, start: &mpsc::Receiver<()>) -> Result<()> {
    let connect = |_| TcpStream::connect(address).map_err(failed);
    let streams = (0..flows).map(connect).collect::<Result<Vec<_>>>()?;
    // Its sender is dropped.
    let _ = start.recv();
    let pattern = pattern();
    thread::scope(|scope| {
        let send = |mut stream: TcpStream| {
            (0..bytes / PATTERN).try_for_each(|_| stream.write_all(&pattern)).map_err(failed)
        };
        let threads: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || send(stream))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

/// Receives a whole stream; returns the processor time of this thread.
fn take(mut connection: Connection, bytes: usize, check: bool) -> Result<Duration> {
    let expected = if check { pattern() } else { Vec::new() };
    let begin = now(ClockId::ThreadCPUTime);
    let mut at = 0;
    while let Some(piece) = connection.next()? {
        if check && !is_right(&piece, &expected, at)? {
            let why = format!("the bytes differ from those sent, from byte {at} on");
            return Err(Error::new("receive from", DEVICE, std::io::Error::other(why)));
        }
        at += piece.len();
    }
    if at != bytes {
        return Err(Error::invalid("the bytes received", at, bytes.to_string()));
    }
    Ok(now(ClockId::ThreadCPUTime).saturating_sub(begin))
}

fn is_right(piece: &Piece, expected: &[u8], at: usize) -> Result<bool> {
    let (mut same, mut at) = (true, at);
    let mut compare = |bytes: &[u8]| {
        let wanted = expected.iter().cycle().skip(at % expected.len());
        same = same && bytes.iter().zip(wanted).all(|(byte, wanted)| byte == wanted);
        at += bytes.len();
    };
    match piece {
        Piece::View(view) => view.read()?.bytes().for_each_chunk(compare),
        Piece::Bytes(bytes) => compare(bytes),
    }
    Ok(same)
}
