//! The binary protocol: several streams by one connection, each answer with the number of the one that it is for.

use std::collections::VecDeque;
use std::time::Instant;

use rustix::io::Errno;

use super::{Answer, Chunk, Client, Doing, Found, Gone, Job, Taken, Worker};
use crate::stream::iiod::command;
use crate::stream::iiod::frame::{self, Command, Of, Parsed, Place, What};
use crate::stream::iiod::hub::{Hub, Mask, Reserved, Sent, Who, errno};
use crate::stream::iiod::sysfs;
use crate::stream::iiod::transmit::Transmit;
use crate::stream::scan::Type;

/// libiio 1.x has room for so many bytes of XML.
const MOST_XML: usize = 1 << 16;
/// Most blocks of a buffer. libiio frees them by another connection, so they stay until it closes the buffer.
const MOST_BLOCKS: usize = 1024;
/// Samples of this length and less are copied: that is cheaper.
const SHORT: usize = 16 << 10;
/// Most bytes that are collected in one step, so that others have their turns.
const STEP: usize = 1 << 20;

/// What a client of the binary protocol has opened.
#[derive(Debug, Default)]
pub(super) struct Binary {
    /// To whom the answer to the last command is.
    to: u16,
    buffers: VecDeque<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    device: usize,
    mask: Mask,
    sample_len: usize,
    is_output: bool,
    is_on: bool,
    blocks: Vec<Block>,
    /// Transfers that are not answered yet, in the order of their samples.
    transfers: VecDeque<Transfer>,
    /// One whose samples are coming, and whether these are repeated.
    filling: Option<(Transfer, bool)>,
    /// Since when the client waits for the first of them while the buffer is on.
    since: Option<Instant>,
    /// Samples of the first of them, if they are those of several blocks of the device.
    collected: Vec<u8>,
    /// Memory for these.
    reserved: Option<Reserved>,
}

#[derive(Debug)]
struct Block {
    number: u16,
    /// To whom answers are.
    to: u16,
    size: usize,
}

#[derive(Debug)]
struct Transfer {
    block: u16,
    to: u16,
    bytes: usize,
    /// Blocks that the device has got with it.
    count: u64,
    /// The client was told that it has failed, and may ask for it again.
    has_failed: bool,
}

/// The answer to a transfer that was not begun, as libiio tells it from one that has failed later.
pub(super) fn not_enqueued(number: i64) -> i64 {
    number << 16
}

/// What a step of a transfer has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    None,
    Part,
    All,
}

/// The answer if there is nothing else to say.
const DONE: Result<Option<Answer>, Errno> = Ok(Some(Answer::Number(0)));

fn number(errno: Errno) -> i64 {
    -i64::from(errno.raw_os_error())
}

impl Binary {
    pub(super) fn number(&self, number: i64) -> [u8; frame::HEAD] {
        answer(self.to, number)
    }

    fn buffer(&mut self, device: usize, buffer: u16) -> Result<&mut Buffer, Errno> {
        let found = self.buffers.iter_mut().find(|it| it.device == device && buffer == 0);
        found.ok_or(Errno::BADF)
    }
}

fn answer(to: u16, number: i64) -> [u8; frame::HEAD] {
    let lowest = if number < 0 { i32::MIN } else { i32::MAX };
    frame::answer(to, i32::try_from(number).unwrap_or(lowest))
}

impl Buffer {
    fn block(&self, number: u16) -> Result<&Block, Errno> {
        self.blocks.iter().find(|block| block.number == number).ok_or(Errno::BADF)
    }

    fn largest(&self) -> usize {
        self.blocks.iter().map(|block| block.size).max().unwrap_or(0)
    }

    /// Opens the device, for as many blocks as the client has.
    fn open_device(&self, who: Who, cyclic: bool, hub: &mut Hub) -> Result<(), Errno> {
        // One more than it may have by reference.
        let count = self.blocks.len() + usize::from(!self.is_output);
        let size = (count, self.largest() / self.sample_len);
        hub.open(self.device, who, size, &self.mask, cyclic)
    }

    /// The first transfer, if the client waits for it: to whom the answer is, its bytes and its count. What follows one
    /// that has failed waits until that is asked for again, as its samples are the next ones.
    fn first(&self) -> Option<(u16, usize, u64)> {
        let first = self.transfers.front().filter(|transfer| !transfer.has_failed);
        first.map(|it| (it.to, it.bytes, it.count))
    }
}

impl Client {
    pub(super) fn begin_binary(&mut self, hub: &Hub) {
        if binary_xml(hub).len() > MOST_XML {
            // Clients of 1.x then speak the text protocol.
            return self.refuse(Errno::INVAL);
        }
        self.number(0);
        self.binary = Some(Box::default());
    }

    pub(super) fn next_frame(&mut self, hub: &mut Hub, worker: &Worker) -> Result<bool, Gone> {
        let words = |number| {
            let device = hub.numbered(number).map(|device| &hub.context.devices[device]);
            device.map_or(0, |device| device.channels.len().div_ceil(32))
        };
        let (command, len) = match Command::parse(&self.input, words) {
            Parsed::More => return self.receive(),
            Parsed::Wrong => {
                // Nobody knows what follows. A USB host is not told by the end of the connection.
                self.reply_to(u16::from_le_bytes([self.input[0], self.input[1]]));
                self.refuse(Errno::INVAL);
                self.is_leaving = true;
                return Ok(true);
            }
            Parsed::Command(command, len) => (command, len),
        };
        self.input.drain(..len);
        self.owes = None;
        self.settle(hub);
        self.obey(command, hub, worker);
        Ok(true)
    }

    fn reply_to(&mut self, to: u16) {
        if let Some(binary) = &mut self.binary {
            binary.to = to;
        }
    }

    fn buffer(&mut self, device: usize, buffer: u16) -> Result<&mut Buffer, Errno> {
        self.binary.as_mut().ok_or(Errno::BADF)?.buffer(device, buffer)
    }

    fn obey(&mut self, Command { id, device, what }: Command, hub: &mut Hub, worker: &Worker) {
        self.reply_to(id);
        let device = hub.numbered(device).ok_or(Errno::INVAL);
        match self.carry_out(what, device, hub, worker) {
            Ok(Some(answer)) => self.reply(Ok(answer)),
            Ok(None) => {}
            Err(errno) => self.refuse(errno),
        }
    }

    /// Does what a command asks for. Returns the answer, unless that comes later.
    fn carry_out(
        &mut self,
        what: What,
        device: Result<usize, Errno>,
        hub: &mut Hub,
        worker: &Worker,
    ) -> Result<Option<Answer>, Errno> {
        match what {
            What::Answer(len) => self.doing = Doing::Skip { left: len.into(), answer: None },
            What::Begin => self.say(b"0\r\n".into()),
            What::Print => return Ok(Some(Answer::Value(binary_xml(hub).to_owned().into()))),
            What::Timeout(millis) => {
                hub.set_timeout(self.who.host, u32::try_from(millis).unwrap_or(0));
                return DONE;
            }
            What::Nothing => return DONE,
            What::Read(place) => {
                let named = attribute(hub, device?, place)?;
                self.begin_read(Ok(named.borrowed()), hub, worker);
            }
            // The value follows in any case.
            What::Write(place, len) => {
                let named = device.and_then(|device| attribute(hub, device, place));
                let found = named.as_ref().map(Named::borrowed).map_err(|errno| *errno);
                self.begin_write(found, len, hub);
            }
            What::GetTrigger => self.get_trigger_number(device?, hub, worker),
            What::SetTrigger(number) => {
                let (device, trigger) = (device?, trigger(hub, number)?);
                self.set_trigger(device, Ok(trigger), hub, worker);
            }
            What::Transfer { block, bytes, cyclic } => {
                self.transfer(device, block, bytes, cyclic, hub);
            }
            What::Retry(block) => self.retry(device?, block)?,
            What::ReadRegister(address) => {
                let (device, job) = register(hub, device, address, None)?;
                self.ask(worker, device, job);
            }
            What::WriteRegister { address, value } => {
                let (device, job) = register(hub, device, address, Some(value))?;
                self.ask(worker, device, job);
            }
            What::Format(channel) => {
                let (device, job) = format(hub, device, channel)?;
                self.ask(worker, device, job);
            }
            What::CreateEvents => return self.create_events(device?, hub, worker),
            What::FreeEvents(id) => return self.free_events(device, id, hub),
            What::ReadEvent(waits) => {
                let device = device.map_err(|_| Errno::BADF)?;
                hub.events.ask(device, self.who.client, self.to(), waits)?;
            }
            What::Open(buffer, mask) => return self.open(device?, buffer, mask, hub),
            What::Close(buffer) => return self.close_buffer(device?, buffer, hub),
            What::Enable(buffer) => return self.enable(device?, buffer, hub),
            What::Disable(buffer) => return self.disable(device?, buffer, hub),
            What::Create(block, size) => return self.create(device?, block, size, hub),
            What::Free(block) => return self.free(device?, block, hub),
        }
        Ok(None)
    }

    /// To whom the answer to the last command is.
    fn to(&self) -> u16 {
        self.binary.as_ref().map_or(0, |binary| binary.to)
    }

    /// Creates a stream of events. If they have to be opened, the worker does that, as it may take long.
    fn create_events(
        &mut self,
        device: usize,
        hub: &mut Hub,
        worker: &Worker,
    ) -> Result<Option<Answer>, Errno> {
        let (client, id) = (self.who.client, self.to());
        let Some(open) = hub.prepare_events(device, client, id)? else {
            hub.create_events(device, client, id, None)?;
            return DONE;
        };
        let open = Box::new(move || open().map(Answer::File));
        self.doing = Doing::Opening(device, self.begin_job(worker, device, open)?);
        Ok(None)
    }

    /// The worker has opened the events of a device, or could not.
    pub(super) fn has_opened_events(
        &mut self,
        device: usize,
        answer: Result<Answer, Errno>,
        hub: &mut Hub,
    ) {
        let opened = answer.and_then(|answer| match answer {
            Answer::File(file) => Ok(file),
            _ => Err(Errno::IO),
        });
        let created = hub.create_events(device, self.who.client, self.to(), Some(opened));
        self.result(created.map(|()| 0));
    }

    fn free_events(
        &mut self,
        device: Result<usize, Errno>,
        id: u16,
        hub: &mut Hub,
    ) -> Result<Option<Answer>, Errno> {
        let device = device.map_err(|_| Errno::BADF)?;
        for _ in 0..hub.events.free(device, self.who.client, id)? {
            // The event that it waits for does not come.
            self.say(answer(id, number(Errno::INTR)).into());
        }
        DONE
    }

    fn get_trigger_number(&mut self, device: usize, hub: &Hub, worker: &Worker) {
        let names = hub.context.devices.iter().filter_map(|it| {
            let name = it.name.clone()?;
            hub.number(&name).map(|number| (name, number))
        });
        let names: Vec<_> = names.collect();
        self.read_trigger(device, hub, worker, move |name| {
            if name.is_empty() {
                return Err(Errno::NODEV);
            }
            let found = names.iter().find(|(known, _)| known.as_bytes() == name);
            found.map(|(_, number)| super::answer_number(*number)).ok_or(Errno::NXIO)
        });
    }

    /// Opens a buffer. Returns the channels that will be on.
    fn open(
        &mut self,
        device: usize,
        buffer: u16,
        mask: Vec<u32>,
        hub: &mut Hub,
    ) -> Result<Option<Answer>, Errno> {
        if self.buffer(device, buffer).is_ok() {
            return Err(Errno::EXIST);
        }
        if buffer != 0 || !hub.context.devices[device].has_buffer() {
            return Err(Errno::NODEV);
        }
        let (mask, sample_len, is_output) = hub.preview(device, &Mask::of_words(mask))?;
        if is_output != transmits(hub, device) {
            return Err(Errno::INVAL);
        }
        let words = mask.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let buffer = Buffer {
            device,
            mask,
            sample_len,
            is_output,
            is_on: false,
            blocks: Vec::new(),
            transfers: VecDeque::new(),
            filling: None,
            since: None,
            collected: Vec::new(),
            reserved: None,
        };
        self.binary.as_mut().ok_or(Errno::BADF)?.buffers.push_back(buffer);
        hub.add_buffer(device, self.who);
        Ok(Some(Answer::Value(words)))
    }

    /// What libiio asks by its other connection is done when this one ends, which is soon.
    fn of_other(&self, device: usize, buffer: u16, hub: &Hub) -> Result<Option<Answer>, Errno> {
        let is_there = buffer == 0 && hub.has_buffer(device, self.who.host);
        if is_there { DONE } else { Err(Errno::BADF) }
    }

    fn close_buffer(
        &mut self,
        device: usize,
        buffer: u16,
        hub: &mut Hub,
    ) -> Result<Option<Answer>, Errno> {
        if self.buffer(device, buffer).is_err() {
            return self.of_other(device, buffer, hub);
        }
        self.disable(device, buffer, hub)?;
        if let Some(binary) = &mut self.binary {
            binary.buffers.retain(|it| it.device != device);
        }
        hub.remove_buffer(device, self.who);
        DONE
    }

    fn enable(
        &mut self,
        device: usize,
        buffer: u16,
        hub: &mut Hub,
    ) -> Result<Option<Answer>, Errno> {
        let who = self.who;
        let buffer = self.buffer(device, buffer)?;
        if buffer.blocks.is_empty() {
            return Err(Errno::INVAL);
        }
        if buffer.is_on {
            return Err(Errno::BUSY);
        }
        if buffer.is_output {
            let started = hub.transmit(device, who.client).map_or(Ok(()), Transmit::start);
            if let Err(errno) = started {
                // What has come was not transmitted: its transfers are told so.
                let _ = hub.close(device, who, Sent::default());
                return Err(errno);
            }
        } else {
            let reserved = hub.reserve(device, who.host, buffer.largest())?;
            buffer.open_device(who, false, hub)?;
            if let Err(errno) = hub.fix(device, who.client, &buffer.mask) {
                let _ = hub.close(device, who, Sent::default());
                return Err(errno);
            }
            buffer.reserved = Some(reserved);
        }
        (buffer.is_on, buffer.since) = (true, None);
        DONE
    }

    fn disable(
        &mut self,
        device: usize,
        buffer: u16,
        hub: &mut Hub,
    ) -> Result<Option<Answer>, Errno> {
        let buffer = self.buffer(device, buffer)?;
        (buffer.is_on, buffer.since) = (false, None);
        (buffer.collected, buffer.reserved) = (Vec::new(), None);
        // It is open only if it was on, or samples have come to be transmitted.
        let _ = self.close(device, hub);
        DONE
    }

    fn create(
        &mut self,
        device: usize,
        frame::Block { buffer, number }: frame::Block,
        size: u64,
        hub: &Hub,
    ) -> Result<Option<Answer>, Errno> {
        let to = self.to();
        let buffer = self.buffer(device, buffer)?;
        if buffer.block(number).is_ok() {
            return Err(Errno::EXIST);
        }
        let size = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        if size < buffer.sample_len {
            return Err(Errno::INVAL);
        }
        // It is taken when it is needed, but then it is too late to choose a smaller one.
        if buffer.is_on && size > buffer.largest() {
            return Err(Errno::BUSY);
        }
        if size > hub.room() || i32::try_from(size).is_err() || buffer.blocks.len() >= MOST_BLOCKS {
            return Err(Errno::NOMEM);
        }
        buffer.blocks.push(Block { number, to, size });
        DONE
    }

    fn free(
        &mut self,
        device: usize,
        frame::Block { buffer, number }: frame::Block,
        hub: &Hub,
    ) -> Result<Option<Answer>, Errno> {
        let Ok(found) = self.buffer(device, buffer) else {
            return self.of_other(device, buffer, hub);
        };
        found.block(number)?;
        found.blocks.retain(|block| block.number != number);
        if found.transfers.front().is_some_and(|first| first.block == number) {
            found.collected.clear();
            found.since = None;
        }
        found.transfers.retain(|transfer| transfer.block != number);
        DONE
    }

    /// Begins a transfer, which is answered later. If it transmits, its samples follow in any case.
    fn transfer(
        &mut self,
        device: Result<usize, Errno>,
        block: frame::Block,
        bytes: u64,
        cyclic: bool,
        hub: &mut Hub,
    ) {
        let follow = device.is_ok_and(|device| transmits(hub, device));
        let begun = device
            .map_err(number)
            .and_then(|device| self.begin_transfer(device, block, bytes, cyclic, hub));
        match begun {
            Err(answer) if follow => {
                self.doing = Doing::Skip { left: bytes, answer: Some(answer) };
            }
            Err(answer) => self.number(answer),
            Ok(()) => {}
        }
    }

    fn begin_transfer(
        &mut self,
        device: usize,
        frame::Block { buffer, number: block }: frame::Block,
        bytes: u64,
        cyclic: bool,
        hub: &mut Hub,
    ) -> Result<(), i64> {
        let buffer = self.buffer(device, buffer).map_err(number)?;
        let found = buffer.block(block).map_err(number)?;
        let (to, size) = (found.to, found.size);
        let is_under_way = buffer.transfers.iter().any(|transfer| transfer.block == block);
        let sample_len = buffer.sample_len;
        let (is_output, bytes) = (buffer.is_output, usize::try_from(bytes).unwrap_or(usize::MAX));
        self.reply_to(to);
        if bytes == 0 {
            return Err(number(Errno::INVAL));
        }
        let not_enqueued = |errno| not_enqueued(number(errno));
        if is_under_way {
            return Err(not_enqueued(Errno::PERM));
        }
        if bytes > size || bytes < sample_len {
            return Err(not_enqueued(Errno::INVAL));
        }
        if is_output {
            self.open_transmit(device, cyclic, hub).map_err(not_enqueued)?;
            let until = self.deadline(hub);
            self.doing = Doing::Writing { device, left: bytes, bytes, until };
            let transfer = Transfer { block, to, bytes, count: 0, has_failed: false };
            self.buffer(device, 0).map_err(number)?.filling = Some((transfer, cyclic));
            return Ok(());
        }
        if cyclic {
            return Err(not_enqueued(Errno::PERM));
        }
        let bytes = bytes - bytes % sample_len;
        let buffer = self.buffer(device, 0).map_err(number)?;
        buffer.transfers.push_back(Transfer { block, to, bytes, count: 0, has_failed: false });
        Ok(())
    }

    /// Opens a device that transmits, with as many blocks as the client has.
    fn open_transmit(&mut self, device: usize, cyclic: bool, hub: &mut Hub) -> Result<(), Errno> {
        let who = self.who;
        let buffer = self.buffer(device, 0)?;
        if hub.transmit(device, who.client).is_err() {
            buffer.open_device(who, cyclic, hub)?;
            if !buffer.is_on {
                hub.transmit(device, who.client)?.wait_for_start();
            }
        }
        let (_, block_len) = hub.lengths(device, who.client)?;
        if cyclic && hub.room() <= block_len {
            return Err(Errno::NOMEM);
        }
        hub.transmit(device, who.client)?.set_cyclic(cyclic)
    }

    /// All samples of a transfer have come.
    pub(super) fn has_filled(&mut self, device: usize, hub: &mut Hub) {
        let counts = hub.transmit(device, self.who.client).and_then(|it| it.counts());
        let Ok(buffer) = self.buffer(device, 0) else { return };
        match (buffer.filling.take(), counts) {
            (Some((mut transfer, false)), Ok((count, _))) => {
                transfer.count = count;
                buffer.transfers.push_back(transfer);
            }
            // What is repeated never ends: this is the only answer.
            (Some((_, true)), Ok(_)) => self.number(0),
            (_, Err(errno)) => self.number(not_enqueued(number(errno))),
            (None, _) => {}
        }
    }

    /// Waits for a transfer again that has failed.
    fn retry(
        &mut self,
        device: usize,
        frame::Block { buffer, number: block }: frame::Block,
    ) -> Result<(), Errno> {
        let buffer = self.buffer(device, buffer)?;
        let to = buffer.block(block)?.to;
        let found = buffer.transfers.iter_mut().find(|it| it.block == block && it.has_failed);
        if let Some(transfer) = found {
            transfer.has_failed = false;
            buffer.since = None;
            return Ok(());
        }
        self.reply_to(to);
        Err(Errno::PERM)
    }

    /// Answers a transfer that is done, or who waits for an event, if there is one. The buffers have their turns.
    pub(super) fn serve(&mut self, hub: &mut Hub) -> bool {
        if let Some((to, event)) = hub.next_event(self.who) {
            let value = event.map(Vec::from);
            let len = value.as_ref().map(|value| i64::try_from(value.len()).unwrap_or(i64::MAX));
            self.say(answer(to, len.unwrap_or_else(|errno| number(*errno))).into());
            self.say(value.unwrap_or_default());
            return true;
        }
        let count = self.binary.as_ref().map_or(0, |binary| binary.buffers.len());
        for _ in 0..count {
            let first = self.binary.as_mut().and_then(|binary| binary.buffers.pop_front());
            let Some(mut buffer) = first else { return false };
            let has_answered = self.serve_buffer(&mut buffer, hub);
            if let Some(binary) = &mut self.binary {
                binary.buffers.push_back(buffer);
            }
            if has_answered {
                return true;
            }
        }
        false
    }

    fn serve_buffer(&mut self, buffer: &mut Buffer, hub: &mut Hub) -> bool {
        let Some((to, bytes, count)) = buffer.first() else { return false };
        if buffer.is_on {
            buffer.since.get_or_insert_with(Instant::now);
        }
        let done = if buffer.is_output {
            self.has_transmitted(buffer, count, hub)
        } else {
            self.deliver(buffer, to, bytes, hub)
        };
        match done {
            Ok(Step::None) if !self.is_late(buffer, hub) => return false,
            Ok(Step::Part) => return true,
            Ok(Step::All) => {
                buffer.transfers.pop_front();
                if buffer.is_output {
                    self.say(answer(to, 0).into());
                }
            }
            done => {
                let errno = done.err().unwrap_or(Errno::TIMEDOUT);
                self.say(answer(to, number(errno)).into());
                if let Some(first) = buffer.transfers.front_mut() {
                    first.has_failed = true;
                }
            }
        }
        buffer.since = None;
        true
    }

    fn is_late(&self, buffer: &Buffer, hub: &mut Hub) -> bool {
        let timeout = hub.timeout(self.who.host);
        timeout.zip(buffer.since).is_some_and(|(timeout, since)| since.elapsed() >= timeout)
    }

    /// Whether the device has transmitted so many blocks.
    fn has_transmitted(&self, buffer: &Buffer, count: u64, hub: &mut Hub) -> Result<Step, Errno> {
        match hub.transmit(buffer.device, self.who.client).and_then(|it| it.counts()) {
            Ok((_, transmitted)) if transmitted >= count => Ok(Step::All),
            Ok(_) => Ok(Step::None),
            // It was switched off.
            Err(Errno::BADF) => Err(Errno::CANCELED),
            Err(errno) => Err(errno),
        }
    }

    /// Sends so many bytes of samples as an answer, if they are there. Those of several blocks of the device are
    /// collected, since an answer has its length at its beginning.
    fn deliver(
        &mut self,
        buffer: &mut Buffer,
        to: u16,
        bytes: usize,
        hub: &mut Hub,
    ) -> Result<Step, Errno> {
        let head = || answer(to, i64::try_from(bytes).unwrap_or(i64::MAX)).to_vec();
        let before = buffer.collected.len();
        while buffer.is_on && buffer.collected.len() - before < STEP {
            let left = bytes - buffer.collected.len();
            let Taken::Chunk(chunk) = hub.take(buffer.device, self.who, left, None)? else { break };
            let samples = &chunk.samples;
            if chunk.range.len() == bytes {
                let is_whole = chunk.range.end == samples.meta().len;
                let can_lend = bytes > SHORT && is_whole && !self.link.is_unknown();
                let is_by_copy = !can_lend || !hub.can_hold(buffer.device, self.who.client);
                self.lend(head(), chunk, buffer.device, is_by_copy, hub);
                return Ok(Step::All);
            }
            // As much as is reserved, not what a vector that grows would take.
            let room = buffer.collected.try_reserve_exact(bytes - buffer.collected.len());
            room.map_err(|_| Errno::NOMEM)?;
            collect(&mut buffer.collected, &chunk)?;
            hub.copied += chunk.range.len() as u64;
            if buffer.collected.len() == bytes {
                hub.sent += bytes as u64;
                self.say(head());
                self.say(std::mem::take(&mut buffer.collected));
                return Ok(Step::All);
            }
        }
        Ok(if buffer.collected.len() > before { Step::Part } else { Step::None })
    }
}

/// The context, without events if clients would have no room for them.
fn binary_xml(hub: &Hub) -> &str {
    let all = &hub.xml_with_events;
    if all.len() <= MOST_XML { all } else { &hub.xml }
}

/// Appends samples.
fn collect(to: &mut Vec<u8>, chunk: &Chunk) -> Result<(), Errno> {
    let parts = chunk.samples.parts().map_err(|error| errno(&error))?;
    parts.within(chunk.range.clone()).for_each(|part| part.append_to(to));
    Ok(())
}

/// Whether a client takes a device for one that transmits: libiio looks at its channels.
fn transmits(hub: &Hub, device: usize) -> bool {
    let mut channels = hub.context.devices[device].channels.iter();
    channels.any(|channel| channel.is_output && channel.scan.is_some())
}

/// The trigger of this number, or none.
fn trigger(hub: &Hub, number: i32) -> Result<Option<usize>, Errno> {
    if number == -1 {
        return Ok(None);
    }
    let found = usize::try_from(number).ok().and_then(|number| hub.numbered(number));
    found.map(Some).ok_or(Errno::INVAL)
}

/// An attribute by its names.
struct Named {
    device: usize,
    /// The channel, and whether it transmits.
    channel: Option<(String, bool)>,
    of: Of,
    name: String,
}

/// The attribute at a place.
fn attribute(hub: &Hub, device: usize, place: Place) -> Result<Named, Errno> {
    let described = &hub.context.devices[device];
    let mut channel = None;
    let mut names = match place.of {
        Of::Device => described.attributes.clone(),
        Of::Debug => described.debug_attributes.clone(),
        Of::Buffer(0) => described.buffer_attributes.clone(),
        Of::Channel(number) => {
            let found = described.channels.get(usize::from(number)).ok_or(Errno::INVAL)?;
            channel = Some((found.id.clone(), found.is_output));
            found.attributes.iter().map(|(name, _)| name.clone()).collect()
        }
        Of::DeviceEvents => described.event_attributes.clone(),
        Of::ChannelEvents(number) => {
            let found = described.channels.get(usize::from(number)).ok_or(Errno::INVAL)?;
            channel = Some((found.id.clone(), found.is_output));
            found.event_attributes.iter().map(|(name, _)| name.clone()).collect()
        }
        Of::Buffer(_) => Vec::new(),
    };
    // As libiio sorts them.
    names.sort();
    let name = names.into_iter().nth(place.number.into()).ok_or(Errno::INVAL)?;
    Ok(Named { device, channel, of: place.of, name })
}

impl Named {
    fn borrowed(&self) -> Found<'_> {
        let channel = self.channel.as_ref().map(|(id, is_output)| (id.as_str(), *is_output));
        let of = match (channel, self.of) {
            (channel, Of::DeviceEvents | Of::ChannelEvents(_)) => command::Of::Events(channel),
            (Some((id, is_output)), _) => command::Of::Channel { id, is_output },
            (None, Of::Debug) => command::Of::Debug,
            (None, Of::Buffer(_)) => command::Of::Buffer,
            (None, _) => command::Of::Device,
        };
        (self.device, of, Some(&self.name))
    }
}

/// Reads a register, or writes it. To read one changes a setting as well: which is read.
fn register(
    hub: &Hub,
    device: Result<usize, Errno>,
    address: u32,
    value: Option<u32>,
) -> Result<(usize, Job), Errno> {
    let device = device.map_err(|_| Errno::NODEV)?;
    if hub.is_read_only {
        return Err(Errno::PERM);
    }
    if !hub.is_of_machine(device) {
        return Err(Errno::NOENT);
    }
    let path = hub.roots.debug.join(&hub.context.devices[device].id).join("direct_reg_access");
    let value = value.map_or(String::new(), |value| format!(" {value:#x}"));
    let text = format!("{address:#x}{value}");
    let job = move || {
        sysfs::write(&path, text.as_bytes())?;
        if !value.is_empty() {
            return Ok(Answer::Number(0));
        }
        let found = number_of(&sysfs::read(&path, 1024)?).ok_or(Errno::IO)?;
        Ok(Answer::Value(found.to_le_bytes().into()))
    };
    Ok((device, Box::new(job)))
}

/// A number as drivers write it.
fn number_of(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0').trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads the type of a channel, which a driver may change.
fn format(hub: &Hub, device: Result<usize, Errno>, channel: u16) -> Result<(usize, Job), Errno> {
    let device = device.map_err(|_| Errno::NODEV)?;
    let described = &hub.context.devices[device];
    let channel = described.channels.get(usize::from(channel)).ok_or(Errno::INVAL)?;
    let scan = channel.scan.as_ref().ok_or(Errno::INVAL)?;
    let way = if channel.is_output { "out" } else { "in" };
    let file = format!("scan_elements/{way}_{}_type", scan.name);
    let path = hub.roots.devices.join(&described.id).join(file);
    let known = (!hub.is_of_machine(device)).then_some(scan.kind);
    let job = move || {
        let kind = known.map_or_else(|| kind_of(&sysfs::read(&path, 256)?), Ok)?;
        let sign = if kind.signed { 's' } else { 'u' };
        Ok(Answer::Value(kind.text(sign).into()))
    };
    Ok((device, Box::new(job)))
}

fn kind_of(value: &[u8]) -> Result<Type, Errno> {
    let text = std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0'));
    text.and_then(Type::parse).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_read_as_drivers_write_them() {
        for (text, expected) in [
            (&b"0x1F\0"[..], Some(31)),
            (b"17\0", Some(17)),
            (b"0XFFFFFFFF", Some(u32::MAX)),
            (b"0x100000000\0", None),
            (b"x\0", None),
            (b"", None),
        ] {
            assert_eq!(number_of(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_was_not_enqueued_has_its_number_in_the_upper_half() {
        assert_eq!(not_enqueued(number(Errno::PERM)), -0x1_0000);
        assert_eq!(answer(7, not_enqueued(-22)), [7, 0, 0, 0, 0, 0, 0xea, 0xff]);
        assert_eq!(answer(7, i64::MAX), [7, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]);
    }
}
