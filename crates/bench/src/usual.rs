//! The usual program that sends a converter's samples to another host: the baseline of the
//! demonstration.
//!
//! A device node for the coprocessor's endpoint, `read()` from the converter, `write()` to the socket,
//! `read()` from it and `write()` to the file; `epoll_ctl` for one descriptor at a time. It does the
//! same as the pipeline: the coprocessor commands the converter and may crash, every sample is
//! verified and recorded.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use busbar::endpoint::{Controller, Endpoint, Implementation, MAX_MESSAGE};
use busbar::pipeline::message::{Action, Report, Request};
use busbar::stream::Lost;
use busbar::stream::sigmf::Datatype;
use busbar::stream::verify::Counter;
use busbar::{Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::ClockId;
use serde::Serialize;

use crate::clock::now;
use crate::stream::{Converter, Running, SAMPLE};

/// Name of the pipeline's source.
const SOURCE: &str = "adc";
/// Magic, length, time in nanoseconds and number of a block.
const HEADER: usize = 24;
const MAGIC: u32 = 0x7573_7561;
/// Time between two attempts to reach the coprocessor again.
const PAUSE: Duration = Duration::from_millis(50);
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
const ENDPOINT: u64 = 1;
const SAMPLES: u64 = 2;

/// Counts of one end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Bytes of samples.
    pub bytes: u64,
    /// Bytes copied; a byte that was copied twice counts twice.
    pub copied: u64,
    /// Seconds from the first block to the last.
    pub seconds: f64,
    /// Processor time of the process, and of the kernel on its behalf.
    pub cpu_seconds: f64,
    /// Samples that were verified.
    pub verified: u64,
    /// Median latency in microseconds, from when a block was complete.
    pub latency_p50: u64,
    /// The same for 99 of 100 blocks.
    pub latency_p99: u64,
    /// How often the coprocessor came back.
    pub restarts: u64,
}

/// Reads blocks of `size` bytes from the converter `name` and writes them to `target`, for `time`.
///
/// # Errors
///
/// Any failure, except a coprocessor that goes away.
pub fn send(
    name: &str,
    service: &str,
    size: usize,
    target: SocketAddr,
    length: Duration,
) -> Result<Outcome> {
    let converter = Converter::find(name)?;
    let failed = |why| Error::new("send to", target.to_string(), why);
    let mut socket = TcpStream::connect(target).map_err(failed)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|errno| Error::new("make", "an epoll", errno))?;
    let mut sender = Sender {
        converter: &converter,
        service,
        size,
        epoll,
        endpoint: None,
        reader: None,
        opened: 0,
        outcome: Outcome::default(),
    };
    let (start, cpu) = (Instant::now(), now(ClockId::ProcessCPUTime));
    sender.run(&mut socket, start + length)?;
    socket.write_all(&header(0, 0)).map_err(failed)?;
    // The receiver acknowledges that it has everything.
    socket.read_exact(&mut [0]).map_err(failed)?;
    let mut outcome = sender.outcome.clone();
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.cpu_seconds = now(ClockId::ProcessCPUTime).saturating_sub(cpu).as_secs_f64();
    outcome.restarts = sender.opened.saturating_sub(1);
    Ok(outcome)
}

struct Sender<'a> {
    converter: &'a Converter,
    service: &'a str,
    size: usize,
    epoll: OwnedFd,
    endpoint: Option<Endpoint>,
    reader: Option<Running<'a>>,
    opened: u64,
    outcome: Outcome,
}

impl Sender<'_> {
    fn run(&mut self, socket: &mut TcpStream, until: Instant) -> Result<()> {
        let (mut buffer, mut number) = (vec![0; self.size], 0);
        let mut again = Instant::now();
        while Instant::now() < until {
            if self.endpoint.is_none() && Instant::now() >= again {
                self.connect()?;
                again = Instant::now() + PAUSE;
            }
            for key in self.wait()? {
                match (key, &mut self.reader) {
                    (ENDPOINT, _) => self.hear()?,
                    (SAMPLES, Some(reader)) => {
                        reader.fill(&mut buffer)?;
                        number += 1;
                        self.pass(socket, &buffer, number)?;
                    }
                    _ => {}
                }
            }
        }
        self.reader = None;
        Ok(())
    }

    fn pass(&mut self, socket: &mut TcpStream, block: &[u8], number: u64) -> Result<()> {
        let failed = |why| Error::new("write to", "the socket", why);
        socket.write_all(&header(block.len(), number)).map_err(failed)?;
        socket.write_all(block).map_err(failed)?;
        self.outcome.bytes += block.len() as u64;
        // One copy out of the driver's block, and one into the socket's memory.
        self.outcome.copied += 2 * block.len() as u64;
        Ok(())
    }

    fn wait(&self) -> Result<Vec<u64>> {
        let mut events = Vec::with_capacity(4);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&TICK)) {
            Ok(_) | Err(Errno::INTR) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(errno) => Err(Error::new("wait for", "an epoll", errno)),
        }
    }

    fn add(&self, file: impl AsFd, key: u64) -> Result<()> {
        epoll::add(&self.epoll, file, epoll::EventData::new_u64(key), epoll::EventFlags::IN)
            .map_err(|errno| Error::new("watch", "a descriptor", errno))
    }

    /// A device node, created, found and opened; `None` while the coprocessor is away.
    fn connect(&mut self) -> Result<()> {
        let made = Controller::list()?.iter().find_map(|info| {
            let controller = Controller::open(&info.path).ok()?;
            let endpoint = controller.endpoint(self.service);
            endpoint.implementation(Implementation::Node).create().ok()
        });
        let Some(endpoint) = made else { return Ok(()) };
        self.add(&endpoint, ENDPOINT)?;
        // If it goes away at once, the next read fails.
        let _ = endpoint.try_send(format!("start {SOURCE}").as_bytes());
        self.endpoint = Some(endpoint);
        self.opened += 1;
        Ok(())
    }

    fn hear(&mut self) -> Result<()> {
        let Some(endpoint) = self.endpoint.take() else { return Ok(()) };
        let mut message = [0; MAX_MESSAGE];
        loop {
            match endpoint.try_recv(&mut message) {
                Ok(Some(length)) => self.obey(&endpoint, &message[..length])?,
                Ok(None) => break,
                // It has crashed. Its node is destroyed with it.
                Err(_) => return Ok(()),
            }
        }
        self.endpoint = Some(endpoint);
        Ok(())
    }

    fn obey(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<()> {
        let Ok(Report::Command { number, action }) = Report::decode(message) else {
            return Ok(());
        };
        let done = match action {
            Action::Set { attribute, value, .. } => {
                self.converter.set(attribute.as_str(), value.as_str())
            }
            Action::Start(_) if self.reader.is_none() => {
                let reader = self.converter.start(self.size)?;
                self.add(&reader, SAMPLES)?;
                self.reader = Some(reader);
                Ok(())
            }
            Action::Start(_) => Ok(()),
            Action::Stop(_) => {
                self.reader = None;
                Ok(())
            }
        };
        let answer = match done {
            Ok(()) => Request::Ok { number },
            Err(error) => Request::error(number, error),
        };
        // If it has gone away, the next read fails.
        let _ = endpoint.try_send(&answer.encode()?);
        Ok(())
    }
}

fn header(len: usize, number: u64) -> [u8; HEADER] {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    header[8..16].copy_from_slice(&time.to_le_bytes());
    header[16..].copy_from_slice(&number.to_le_bytes());
    header
}

/// Length and time of a block.
fn parse(header: &[u8; HEADER]) -> Result<(usize, Duration)> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    if word(0) != MAGIC {
        return Err(Error::invalid("a header", format!("{:#x}", word(0)), "the magic number"));
    }
    let time = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| header[8 + byte]));
    Ok((word(4) as usize, Duration::from_nanos(time)))
}

/// Receives what [`send`] sends, verifies it and writes every `each`th sample to the file `recording`.
///
/// # Errors
///
/// Any failure, and the first wrong sample.
pub fn receive(address: SocketAddr, size: usize, each: usize, recording: &Path) -> Result<Outcome> {
    let failed = |why| Error::new("receive on", address.to_string(), why);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let (mut socket, _) = listener.accept().map_err(failed)?;
    let name = recording.display().to_string();
    let no_file = |why| Error::new("write", name.clone(), why);
    let mut file = File::create_new(recording).map_err(no_file)?;
    // The converter's four voltages.
    let format = "ci16_le".parse::<Datatype>()?.format(2, None, None, None);
    let mut counter = Counter::new(&format)?;
    let (mut outcome, mut latencies) = (Outcome::default(), Vec::new());
    let (mut head, mut buffer) = ([0; HEADER], vec![0; size]);
    // Position of the next sample in the cycle of `each`.
    let (mut kept, mut at) = (Vec::new(), 0);
    let (start, cpu) = (Instant::now(), now(ClockId::ProcessCPUTime));
    loop {
        socket.read_exact(&mut head).map_err(failed)?;
        let (len, time) = parse(&head)?;
        if len == 0 {
            break;
        }
        let block = buffer
            .get_mut(..len)
            .ok_or_else(|| Error::invalid("the length of a block", len, format!("up to {size}")))?;
        socket.read_exact(block).map_err(failed)?;
        counter.verify_bytes(block, Lost::Samples(0))?;
        kept.clear();
        let samples = block.chunks_exact(SAMPLE).skip((each - at) % each).step_by(each);
        samples.for_each(|sample| kept.extend_from_slice(sample));
        at = (at + len / SAMPLE) % each;
        file.write_all(&kept).map_err(no_file)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        latencies.push(now.saturating_sub(time));
        outcome.bytes += len as u64;
        // One copy out of the socket's memory; samples that are kept are copied twice more, into the file.
        outcome.copied += (len + 2 * kept.len()) as u64;
    }
    file.sync_data().map_err(no_file)?;
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.cpu_seconds = now(ClockId::ProcessCPUTime).saturating_sub(cpu).as_secs_f64();
    outcome.verified = counter.samples();
    latencies.sort_unstable();
    let at = |percent: usize| {
        let latency = latencies.get(latencies.len() * percent / 100).copied().unwrap_or_default();
        u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
    };
    (outcome.latency_p50, outcome.latency_p99) = (at(50), at(99));
    socket.write_all(&[1]).map_err(failed)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let (len, time) = parse(&header(4096, 7)).unwrap();
        assert!(len == 4096 && time > Duration::from_secs(1_700_000_000));
        assert!(parse(&[0; HEADER]).is_err());
    }

    #[test]
    fn samples_are_verified_and_recorded() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let bytes: Vec<u8> = (5_u64..1005).flat_map(u64::to_le_bytes).collect();
        let receiver = {
            let path = path.clone();
            std::thread::spawn(move || receive(free, 4000, 3, &path))
        };
        let mut socket = loop {
            if let Ok(socket) = TcpStream::connect(free) {
                break socket;
            }
        };
        for block in bytes.chunks(4000) {
            socket.write_all(&header(block.len(), 0)).unwrap();
            socket.write_all(block).unwrap();
        }
        socket.write_all(&header(0, 0)).unwrap();
        let outcome = receiver.join().unwrap().unwrap();
        assert_eq!(
            (outcome.verified, outcome.bytes, outcome.copied),
            (1000, 8000, 8000 + 2 * 8 * 334)
        );
        let kept: Vec<u8> = bytes.chunks(8).step_by(3).flatten().copied().collect();
        assert_eq!(std::fs::read(path).unwrap(), kept);
    }
}
