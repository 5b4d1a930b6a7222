//! Events of the devices, such as a threshold that was crossed.
//!
//! The kernel gives the events of a device to one file. So all streams of a device share this file, and each of them gets
//! every event that comes while it is open.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use busbar_uapi::iio::{self, EVENT_LEN};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read};

use super::hub::{DEVICES, errno};
use crate::stream::net::watch::{News, Watch};

/// Events of a device that are kept for streams which have not read them.
const MOST_KEPT: usize = 1024;
/// Most streams of a client.
const MOST_STREAMS: usize = 16;
/// Events that are read at once, which are as many as Linux keeps.
const AT_ONCE: usize = 16;
/// Most reads of a file in a turn, so that others have theirs.
const STEPS: usize = 16;
/// Tokens of files begin here, above those of devices.
const FILES: u64 = DEVICES << 1;
/// Most reads of a stream that wait.
const MOST_ASKED: usize = 16;
/// How long others may take to open the device, as to choose a buffer, and the pause between attempts.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// An event: its code, and its time in nanoseconds.
pub(super) type Event = [u8; EVENT_LEN];

/// The devices of which there are streams.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<Source>);

#[derive(Debug)]
struct Source {
    device: usize,
    /// Without it, why there are no more events.
    file: Result<OwnedFd, Errno>,
    /// Whether the file may have more events.
    has_more: bool,
    /// The last events.
    kept: VecDeque<Event>,
    /// How many there were, with those that are not kept any more.
    count: u64,
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    client: u64,
    id: u16,
    /// The number of the next event.
    next: u64,
    /// How many reads wait.
    asked: usize,
}

/// What a stream is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub device: usize,
    pub to: u16,
    /// Events that it has missed before.
    pub lost: u64,
    pub event: Result<Event, Errno>,
}

/// Opens the events of a device of this machine. That may take as long as its driver is busy.
///
/// `EBUSY` may be that of a client which has just gone: its file is closed when the server has the answer.
/// `has_node` is set while it has the node of the device open, which only one can have at a time.
pub(super) fn open(id: &str, has_node: &AtomicBool) -> Result<OwnedFd, Errno> {
    let path = Path::new("/dev").join(id);
    let attempt = || {
        has_node.store(true, Ordering::SeqCst);
        let opened = File::open(&path)
            .map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
            .and_then(iio::event_fd);
        has_node.store(false, Ordering::SeqCst);
        opened
    };
    let file = while_busy(attempt, || true)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
    Ok(file)
}

/// Tries for up to 20 ms, while a device is busy and that `may_end`.
pub(super) fn while_busy<T>(
    mut attempt: impl FnMut() -> Result<T, Errno>,
    may_end: impl Fn() -> bool,
) -> Result<T, Errno> {
    for _ in 1..ATTEMPTS {
        // Asked first: what ends in the meantime is tried once more.
        let may_end = may_end();
        match attempt() {
            Err(Errno::BUSY) if may_end => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    attempt()
}

impl Events {
    /// Whether there are streams of a device that have not failed.
    pub(super) fn has(&self, device: usize) -> bool {
        self.0.iter().any(|source| source.device == device && source.file.is_ok())
    }

    /// Whether a client has a stream.
    pub(super) fn is_used_by(&self, client: u64) -> bool {
        self.0.iter().flat_map(|source| &source.streams).any(|stream| stream.client == client)
    }

    /// Whether a client may create a stream with this id.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it has this one, `ENOMEM` if it has too many.
    pub(super) fn check(&self, device: usize, client: u64, id: u16) -> Result<(), Errno> {
        let all =
            self.0.iter().flat_map(|source| source.streams.iter().map(move |it| (source, it)));
        let own: Vec<_> = all.filter(|(_, stream)| stream.client == client).collect();
        if own.iter().any(|(source, stream)| source.device == device && stream.id == id) {
            return Err(Errno::BUSY);
        }
        if own.len() >= MOST_STREAMS { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// Adds a stream of a device, of which there are some already, or whose events were opened.
    pub(super) fn create(
        &mut self,
        device: usize,
        client: u64,
        id: u16,
        file: Option<OwnedFd>,
        watch: &Watch,
    ) -> Result<(), Errno> {
        let found = self.0.iter().position(|source| source.device == device);
        if let Some(file) = &file {
            watch.add(file, FILES + device as u64).map_err(|error| errno(&error))?;
        }
        let source = match (found, file) {
            (Some(index), None) => &mut self.0[index],
            // They have failed before, and may go on.
            (Some(index), Some(file)) => {
                let source = &mut self.0[index];
                (source.file, source.has_more) = (Ok(file), true);
                source
            }
            (None, Some(file)) => {
                self.0.push(Source::new(device, file));
                self.0.last_mut().ok_or(Errno::NOMEM)?
            }
            (None, None) => return Err(Errno::NODEV),
        };
        source.streams.push(Stream { client, id, next: source.count, asked: 0 });
        Ok(())
    }

    fn find(&mut self, device: usize, client: u64, id: u16) -> Result<(usize, usize), Errno> {
        let at = self.0.iter().position(|source| source.device == device).ok_or(Errno::BADF)?;
        let mut streams = self.0[at].streams.iter();
        let stream = streams.position(|stream| stream.client == client && stream.id == id);
        Ok((at, stream.ok_or(Errno::BADF)?))
    }

    /// Frees a stream. Returns how many of its reads wait for an event.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is none.
    pub(super) fn free(&mut self, device: usize, client: u64, id: u16) -> Result<usize, Errno> {
        let (at, stream) = self.find(device, client, id)?;
        let freed = self.0[at].streams.remove(stream);
        self.close();
        Ok(freed.asked)
    }

    /// Frees all streams of a client.
    pub(super) fn leave(&mut self, client: u64) {
        for source in &mut self.0 {
            source.streams.retain(|stream| stream.client != client);
        }
        self.close();
    }

    /// Closes the files of devices without a stream.
    fn close(&mut self) {
        self.0.retain(|source| !source.streams.is_empty());
    }

    /// A client asks for an event, which [`next`](Self::next) returns.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such stream, `EBUSY` if too many reads wait already, `EAGAIN` if there is none and the
    /// client does not wait.
    pub(super) fn ask(
        &mut self,
        device: usize,
        client: u64,
        id: u16,
        waits: bool,
    ) -> Result<(), Errno> {
        let (at, stream) = self.find(device, client, id)?;
        let source = &mut self.0[at];
        let Stream { next, asked, .. } = source.streams[stream];
        if asked >= MOST_ASKED {
            return Err(Errno::BUSY);
        }
        let is_there = next + (asked as u64) < source.count || source.file.is_err();
        if !waits && !is_there {
            return Err(Errno::AGAIN);
        }
        source.streams[stream].asked += 1;
        Ok(())
    }

    /// The next answer to a client.
    pub(super) fn next(&mut self, client: u64) -> Option<Due> {
        self.0.iter_mut().find_map(|source| source.next(client))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads what has come. Returns whether there was something.
    pub(super) fn pump(&mut self, news: &News) -> bool {
        self.0.iter_mut().fold(false, |moved, source| {
            let token = FILES + source.device as u64;
            // Nothing tells that a device has gone: a read now and then finds it out.
            let is_due = source.has_more || news.has_tick() || news.has(token);
            (is_due && source.fill()) | moved
        })
    }
}

impl Source {
    fn new(device: usize, file: OwnedFd) -> Self {
        let kept = VecDeque::new();
        Self { device, file: Ok(file), has_more: true, kept, count: 0, streams: Vec::new() }
    }

    /// Reads what has come. Returns whether there was something.
    fn fill(&mut self) -> bool {
        let before = self.count;
        self.has_more = false;
        for _ in 0..STEPS {
            let Ok(file) = &self.file else { return false };
            let mut bytes = [0; AT_ONCE * EVENT_LEN];
            let failed = match read(file, &mut bytes) {
                Ok(0) => Errno::IO,
                Ok(len) => {
                    bytes[..len].as_chunks().0.iter().for_each(|event| self.keep(*event));
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return self.count > before,
                Err(errno) => errno,
            };
            self.file = Err(failed);
            return true;
        }
        self.has_more = true;
        true
    }

    fn keep(&mut self, event: Event) {
        if self.kept.len() == MOST_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
        self.count += 1;
    }

    fn next(&mut self, client: u64) -> Option<Due> {
        let oldest = self.count - self.kept.len() as u64;
        let mut streams = self.streams.iter_mut();
        streams.find_map(|stream| {
            if stream.client != client || stream.asked == 0 {
                return None;
            }
            let lost = oldest.saturating_sub(stream.next);
            stream.next += lost;
            let at = usize::try_from(stream.next - oldest).ok()?;
            let event = match (self.kept.get(at), &self.file) {
                (Some(event), _) => {
                    stream.next += 1;
                    Ok(*event)
                }
                (None, Err(errno)) => Err(*errno),
                (None, Ok(_)) => return None,
            };
            stream.asked -= 1;
            Some(Due { device: self.device, to: stream.id, lost, event })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    const DEVICE: usize = 3;
    const ID: u16 = 0xffff;

    fn event(number: u64) -> Event {
        let mut event = [7; EVENT_LEN];
        event[..8].copy_from_slice(&number.to_le_bytes());
        event
    }

    fn send(to: impl AsFd, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            assert_eq!(rustix::io::write(&to, &event(number)), Ok(EVENT_LEN));
        }
    }

    /// Streams of these clients, and what events are written to.
    fn events(watch: &Watch, clients: &[u64]) -> (Events, OwnedFd) {
        let (file, to) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut events = Events::default();
        let mut file = Some(file);
        for client in clients {
            events.check(DEVICE, *client, ID).unwrap();
            events.create(DEVICE, *client, ID, file.take(), watch).unwrap();
        }
        (events, to)
    }

    fn due(lost: u64, event: Result<Event, Errno>) -> Due {
        Due { device: DEVICE, to: ID, lost, event }
    }

    #[test]
    fn every_stream_gets_each_event_that_comes_while_it_is_open() {
        let watch = Watch::new().unwrap();
        let (mut events, to) = events(&watch, &[1, 2]);
        assert_eq!(events.ask(DEVICE, 1, ID, true), Ok(()));
        assert_eq!(events.ask(DEVICE, 2, ID, false), Err(Errno::AGAIN));
        assert_eq!(events.next(1), None);
        send(&to, 0..2);
        assert!(events.pump(&watch.take().unwrap()));
        assert!(!events.pump(&watch.take().unwrap()));
        events.create(DEVICE, 3, ID, None, &watch).unwrap();
        assert_eq!(events.next(1), Some(due(0, Ok(event(0)))));
        assert_eq!(events.next(1), None);
        for (client, numbers) in [(1, 1..2), (2, 0..2)] {
            for number in numbers {
                assert_eq!(events.ask(DEVICE, client, ID, false), Ok(()));
                assert_eq!(events.next(client), Some(due(0, Ok(event(number)))));
            }
        }
        assert_eq!(events.ask(DEVICE, 3, ID, false), Err(Errno::AGAIN));
        for (device, client, id) in [(0, 1, ID), (DEVICE, 4, ID), (DEVICE, 1, 5)] {
            assert_eq!(events.ask(device, client, id, true), Err(Errno::BADF));
            assert_eq!(events.free(device, client, id), Err(Errno::BADF));
        }
    }

    #[test]
    fn the_file_is_closed_with_the_last_stream() {
        let watch = Watch::new().unwrap();
        let (mut events, to) = events(&watch, &[1, 2, 3]);
        for _ in 0..MOST_ASKED {
            assert_eq!(events.ask(DEVICE, 1, ID, true), Ok(()));
        }
        assert_eq!(events.ask(DEVICE, 1, ID, true), Err(Errno::BUSY));
        assert_eq!(events.free(DEVICE, 1, ID), Ok(MOST_ASKED));
        assert_eq!(events.free(DEVICE, 2, ID), Ok(0));
        assert!(events.has(DEVICE));
        send(&to, 0..1);
        events.leave(3);
        assert!(events.is_empty());
        assert_eq!(rustix::io::write(&to, &event(0)), Err(Errno::PIPE));
    }

    #[test]
    fn a_slow_stream_knows_how_many_it_has_missed() {
        let watch = Watch::new().unwrap();
        let (mut events, to) = events(&watch, &[1, 2]);
        let all = MOST_KEPT as u64 + 100;
        for first in (0..all).step_by(100) {
            send(&to, first..all.min(first + 100));
            while events.pump(&watch.take().unwrap()) {}
        }
        for client in [1, 2] {
            let first = all - MOST_KEPT as u64;
            for number in first..all {
                let lost = if number == first { first } else { 0 };
                assert_eq!(events.ask(DEVICE, client, ID, true), Ok(()));
                assert_eq!(events.next(client), Some(due(lost, Ok(event(number)))));
            }
            assert_eq!(events.ask(DEVICE, client, ID, false), Err(Errno::AGAIN));
        }
        assert_eq!(events.0[0].kept.len(), MOST_KEPT);
    }

    #[test]
    fn a_device_that_goes_fails_for_all_after_its_last_event() {
        let watch = Watch::new().unwrap();
        let (mut events, to) = events(&watch, &[1]);
        send(&to, 0..1);
        drop(to);
        assert_eq!(events.ask(DEVICE, 1, ID, true), Ok(()));
        assert!(events.pump(&watch.take().unwrap()));
        assert_eq!(events.next(1), Some(due(0, Ok(event(0)))));
        for waits in [true, false] {
            assert_eq!(events.ask(DEVICE, 1, ID, waits), Ok(()));
            assert_eq!(events.next(1), Some(due(0, Err(Errno::IO))));
        }
        // If it comes again, the stream goes on.
        assert!(!events.has(DEVICE));
        let (file, to) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        events.create(DEVICE, 2, ID, Some(file), &watch).unwrap();
        send(&to, 1..2);
        assert!(events.pump(&watch.take().unwrap()));
        for client in [1, 2] {
            assert_eq!(events.ask(DEVICE, client, ID, true), Ok(()));
            assert_eq!(events.next(client), Some(due(0, Ok(event(1)))));
        }
    }

    #[test]
    fn several_reads_are_answered_in_their_order() {
        let watch = Watch::new().unwrap();
        let (mut events, to) = events(&watch, &[1]);
        send(&to, 0..2);
        assert!(events.pump(&watch.take().unwrap()));
        for waits in [false, false, true] {
            assert_eq!(events.ask(DEVICE, 1, ID, waits), Ok(()));
        }
        assert_eq!(events.ask(DEVICE, 1, ID, false), Err(Errno::AGAIN));
        assert_eq!(events.next(1), Some(due(0, Ok(event(0)))));
        assert_eq!(events.next(1), Some(due(0, Ok(event(1)))));
        assert_eq!(events.next(1), None);
        send(&to, 2..3);
        assert!(events.pump(&watch.take().unwrap()));
        assert_eq!(events.next(1), Some(due(0, Ok(event(2)))));
    }

    #[test]
    fn who_is_busy_is_asked_again_while_that_may_end() {
        let mut answers = [Err(Errno::BUSY), Err(Errno::BUSY), Ok(7)].into_iter();
        assert_eq!(while_busy(|| answers.next().unwrap(), || true), Ok(7));
        assert_eq!(while_busy(|| Err::<(), _>(Errno::NODEV), || true), Err(Errno::NODEV));
        // It has ended during the attempt.
        let (busy, mut first) = (AtomicBool::new(true), true);
        let ends = || {
            busy.store(false, Ordering::SeqCst);
            if std::mem::take(&mut first) { Err(Errno::BUSY) } else { Ok(7) }
        };
        assert_eq!(while_busy(ends, || busy.load(Ordering::SeqCst)), Ok(7));
        let (mut once, mut calls) = ([Err::<(), _>(Errno::BUSY)].into_iter(), 0);
        assert_eq!(while_busy(|| once.next().unwrap(), || false), Err(Errno::BUSY));
        let busy = || {
            calls += 1;
            Err::<(), _>(Errno::BUSY)
        };
        assert_eq!((while_busy(busy, || true), calls), (Err(Errno::BUSY), ATTEMPTS));
    }

    #[test]
    fn a_client_has_a_limited_number_of_streams() {
        let watch = Watch::new().unwrap();
        let (mut events, _to) = events(&watch, &[1]);
        assert_eq!(events.check(DEVICE, 1, ID), Err(Errno::BUSY));
        for id in (1..MOST_STREAMS).map(|id| u16::try_from(id).unwrap()) {
            assert_eq!(events.check(DEVICE, 1, id), Ok(()));
            events.create(DEVICE, 1, id, None, &watch).unwrap();
        }
        assert_eq!(events.check(DEVICE, 1, 100), Err(Errno::NOMEM));
        assert_eq!(events.check(5, 1, 100), Err(Errno::NOMEM));
        assert_eq!(events.check(DEVICE, 2, 100), Ok(()));
        assert_eq!(open("nothing", &AtomicBool::default()).err(), Some(Errno::NOENT));
    }
}
