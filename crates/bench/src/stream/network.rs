//! From the converter to another host: a network namespace of its own, joined by a pair of `veth`.
//!
//! Both ways end when the receiver has all bytes. The usual way is `read()` and `write()`, Busbar's
//! blocks that go out by `sendfile` and come back when the receiver has said that it has them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use busbar::block::Memory;
use busbar::stream::net::{Options, Receiver, Sender};
use busbar::stream::{Interface, Lost, Setup, Source};
use busbar::{Error, Result};
use busbar_uapi::epoll::wait_readable;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::ClockId;

use super::{CONVERTER, Converter, Cost, Plan, Start, compare, compare_counter, setup};
use crate::Case;

const NAMESPACE: &str = "busbar-bench";
const HERE: &str = "198.18.57.1";
const THERE: &str = "198.18.57.2";
const PORT: u16 = 4950;

/// The namespace, which goes with this.
struct Elsewhere;

impl Elsewhere {
    fn new() -> Result<Self> {
        // What a run that was killed has left.
        drop(Self);
        let elsewhere = Self;
        for arguments in [
            format!("netns add {NAMESPACE}"),
            format!("link add busbar0 type veth peer name busbar1 netns {NAMESPACE}"),
            format!("addr add {HERE}/24 dev busbar0"),
            "link set busbar0 up".to_string(),
            format!("-n {NAMESPACE} addr add {THERE}/24 dev busbar1"),
            format!("-n {NAMESPACE} link set busbar1 up"),
        ] {
            ip(&arguments)?;
        }
        Ok(elsewhere)
    }

    /// Runs `work` in a thread that lives there, once it has said that it is ready.
    fn run<T: Send + 'static>(
        work: impl FnOnce(&mpsc::Sender<()>) -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter()?;
            work(&ready)
        });
        match is_ready.recv() {
            Ok(()) => Ok(thread),
            Err(_) => Err(join(thread).map_or_else(|error| error, |_| ended())),
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let quietly = |arguments: &[&str]| Command::new("ip").args(arguments).output();
        let _ = quietly(&["link", "del", "busbar0"]);
        let _ = quietly(&["netns", "del", NAMESPACE]);
    }
}

fn ip(arguments: &str) -> Result<()> {
    let failed = |why| Error::new("run", format!("ip {arguments}"), why).help("as root, iproute2");
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())))
}

fn enter() -> Result<()> {
    let path = format!("/run/netns/{NAMESPACE}");
    let failed = |why| Error::new("enter", path.clone(), why);
    let namespace = File::open(&path).map_err(failed)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| failed(errno.into()))
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Error {
    Error::new("run", "the receiver", std::io::Error::other("its thread has ended"))
}

fn failed(why: std::io::Error) -> Error {
    Error::new("send to", THERE, why)
}

/// Both ways, for blocks of `size` bytes; the processor time is that of who sends.
pub(super) fn run(plan: &Plan, converter: &Converter, size: usize) -> Result<[Case; 2]> {
    let _elsewhere = Elsewhere::new()?;
    let blocks = plan.blocks(size);
    converter.set("pattern", "counter")?;
    for way in [by_write, by_sendfile] {
        let (_, bytes) = way(converter, size, 4, true)?;
        compare_counter("the network", &bytes)?;
    }
    converter.set("pattern", "none")?;
    let cost = |way: Way| move || way(converter, size, blocks, false).map(|(cost, _)| cost);
    compare(plan, "network", "read(), write()", size, cost(by_write), cost(by_sendfile))
}

type Way = fn(&Converter, usize, usize, bool) -> Result<(Cost, Vec<u8>)>;

/// The usual way; also what the receiver has got, if it is to `keep` it.
fn by_write(
    converter: &Converter,
    size: usize,
    blocks: usize,
    keep: bool,
) -> Result<(Cost, Vec<u8>)> {
    let receiver = Elsewhere::run(move |ready| {
        let listener = TcpListener::bind((THERE, PORT)).map_err(failed)?;
        let _ = ready.send(());
        let (mut socket, _) = listener.accept().map_err(failed)?;
        let (mut buffer, mut kept) = (vec![0; size], Vec::new());
        for _ in 0..blocks {
            socket.read_exact(&mut buffer).map_err(failed)?;
            if keep {
                kept.extend_from_slice(&buffer);
            }
        }
        // The sender's clock stops when all has arrived.
        socket.write_all(&[1]).map_err(failed)?;
        Ok(kept)
    })?;
    let mut socket = TcpStream::connect((THERE, PORT)).map_err(failed)?;
    let mut reader = converter.start(size)?;
    let mut buffer = vec![0; size];
    let start = Start::now(ClockId::ThreadCPUTime);
    for _ in 0..blocks {
        reader.fill(&mut buffer)?;
        socket.write_all(&buffer).map_err(failed)?;
    }
    socket.read_exact(&mut [0]).map_err(failed)?;
    let cost = start.cost(size * blocks);
    Ok((cost, join(receiver)?))
}

/// Busbar's.
fn by_sendfile(_: &Converter, size: usize, blocks: usize, keep: bool) -> Result<(Cost, Vec<u8>)> {
    let receiver = Elsewhere::run(move |ready| {
        let setup = Setup { blocks: 4, ..Setup::default() };
        let address = format!("{THERE}:{PORT}");
        let mut receiver = Receiver::listen(&address, &setup, &Options::default())?;
        let _ = ready.send(());
        let mut kept = Vec::new();
        while let Some(samples) = receiver.next(None)? {
            if keep {
                kept.extend_from_slice(&samples.read()?);
            }
        }
        Ok(kept)
    })?;
    let source = Source::open(
        &format!("iio:{CONVERTER}"),
        &setup(size, Interface::Dmabuf, Some(Memory::Pages)),
    )?;
    let target = format!("{THERE}:{PORT}");
    let mut sender = Sender::open(&target, source.format(), size, &Options::default())?;
    let start = Start::now(ClockId::ThreadCPUTime);
    for _ in 0..blocks {
        let samples = loop {
            sender.turn()?;
            if let Some(samples) = source.next(Some(Duration::ZERO))? {
                break samples;
            }
            wait_readable([source.as_fd(), sender.as_fd()], None)
                .map_err(|errno| failed(errno.into()))?;
        };
        sender.push(samples)?;
    }
    sender.finish(Lost::Samples(0));
    sender.wait(None)?;
    let cost = start.cost(size * blocks);
    Ok((cost, join(receiver)?))
}
