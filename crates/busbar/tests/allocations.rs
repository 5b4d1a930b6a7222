//! In the steady state, a block goes through a pipeline without an allocation.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use busbar::pipeline::{
    Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, StageConfig, State,
    Work,
};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Not while a thread ends.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: the system's allocator does all of it; a counter of this thread changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as of the caller.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as of the caller.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Time for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Turns `pipeline` until its first sink has so many samples more, or it has finished.
fn pass(pipeline: &mut Pipeline, samples: u64) {
    let until = pipeline.counters().sinks[0].samples + samples;
    // The counters allocate: they are asked rarely.
    while pipeline.counters().sinks[0].samples < until {
        for _ in 0..64 {
            if pipeline.turn_timeout(PATIENCE).unwrap() == State::Finished {
                return;
            }
        }
    }
}

/// The fewest allocations of so many turns, out of four times as many: a queue may be longer than ever before in one
/// of them.
fn allocations(pipeline: &mut Pipeline, turns: usize) -> u64 {
    let mut turn = || {
        let before = ALLOCATIONS.get();
        for _ in 0..turns {
            pipeline.turn_timeout(PATIENCE).unwrap();
        }
        ALLOCATIONS.get() - before
    };
    (0..4).map(|_| turn()).min().unwrap_or(u64::MAX)
}

fn config(from: SourceKind, to: SinkKind, block_len: usize) -> Config {
    let source = SourceConfig::new("source", from).block_len(block_len);
    let sum = StageConfig::new("sum", Edge::new("source"), Work::Checksum);
    Config::new().source(source).stage(sum).sink(SinkConfig::new("sink", Edge::new("sum"), to))
}

fn counter() -> SourceKind {
    SourceKind::Device("synth:counter".into())
}

#[test]
fn a_block_of_a_source_is_verified_without_an_allocation() {
    let config = config(counter(), SinkKind::Verify { counter: true }, 4096);
    let mut pipeline = Pipeline::open(config).unwrap();
    pass(&mut pipeline, 100_000);
    let before = pipeline.counters().sinks[0].blocks;
    assert_eq!(allocations(&mut pipeline, 100), 0);
    assert!(pipeline.counters().sinks[0].blocks > before + 100);
}

#[test]
fn a_block_goes_over_the_network_without_an_allocation() {
    // Below those that the kernel gives to connections.
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).find(is_free).unwrap();
    for block_len in [4096, 64 << 10] {
        let target = format!("127.0.0.1:{port}");
        let from = SourceKind::Listen(target.clone());
        let to = SinkKind::Verify { counter: true };
        let mut there = Pipeline::open(config(from, to, block_len)).unwrap();
        let sender = thread::spawn(move || {
            let config = config(counter(), SinkKind::Connect(target), block_len);
            let mut here = Pipeline::open(config).unwrap();
            pass(&mut here, 500_000);
            let before = here.counters().sinks[0].blocks;
            let allocated = allocations(&mut here, 50);
            let blocks = here.counters().sinks[0].blocks - before;
            here.stop();
            while here.turn_timeout(PATIENCE).unwrap() != State::Finished {}
            (allocated, blocks)
        });
        pass(&mut there, 200_000);
        let before = there.counters().sinks[0].blocks;
        let allocated = allocations(&mut there, 20);
        let blocks = there.counters().sinks[0].blocks - before;
        while there.turn_timeout(PATIENCE).unwrap() != State::Finished {}
        assert_eq!(allocated, 0, "the receiver, {block_len}");
        assert!(blocks > 10, "{blocks}");
        let (allocated, blocks) = sender.join().unwrap();
        assert_eq!(allocated, 0, "the sender, {block_len}");
        assert!(blocks > 10, "{blocks}");
    }
}
