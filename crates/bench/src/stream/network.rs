//! From the converter to another host: a network namespace of its own, connected by a pair of `veth`.
//!
//! Both ways end when the receiver has all bytes. The usual way is `read()` and `write()`, Busbar's
//! blocks that are sent by `sendfile` and free again when the receiver has acknowledged them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use busbar::block::Memory;
use busbar::stream::net::{FrameReceiver, FrameSender, Options};
use busbar::stream::{Interface, Lost, Source, StreamSetup};
use busbar::{Error, Result};
use busbar_uapi::epoll::wait_readable;
use rustix::time::ClockId;

use super::{CONVERTER, Converter, Cost, Plan, SIZES, Start, compare, compare_counter, setup};
use crate::Case;
use crate::elsewhere::{Elsewhere, Link, THERE, join};

const PORT: u16 = 4950;

fn failed(why: std::io::Error) -> Error {
    Error::new("send to", THERE, why)
}

/// Both ways, for blocks of `size` bytes; the processor time is the sender's.
pub(super) fn run(plan: &Plan, converter: &Converter, size: usize) -> Result<[Case; 2]> {
    let _elsewhere = Elsewhere::new(Link::Veth)?;
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

/// The usual way; also returns the received bytes, with `keep`.
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
        // The sender's clock stops when everything has arrived.
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
        let blocks = 4;
        let setup = StreamSetup::new().blocks(blocks);
        let address = format!("{THERE}:{PORT}");
        let longest = SIZES.into_iter().max().unwrap_or(0);
        let options = Options::new().memory_limit(blocks * longest);
        let mut receiver = FrameReceiver::listen(&address, &setup, &options)?;
        let _ = ready.send(());
        let mut kept = Vec::new();
        while let Some(samples) = receiver.next()? {
            if keep {
                samples.read()?.bytes().append_to(&mut kept);
            }
        }
        Ok(kept)
    })?;
    let source = Source::open(
        &format!("iio:{CONVERTER}"),
        &setup(size, Interface::Dmabuf, Some(Memory::Pages)),
    )?;
    let target = format!("{THERE}:{PORT}");
    let mut sender = FrameSender::open(&target, source.format(), size, &Options::default())?;
    let start = Start::now(ClockId::ThreadCPUTime);
    for _ in 0..blocks {
        let samples = loop {
            sender.advance()?;
            if let Some(samples) = source.try_next()? {
                break samples;
            }
            wait_readable([source.as_fd(), sender.as_fd()], None)
                .map_err(|errno| failed(errno.into()))?;
        };
        sender.push(samples)?;
    }
    sender.finish(Lost::Samples(0));
    sender.wait()?;
    let cost = start.cost(size * blocks);
    Ok((cost, join(receiver)?))
}
