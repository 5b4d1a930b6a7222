//! A client: what it asks, one command after the other, and what it is answered.

mod binary;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::binary::Binary;
use super::command::{Attribute, Command, LONGEST_LINE, Of, is_http, is_no_text};
use super::context::Device;
use super::hub::{Hub, Mask, REPORT, Sent, Who};
use super::link::{Link, Out};
use super::peer::{Peer, Refusal};
use super::receive::{Chunk, Layout, Taken};
use super::sysfs;
use super::transmit::Progress;
use super::worker::{Answer, Done, Job, Worker};
use super::{GIT_TAG, MAJOR, MINOR};
use crate::poll::later;
use crate::stream::net::transmit::Queued;

/// Most steps in one turn, so that others have theirs.
const STEPS: usize = 64;
/// Most bytes of the attributes of a device, of those of a channel, and that can be written.
const MOST_OF_DEVICE: usize = 0xffff;
const MOST_OF_CHANNEL: usize = 1023;
const MOST_WRITTEN: usize = 1 << 16;
/// A read of more blocks than this is answered by copies: it would hold too many blocks.
const MOST_HELD: usize = 2;
/// How long the end of a transmission may take.
const DRAIN: Duration = Duration::from_secs(5);

const HELP: &str = "\
HELP, VERSION, EXIT
BINARY                                    the binary protocol of libiio 1.x from now on
PRINT                                     the context as XML, after its length
TIMEOUT MILLISECONDS                      of reads and writes; 0: none
OPEN DEVICE SAMPLES MASK [CYCLIC]         begin to receive or to transmit
CLOSE DEVICE
READBUF DEVICE BYTES                      samples
WRITEBUF DEVICE BYTES                     samples, which follow after the answer
READ DEVICE [DEBUG|BUFFER|INPUT CHANNEL|OUTPUT CHANNEL] [ATTRIBUTE]
WRITE DEVICE [DEBUG|BUFFER|INPUT CHANNEL|OUTPUT CHANNEL] [ATTRIBUTE] BYTES
GETTRIG DEVICE, SETTRIG DEVICE [TRIGGER]
SET DEVICE BUFFERS_COUNT COUNT
";

/// The client has gone, or is to go.
#[derive(Debug)]
pub(super) struct Gone;

/// A connection.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is independent of the others
pub(super) struct Client {
    pub who: Who,
    pub peer: Peer,
    link: Link,
    /// Bytes that have come and are not used yet.
    input: Vec<u8>,
    out: VecDeque<Out>,
    doing: Doing,
    /// If it speaks the binary protocol.
    binary: Option<Box<Binary>>,
    /// It sends commands before it has read the answers: so nothing tells when it has read a block.
    is_piping: bool,
    /// What it was sent by reference, and may not have read.
    unread: VecDeque<Lent>,
    /// Bytes that it was sent.
    sent: u64,
    /// Whether its connection had an event since the last turn.
    pub is_woken: bool,
    /// How long it may be silent while it owes something, and how long a driver may take for it.
    silence: Duration,
    /// When it has last sent something.
    pub heard: Instant,
    /// Since when it owes something: its first command, or the rest of what it has begun.
    owes: Option<Instant>,
    /// Whether it has said a command of libiio.
    has_spoken: bool,
    /// Why it is turned away.
    pub refusal: Option<Refusal>,
    /// It has closed its side, or has asked for the end.
    is_leaving: bool,
}

/// Samples that were sent by reference.
#[derive(Debug)]
struct Lent {
    /// Bytes up to their end, since the client has connected.
    end: u64,
    /// Of which device, unless that was closed.
    device: Option<usize>,
    /// Whether their block ends there.
    is_whole: bool,
}

#[derive(Debug)]
enum Doing {
    /// Waits for a command.
    Nothing,
    /// Waits for a job of the worker, for a limited time.
    Job(Waiting),
    /// Waits for the worker to open the events of a device.
    Opening(usize, Waiting),
    /// Receives the value of an attribute.
    Value { write: Target, len: usize },
    /// Drops bytes that were announced and are not wanted, and then answers with a number.
    Skip { left: u64, answer: Option<i64> },
    /// Sends samples.
    Reading { device: usize, left: usize, layout: Option<Arc<Layout>>, until: Option<Instant> },
    /// Receives samples.
    Writing { device: usize, left: usize, bytes: usize, until: Option<Instant> },
    /// Waits until everything was transmitted.
    Draining { device: usize, until: Instant },
}

/// A job of the worker, by its number, and since when the client waits for it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    job: u64,
    since: Instant,
}

/// What attributes a value is for.
#[derive(Debug)]
enum Target {
    /// There is no such device or channel.
    Nowhere(Errno),
    Own(String),
    /// Of a device. Whether they are all of a kind.
    Files(usize, Vec<PathBuf>, bool),
}

/// An attribute that is read.
enum Value {
    File(PathBuf),
    Own(String),
}

impl Client {
    pub(super) fn new(link: Link, peer: Peer, client: u64, silence: Duration) -> Self {
        Self {
            who: Who { client, host: peer.machine() },
            peer,
            link,
            input: Vec::new(),
            out: VecDeque::new(),
            doing: Doing::Nothing,
            binary: None,
            is_piping: false,
            unread: VecDeque::new(),
            sent: 0,
            is_woken: true,
            silence,
            heard: Instant::now(),
            owes: None,
            has_spoken: false,
            refusal: None,
            is_leaving: false,
        }
    }

    /// Whether it is of no use now: nothing is open or under way for it.
    pub(super) fn is_idle(&self, hub: &Hub) -> bool {
        let waits = matches!(self.doing, Doing::Nothing | Doing::Value { .. } | Doing::Skip { .. });
        waits && self.out.is_empty() && !hub.has_open(self.who.client)
    }

    /// Whether it counts devices by their places, as clients of the binary protocol do.
    pub(super) fn is_binary(&self) -> bool {
        self.binary.is_some()
    }

    /// Ends it if it owes something for too long. A USB host has its pipes for itself.
    pub(super) fn check(&mut self) -> Result<(), Gone> {
        let is_mine = match self.doing {
            Doing::Nothing => !self.has_spoken || !self.input.is_empty(),
            Doing::Value { .. } | Doing::Skip { .. } | Doing::Writing { .. } => true,
            _ => false,
        };
        if !is_mine || !self.out.is_empty() || matches!(self.peer, Peer::Usb(_)) {
            self.owes = None;
            return Ok(());
        }
        if self.owes.get_or_insert_with(Instant::now).elapsed() < self.silence {
            return Ok(());
        }
        self.turn_away(Refusal::Silent(self.silence))
    }

    fn turn_away<T>(&mut self, why: Refusal) -> Result<T, Gone> {
        self.refusal = Some(why);
        Err(Gone)
    }

    /// Its connection. Blocks that this may still refer to are held by the hub.
    #[cfg(feature = "usb")]
    pub(super) fn into_link(self) -> Link {
        self.link
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The worker's answer, which may be too late.
    pub(super) fn answer(&mut self, done: Done, hub: &mut Hub) {
        match self.doing {
            Doing::Job(waiting) if waiting.job == done.job => {
                self.doing = Doing::Nothing;
                self.reply(done.answer);
            }
            Doing::Opening(device, waiting) if waiting.job == done.job => {
                self.doing = Doing::Nothing;
                self.has_opened_events(device, done.answer, hub);
            }
            _ => {}
        }
    }

    /// Does what can be done without waiting. Returns whether something was done.
    pub(super) fn turn(&mut self, hub: &mut Hub, worker: &Worker) -> Result<bool, Gone> {
        let mut moved = false;
        for _ in 0..STEPS {
            if !self.flush(hub)? || !self.step(hub, worker)? {
                break;
            }
            moved = true;
        }
        if std::mem::take(&mut self.is_woken) {
            self.look()?;
        }
        Ok(moved)
    }

    fn step(&mut self, hub: &mut Hub, worker: &Worker) -> Result<bool, Gone> {
        if self.serve(hub) {
            return Ok(true);
        }
        match &mut self.doing {
            Doing::Nothing if self.binary.is_some() => self.next_frame(hub, worker),
            Doing::Nothing => self.next_command(hub, worker),
            Doing::Job(waiting) | Doing::Opening(_, waiting) => {
                if waiting.since.elapsed() < self.silence {
                    return Ok(false);
                }
                // The driver goes on with what it has begun.
                worker.forget(self.who.client);
                self.doing = Doing::Nothing;
                self.refuse(Errno::TIMEDOUT);
                Ok(true)
            }
            Doing::Value { len, .. } => {
                let len = *len;
                if self.input.len() < len {
                    return self.receive();
                }
                let Doing::Value { write, .. } = std::mem::replace(&mut self.doing, Doing::Nothing)
                else {
                    return Ok(false);
                };
                let value = self.input.drain(..len).collect();
                self.owes = None;
                self.write(write, value, hub, worker);
                Ok(true)
            }
            Doing::Skip { left, answer } => {
                let count = self.input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                let (is_over, answer) = (*left == 0, *answer);
                self.owes = self.owes.filter(|_| count == 0);
                self.input.drain(..count);
                if is_over {
                    self.doing = Doing::Nothing;
                    if let Some(answer) = answer {
                        self.number(answer);
                    }
                    return Ok(true);
                }
                self.receive()
            }
            Doing::Reading { .. } => Ok(self.read(hub)),
            Doing::Writing { .. } => self.take_in(hub),
            Doing::Draining { device, until } => {
                let (device, is_late) = (*device, Instant::now() >= *until);
                let drained = hub.transmit(device, self.who.client).and_then(|it| it.is_drained());
                if !is_late && drained == Ok(false) {
                    return Ok(false);
                }
                let closed = hub.close(device, self.who, Sent::default());
                self.doing = Doing::Nothing;
                self.result(
                    closed.and(drained).and_then(|is_drained| {
                        if is_drained { Ok(0) } else { Err(Errno::TIMEDOUT) }
                    }),
                );
                Ok(true)
            }
        }
    }

    /// Receives more bytes. Returns whether there were some.
    fn receive(&mut self) -> Result<bool, Gone> {
        let expected = match &self.doing {
            Doing::Value { len, .. } => len.saturating_sub(self.input.len()),
            Doing::Skip { left, .. } => usize::try_from(*left).unwrap_or(usize::MAX),
            _ => 0,
        };
        match self.link.receive(&mut self.input, expected) {
            Ok(()) => {
                self.heard = Instant::now();
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(_) => Err(Gone),
        }
    }

    /// While it waits for something else: whether it has gone, or has sent more.
    fn look(&mut self) -> Result<(), Gone> {
        if matches!(self.doing, Doing::Nothing) && self.out.is_empty() {
            return Ok(());
        }
        let has_input = self.link.has_input().map_err(|_| Gone)?;
        let is_next = !matches!(self.doing, Doing::Writing { .. } | Doing::Value { .. });
        self.is_piping |= has_input && is_next && self.binary.is_none();
        Ok(())
    }

    /// Sends what there is. Returns whether everything was sent.
    fn flush(&mut self, hub: &mut Hub) -> Result<bool, Gone> {
        hub.copied += self.link.reap().map_err(|_| Gone)?;
        while let Some(first) = self.out.front_mut() {
            let progress = self.link.send(first).map_err(|_| Gone)?;
            let Some(progress) = progress else { return Ok(false) };
            self.sent += progress.sent as u64;
            if !matches!(first, Out::Bytes(..)) {
                hub.sent += progress.sent as u64;
                hub.copied += progress.copied;
            }
            if first.is_sent() {
                self.out.pop_front();
            }
        }
        if !self.is_leaving {
            return Ok(true);
        }
        if self.link.is_flushed() { Err(Gone) } else { Ok(false) }
    }

    fn say(&mut self, mut bytes: Vec<u8>) {
        // By the binary protocol, each part is said by itself.
        if self.link.has_parts()
            && self.binary.is_none()
            && let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
        {
            let rest = bytes.split_off(end + 1);
            self.out.push_back(Out::Bytes(bytes, 0));
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.out.push_back(Out::Bytes(bytes, 0));
        }
    }

    fn number(&mut self, number: i64) {
        let answer = match &self.binary {
            Some(binary) => binary.number(number).to_vec(),
            None => format!("{number}\n").into_bytes(),
        };
        self.say(answer);
    }

    fn reply(&mut self, answer: Result<Answer, Errno>) {
        match answer {
            Ok(Answer::Number(number)) => self.number(number),
            Ok(Answer::Value(mut value)) => {
                self.number(i64::try_from(value.len()).unwrap_or(i64::MAX));
                if self.binary.is_none() {
                    value.push(b'\n');
                }
                self.say(value);
            }
            Ok(Answer::File(_) | Answer::Devices(..)) => self.number(0),
            Err(errno) => self.refuse(errno),
        }
    }

    fn refuse(&mut self, errno: Errno) {
        self.number(-i64::from(errno.raw_os_error()));
    }

    fn result(&mut self, result: Result<i64, Errno>) {
        match result {
            Ok(number) => self.number(number),
            Err(errno) => self.refuse(errno),
        }
    }

    /// Has a job of a device done, whose answer comes later.
    fn ask(&mut self, worker: &Worker, device: usize, job: Job) {
        match self.begin_job(worker, device, job) {
            Ok(waiting) => self.doing = Doing::Job(waiting),
            Err(errno) => self.refuse(errno),
        }
    }

    fn begin_job(&self, worker: &Worker, device: usize, job: Job) -> Result<Waiting, Errno> {
        let job = worker.ask(self.who.client, device, job)?;
        Ok(Waiting { job, since: Instant::now() })
    }

    fn next_command(&mut self, hub: &mut Hub, worker: &Worker) -> Result<bool, Gone> {
        if matches!(self.peer, Peer::Net(_)) && self.is_foreign() {
            return self.turn_away(Refusal::Foreign);
        }
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            if self.input.len() >= LONGEST_LINE {
                self.refuse(Errno::INVAL);
                self.is_leaving = true;
                return Ok(true);
            }
            return self.receive();
        };
        self.settle(hub);
        let line: Vec<_> = self.input.drain(..=end).collect();
        self.owes = None;
        match Command::parse(&line) {
            Some(command) => {
                self.has_spoken |= command != Command::Nothing;
                self.execute(command, hub, worker);
            }
            None => self.refuse(Errno::INVAL),
        }
        Ok(true)
    }

    /// Whether the next line, as far as it has come, is one of a web browser. Who has spoken as libiio does may send what
    /// is no text: the value for a device that does not exist.
    fn is_foreign(&self) -> bool {
        is_http(&self.input) || (!self.has_spoken && is_no_text(&self.input))
    }

    /// Gives blocks back that it was sent by reference, as far as it has read them. Returns whether there were some.
    pub(super) fn give_back(&mut self, hub: &mut Hub) -> bool {
        if self.unread.is_empty() {
            return false;
        }
        let read = self.link.unread().map_or(0, |unread| self.sent.saturating_sub(unread as u64));
        let mut has_read = false;
        while let Some(lent) = self.unread.front().filter(|lent| lent.end <= read) {
            if let (Some(device), true) = (lent.device, lent.is_whole) {
                hub.release(device, self.who.client);
            }
            self.unread.pop_front();
            has_read = true;
        }
        if has_read {
            hub.release_closed(self.who.client, read);
        }
        has_read
    }

    /// Gives blocks back. If it has sent a command before it has read all, it gets copies from now on; but not by the binary
    /// protocol, in which every answer tells what it belongs to.
    fn settle(&mut self, hub: &mut Hub) {
        self.give_back(hub);
        self.is_piping |= !self.unread.is_empty() && self.binary.is_none();
    }

    /// Closes a device. Blocks that it may not have read are kept until it has read everything.
    fn close(&mut self, device: usize, hub: &mut Hub) -> Result<(), Errno> {
        let is_begun = self.has_part_of_block(device);
        let mut end = 0;
        for lent in self.unread.iter_mut().filter(|lent| lent.device == Some(device)) {
            (lent.device, end) = (None, lent.end);
        }
        hub.close(device, self.who, Sent { is_begun, end })
    }

    /// Whether the first part of a block was sent by reference, and may not be read, and the rest is to follow.
    fn has_part_of_block(&self, device: usize) -> bool {
        let last = self.unread.iter().rev().find(|lent| lent.device == Some(device));
        last.is_some_and(|lent| !lent.is_whole)
    }

    /// Sends samples, by reference or by a copy.
    fn lend(
        &mut self,
        head: Vec<u8>,
        chunk: Chunk,
        device: usize,
        is_by_copy: bool,
        hub: &mut Hub,
    ) {
        let Chunk { samples, range, layout } = chunk;
        if !is_by_copy || self.has_part_of_block(device) {
            let is_whole = range.end == samples.meta().len;
            let left: usize = self.out.iter().map(Out::left).sum();
            let end = self.sent + (left + head.len() + range.len()) as u64;
            self.unread.push_back(Lent { end, device: Some(device), is_whole });
            if is_whole {
                hub.hold(device, self.who.client, samples.clone(), &layout);
            }
        }
        #[cfg(feature = "usb")]
        if self.link.has_parts() {
            self.say(head);
            self.out.push_back(Out::Copy(samples, range));
            return;
        }
        let queue = if is_by_copy { Queued::copy } else { Queued::new };
        let queued = queue(head, samples, range);
        self.out.push_back(Out::Samples(Box::new(queued), 0));
    }

    fn execute(&mut self, command: Command<'_>, hub: &mut Hub, worker: &Worker) {
        let find = |hub: &Hub, name: &str| hub.context.find(name).ok_or(Errno::NODEV);
        match command {
            Command::Nothing => {}
            Command::Help => self.say(HELP.into()),
            Command::Exit => self.is_leaving = true,
            Command::Binary => self.begin_binary(hub),
            Command::Version => self.say(format!("{MAJOR}.{MINOR}.{GIT_TAG:<7}\n").into_bytes()),
            Command::Print => {
                self.say(format!("{}\n{}\n", hub.xml.len(), hub.xml).into_bytes());
            }
            Command::PrintCompressed => self.refuse(Errno::INVAL),
            Command::Timeout(millis) => {
                hub.set_timeout(self.who.host, millis);
                self.number(0);
            }
            Command::Open { device, samples, mask, cyclic } => {
                let opened = find(hub, device).and_then(|device| {
                    let channels = hub.context.devices[device].channels.len();
                    let mask = Mask::parse(mask, channels).ok_or(Errno::INVAL)?;
                    let samples = usize::try_from(samples).map_err(|_| Errno::INVAL)?;
                    hub.open(device, self.who, (hub.buffers(device), samples), &mask, cyclic)
                });
                self.result(opened.map(|()| 0));
            }
            Command::Close(device) => match find(hub, device) {
                Ok(device) if hub.transmit(device, self.who.client).is_ok() => {
                    self.doing = Doing::Draining { device, until: later(Instant::now(), DRAIN) };
                }
                found => {
                    let closed = found.and_then(|device| self.close(device, hub));
                    self.result(closed.map(|()| 0));
                }
            },
            Command::Read(Attribute { device, of, name }) => {
                let found = find(hub, device).map(|device| (device, of, name));
                self.begin_read(found, hub, worker);
            }
            // If there is no such device, the value is taken for commands, as iiod does it.
            Command::Write(Attribute { device, of, name }, len) => {
                match (find(hub, device), u64::try_from(len)) {
                    (Err(errno), _) => self.refuse(errno),
                    (_, Err(_)) => self.refuse(Errno::INVAL),
                    (Ok(device), Ok(len)) => self.begin_write(Ok((device, of, name)), len, hub),
                }
            }
            Command::ReadBuffer { device, bytes } => {
                let started = find(hub, device)
                    .and_then(|device| Ok((device, hub.lengths(device, self.who.client)?.0)));
                match (started, usize::try_from(bytes)) {
                    (Ok((device, sample_len)), Ok(left)) if left >= sample_len => {
                        let until = self.deadline(hub);
                        self.doing = Doing::Reading { device, left, layout: None, until };
                    }
                    (Ok(_), Ok(_)) => self.number(0),
                    (Ok(_), Err(_)) => self.refuse(Errno::INVAL),
                    (Err(errno), _) => self.refuse(errno),
                }
            }
            Command::WriteBuffer { device, bytes } => {
                let started = find(hub, device).and_then(|device| {
                    let (sample_len, _) = hub.lengths(device, self.who.client)?;
                    hub.transmit(device, self.who.client).map(|_| (device, sample_len))
                });
                match (started, usize::try_from(bytes)) {
                    (Ok((device, sample_len)), Ok(left)) if left >= sample_len => {
                        let until = self.deadline(hub);
                        self.doing = Doing::Writing { device, left, bytes: left, until };
                        self.number(0);
                    }
                    (Ok(_), Ok(_)) => self.number(0),
                    (Ok(_), Err(_)) => self.refuse(Errno::INVAL),
                    (Err(errno), _) => self.refuse(errno),
                }
            }
            Command::GetTrigger(device) => match find(hub, device) {
                Ok(device) => self.get_trigger(device, hub, worker),
                Err(errno) => self.refuse(errno),
            },
            Command::SetTrigger(device, trigger) => match find(hub, device) {
                Ok(device) => {
                    let find = |name| hub.context.find(name).ok_or(Errno::NOENT);
                    let trigger = trigger.map(find).transpose();
                    self.set_trigger(device, trigger, hub, worker);
                }
                Err(errno) => self.refuse(errno),
            },
            Command::SetBuffersCount(device, count) => {
                let set = find(hub, device).and_then(|device| hub.set_buffers(device, count));
                self.result(set.map(|()| 0));
            }
        }
    }

    fn deadline(&self, hub: &mut Hub) -> Option<Instant> {
        hub.timeout(self.who.host).and_then(|timeout| Instant::now().checked_add(timeout))
    }

    /// Sends samples to it, if there are some.
    fn read(&mut self, hub: &mut Hub) -> bool {
        let Doing::Reading { device, left, layout, .. } = &self.doing else { return false };
        let (device, wanted, is_first) = (*device, *left, layout.is_none());
        let (sample_len, block_len) = hub.lengths(device, self.who.client).unwrap_or((1, 1));
        self.is_piping |= self.input.contains(&b'\n');
        // A client that has one block cannot keep it while the next one comes.
        let is_by_copy = self.is_piping
            || self.link.is_unknown()
            || wanted > MOST_HELD * block_len
            || !hub.can_hold(device, self.who.client);
        let mut taken = self.next_samples(hub);
        // The block that it waits for may be one that it has.
        if matches!(taken, Ok(Taken::Nothing)) && self.give_back(hub) {
            taken = self.next_samples(hub);
        }
        let Doing::Reading { left, layout, until, .. } = &mut self.doing else { return false };
        let chunk = match taken {
            Ok(Taken::Chunk(chunk)) => chunk,
            Ok(Taken::Other) => {
                self.doing = Doing::Nothing;
                self.number(0);
                return true;
            }
            Ok(Taken::Nothing) if until.is_none_or(|until| Instant::now() < until) => return false,
            Ok(Taken::Nothing) => {
                self.doing = Doing::Nothing;
                self.refuse(Errno::TIMEDOUT);
                return true;
            }
            Err(errno) => {
                self.doing = Doing::Nothing;
                self.refuse(errno);
                return true;
            }
        };
        *left -= chunk.range.len();
        let is_over = *left < sample_len;
        let mut head = format!("{}\n", chunk.range.len());
        if is_first {
            head += &chunk.layout.mask;
            head.push('\n');
            *layout = Some(Arc::clone(&chunk.layout));
        }
        if is_over {
            self.doing = Doing::Nothing;
        }
        self.lend(head.into_bytes(), chunk, device, is_by_copy, hub);
        true
    }

    /// The next samples of what it reads.
    fn next_samples(&self, hub: &mut Hub) -> Result<Taken, Errno> {
        let Doing::Reading { device, left, layout, .. } = &self.doing else {
            return Ok(Taken::Nothing);
        };
        hub.take(*device, self.who, *left, layout.as_ref())
    }

    /// Receives samples from it.
    fn take_in(&mut self, hub: &mut Hub) -> Result<bool, Gone> {
        let Doing::Writing { device, left, bytes, until } = &mut self.doing else {
            return Ok(false);
        };
        let transmit = hub.transmit(*device, self.who.client);
        let progress = transmit
            .and_then(|it| it.fill(&mut self.input, &mut self.link, *left).map(|done| (it, done)));
        let (transmit, failed) = match progress {
            Ok((_, Progress::Closed)) => return Err(Gone),
            Ok((_, Progress::NoBytes)) => return Ok(false),
            Ok((_, Progress::NoRoom)) if until.is_none_or(|until| Instant::now() < until) => {
                self.owes = None;
                return Ok(false);
            }
            Ok((_, Progress::NoRoom)) => (None, Errno::TIMEDOUT),
            Ok((transmit, Progress::Bytes(count))) => {
                (self.owes, self.heard) = (None, Instant::now());
                *left -= count;
                (Some(transmit), Errno::IO)
            }
            Err(errno) => (None, errno),
        };
        let Some(transmit) = transmit else {
            // The rest of what it has announced still comes.
            let left = *left as u64;
            self.doing = Doing::Skip { left, answer: Some(self.failed_write(failed)) };
            return Ok(true);
        };
        if *left > 0 {
            *until =
                hub.timeout(self.who.host).and_then(|timeout| Instant::now().checked_add(timeout));
            return Ok(true);
        }
        let (device, count) = (*device, i64::try_from(*bytes).unwrap_or(i64::MAX));
        let finished = transmit.finish();
        self.doing = Doing::Nothing;
        match finished {
            Ok(()) if self.binary.is_some() => self.has_filled(device, hub),
            Ok(()) => self.number(count),
            Err(errno) => self.number(self.failed_write(errno)),
        }
        Ok(true)
    }

    /// The answer if samples cannot be taken from it.
    fn failed_write(&self, errno: Errno) -> i64 {
        let number = -i64::from(errno.raw_os_error());
        if self.binary.is_some() { binary::not_enqueued(number) } else { number }
    }

    fn begin_read(&mut self, found: Result<Found<'_>, Errno>, hub: &mut Hub, worker: &Worker) {
        match found.and_then(|found| values(hub, self.who, found)) {
            Ok((device, values, most, is_all)) => {
                // Clients of the binary protocol have room for as much of all of them.
                let most = if self.binary.is_some() { MOST_OF_DEVICE } else { most };
                self.ask(worker, device, Box::new(move || read_values(&values, most, is_all)));
            }
            Err(errno) => self.refuse(errno),
        }
    }

    /// Takes a value of so many bytes.
    fn begin_write(&mut self, found: Result<Found<'_>, Errno>, len: u64, hub: &mut Hub) {
        if len > MOST_WRITTEN as u64 {
            let answer = Some(-i64::from(Errno::NOMEM.raw_os_error()));
            self.doing = Doing::Skip { left: len, answer };
            return;
        }
        let write = match found {
            Err(errno) => Target::Nowhere(errno),
            Ok((_, of, name)) if hub.is_read_only && (of, name) != (Of::Device, Some(REPORT)) => {
                Target::Nowhere(Errno::PERM)
            }
            Ok(found) => target(hub, self.who, found),
        };
        // It is at most 64 KiB.
        self.doing = Doing::Value { write, len: usize::try_from(len).unwrap_or(MOST_WRITTEN) };
    }

    fn write(&mut self, target: Target, value: Vec<u8>, hub: &mut Hub, worker: &Worker) {
        match target {
            Target::Nowhere(errno) => self.refuse(errno),
            Target::Own(name) => {
                let set = hub.set_own(self.who.host, &name, &value);
                self.result(set.map(|()| i64::try_from(value.len()).unwrap_or(i64::MAX)));
            }
            Target::Files(device, paths, is_all) => {
                let write = move || write_values(&paths, &value, is_all).map(answer_number);
                self.ask(worker, device, Box::new(write));
            }
        }
    }

    fn get_trigger(&mut self, device: usize, hub: &Hub, worker: &Worker) {
        let devices = hub.context.devices.iter();
        let known: Vec<_> = devices.filter_map(|it| it.name.clone()).collect();
        self.read_trigger(device, hub, worker, move |name| match name.as_slice() {
            [] => Ok(Answer::Number(0)),
            text if known.iter().any(|known| known.as_bytes() == text) => Ok(Answer::Value(name)),
            _ => Err(Errno::NXIO),
        });
    }

    /// Reads the name of the trigger of a device, of which `answer` makes the answer.
    fn read_trigger(
        &mut self,
        device: usize,
        hub: &Hub,
        worker: &Worker,
        answer: impl FnOnce(Vec<u8>) -> Result<Answer, Errno> + Send + 'static,
    ) {
        if !hub.is_of_machine(device) {
            return self.refuse(Errno::NOENT);
        }
        let path = trigger_file(hub, device);
        let read = move || {
            let mut name = sysfs::read(&path, 1024)?;
            name.pop();
            answer(name)
        };
        self.ask(worker, device, Box::new(read));
    }

    /// Sets the trigger of a device: a device of the context, or none.
    fn set_trigger(
        &mut self,
        device: usize,
        trigger: Result<Option<usize>, Errno>,
        hub: &Hub,
        worker: &Worker,
    ) {
        if hub.is_read_only {
            return self.refuse(Errno::PERM);
        }
        if !hub.is_of_machine(device) {
            return self.refuse(Errno::NOENT);
        }
        let mut value = Vec::new();
        match trigger.map(|trigger| trigger.map(|index| &hub.context.devices[index])) {
            Err(errno) => return self.refuse(errno),
            Ok(Some(found)) if !found.is_trigger() => return self.refuse(Errno::INVAL),
            Ok(Some(found)) => {
                value.extend_from_slice(found.name.as_deref().unwrap_or("").as_bytes());
            }
            Ok(None) => {}
        }
        value.push(0);
        let path = trigger_file(hub, device);
        let write = move || sysfs::write(&path, &value).map(|_| Answer::Number(0));
        self.ask(worker, device, Box::new(write));
    }

    /// Has the connection drop bytes under way, so that nothing refers to the pages of blocks.
    pub(super) fn abort(&self) {
        if !self.unread.is_empty() {
            self.link.abort();
        }
    }
}

fn answer_number(number: usize) -> Answer {
    Answer::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A device, what of it, and the name of an attribute; without a name, all of them.
type Found<'a> = (usize, Of<'a>, Option<&'a str>);

/// The file with the name of a device's trigger.
fn trigger_file(hub: &Hub, device: usize) -> PathBuf {
    let id = &hub.context.devices[device].id;
    hub.roots.devices.join(id).join("trigger/current_trigger")
}

/// The file of an attribute that the context lists, by its name or by that of its file. Drivers and Linux have other files
/// beside them, which are not for clients.
fn file(hub: &Hub, device: &Device, of: Of<'_>, name: &str) -> Option<PathBuf> {
    let dir = hub.roots.devices.join(&device.id);
    let listed = |dir: PathBuf, names: &[String]| {
        names.iter().any(|known| known == name).then(|| dir.join(name))
    };
    let of_channel = |dir: PathBuf, names: &[(String, String)]| {
        let found = names.iter().find(|(short, _)| short == name);
        let found = found.or_else(|| names.iter().find(|(_, file)| file == name));
        found.map(|(_, file)| dir.join(file))
    };
    let channel = |id, is_output| device.channel(id, is_output);
    match of {
        Of::Device => listed(dir, &device.attributes),
        Of::Buffer => listed(dir.join("buffer"), &device.buffer_attributes),
        Of::Debug => listed(hub.roots.debug.join(&device.id), &device.debug_attributes),
        Of::Channel { id, is_output } => of_channel(dir, &channel(id, is_output)?.attributes),
        Of::Events(None) => listed(dir.join("events"), &device.event_attributes),
        Of::Events(Some((id, is_output))) => {
            of_channel(dir.join("events"), &channel(id, is_output)?.event_attributes)
        }
    }
}

/// The names of all attributes of a kind.
fn all(device: &Device, of: Of<'_>) -> Vec<String> {
    match of {
        Of::Device => device.attributes.clone(),
        Of::Buffer => device.buffer_attributes.clone(),
        Of::Debug => device.debug_attributes.clone(),
        Of::Channel { id, is_output } => {
            let attributes = device.channel(id, is_output).map(|it| it.attributes.iter());
            attributes.into_iter().flatten().map(|(name, _)| name.clone()).collect()
        }
        // The binary protocol has single attributes only.
        Of::Events(_) => Vec::new(),
    }
}

/// The device, the values that are asked for, how long all of them may be, and whether all are asked for.
fn values(
    hub: &mut Hub,
    who: Who,
    (index, of, name): Found<'_>,
) -> Result<(usize, Vec<Value>, usize, bool), Errno> {
    let mut most = MOST_OF_DEVICE;
    if let Of::Channel { id, is_output } = of {
        hub.context.devices[index].channel(id, is_output).ok_or(Errno::NXIO)?;
        most = MOST_OF_CHANNEL;
    }
    let names = name.map_or_else(|| all(&hub.context.devices[index], of), |name| vec![name.into()]);
    let value = |name: String| {
        let own = if of == Of::Device { hub.own(index, who.host, &name) } else { None };
        match own {
            Some(own) => Ok(Value::Own(own)),
            None if hub.is_of_machine(index) => {
                let file = file(hub, &hub.context.devices[index], of, &name);
                file.map(Value::File).ok_or(Errno::NOENT)
            }
            None => Err(Errno::NOENT),
        }
    };
    let values = names.into_iter().map(value).collect::<Result<_, _>>()?;
    Ok((index, values, most, name.is_none()))
}

/// Reads attributes: one, or all of them in a row, each after its length and filled up to four bytes.
fn read_values(values: &[Value], most: usize, is_all: bool) -> Result<Answer, Errno> {
    let read = |value: &Value, most: usize| match value {
        Value::File(path) => sysfs::read(path, most),
        Value::Own(text) => Ok([text.as_bytes(), b"\0"].concat()),
    };
    let value = if is_all {
        let mut all = Vec::new();
        for value in values {
            let Some(left) = (most - all.len()).checked_sub(4) else { break };
            let found = read(value, left);
            let len = match &found {
                Ok(found) => i32::try_from(found.len()).unwrap_or(i32::MAX),
                Err(errno) => -errno.raw_os_error(),
            };
            all.extend_from_slice(&len.to_be_bytes());
            all.extend_from_slice(&found.unwrap_or_default());
            all.resize(all.len().next_multiple_of(4).min(most), 0);
        }
        all
    } else {
        values.first().map_or(Err(Errno::NOENT), |value| read(value, most))?
    };
    Ok(Answer::Value(value))
}

fn target(hub: &mut Hub, who: Who, (device, of, name): Found<'_>) -> Target {
    if let Of::Channel { id, is_output } = of
        && hub.context.devices[device].channel(id, is_output).is_none()
    {
        return Target::Nowhere(Errno::NXIO);
    }
    if let (Of::Device, Some(name)) = (of, name)
        && hub.own(device, who.host, name).is_some()
    {
        return Target::Own(name.into());
    }
    if !hub.is_of_machine(device) {
        return Target::Nowhere(Errno::NOENT);
    }
    let described = &hub.context.devices[device];
    let names = name.map_or_else(|| all(described, of), |name| vec![name.into()]);
    let paths: Option<_> = names.iter().map(|name| file(hub, described, of, name)).collect();
    // As `iiod`, which tries to create a file that is not there.
    let files = |paths| Target::Files(device, paths, name.is_none());
    paths.map_or(Target::Nowhere(Errno::ACCESS), files)
}

/// Writes attributes: one, or all of them from values in a row as [`read_values`] returns them.
fn write_values(paths: &[PathBuf], value: &[u8], is_all: bool) -> Result<usize, Errno> {
    if !is_all {
        return paths.first().map_or(Err(Errno::NOENT), |path| sysfs::write(path, value));
    }
    let mut rest = value;
    let mut values = Vec::new();
    for _ in paths {
        let (len, after) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
        let len = usize::try_from(i32::from_be_bytes(*len)).unwrap_or(0);
        values.push(after.get(..len).ok_or(Errno::INVAL)?);
        rest = after.get(len.next_multiple_of(4)..).ok_or(Errno::INVAL)?;
    }
    if !rest.is_empty() {
        return Err(Errno::INVAL);
    }
    for (path, value) in paths.iter().zip(values).filter(|(_, value)| !value.is_empty()) {
        // One that cannot be written does not keep the others from being written.
        let _ = sysfs::write(path, value);
    }
    Ok(value.len())
}
