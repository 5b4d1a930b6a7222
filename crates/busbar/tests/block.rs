//! `busbar::block` on the real kernel.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use busbar::block::{Block, Memory, Purpose};
use rustix::io::Errno;

fn memories() -> [Memory; 3] {
    std::fs::write("/proc/sys/vm/nr_hugepages", "8").unwrap();
    [Memory::Heap("system".into()), Memory::Pages, Memory::HugePages]
}

#[test]
#[ignore = "needs the lab"]
fn memory_is_zeroed_and_holds_what_is_written() {
    for memory in memories() {
        let mut block = Block::with(100_000, &memory).unwrap();
        assert_eq!(block.memory(), &memory);
        assert!(block.len() >= 100_000 && block.len().is_multiple_of(4096), "{memory}");
        assert!(block.read().unwrap().iter().all(|&byte| byte == 0), "{memory}");
        block.write().unwrap()[99_999] = 7;
        assert_eq!(block.read().unwrap()[99_999], 7, "{memory}");
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
        block.write().unwrap()[..5].copy_from_slice(b"hello");
        assert_eq!(&other.read().unwrap()[..5], b"hello", "{memory}");
        drop(block);
        assert_eq!(&other.read().unwrap()[..5], b"hello", "{memory}");
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
            Block::with(1 << 20, &memory).unwrap().write().unwrap().fill(1);
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
        block.write().unwrap()[..5].copy_from_slice(b"hello");
        assert_eq!(&copy.read().unwrap()[..5], b"hello");
        assert_eq!(&Block::try_from(memfd).unwrap().read().unwrap()[..5], b"hello", "{memory}");
        // Through the DMABUF they are the same, for who knows nothing of the memfd.
        let dmabuf: OwnedFd = block.into();
        assert_eq!(&Block::try_from(dmabuf).unwrap().read().unwrap()[..5], b"hello", "{memory}");
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
    assert!(block.read().unwrap().iter().all(|&byte| byte == 0));
    let other = Block::try_from(OwnedFd::from(block.try_clone().unwrap())).unwrap();
    assert_eq!((other.len(), other.memory()), (block.len(), &Memory::Foreign));
    block.write().unwrap()[..5].copy_from_slice(b"hello");
    assert_eq!(&other.read().unwrap()[..5], b"hello");
    assert!(other.memory_file().is_some() && !other.is_dmabuf());
    assert!(block.try_wait_filled().unwrap());
    assert!(block.try_wait_unused().unwrap());
}

#[test]
fn memory_that_could_shrink_under_a_reader_is_no_block() {
    let memfd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memfd, 4096).unwrap();
    let error = Block::try_from(memfd).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
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
