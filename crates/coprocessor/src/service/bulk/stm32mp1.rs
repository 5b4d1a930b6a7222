//! The firmware of the `rpmsg-netlink` example for the STM32MP1 (2020), byte for byte.

use std::time::Instant;

use busbar::Result;
use busbar_uapi::rpmsg_bulk::PREAMBLE;

use super::super::{Port, Service};

/// Bytes of its buffer (`RPMSG_BUFFER_SIZE`).
const BUFFER: usize = 32768;

/// Answers the length of a block, as the firmware of the example does, with all its peculiarities:
///
/// * Messages are appended to the buffer, whoever has sent them. All messages that are in the ring
///   are taken before any of them is looked at.
/// * A preamble at the start of the buffer says that a length follows. Nothing else is understood:
///   no checksum, no RESET, no RECEIVE.
/// * Once there are as many bytes as that, the length is the answer, as two bytes, and the buffer
///   is empty: data behind the block is lost. Without a length, any message is answered with 0.
/// * All answers go to the address that the first message of all was from, as `OpenAMP` has it.
/// * It has 32 KiB for a block and its header. More is written behind the buffer; this one crashes.
#[derive(Debug)]
pub struct Stm32mp1 {
    name: String,
    to: Option<u32>,
    buffer: Vec<u8>,
    size: u16,
    expected: u16,
    /// When the main loop has something to do.
    due: Option<Instant>,
}

impl Stm32mp1 {
    /// The firmware, announced as `name`; the original announces `rpmsg-netlink`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            to: None,
            buffer: vec![0; BUFFER],
            size: 0,
            expected: 0,
            due: None,
        }
    }

    /// One pass of its main loop after messages have arrived; returns the answer, if there is one.
    fn go_round(&mut self) -> Option<[u8; 2]> {
        if self.buffer[..2] == PREAMBLE.to_le_bytes() {
            self.buffer[..2].fill(0);
            self.expected = u16::from_le_bytes([self.buffer[2], self.buffer[3]]);
        }
        if self.size < self.expected {
            return None;
        }
        self.size = 0;
        Some(std::mem::take(&mut self.expected).to_le_bytes())
    }
}

impl Service for Stm32mp1 {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        *self = Self::new(std::mem::take(&mut self.name));
        Ok(())
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        self.to.get_or_insert(from);
        let at = usize::from(self.size);
        let Some(place) = self.buffer.get_mut(at..at + data.len()) else {
            port.crash(format!("{} bytes written behind the buffer", at + data.len() - BUFFER));
            return Ok(());
        };
        place.copy_from_slice(data);
        self.size = self.size.wrapping_add(u16::try_from(data.len()).unwrap_or(u16::MAX));
        self.due.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    fn on_tick(&mut self, port: &mut Port<'_>, _now: Instant) -> Result<()> {
        if self.due.take().is_none() {
            return Ok(());
        }
        match (self.go_round(), self.to) {
            (Some(answer), Some(to)) => port.send(to, &answer),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use busbar::bulk::packet::{Control, Cutter};

    use super::super::super::testing::{Bench, Sent};
    use super::*;

    fn bench() -> Bench {
        Bench::new(Stm32mp1::new("rpmsg-netlink"))
    }

    fn go_round(bench: &mut Bench) -> Sent {
        bench.tick(Instant::now()).unwrap()
    }

    /// Handles a message before the next one arrives; returns the answer.
    fn alone(bench: &mut Bench, from: u32, message: &[u8]) -> Sent {
        assert_eq!(bench.message(from, message).unwrap(), []);
        go_round(bench)
    }

    fn packet(length: usize) -> Vec<Vec<u8>> {
        let block = vec![7; length];
        let mut cutter = Cutter::new(&block, 496).unwrap();
        let mut messages = Vec::new();
        while let Some(piece) = cutter.piece() {
            let mut message = Vec::new();
            piece.write_to(&mut message);
            messages.push(message);
            cutter.advance();
        }
        messages
    }

    #[test]
    fn a_block_is_answered_with_its_length_once_all_of_it_is_there() {
        let mut bench = bench();
        for length in [1, 490, 491, 5000, 32762] {
            let (last, others) =
                packet(length).split_last().map(|(a, b)| (a.clone(), b.to_vec())).unwrap();
            for message in others {
                assert_eq!(alone(&mut bench, 5, &message), [], "{length} bytes");
            }
            let answer = u16::try_from(length + 6).unwrap().to_le_bytes().to_vec();
            assert_eq!(alone(&mut bench, 5, &last), [(5, answer)], "{length} bytes");
        }
    }

    #[test]
    fn whatever_is_no_block_is_answered_with_zero() {
        let mut bench = bench();
        for message in [&[0][..], b"", b"what?", &*Control::Reset { value: 9 }.encode()] {
            assert_eq!(alone(&mut bench, 5, message), [(5, vec![0, 0])]);
        }
    }

    #[test]
    fn messages_that_come_together_are_looked_at_together() {
        let mut bench = bench();
        bench.message(5, &[0]).unwrap();
        for message in packet(600) {
            bench.message(5, &message).unwrap();
        }
        // The header is not at the start of the buffer.
        assert_eq!(go_round(&mut bench), [(5, vec![0, 0])]);
        assert_eq!(go_round(&mut bench), []);
    }

    #[test]
    fn the_first_address_has_all_the_answers_until_it_starts_anew() {
        let mut bench = bench();
        assert_eq!(alone(&mut bench, 5, &packet(3)[0]), [(5, vec![9, 0])]);
        assert_eq!(alone(&mut bench, 6, &packet(3)[0]), [(5, vec![9, 0])]);
        bench.start().unwrap();
        assert_eq!(alone(&mut bench, 6, &packet(3)[0]), [(6, vec![9, 0])]);
    }

    #[test]
    fn more_than_it_has_room_for_is_its_end() {
        let mut bench = bench();
        for message in packet(32763) {
            let _ = alone(&mut bench, 5, &message);
        }
        assert_eq!(bench.crash.as_deref(), Some("1 bytes written behind the buffer"));
    }
}
