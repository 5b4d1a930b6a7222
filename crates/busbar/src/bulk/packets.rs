//! Blocks as packets, for TTY, device node and endpoint descriptor.

use rustix::io::Errno;

use super::carrier::{Carrier, Wanted, refusal};
use super::messages::Messages;
use super::packet::{Control, Cutter, Event, Joiner, Opening, Piece, Window, errno};
use super::transfer::Transfer;
use crate::Result;
use crate::endpoint::MAX_MESSAGE;
use crate::poll::Deadline;

/// Messages between two reports of progress.
const REPORT_EVERY: u64 = 64;

/// A transport of blocks as packets.
pub(super) struct Packets<M> {
    messages: M,
    joiner: Joiner,
    window: u32,
    /// Whether the remote and this side agree on where a packet begins.
    open: bool,
    buffer: [u8; MAX_MESSAGE],
}

impl<M: Messages> Packets<M> {
    /// `window` is the number of bytes that the remote may send before more credit.
    pub(super) fn new(messages: M, window: u32) -> Self {
        // `receive` sets the limit.
        let joiner = Joiner::new(0);
        Self { messages, joiner, window, open: false, buffer: [0; MAX_MESSAGE] }
    }

    /// Ends packets that an earlier user of the address has left unfinished.
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

    /// Runs `exchange`. If it fails, the next one begins with a reset.
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

    /// Waits until `find` returns something for an event.
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

    /// Answers the event if it needs an answer. Returns the remote's reply to a RECEIVE, if it is that.
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

/// The remote's answer to a block: accepted, or why not.
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
        self.joiner.set_longest(transfer.longest());
        let reply =
            self.within(deadline, |packets| packets.receive_packet(wanted, transfer, deadline))?;
        let bytes =
            reply.map_err(|errno| refusal("receive a block from", self.messages.label(), errno))?;
        let total = bytes.len() as u64;
        transfer.tell(total, total);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A remote whose messages are prepared.
    struct Said(VecDeque<Vec<u8>>);

    impl Messages for Said {
        fn label(&self) -> String {
            "a test".into()
        }

        fn send(&mut self, _: Piece<'_>, _: Deadline) -> Result<()> {
            Ok(())
        }

        fn recv(&mut self, buffer: &mut [u8], _: Deadline) -> Result<usize> {
            let message = self.0.pop_front().expect("nothing more is waited for");
            buffer[..message.len()].copy_from_slice(&message);
            Ok(message.len())
        }

        fn join(&self, joiner: &mut Joiner, received: &[u8]) -> Vec<Event> {
            joiner.push(received).collect()
        }

        fn opened(&self, _: &mut Opening, _: &[u8]) -> bool {
            true
        }
    }

    #[test]
    fn a_block_that_is_longer_than_was_allowed_is_refused() {
        for (limit, is_allowed) in [(5000, true), (4999, false), (0, false)] {
            let mut messages = VecDeque::from([Vec::new()]);
            let mut cutter = Cutter::new(&[7; 5000][..], MAX_MESSAGE).unwrap();
            while let Some(piece) = cutter.piece() {
                let mut message = Vec::new();
                piece.write_to(&mut message);
                messages.push_back(message);
                cutter.advance();
            }
            let mut packets = Packets::new(Said(messages), 1 << 20);
            let received = packets.receive(Wanted::Last, &mut Transfer::new().limit(limit));
            match received {
                Ok(bytes) => assert!(is_allowed && bytes == [7; 5000]),
                Err(error) => {
                    assert!(!is_allowed, "{error}");
                    assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{error}");
                }
            }
        }
    }
}
