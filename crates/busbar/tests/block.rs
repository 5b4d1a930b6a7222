//! `busbar::block` on the real kernel.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use busbar::block::{Block, Memory, Purpose};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

fn memories() -> Vec<Memory> {
    let mut memories = vec![Memory::Heap("system".into()), Memory::Pages];
    // Linux for armv7 has huge pages only where it is built for LPAE.
    let reserved = Path::new("/proc/sys/vm/nr_hugepages");
    if reserved.exists() {
        std::fs::write(reserved, "8").unwrap();
        memories.push(Memory::HugePages);
    }
    memories
}

fn read(block: &Block, len: usize) -> Vec<u8> {
    block.read().unwrap().bytes().slice(..len).to_vec()
}

fn write(block: &mut Block, bytes: &[u8]) {
    block.write().unwrap().bytes_mut().slice(..bytes.len()).copy_from(bytes);
}

#[test]
#[ignore = "needs the lab"]
fn memory_is_zeroed_and_holds_what_is_written() {
    for memory in memories() {
        let mut block = Block::with(100_000, &memory).unwrap();
        assert_eq!(block.memory(), &memory);
        assert!(block.len() >= 100_000 && block.len().is_multiple_of(4096), "{memory}");
        assert!(block.read().unwrap().bytes().to_vec().iter().all(|&byte| byte == 0), "{memory}");
        block.write().unwrap().bytes_mut().slice(99_999..100_000).fill(7);
        assert_eq!(block.read().unwrap().bytes().get(99_999), Some(7), "{memory}");
        assert!(block.try_wait_filled().unwrap());
        assert!(block.try_wait_unused().unwrap());
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_descriptor_is_the_same_memory() {
    for memory in memories() {
        let mut block = Block::with(4096, &memory).unwrap();
        let fd: OwnedFd = block.try_clone().unwrap().into();
        let other = Block::try_from(fd).unwrap();
        assert_eq!((other.len(), other.memory()), (block.len(), &Memory::Foreign));
        write(&mut block, b"hello");
        assert_eq!(read(&other, 5), b"hello", "{memory}");
        drop(block);
        assert_eq!(read(&other, 5), b"hello", "{memory}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn the_library_chooses_a_heap_where_there_is_one() {
    assert_eq!(Block::new(1).unwrap().memory(), &Memory::Heap("system".into()));
}

#[test]
#[ignore = "needs the lab"]
fn no_descriptor_and_no_memory_stays() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for memory in memories() {
        let before = open();
        for _ in 0..100 {
            Block::with(1 << 20, &memory).unwrap().write().unwrap().bytes_mut().fill(1);
        }
        assert_eq!(open(), before, "{memory}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn huge_pages_that_nobody_has_reserved_are_an_error_with_advice() {
    std::fs::write("/proc/sys/vm/nr_hugepages", "0").unwrap();
    let error = Block::with(1, &Memory::HugePages).unwrap_err();
    let expected = [Some(Errno::NOMEM), Some(Errno::NOSPC)];
    assert!(expected.contains(&error.errno()), "{error}");
    assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
}

#[test]
#[ignore = "needs the lab"]
fn pages_are_those_of_their_memfd() {
    for memory in &memories()[1..] {
        let mut block = Block::with(4096, memory).unwrap();
        let memfd = block.memory_file().unwrap().try_clone_to_owned().unwrap();
        let copy = block.try_clone().unwrap();
        write(&mut block, b"hello");
        assert_eq!(read(&copy, 5), b"hello");
        if *memory == Memory::HugePages {
            assert_eq!(Block::try_from(memfd).unwrap_err().errno(), Some(Errno::PERM));
        } else {
            assert_eq!(read(&Block::try_from(memfd).unwrap(), 5), b"hello", "{memory}");
        }
        // Through the DMABUF the bytes are the same, without the memfd.
        let dmabuf: OwnedFd = block.into();
        assert_eq!(read(&Block::try_from(dmabuf).unwrap(), 5), b"hello", "{memory}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn the_choice_depends_on_what_a_block_is_for() {
    assert_eq!(Memory::choose(Purpose::Device), Memory::Heap("system".into()));
    assert_eq!(Memory::choose(Purpose::Network), Memory::Pages);
    assert_eq!(Memory::choose(Purpose::Program), Memory::Memfd);
}

#[test]
fn a_memfd_is_a_block_on_every_host() {
    assert_eq!(Memory::choose(Purpose::Program), Memory::Memfd);
    let mut block = Block::with(100_000, &Memory::Memfd).unwrap();
    assert!(!block.is_dmabuf() && block.len() >= 100_000);
    assert!(block.read().unwrap().bytes().to_vec().iter().all(|&byte| byte == 0));
    let other = Block::try_from(OwnedFd::from(block.try_clone().unwrap())).unwrap();
    assert_eq!((other.len(), other.memory()), (block.len(), &Memory::Foreign));
    write(&mut block, b"hello");
    assert_eq!(read(&other, 5), b"hello");
    assert!(other.memory_file().is_some() && !other.is_dmabuf());
    assert!(block.try_wait_filled().unwrap());
    assert!(block.try_wait_unused().unwrap());
}

#[test]
fn whoever_has_a_descriptor_may_write_while_it_is_read() {
    let block = Block::with(1 << 18, &Memory::Memfd).unwrap();
    let file = block.memory_file().unwrap().try_clone_to_owned().unwrap();
    let mut another = Block::try_from(block.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let read = block.read().unwrap();
    let (mut value, mut chunks) = (0, 0);
    // What was read stays as it was, while the block is written by another mapping and by the kernel.
    read.bytes().for_each_chunk(|chunk| {
        let before = chunk.to_vec();
        assert!(before.iter().all(|byte| *byte == value));
        another.write().unwrap().bytes_mut().fill(value + 1);
        assert!(chunk == before);
        value += 2;
        rustix::io::pwrite(&file, &vec![value; block.len()], 0).unwrap();
        assert!(chunk == before);
        chunks += 1;
    });
    assert!(chunks > 1);
    assert!(read.bytes().to_vec().iter().all(|byte| *byte == value));
}

#[test]
fn memory_that_could_shrink_under_a_reader_is_no_block() {
    let memfd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memfd, 4096).unwrap();
    let error = Block::try_from(memfd).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
}

#[test]
fn huge_pages_that_others_may_take_away_are_no_block() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    // A host may be without them.
    let Ok(memfd) = rustix::fs::memfd_create("test", flags) else { return };
    rustix::fs::ftruncate(&memfd, 2 << 20).unwrap();
    rustix::fs::fcntl_add_seals(&memfd, rustix::fs::SealFlags::SHRINK).unwrap();
    let error = Block::try_from(memfd).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
}

#[test]
fn a_length_that_no_address_space_has_is_bad_input() {
    for memory in [Memory::Heap("system".into()), Memory::Pages, Memory::HugePages, Memory::Memfd] {
        for len in [usize::MAX, usize::MAX - 4095, isize::MAX as usize] {
            let error = Block::with(len, &memory).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{memory}: {error}");
        }
    }
}

#[test]
fn blocks_are_whole_pages_of_this_host() {
    let page = rustix::param::page_size();
    for (len, whole) in [(1, page), (page, page), (page + 1, 2 * page)] {
        assert_eq!(Block::with(len, &Memory::Memfd).unwrap().len(), whole);
    }
}

#[test]
fn memory_has_names() {
    let names = ["heap:system", "pages", "huge", "memfd"];
    let memory = [Memory::Heap("system".into()), Memory::Pages, Memory::HugePages, Memory::Memfd];
    for (name, memory) in names.into_iter().zip(memory) {
        assert_eq!(name.parse::<Memory>().unwrap(), memory);
    }
    for name in ["", "heap", "heap:", "heap:../null", "Pages", "foreign"] {
        assert_eq!(name.parse::<Memory>().unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
    }
}

#[test]
fn bad_input_is_named() {
    let error = Block::new(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for name in ["", "../null"] {
        let error = Block::with(1, &Memory::Heap(name.into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let error = Block::with(1, &Memory::Heap("no-such".into())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/dev/dma_heap/no-such"), "{error}");
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let error = Block::try_from(null).unwrap_err();
    assert!(error.to_string().contains("not a DMABUF"), "{error}");
}

/// Signals a thread of this process.
#[allow(unsafe_code)]
fn send_signal(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes three numbers, and the signal has a handler.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
}

#[test]
#[ignore = "needs the lab"]
fn signals_do_not_keep_huge_pages_from_being_allocated() {
    std::fs::write("/proc/sys/vm/nr_hugepages", "16").unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGUSR1, Arc::new(AtomicBool::new(false))).unwrap();
    let target = rustix::thread::gettid().as_raw_nonzero().get();
    let signals = {
        let ended = Arc::clone(&ended);
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                send_signal(target);
                thread::sleep(Duration::from_micros(200));
            }
        })
    };
    // Each takes longer than the pause between two signals.
    for _ in 0..100 {
        Block::with(16 << 20, &Memory::HugePages).unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    signals.join().unwrap();
}

#[test]
fn a_block_that_may_only_be_read_is_read_and_not_written() {
    use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, open};

    let made = |text: &[u8]| {
        let mut block = Block::with(4096, &Memory::Memfd).unwrap();
        block.write().unwrap().bytes_mut().slice(..text.len()).copy_from(text);
        OwnedFd::from(block)
    };
    let sealed = made(b"sealed");
    fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let future = made(b"future");
    fcntl_add_seals(&future, SealFlags::FUTURE_WRITE).unwrap();
    let whole = made(b"opened");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&whole));
    let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for (fd, text) in [(sealed, b"sealed"), (future, b"future"), (opened, b"opened")] {
        let mut block = Block::try_from(fd).unwrap();
        assert_eq!(read(&block, 6), text);
        let error = block.write().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ACCESS), "{error}");
        assert_eq!(read(&block, 6), text);
    }
}
