//! Receive from a socket whose device writes into the block.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use busbar_uapi::devmem::{self, CONTROL_SPACE, Control, Fragment, Received};
use rustix::io::Errno;

use super::filled::Filled;
use super::memory::Memory;
use super::tokens::Tokens;
use super::view::{Piece, View};
use crate::{Error, Result};

/// Maximum number of fragments in one call.
const MOST: usize = 256;
/// Maximum number of bytes in one call: as many pages.
const MOST_BYTES: usize = MOST * 4096;

/// Receives from a socket whose data is in device memory.
#[derive(Debug)]
pub(super) struct Fragments {
    memory: Arc<Memory>,
    tokens: Arc<Tokens>,
    /// Number of the binding.
    id: u32,
    /// Data that is not in the block.
    bytes: Vec<u8>,
    control: Vec<u8>,
}

impl Fragments {
    pub(super) fn new(socket: &Arc<TcpStream>, memory: &Arc<Memory>, id: u32) -> Self {
        let tokens = Arc::new(Tokens::new(Arc::clone(socket), Arc::clone(memory)));
        let (bytes, control) = (vec![0; MOST_BYTES], vec![0; MOST * CONTROL_SPACE]);
        Self { memory: Arc::clone(memory), tokens, id, bytes, control }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether any of its views exist.
    pub(super) fn has_views(&self) -> bool {
        Arc::strong_count(&self.tokens) > 1
    }

    /// Receives, by one call.
    pub(super) fn fill(
        &mut self,
        socket: &TcpStream,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<Filled> {
        let received = loop {
            match devmem::receive(socket, &mut self.bytes, &mut self.control) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.flush(true)?;
                    return Ok(Filled::Nothing);
                }
                received => break received,
            }
        };
        let received = received.map_err(|errno| failed("receive from", errno))?;
        if received.len == 0 {
            return Ok(Filled::End);
        }
        self.tokens.gather();
        pieces.extend(self.take(received)?);
        Ok(Filled::Some)
    }

    /// Returns all tokens; `is_idle` if no call receives from now on.
    pub(super) fn flush(&self, is_idle: bool) -> Result<()> {
        self.tokens.flush(is_idle).map_err(|errno| failed("return the tokens of", errno))
    }

    /// The pieces that were received. If one of them is invalid, the tokens of all are returned.
    fn take(&mut self, received: Received) -> Result<Vec<Piece>> {
        let Received { len, control_len, is_truncated } = received;
        let mut stream = Stream { all: self, pieces: Vec::new(), linear: 0, total: 0, any: false };
        let mut result = Ok(());
        for control in devmem::controls(&stream.all.control[..control_len]) {
            let taken = control
                .map_err(|errno| failed("parse the control messages of", errno))
                .and_then(|control| stream.add(control));
            result = result.and(taken);
        }
        if is_truncated {
            result = result.and(Err(bad("control messages", "truncated", "all of them")));
        }
        result?;
        stream.finish(len)
    }

    /// The range of a fragment in the block.
    fn place(&self, fragment: &Fragment) -> Result<Range<usize>> {
        let Fragment { offset, size, dmabuf_id, .. } = *fragment;
        if dmabuf_id != self.id {
            let allowed = format!("{}: is another program's rule in the way?", self.id);
            return Err(bad("binding of a fragment", dmabuf_id, allowed));
        }
        let len = self.memory.block.len();
        let start = usize::try_from(offset).ok();
        let end = start.zip(usize::try_from(size).ok()).and_then(|(at, size)| at.checked_add(size));
        match start.zip(end) {
            Some((start, end)) if start < end && end <= len => Ok(start..end),
            _ => Err(bad(
                "place of a fragment",
                format!("{offset}+{size}"),
                format!("within the {len} bytes of the block"),
            )),
        }
    }
}

/// The pieces of one call.
struct Stream<'a> {
    all: &'a Fragments,
    pieces: Vec<Piece>,
    /// Bytes of the pieces that are not in the block, and of all pieces.
    linear: usize,
    total: usize,
    any: bool,
}

impl Stream<'_> {
    fn add(&mut self, control: Control) -> Result<()> {
        match control {
            Control::Device(fragment) => self.add_fragment(&fragment),
            Control::Linear(size) => self.add_linear(size as usize),
            Control::Other => Ok(()),
        }
    }

    fn add_fragment(&mut self, fragment: &Fragment) -> Result<()> {
        self.any = true;
        let Fragments { memory, tokens, .. } = self.all;
        let bytes = self.all.place(fragment).inspect_err(|_| tokens.give(fragment.token))?;
        self.total += bytes.len();
        memory.hold(&bytes);
        let token = Some((fragment.token, Arc::clone(tokens)));
        self.pieces.push(Piece::View(View::new(memory, bytes, token)));
        Ok(())
    }

    fn add_linear(&mut self, size: usize) -> Result<()> {
        self.any = true;
        let end = self.linear + size;
        let bytes = self.all.bytes.get(self.linear..end).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or_else(|| {
            bad("length of bytes outside the block", size, "as many as there is room for")
        })?;
        self.pieces.push(Piece::Bytes(bytes.to_vec()));
        (self.linear, self.total) = (end, self.total + size);
        Ok(())
    }

    fn finish(mut self, len: usize) -> Result<Vec<Piece>> {
        // No control message: none of the data is in device memory.
        if !self.any {
            self.add_linear(len)?;
        }
        if self.total != len {
            return Err(bad("length of all fragments", self.total, len));
        }
        let counts = &self.all.memory.counts;
        counts.bytes.fetch_add(len as u64, Ordering::Relaxed);
        counts.copied.fetch_add(self.linear as u64, Ordering::Relaxed);
        Ok(self.pieces)
    }
}

fn failed(tried: &str, errno: Errno) -> Error {
    Error::new(tried, "a connection", errno)
}

/// The kernel's answer is invalid, so data of the stream is lost.
fn bad(field: &str, value: impl Display, allowed: impl Display) -> Error {
    let why = format!("{field}: {value} instead of {allowed}");
    Error::new("receive from", "a connection", io::Error::new(io::ErrorKind::InvalidData, why))
        .help("this connection cannot be used any more; connect again")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;
    use crate::block::{self, Block};

    const LEN: usize = 1 << 20;

    fn fragments() -> Fragments {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let block = Block::with(LEN, &block::Memory::Memfd).unwrap();
        Fragments::new(&socket, &Arc::new(Memory::new(block).unwrap()), 5)
    }

    /// `struct cmsghdr` and `struct dmabuf_cmsg`.
    fn control(kind: i32, offset: u64, rest: [u32; 3]) -> Vec<u8> {
        let mut bytes = (size_of::<libc::cmsghdr>() + 24).to_ne_bytes().to_vec();
        bytes.extend([libc::SOL_SOCKET, kind].iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(rest.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.extend([0; 4]);
        bytes
    }

    fn device(offset: u64, size: u32, id: u32) -> Vec<u8> {
        control(79, offset, [size, 0x8000_0001, id])
    }

    fn linear(size: u32) -> Vec<u8> {
        control(78, 0, [size, 0, 0])
    }

    fn take(all: &mut Fragments, messages: &[Vec<u8>], len: usize) -> Result<Vec<Piece>> {
        let bytes = messages.concat();
        all.control[..bytes.len()].copy_from_slice(&bytes);
        all.take(Received { len, control_len: bytes.len(), is_truncated: false })
    }

    #[test]
    fn views_and_bytes_come_in_the_order_of_the_stream() {
        let mut all = fragments();
        all.bytes[..5].copy_from_slice(b"abcde");
        let messages = [linear(2), device(8192, 100, 5), linear(3), device(0, 1, 5)];
        let pieces = take(&mut all, &messages, 106).unwrap();
        let shown = |piece: &Piece| match piece {
            Piece::View(view) => format!("{:?}", view.range()),
            Piece::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        };
        let shown: Vec<_> = pieces.iter().map(shown).collect();
        assert_eq!(shown, ["ab", "8192..8292", "cde", "0..1"]);
        let statistics = all.memory.statistics();
        assert_eq!((statistics.bytes, statistics.copied, statistics.views), (106, 5, 2));
        assert_eq!(statistics.held, 2 * rustix::param::page_size());
        drop(pieces);
        assert_eq!((all.memory.statistics().views, all.memory.statistics().held), (0, 0));
    }

    #[test]
    fn a_view_that_was_cut_goes_back_once_when_all_parts_are_gone() {
        let mut all = fragments();
        let page = rustix::param::page_size();
        let (start, len) = (page / 2, 2 * page);
        let message = device(start as u64, u32::try_from(len).unwrap(), 5);
        let Some(Piece::View(mut head)) = take(&mut all, &[message], len).unwrap().pop() else {
            panic!("no view")
        };
        let mut middle = head.split_off(100);
        let tail = middle.split_off(page);
        let cuts = [start, start + 100, start + 100 + page, start + len];
        let ranges = [head.range(), middle.range(), tail.range()];
        assert_eq!(ranges, [cuts[0]..cuts[1], cuts[1]..cuts[2], cuts[2]..cuts[3]]);
        let left = |all: &Fragments| {
            // The kernel refuses a token that it has not given.
            let _ = all.flush(false);
            let statistics = all.memory.statistics();
            (statistics.views, statistics.held / page, statistics.refused)
        };
        assert_eq!(left(&all), (3, 3, 0));
        drop(middle);
        assert_eq!(left(&all), (2, 3, 0));
        drop(head);
        assert_eq!(left(&all), (1, 2, 0));
        drop(tail);
        assert_eq!(left(&all), (0, 0, 1));
    }

    #[test]
    fn views_that_are_dropped_together_go_back_together() {
        let mut all = fragments();
        let messages: Vec<_> = (0..10).map(|page| device(page * 8192, 100, 5)).collect();
        let mut returns = |is_idle, drop_all: fn(Vec<Piece>)| {
            let pieces = take(&mut all, &messages, 1000).unwrap();
            let _ = all.flush(is_idle);
            let before = all.memory.statistics().returns;
            drop_all(pieces);
            all.memory.statistics().returns - before
        };
        assert_eq!(returns(true, drop), 10);
        assert_eq!(returns(true, Piece::drop_all), 1);
        // The next receive returns it.
        assert_eq!(returns(false, Piece::drop_all), 0);
        let _ = all.flush(true);
        assert_eq!(all.memory.statistics().refused, 30);
    }

    #[test]
    fn data_without_messages_is_all_outside_the_block() {
        let mut all = fragments();
        all.bytes[..3].copy_from_slice(b"abc");
        let pieces = take(&mut all, &[], 3).unwrap();
        assert!(matches!(&pieces[..], [Piece::Bytes(bytes)] if bytes == b"abc"));
    }

    #[test]
    fn what_is_not_in_our_block_is_refused_and_given_back() {
        let end = LEN as u64;
        for (messages, len, says) in [
            (vec![device(0, 10, 6)], 10, "binding of a fragment: 6 instead of 5"),
            (vec![device(end, 1, 5)], 1, "within the 1048576 bytes"),
            (vec![device(end - 1, 2, 5)], 2, "within"),
            (vec![device(u64::MAX, 2, 5)], 2, "within"),
            (vec![device(0, u32::MAX, 5)], 2, "within"),
            (vec![device(0, 0, 5)], 0, "within"),
            (vec![device(0, 10, 5)], 11, "length of all fragments: 15 instead of 16"),
            (vec![linear(u32::MAX)], 1, "as many as there is room for"),
            (vec![linear(0)], 1, "as many"),
            (vec![linear(1), vec![1; 24]], 1, "control messages"),
        ] {
            let mut all = fragments();
            let good = device(4096, 5, 5);
            let error = take(&mut all, &[&[good][..], &messages].concat(), len + 5).unwrap_err();
            assert!(error.to_string().contains(says), "{says}: {error}");
            assert_eq!((all.memory.statistics().views, all.memory.statistics().held), (0, 0));
            // Nothing that was given is kept.
            let _ = all.flush(false);
            // Where a message has its kind.
            let kind = size_of::<usize>() + 4;
            let given = messages.iter().filter(|bytes| bytes.get(kind) == Some(&79)).count() as u64;
            assert_eq!(all.memory.statistics().refused, 1 + given);
        }
        let mut all = fragments();
        let error = all.take(Received { len: 1, control_len: 0, is_truncated: true }).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{error}");
    }

    proptest! {
        #[test]
        fn no_control_data_leads_out_of_the_block(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            fields in prop::collection::vec(
                (prop::sample::select(vec![78, 79, 1]), any::<u64>(), any::<[u32; 3]>()), 0..6),
            len in 0..3 * LEN,
        ) {
            let mut all = fragments();
            let built = fields.iter().map(|(kind, offset, rest)| control(*kind, *offset, *rest));
            let messages = [built.collect::<Vec<_>>().concat(), bytes];
            for piece in take(&mut all, &messages, len).unwrap_or_default() {
                if let Piece::View(view) = piece {
                    prop_assert!(view.read().unwrap().bytes().len() == view.len());
                }
            }
            prop_assert_eq!(all.memory.statistics().views, 0);
        }
    }
}
