use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;

/// Bytes of which no two neighbours are the same.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0].wrapping_mul(7).wrapping_add(seed)).collect()
}

/// Memory that begins at each distance from an aligned address.
fn shifted(len: usize, by: usize) -> (Vec<u8>, Range<usize>) {
    let memory = vec![0xee; len + 96];
    let aligned = memory.as_ptr().addr().wrapping_neg() % 32;
    (memory, aligned + by..aligned + by + len)
}

#[test]
fn every_length_is_copied_from_and_to_every_alignment() {
    let lens = if cfg!(miri) { 60..90 } else { 0..200 };
    for (len, by) in lens.flat_map(|len| (0..17).map(move |by| (len, by))) {
        let bytes = pattern(len, 3);
        let (mut memory, range) = shifted(len, by);
        BytesMut::from(&mut memory[range.clone()]).copy_from(&bytes);
        assert_eq!(Bytes::from(&memory[range.clone()]).to_vec(), bytes, "{len} at {by}");
        let others = memory[..range.start].iter().chain(&memory[range.end..]);
        assert!(others.copied().all(|byte| byte == 0xee), "{len} at {by}");
        for other in [by, by + 8, by * 5 % 17] {
            let (mut copy, there) = shifted(len, other);
            let from = Bytes::from(&memory[range.clone()]);
            BytesMut::from(&mut copy[there.clone()]).copy_from_bytes(from);
            assert_eq!(copy[there.clone()], bytes, "{len} from {by} to {other}");
            let others = copy[..there.start].iter().chain(&copy[there.end..]);
            assert!(others.copied().all(|byte| byte == 0xee), "{len} from {by} to {other}");
        }
    }
}

#[test]
fn a_copy_takes_no_more_memory_than_its_bytes() {
    assert!((1..20).all(|len| Bytes::from(&pattern(len, 0)[..]).to_vec().capacity() == len));
}

#[test]
fn chunks_are_all_of_it_in_its_order() {
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5] {
        let bytes = pattern(len, 0);
        let (mut all, mut longest) = (Vec::new(), 0);
        Bytes::from(&bytes[..]).for_each_chunk(|chunk| {
            all.extend_from_slice(chunk);
            longest = longest.max(chunk.len());
        });
        assert!(all == bytes && longest <= CHUNK, "{len}");
    }
}

#[test]
fn an_error_ends_the_chunks() {
    let (bytes, mut calls) = (vec![0; 3 * CHUNK], 0);
    let ended = Bytes::from(&bytes[..]).try_for_each_chunk(|chunk| {
        calls += 1;
        if calls == 2 { Err(chunk.len()) } else { Ok(()) }
    });
    assert_eq!((ended, calls), (Err(CHUNK), 2));
}

#[test]
fn parts_of_mutable_bytes_are_written_to_one_after_another() {
    let mut memory = pattern(10_000, 0);
    let mut bytes = BytesMut::from(&mut memory[..]);
    bytes.slice(..5000).fill(1);
    bytes.slice(5000..).slice(..=0).copy_from(&[2]);
    assert_eq!(bytes.as_bytes().slice(4999..5001).to_vec(), [1, 2]);
    bytes.slice(9999..).fill(3);
    assert_eq!((bytes.len(), bytes.is_empty()), (10_000, false));
    assert_eq!(memory[5001..9999], pattern(10_000, 0)[5001..9999]);
    assert!(memory[..5000].iter().all(|byte| *byte == 1) && memory[9999] == 3);
}

#[test]
fn who_knows_that_nobody_writes_has_a_slice() {
    let mut memory = pattern(100, 0);
    // SAFETY: nobody else knows of it.
    unsafe {
        BytesMut::from(&mut memory[..]).as_mut_slice()[7] = 9;
        assert_eq!(Bytes::from(&memory[..]).as_slice()[7], 9);
    }
}

#[test]
fn nothing_is_a_length_as_well() {
    let (mut none, nothing) = (BytesMut::default(), Bytes::default());
    assert!(none.is_empty() && nothing.is_empty() && nothing == [][..]);
    none.fill(1);
    none.copy_from_bytes(nothing);
    assert_eq!((nothing.get(0), nothing.to_vec(), nothing.slice(0..0).len()), (None, vec![], 0));
}

#[test]
fn a_panic_is_what_lengths_and_ranges_beyond_the_end_are() {
    let panics = |call: &dyn Fn(Bytes<'_>)| {
        let call = std::panic::AssertUnwindSafe(|| call(Bytes::from(&[1, 2, 3][..])));
        assert!(std::panic::catch_unwind(call).is_err());
    };
    panics(&|bytes| assert!(bytes.slice(..4).is_empty()));
    #[allow(clippy::reversed_empty_ranges)]
    panics(&|bytes| assert!(bytes.slice(2..1).is_empty()));
    panics(&|bytes| assert!(bytes.slice(..=usize::MAX).is_empty()));
    panics(&|bytes| assert!(bytes.split_at(4).0.is_empty()));
    panics(&|bytes| bytes.copy_to(&mut [0; 2]));
    panics(&|bytes| BytesMut::from(&mut [0; 4][..]).copy_from_bytes(bytes));
    panics(&|_| BytesMut::from(&mut [0; 4][..]).copy_from(&[0; 5]));
}

#[test]
#[cfg_attr(miri, ignore = "makes system calls")]
fn they_go_to_the_kernel_and_come_from_it_where_they_are() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let bytes = pattern(5000, 1);
    let (head, tail) = bytes.split_at(1234);
    let parts = [&[], head, &[], tail, &[]].map(Bytes::from);
    assert_eq!(send(&ours, &parts, SendFlags::NOSIGNAL), Ok(5000));
    let mut memory = vec![0; 6000];
    let part = BytesMut::from(&mut memory[..5000]);
    assert_eq!(receive(&theirs, part, RecvFlags::WAITALL), Ok(5000));
    assert_eq!(memory[..5000], bytes);
    assert_eq!(Bytes::from(&bytes[..]).slice(7..).write_to(&theirs).unwrap(), 4993);
    assert_eq!(BytesMut::from(&mut memory[..]).read_from(&ours).unwrap(), 4993);
    assert_eq!(memory[..4993], bytes[7..]);
    theirs.write_all(b"header, payload").unwrap();
    let mut two = [[0; 8], [0; 8]];
    let [first, second] = &mut two;
    let mut parts = [BytesMut::from(&mut first[..]), BytesMut::from(&mut second[..])];
    assert_eq!(read(&ours, &mut parts), Ok(15));
    assert_eq!((&two[0], &two[1][..7]), (b"header, ", &b"payload"[..]));
    drop(theirs);
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "makes system calls")]
fn however_many_parts_there_are_all_are_written() {
    let bytes = pattern(10_000, 2);
    let parts: Vec<_> = bytes.chunks(3).flat_map(|part| [part, &[]]).map(Bytes::from).collect();
    let mut file = tempfile::tempfile().unwrap();
    write_all(&file, &parts).unwrap();
    write_all(&file, &[]).unwrap();
    write_all(&file, &[Bytes::default()]).unwrap();
    file.rewind().unwrap();
    let mut written = Vec::new();
    file.read_to_end(&mut written).unwrap();
    assert!(written == bytes);
    let mut memory = vec![0; 9_999];
    read_exact_at(&file, BytesMut::from(&mut memory[..]), 1).unwrap();
    assert!(memory == bytes[1..]);
    let short = read_exact_at(&file, BytesMut::from(&mut memory[..]), 2).unwrap_err();
    assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    let full = Bytes::from(&bytes[..]).write_all_to(File::create("/dev/full").unwrap());
    assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn what_is_written_is_taken_off_part_by_part() {
    let (first, second) = (pattern(3, 0), pattern(4, 9));
    for count in 0..=7 {
        let mut parts = [&[], &first[..], &[], &second[..]].map(Bytes::from);
        let left = advance(&mut parts, count);
        let left: Vec<u8> = left.iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!(left, [&first[..], &second].concat()[count..]);
    }
}

proptest! {
    #[test]
    fn they_are_what_a_slice_is(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        start in 0_usize..310,
        end in 0_usize..310,
        other in prop::collection::vec(any::<u8>(), 0..3),
    ) {
        let all = Bytes::from(&bytes[..]);
        prop_assert_eq!(all.get(start), bytes.get(start).copied());
        let Some(expected) = bytes.get(start..end) else { return Ok(()) };
        let part = all.slice(start..end);
        prop_assert_eq!((part.len(), part.is_empty()), (expected.len(), expected.is_empty()));
        prop_assert_eq!(part.to_vec(), expected);
        prop_assert!(part == *expected);
        prop_assert_eq!(part == other[..], *expected == other[..]);
        let (head, tail) = all.split_at(start);
        prop_assert_eq!([head.to_vec(), tail.to_vec()].concat(), &bytes[..]);
        let mut appended = other.clone();
        part.append_to(&mut appended);
        prop_assert_eq!(appended, [&other[..], expected].concat());
    }

    #[test]
    fn writing_is_what_writing_to_a_slice_is(
        bytes in prop::collection::vec(any::<u8>(), 1..300),
        from in prop::collection::vec(any::<u8>(), 0..100),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let start = at.index(bytes.len());
        let end = bytes.len().min(start + from.len());
        let (mut expected, mut memory) = (bytes.clone(), bytes);
        expected[start..end].copy_from_slice(&from[..end - start]);
        expected[..start].fill(value);
        let mut written = BytesMut::from(&mut memory[..]);
        written.slice(start..end).copy_from_bytes(Bytes::from(&from[..end - start]));
        written.slice(..start).fill(value);
        prop_assert_eq!(memory, expected);
    }
}
