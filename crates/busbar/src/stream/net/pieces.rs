//! Bytes that arrive in pieces: read like a stream, or kept in place.

use std::io::{self, BufRead, Cursor, ErrorKind};
use std::net::TcpStream;

use crate::block::{Bytes, BytesMut};
use crate::receive::{Connection, Piece, View};
use crate::stream::samples::Parts;

/// The pieces of a connection of [`receive`](crate::receive), as a stream that never waits.
#[derive(Debug)]
pub(super) struct Pieces {
    connection: Connection,
    /// The rest of the last piece.
    rest: Option<Rest>,
}

#[derive(Debug)]
enum Rest {
    View(View),
    Bytes(Cursor<Vec<u8>>),
}

impl Pieces {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, rest: None }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.connection.socket()
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// As [`Read::read`](io::Read::read).
    pub(super) fn read(&mut self, mut into: BytesMut<'_>) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        match self.next()? {
            None => Ok(0),
            Some(Rest::View(view)) => {
                let view = self.cut(view, into.len());
                let read = view.read()?;
                into.slice(..view.len()).copy_from_bytes(read.bytes());
                Ok(view.len())
            }
            Some(Rest::Bytes(mut bytes)) => {
                let rest = bytes.fill_buf()?;
                let count = rest.len().min(into.len());
                into.slice(..count).copy_from(&rest[..count]);
                bytes.consume(count);
                self.put_back(bytes);
                Ok(count)
            }
        }
    }

    /// The next piece; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Rest>> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        match self.connection.try_next() {
            Ok(Some(Piece::View(view))) => Ok(Some(Rest::View(view))),
            Ok(Some(Piece::Bytes(bytes))) => Ok(Some(Rest::Bytes(Cursor::new(bytes)))),
            Ok(None) if self.connection.is_finished() => Ok(None),
            Ok(None) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The first `most` bytes of a view; the rest is the next piece.
    fn cut(&mut self, mut view: View, most: usize) -> View {
        if view.len() > most {
            self.rest = Some(Rest::View(view.split_off(most)));
        }
        view
    }

    /// Keeps the rest of bytes, unless there is none.
    fn put_back(&mut self, bytes: Cursor<Vec<u8>>) {
        if bytes.position() < bytes.get_ref().len() as u64 {
            self.rest = Some(Rest::Bytes(bytes));
        }
    }
}

/// A block that arrives in pieces.
///
/// Its views hold memory that the rest of the block may need. When little memory is left, they are copied out.
/// So every block can be completed, whatever its length, the size of its segments, and the memory that other
/// blocks hold.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    parts: Vec<Piece>,
    /// Bytes copied, each time they were.
    copied: u64,
}

impl Gathered {
    /// Takes the next `most` bytes at most: the rest of the block. Returns how many, as [`Pieces::read`].
    pub(super) fn take(&mut self, from: &mut Pieces, most: usize) -> io::Result<usize> {
        let len = match from.next()? {
            None => return Ok(0),
            Some(Rest::View(view)) => {
                let view = from.cut(view, most);
                let len = view.len();
                self.copied += if from.connection.is_by_device() { 0 } else { len as u64 };
                self.parts.push(Piece::View(view));
                len
            }
            Some(Rest::Bytes(mut bytes)) => {
                let rest = bytes.fill_buf()?;
                let len = rest.len().min(most);
                // The kernel has copied them.
                self.copied += len as u64;
                self.append(Bytes::from(&rest[..len]), most - len);
                bytes.consume(len);
                from.put_back(bytes);
                len
            }
        };
        // Once for all pieces that were received together: before the next ones are, or the block is handed out.
        if (len == most || !from.connection.has_more()) && from.connection.is_low() {
            self.copy_out(most - len)?;
        }
        Ok(len)
    }

    pub(super) fn parts(&self) -> &[Piece] {
        &self.parts
    }

    /// The parts, and the bytes that were copied.
    pub(super) fn into_parts(self) -> (Vec<Piece>, u64) {
        (self.parts, self.copied)
    }

    /// Appends bytes, with `more` behind them in the block.
    fn append(&mut self, bytes: Bytes<'_>, more: usize) {
        self.copied += bytes.len() as u64;
        match self.parts.last_mut() {
            Some(Piece::Bytes(last)) => {
                if last.capacity() - last.len() < bytes.len() {
                    // Doubles it, as a vector does, but never beyond the end of the block.
                    last.reserve_exact(last.len().clamp(bytes.len(), bytes.len() + more));
                }
                bytes.append_to(last);
            }
            _ => self.parts.push(Piece::Bytes(bytes.to_vec())),
        }
    }

    /// Replaces all views by copies, with `more` bytes behind them in the block. Earlier copies stay in place.
    fn copy_out(&mut self, mut more: usize) -> io::Result<()> {
        let mut parts = std::mem::take(&mut self.parts);
        if matches!(parts.first(), Some(Piece::Bytes(_))) {
            self.parts.push(parts.remove(0));
        }
        if parts.is_empty() {
            return Ok(());
        }
        let len = parts.iter().map(Piece::len).sum();
        more += len;
        // One guard for all: where DMA is not coherent, the kernel synchronises the caches for all of the memory.
        let read = Parts::of(&parts, len)?;
        for part in read.iter() {
            more -= part.len();
            self.append(part, more);
        }
        drop(read);
        Piece::drop_all(parts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::block::{Block, Memory};
    use crate::receive::Receiver;

    /// What a peer sends with these bytes, received into so much memory.
    fn pieces(bytes: Vec<u8>, memory: usize) -> Pieces {
        let block = Block::with(memory, &Memory::Memfd).unwrap();
        let listener =
            Receiver::host(block).unwrap().listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = listener.accept().unwrap();
        std::thread::spawn(move || sender.write_all(&bytes));
        Pieces::new(connection)
    }

    /// Tries until it does not have to wait.
    fn wait(mut call: impl FnMut() -> io::Result<usize>) -> usize {
        loop {
            match call() {
                Err(why) if why.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                done => return done.unwrap(),
            }
        }
    }

    fn read(pieces: &mut Pieces, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match wait(|| pieces.read(BytesMut::from(&mut bytes[filled..]))) {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        bytes
    }

    fn gather(pieces: &mut Pieces, len: usize) -> Gathered {
        let (mut gathered, mut left) = (Gathered::default(), len);
        while left > 0 {
            match wait(|| gathered.take(pieces, left)) {
                0 => break,
                count => left -= count,
            }
        }
        gathered
    }

    fn bytes(gathered: &Gathered) -> Vec<u8> {
        let len = gathered.parts().iter().map(Piece::len).sum();
        Parts::of(gathered.parts(), len).unwrap().iter().flat_map(Bytes::to_vec).collect()
    }

    /// Bytes that its copies may take.
    fn heap(gathered: &Gathered) -> usize {
        let capacity = |part: &Piece| match part {
            Piece::Bytes(bytes) => bytes.capacity(),
            Piece::View(_) => 0,
        };
        gathered.parts().iter().map(capacity).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn headers_and_blocks_come_in_their_order_however_much_is_held(
            pages in 1usize..40,
            lens in prop::collection::vec((1usize..100, 1usize..30_000, any::<bool>()), 1..20),
        ) {
            let total = lens.iter().map(|(header, block, _)| header + block).sum();
            let all: Vec<u8> = (0..=250).cycle().take(total).collect();
            let mut pieces = pieces(all.clone(), pages * rustix::param::page_size());
            let (mut at, mut held) = (0, Vec::new());
            for (header, block, is_held) in lens {
                prop_assert_eq!(&read(&mut pieces, header)[..], &all[at..at + header]);
                at += header;
                let gathered = gather(&mut pieces, block);
                prop_assert_eq!(&bytes(&gathered)[..], &all[at..at + block]);
                prop_assert!(gathered.copied >= block as u64);
                prop_assert!(heap(&gathered) <= block);
                if is_held {
                    held.push((gathered, at..at + block));
                }
                at += block;
            }
            prop_assert!(read(&mut pieces, 1).is_empty());
            drop(pieces);
            for (gathered, range) in held {
                prop_assert_eq!(&bytes(&gathered)[..], &all[range]);
            }
        }
    }

    #[test]
    fn pieces_of_a_device_are_copied_out_together_before_more_is_received() {
        let page = rustix::param::page_size();
        let mut block = Block::with(16 * page, &Memory::Memfd).unwrap();
        let all: Vec<u8> = (0..=250).cycle().take(8 * page).collect();
        block.write().unwrap().bytes_mut().into_slice(..all.len()).copy_from(&all);
        // Twice as much as may be held.
        let views = (0..8).map(|number| number * page..(number + 1) * page);
        let mut pieces = Pieces::new(Connection::by_device(block, views));
        let is_view = |part: &Piece| matches!(part, Piece::View(_));
        let mut complete = Gathered::default();
        for taken in 1..=3 {
            assert_eq!(complete.take(&mut pieces, (4 - taken) * page).unwrap(), page);
            assert!(
                taken == 3 || complete.parts.len() == taken && complete.parts.iter().all(is_view)
            );
        }
        assert!(!complete.parts.iter().any(is_view));
        assert_eq!(bytes(&complete), all[..3 * page]);
        // A block that is not complete once all that was received is taken.
        let mut begun = Gathered::default();
        for taken in 1..=5 {
            assert_eq!(begun.take(&mut pieces, (7 - taken) * page).unwrap(), page);
            assert!(taken == 5 || begun.parts.iter().all(is_view));
        }
        assert!(!begun.parts.iter().any(is_view));
        assert_eq!(bytes(&begun), all[3 * page..]);
    }

    #[test]
    fn bytes_beside_the_block_are_kept_in_their_order() {
        let mut pieces = pieces(b"view".to_vec(), 1 << 20);
        let mut gathered = Gathered::default();
        for (text, most, left) in [("abcdef", 4, &b"ef"[..]), ("gh", 9, b""), ("ijkl", 3, b"l")] {
            pieces.rest = Some(Rest::Bytes(Cursor::new(text.into())));
            assert_eq!(gathered.take(&mut pieces, most).unwrap(), most.min(text.len()));
            assert_eq!(read(&mut pieces, left.len()), left);
        }
        assert_eq!(wait(|| gathered.take(&mut pieces, 3)), 3);
        assert_eq!(bytes(&gathered), b"abcdghijkvie");
        // Once by the kernel, and once here; the last three went into memory as they came.
        assert_eq!((gathered.parts().len(), gathered.copied), (2, 2 * 9 + 3));
        assert_eq!(read(&mut pieces, 9), b"w");
    }
}
