//! Whatever a server of libiio's protocol answers, a source has whole samples or an error, a sink ends or goes on, and a
//! list ends; and none of them takes much memory.

#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arbitrary::Arbitrary;
use busbar::stream::{Sink, Source, StreamSetup, iiod, set_attribute};
use libfuzzer_sys::fuzz_target;

/// An answer to the next question, or without one.
#[derive(Arbitrary, Clone, Debug)]
enum Answer {
    Bytes(Vec<u8>),
    Number(i16),
    /// A length that may be wrong, and a value.
    Value(Option<i32>, Vec<u8>),
    /// A number of bytes, the channels, and so many samples.
    Samples(u8, bool, u8),
}

#[derive(Arbitrary, Debug)]
struct Input {
    does: u8,
    /// An entity of so many bytes, and how often the context has it.
    entity: Option<(u16, u16)>,
    /// Changes of the context.
    changes: Vec<(u16, u8)>,
    answers: Vec<Answer>,
}

const CONTEXT: &str = "<?xml version=\"1.0\"?><context name=\"x\" description=\"y\"><context-attribute name=\"a\" \
    value=\"b\"/><device id=\"iio:device0\" name=\"adc\"><channel id=\"voltage0\" type=\"input\"><scan-element index=\"0\" \
    format=\"le:s12/16&gt;&gt;4\" scale=\"0.5\"/><attribute name=\"raw\" filename=\"in_voltage0_raw\"/></channel><channel \
    id=\"count0\" type=\"input\"><scan-element index=\"1\" format=\"le:U64/64&gt;&gt;0\"/></channel><channel id=\"voltage0\" \
    type=\"output\"><scan-element index=\"0\" format=\"le:S16/16&gt;&gt;0\"/></channel><attribute \
    name=\"sampling_frequency\"/><attribute name=\"pattern\"/><buffer-attribute name=\"data_available\"/><debug-attribute \
    name=\"direct_reg_access\"/></device></context>";
/// How long the server waits for a question before it answers anyway.
const TICK: Duration = Duration::from_millis(2);
const BLOCK: usize = 64;
/// Most answers, and most samples that are taken.
const MOST: usize = 16;
/// Most bytes that a client may have at a time: a context of 4 MiB three times, and blocks.
const MEMORY: usize = 16 << 20;

/// Counts the bytes that are allocated, and the most of them.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all of it; counters change nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LISTENER: RefCell<TcpListener> = RefCell::new(TcpListener::bind("127.0.0.1:0").unwrap());
}

fuzz_target!(|input: Input| {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    LISTENER.with_borrow(|listener| {
        let host = listener.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener.accept().unwrap().0, &input));
            let name = format!("adc@ip:{host}");
            match input.does % 4 {
                0 => drop(iiod::devices(Some(&host))),
                1 => drop(set_attribute(&name, "in_voltage0_raw", "1")),
                2 => transmit(&format!("iio:{name}")),
                _ => receive(&format!("iio:{name}")),
            }
        });
    });
    assert!(PEAK.load(Ordering::Relaxed) - before <= MEMORY);
});

fn serve(stream: &TcpStream, input: &Input) {
    let mut context = context(input.entity).into_bytes();
    for (at, byte) in &input.changes {
        let at = usize::from(*at) % context.len();
        context[at] = *byte;
    }
    let (mut to, mut from) = (stream, BufReader::new(stream));
    stream.set_read_timeout(Some(TICK)).unwrap();
    let first = [format!("{}\n", context.len()).as_bytes(), &context, b"\n"].concat();
    let answers = input.answers.iter().take(MOST).map(Answer::bytes);
    for answer in std::iter::once(first).chain(answers) {
        // A question, or none in time.
        let _ = from.read_until(b'\n', &mut Vec::new());
        if to.write_all(&answer).is_err() {
            return;
        }
    }
}

/// The context, in which an entity may stand for much.
fn context(entity: Option<(u16, u16)>) -> String {
    let Some((len, count)) = entity else { return CONTEXT.into() };
    let dtd = format!("<!DOCTYPE context [<!ENTITY e \"{}\">]>", "x".repeat(len.into()));
    let much = format!("description=\"{}", "&e;".repeat(count.into()));
    CONTEXT.replacen("<context ", &format!("{dtd}<context "), 1).replacen("description=\"", &much, 1)
}

impl Answer {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Number(number) => format!("{number}\n").into_bytes(),
            Self::Value(len, value) => {
                let len = len.unwrap_or(value.len() as i32);
                [format!("{len}\n").as_bytes(), value, b"\n"].concat()
            }
            Self::Samples(count, is_right, len) => {
                let mask = if *is_right { "00000001" } else { "00000003" };
                [format!("{count}\n{mask}\n").as_bytes(), &vec![7; usize::from(*len)]].concat()
            }
        }
    }
}

fn receive(name: &str) {
    let Ok(source) = Source::open(name, &StreamSetup::new().blocks(2).block_len(BLOCK)) else { return };
    let sample_len = source.format().sample_len;
    for _ in 0..MOST {
        match source.next_timeout(2 * TICK) {
            Ok(Some(samples)) => {
                let len = samples.read().unwrap().bytes().len();
                assert!(len > 0 && len % sample_len == 0 && len <= BLOCK.max(sample_len));
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}

fn transmit(name: &str) {
    let Ok(sink) = Sink::open(name, &StreamSetup::new().blocks(2).block_len(BLOCK)) else { return };
    for _ in 0..MOST {
        let sent = match sink.space_timeout(2 * TICK) {
            Ok(Some(space)) => {
                let len = space.len();
                space.send(len)
            }
            done => done.map(drop),
        };
        if sent.and_then(|()| sink.drain_timeout(TICK)).is_err() {
            return;
        }
    }
}
