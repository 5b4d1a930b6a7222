//! Blocks as packets: what TTY, device node and endpoint descriptor have in common.

use rustix::io::Errno;

use super::link::{Carrier, Wanted};
use super::messages::Messages;
use super::packet::{Control, Cutter, Event, Joiner, Opening, Piece, Window, errno};
use super::transfer::Transfer;
use crate::endpoint::MAX_MESSAGE;
use crate::poll::Deadline;
use crate::{Error, Result};

/// Longest block that is received: what a length can say.
const LONGEST: u32 = u32::MAX;
/// Messages between two reports of progress.
const REPORT_EVERY: u64 = 64;

/// A conversation in packets.
pub(super) struct Packets<M> {
    messages: M,
    joiner: Joiner,
    window: u32,
    /// The remote and this side agree on where a packet begins.
    open: bool,
    buffer: [u8; MAX_MESSAGE],
}

impl<M: Messages> Packets<M> {
    /// `window` is how many bytes the remote may send ahead of what was received.
    pub(super) fn new(messages: M, window: u32) -> Self {
        let joiner = Joiner::new(LONGEST);
        Self { messages, joiner, window, open: false, buffer: [0; MAX_MESSAGE] }
    }

    /// Ends whatever an earlier user of the address has left unfinished.
    fn open(&mut self, deadline: Deadline) -> Result<()> {
        if self.open {
            return Ok(());
        }
        self.joiner.reset();
        let mut opening = Opening::new(super::unique());
        for message in opening.messages() {
            self.messages.send(Piece { head: &message, body: &[] }, deadline)?;
        }
        loop {
            let length = self.messages.recv(&mut self.buffer, deadline)?;
            if self.messages.opened(&mut opening, &self.buffer[..length]) {
                self.open = true;
                return Ok(());
            }
        }
    }

    /// Runs `exchange`; what fails in the middle leaves a conversation that has to be opened anew.
    fn within<T>(
        &mut self,
        deadline: Deadline,
        exchange: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.open(deadline)?;
        self.open = false;
        let done = exchange(self)?;
        self.open = true;
        Ok(done)
    }

    fn say(&mut self, control: Control, deadline: Deadline) -> Result<()> {
        self.messages.send(Piece { head: &control.encode(), body: &[] }, deadline)
    }

    /// Waits until `find` makes something of an event.
    fn await_event<T>(
        &mut self,
        deadline: Deadline,
        mut find: impl FnMut(Event) -> Option<T>,
    ) -> Result<T> {
        loop {
            let length = self.messages.recv(&mut self.buffer, deadline)?;
            let events = self.messages.join(&mut self.joiner, &self.buffer[..length]);
            if let Some(found) = events.into_iter().find_map(&mut find) {
                return Ok(found);
            }
        }
    }

    fn send_packet(
        &mut self,
        block: &[u8],
        transfer: &mut Transfer<'_>,
        deadline: Deadline,
    ) -> Result<Answer> {
        let total = block.len() as u64;
        let mut cutter = Cutter::new(block, MAX_MESSAGE)?;
        let size = cutter.size();
        let mut count = 0;
        while let Some(message) = cutter.piece() {
            self.messages.send(message, deadline)?;
            cutter.advance();
            count += 1;
            if count % REPORT_EVERY == 0 {
                transfer.tell(total.saturating_sub(cutter.left()), total);
            }
        }
        let answer = self.await_event(deadline, |event| Answer::of(&event, size, total))?;
        transfer.tell(total, total);
        Ok(answer)
    }

    fn receive_packet(
        &mut self,
        wanted: u32,
        transfer: &mut Transfer<'_>,
        deadline: Deadline,
    ) -> Result<Reply> {
        let mut window = Window::new(self.window);
        self.say(Control::Receive { length: wanted, credit: window.open() }, deadline)?;
        let mut count = 0_u64;
        loop {
            let length = self.messages.recv(&mut self.buffer, deadline)?;
            for event in self.messages.join(&mut self.joiner, &self.buffer[..length]) {
                if let Some(reply) = self.reply(event, deadline)? {
                    return Ok(reply);
                }
            }
            if let Some(credit) = window.take(length) {
                self.say(credit, deadline)?;
            }
            count += 1;
            if let Some(progress) = self.joiner.progress()
                && count.is_multiple_of(REPORT_EVERY)
            {
                transfer.tell(progress.received.into(), progress.length.into());
            }
        }
    }

    /// Answers what wants an answer; what the remote's answer to a RECEIVE is.
    fn reply(&mut self, event: Event, deadline: Deadline) -> Result<Option<Reply>> {
        if let Some(answer) = event.answer() {
            self.messages.send(Piece { head: &answer, body: &[] }, deadline)?;
        }
        Ok(match event {
            Event::Block(block) => Some(Ok(block.bytes)),
            Event::Refused { status, .. } => Some(Err(errno(status).unwrap_or(Errno::PROTO))),
            Event::Control(Control::Status { status, .. }) => errno(status).map(Err),
            _ => None,
        })
    }
}

/// The remote's word on a block: taken, or why not.
struct Answer(Option<Errno>);

impl Answer {
    /// `size` is that of the packet, `length` that of the block in it.
    fn of(event: &Event, size: u64, length: u64) -> Option<Self> {
        match *event {
            Event::Taken { size: taken } => {
                Some(Self((u64::from(taken) != size).then_some(Errno::PROTO)))
            }
            Event::Control(Control::Status { length: received, status }) => {
                let short = u64::from(received) != length;
                Some(Self(errno(status).or(short.then_some(Errno::PROTO))))
            }
            _ => None,
        }
    }
}

/// A block, or why there is none.
type Reply = Result<Vec<u8>, Errno>;

impl<M: Messages + Send> Carrier for Packets<M> {
    fn send(&mut self, block: &[u8], transfer: &mut Transfer<'_>) -> Result<()> {
        let deadline = transfer.deadline();
        let Answer(refused) =
            self.within(deadline, |packets| packets.send_packet(block, transfer, deadline))?;
        match refused {
            None => Ok(()),
            Some(errno) => Err(refusal("send a block to", self.messages.label(), errno)),
        }
    }

    fn receive(&mut self, wanted: Wanted, transfer: &mut Transfer<'_>) -> Result<Vec<u8>> {
        let deadline = transfer.deadline();
        let wanted = wanted.on_the_wire()?;
        let reply =
            self.within(deadline, |packets| packets.receive_packet(wanted, transfer, deadline))?;
        let bytes =
            reply.map_err(|errno| refusal("receive a block from", self.messages.label(), errno))?;
        let total = bytes.len() as u64;
        transfer.tell(total, total);
        Ok(bytes)
    }
}

/// Why one of the two sides has not taken a block.
pub(super) fn refusal(tried: &str, on: String, errno: Errno) -> Error {
    let error = Error::new(tried, on, errno);
    match errno {
        Errno::BADMSG => error.help("the check sum was wrong: bytes were changed on the way"),
        Errno::PROTO => error.help("a packet was not as long as its header says"),
        Errno::MSGSIZE => error.help("the block is longer than the other side takes"),
        Errno::NODATA => error.help("nobody has sent a block yet that could be received"),
        _ => error,
    }
}
