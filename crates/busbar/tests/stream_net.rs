//! `busbar::stream::net`, with every sample verified: over the loopback interface by the socket's memory and by
//! `busbar::receive`, and in the lab by device memory.

mod pair;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::block::Bytes;
use busbar::stream::frame::{HEADER_LEN, Header, Hello, Kind};
use busbar::stream::net::{FrameReceiver, FrameSender, Options};
use busbar::stream::{Channel, Format, Lost, Meta, Samples, Sink, Source, StreamSetup};
use busbar::{Reason, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use pair::{Loopback, NAMESPACE, Pair, Place as _, far, run};

/// More time than anything that has to happen takes.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(5);

fn options() -> Options {
    Options::new().patience(PATIENCE)
}

fn impatient() -> Options {
    let (patience, silence) = (Duration::from_secs(1), Duration::from_secs(3));
    Options::new().patience(patience).silence(silence)
}

fn setup(block_len: usize) -> StreamSetup {
    StreamSetup::new().blocks(4).block_len(block_len)
}

/// Bytes of memory to receive into. Linux takes 8 KiB of its virtual memory for each page that is bound to a device, of which
/// it has 240 MiB on 32-bit ARM, and the memory of the receiver before may still be bound.
const MEMORY: usize = if cfg!(target_pointer_width = "32") { 32 << 20 } else { 64 << 20 };

/// Where received blocks are.
trait Place: Sync {
    fn receiver(&self, options: &Options) -> FrameReceiver;

    fn listen(&self, options: &Options) -> (FrameReceiver, SocketAddr) {
        let receiver = self.receiver(options);
        let address = receiver.local_addr().unwrap();
        (receiver, address)
    }

    /// Whether all bytes are copied.
    fn copies(&self) -> bool {
        true
    }

    /// How often to repeat something that is usually repeated so often: fewer times with a slow emulated device.
    fn rounds(&self, usual: usize) -> usize {
        usual
    }
}

/// Memory in which blocks stay where they were received.
trait Apart: Place {
    /// A receiver with so much memory.
    fn receiver_with(&self, memory: usize) -> FrameReceiver;

    /// Bytes of the smallest memory.
    fn least(&self) -> usize;
}

/// Blocks of a pool.
struct Sockets;

impl Place for Sockets {
    fn receiver(&self, options: &Options) -> FrameReceiver {
        FrameReceiver::listen("127.0.0.1:0", &setup(1), options).unwrap()
    }
}

/// Memory that a processor copies into.
struct Host;

impl Place for Host {
    fn receiver(&self, options: &Options) -> FrameReceiver {
        over(&Loopback, MEMORY, options)
    }
}

impl Apart for Host {
    fn receiver_with(&self, memory: usize) -> FrameReceiver {
        over(&Loopback, memory, &options())
    }

    fn least(&self) -> usize {
        Loopback.least()
    }
}

/// Memory that a device fills. The test runs at the end of the senders.
struct Device {
    pair: Pair,
    home: File,
}

impl Device {
    fn run(test: impl FnOnce(&Self) + Send) {
        let pair = Pair::new();
        run(&format!("ip -n {NAMESPACE} link set lo up"));
        let home = File::open("/proc/thread-self/ns/net").unwrap();
        let device = Self { pair, home };
        far(|| test(&device));
    }

    /// Runs something at the end of the device.
    fn near<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.home.as_fd(), network).unwrap();
            body()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }
}

impl Place for Device {
    fn receiver(&self, options: &Options) -> FrameReceiver {
        self.near(|| over(&self.pair, MEMORY, options))
    }

    fn copies(&self) -> bool {
        false
    }

    fn rounds(&self, usual: usize) -> usize {
        usual.div_ceil(10)
    }
}

impl Apart for Device {
    fn receiver_with(&self, memory: usize) -> FrameReceiver {
        self.near(|| over(&self.pair, memory, &options()))
    }

    fn least(&self) -> usize {
        self.pair.least()
    }
}

fn over(place: &impl pair::Place, memory: usize, options: &Options) -> FrameReceiver {
    let receiver = place.receiver(memory);
    FrameReceiver::over(receiver, (place.address(), 0).into(), &setup(1), options).unwrap()
}

/// Makes each test for each place, and some only for those where blocks stay where they were received.
macro_rules! conform {
    ($($test:ident)* ; $($apart:ident)*) => {
        mod sockets {
            $(#[test] fn $test() { super::$test(&super::Sockets); })*
        }
        mod memory {
            $(#[test] fn $test() { super::$test(&super::Host); })*
            $(#[test] fn $apart() { super::$apart(&super::Host); })*
        }
        mod device {
            $(
                #[test]
                #[ignore = "needs the lab"]
                fn $test() { super::Device::run(|device| super::$test(device)); }
            )*
            $(
                #[test]
                #[ignore = "needs the lab"]
                fn $apart() { super::Device::run(|device| super::$apart(device)); }
            )*
        }
    };
}

conform! {
    every_sample_arrives
    cut_connections_lose_nothing_and_repeat_nothing
    corrupted_bytes_are_seen_and_sent_again
    blocks_come_back_only_when_they_were_taken_over
    loss_goes_with_its_block
    who_is_refused_is_told_why_and_does_not_come_back
    another_sender_is_refused_while_there_is_one_and_goes_on_after_it
    what_a_hostile_sender_says_ends_its_connection_and_nothing_else
    a_sender_that_repeats_the_end_stops_nothing
    a_sender_that_does_not_complete_a_frame_makes_room_for_another
    a_half_open_connection_is_replaced_by_a_new_one
    a_sender_that_wants_more_memory_than_is_allowed_is_refused
    a_sender_that_does_not_come_back_is_an_error
    no_descriptor_is_left_behind
    after_the_end_there_is_nothing_more_to_send
    ;
    blocks_stay_where_they_came
    blocks_that_are_too_long_for_the_memory_are_refused
    little_memory_is_enough_whatever_is_held
    the_smallest_segments_do_not_use_up_the_memory
    blocks_outlive_connection_and_receiver
}

fn connect(source: &Source, to: SocketAddr, options: &Options) -> FrameSender {
    FrameSender::open(&to.to_string(), source.format(), source.block_len(), options).unwrap()
}

/// Sends this number of blocks of the source, and waits until they are taken over.
fn send(source: &Source, to: SocketAddr, options: &Options, blocks: usize) -> Result<FrameSender> {
    let mut sender = connect(source, to, options);
    let mut pushed = 0;
    while pushed < blocks {
        match source.try_next()? {
            Some(samples) => {
                sender.push(samples)?;
                pushed += 1;
            }
            None => drop(sender.wait_timeout(LOOK)?),
        }
    }
    sender.finish(Lost::Samples(0));
    assert!(sender.wait_timeout(PATIENCE)?, "not finished in time");
    Ok(sender)
}

fn send_counter(
    to: SocketAddr,
    block_len: usize,
    blocks: usize,
    options: &Options,
) -> JoinHandle<FrameSender> {
    let options = options.clone();
    thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(block_len)).unwrap();
        let sender = send(&source, to, &options, blocks).unwrap();
        assert_eq!(source.copied(), 0);
        sender
    })
}

/// The numbers of the samples of the pattern `counter`, across the ends of parts.
fn numbers(samples: &Samples) -> Vec<u64> {
    let bytes: Vec<_> = samples.parts().unwrap().iter().flat_map(Bytes::to_vec).collect();
    assert_eq!(bytes.len(), samples.meta().len);
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Takes all blocks and verifies their sequence and the numbers of their samples.
fn take_counter(receiver: &mut FrameReceiver) -> u64 {
    let (mut samples, mut blocks) = (0, 0);
    while !receiver.is_finished() {
        let Some(block) = receiver.next_timeout(PATIENCE).unwrap() else { continue };
        let Meta { sequence, lost, .. } = *block.meta();
        assert_eq!((sequence, lost), (blocks, Lost::Samples(0)));
        for number in numbers(&block) {
            assert_eq!(number, samples);
            samples += 1;
        }
        blocks += 1;
    }
    assert_eq!(receiver.end(), Some(Lost::Samples(0)));
    samples
}

fn everything_arrives(place: &impl Place, block_len: usize, blocks: usize, checksum: bool) {
    // The receiver is silent while the test verifies a block, which takes seconds on a busy emulated machine.
    let options = options().checksum(checksum).silence(PATIENCE);
    let (mut receiver, address) = place.listen(&options);
    let sender = send_counter(address, block_len, blocks, &options);
    let samples = (block_len / 8 * blocks) as u64;
    assert_eq!(take_counter(&mut receiver), samples);
    let sender = sender.join().unwrap();
    // Pages of a memfd are sent without a copy, unless a copy is cheaper; received bytes are copied once, or not at all.
    assert_eq!(sender.copied(), if block_len > 16 << 10 { 0 } else { samples * 8 });
    if place.copies() {
        assert_eq!(receiver.copied(), samples * 8);
    } else {
        // While all blocks of the largest size wait, little memory is left.
        assert!(receiver.copied() == 0 || block_len == 5 << 20, "{}", receiver.copied());
    }
    assert_eq!((sender.reconnects(), receiver.reconnects(), receiver.corrupted()), (0, 0, 0));
}

fn every_sample_arrives(place: &impl Place) {
    for checksum in [false, true] {
        everything_arrives(place, 8, place.rounds(500), checksum);
        everything_arrives(place, 4096, place.rounds(500), checksum);
        everything_arrives(place, 65_536, place.rounds(200), checksum);
        everything_arrives(place, 5 << 20, place.rounds(9).max(5), checksum);
    }
}

/// A proxy that passes bytes on, changed or cut by `harm`, until the flag is set.
struct Proxy {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    /// `harm` gets the number of the connection, the number of bytes that have passed from the sender, and the
    /// next bytes; it returns false to cut the connection.
    fn start(
        to: SocketAddr,
        harm: impl Fn(u64, u64, &mut [u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, is_over) =
            (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over, harm) = (Arc::clone(&connections), Arc::clone(&is_over), Arc::new(harm));
        thread::spawn(move || {
            for from in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let number = count.fetch_add(1, Ordering::Relaxed);
                let harm = Arc::clone(&harm);
                let Ok(to) = TcpStream::connect(to) else { continue };
                thread::spawn(move || pass_on(from.unwrap(), to, number, &*harm));
            }
        });
        Self { address, connections, is_over }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(
    from: TcpStream,
    to: TcpStream,
    number: u64,
    harm: &dyn Fn(u64, u64, &mut [u8]) -> bool,
) {
    let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
    let back = thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (from, to);
    let (mut bytes, mut passed) = (vec![0; 10_000], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !harm(number, passed, &mut bytes[..count]) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
        passed += count as u64;
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    back.join().unwrap();
}

fn cut_connections_lose_nothing_and_repeat_nothing(place: &impl Place) {
    for seed in 0..place.rounds(4) as u64 {
        let (mut receiver, address) = place.listen(&options());
        // Each of the first connections is cut somewhere, also in the hello and in headers.
        let proxy = Proxy::start(address, move |number, passed, _| {
            let mut random = fastrand::Rng::with_seed(seed << 32 | number);
            let most = if number % 3 == 0 { 1000 } else { 300_000 };
            number >= 12 || passed < random.u64(0..most)
        });
        let sender = send_counter(proxy.address, 65_536, 100, &options());
        assert_eq!(take_counter(&mut receiver), 65_536 / 8 * 100);
        let sender = sender.join().unwrap();
        let connections = proxy.connections.load(Ordering::Relaxed);
        assert!(connections >= 12, "{connections}");
        // Connections that were cut before a welcome do not count.
        assert!(sender.reconnects() > 0 && sender.reconnects() < connections);
        assert!(receiver.reconnects() >= sender.reconnects());
        assert_eq!(sender.copied(), 0);
    }
}

fn corrupted_bytes_are_seen_and_sent_again(place: &impl Place) {
    let options = options().checksum(true);
    let (mut receiver, address) = place.listen(&options);
    let proxy = Proxy::start(address, |number, passed, bytes| {
        let at = fastrand::Rng::with_seed(number).u64(0..200_000);
        let index = at.checked_sub(passed).and_then(|index| usize::try_from(index).ok());
        if let Some(byte) = index.and_then(|index| bytes.get_mut(index)).filter(|_| number < 10) {
            *byte ^= 0x10;
        }
        true
    });
    let sender = send_counter(proxy.address, 65_536, 100, &options);
    assert_eq!(take_counter(&mut receiver), 65_536 / 8 * 100);
    let sender = sender.join().unwrap();
    let connections = proxy.connections.load(Ordering::Relaxed);
    // Each bad frame was noticed, and has ended a connection.
    assert_eq!((receiver.corrupted(), connections), (10, 11));
    assert!(sender.reconnects() > 0 && sender.resent() > 0);
}

#[test]
fn a_sink_that_is_dropped_waits_for_nobody_and_its_receiver_learns_of_the_end() {
    let (mut receiver, address) = Sockets.listen(&options());
    let sink = Sink::open(&format!("tcp:{address}"), &setup(8)).unwrap();
    let space = sink.space().unwrap();
    space.send(8).unwrap();
    while !sink.try_drain().unwrap() {
        receiver.next_timeout(LOOK).unwrap();
    }
    // The receiver is in the same thread: it does not answer meanwhile.
    drop(sink);
    while !receiver.is_finished() {
        receiver.next_timeout(PATIENCE).unwrap();
    }
    assert_eq!((receiver.end(), receiver.reconnects()), (Some(Lost::Samples(0)), 0));
}

#[test]
fn a_peer_that_never_answers_is_an_error() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    let error = send(&source, mute.local_addr().unwrap(), &impatient(), 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("the receiver is silent"), "{error}");
}

#[test]
fn nobody_there_is_an_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    let error = send(&source, address, &impatient(), 1000).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::ConnectionRefused, Reason::Unreachable));
    assert!(error.to_string().contains("does `busbar stream tcp-listen:` run there?"), "{error}");
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    for bad in ["", "localhost", "localhost:x", "localhost:65536"] {
        let opened = FrameSender::open(bad, source.format(), 4096, &options());
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
    }
    assert!(FrameReceiver::listen("nowhere", &setup(1), &options()).is_err());
    let (_receiver, address) = Sockets.listen(&options());
    let again = FrameReceiver::listen(&address.to_string(), &setup(1), &options());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
}

fn blocks_come_back_only_when_they_were_taken_over(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    while let Some(samples) = source.try_next().unwrap() {
        sender.push(samples).unwrap();
    }
    assert_eq!(sender.unacknowledged(), source.blocks());
    // All blocks are received, and none is given back.
    let mut held = Vec::new();
    while held.len() < source.blocks() {
        sender.advance().unwrap();
        held.extend(receiver.next_timeout(LOOK).unwrap());
    }
    for _ in 0..20 {
        sender.wait_timeout(LOOK).unwrap();
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    assert_eq!(sender.unacknowledged(), source.blocks());
    assert!(source.try_next().unwrap().is_none());
    // The return of the second block alone does not acknowledge the first.
    drop(held.remove(1));
    sender_sees(&mut sender, &mut receiver, |_| true);
    assert_eq!(sender.unacknowledged(), source.blocks());
    drop(held.remove(0));
    let left = source.blocks() - 2;
    sender_sees(&mut sender, &mut receiver, |sender| sender.unacknowledged() == left);
    assert!(source.try_next().unwrap().is_some());
}

fn sender_sees(
    sender: &mut FrameSender,
    receiver: &mut FrameReceiver,
    done: impl Fn(&FrameSender) -> bool,
) {
    let until = Instant::now() + PATIENCE;
    loop {
        for _ in 0..4 {
            assert!(receiver.next_timeout(LOOK).unwrap().is_none());
            sender.wait_timeout(LOOK).unwrap();
        }
        if done(sender) {
            return;
        }
        assert!(Instant::now() < until, "not within a minute");
    }
}

fn loss_goes_with_its_block(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let name = "synth:counter?rate=10M";
    let sender = thread::spawn(move || {
        let source = Source::open(name, &setup(8000)).unwrap();
        let mut sender = connect(&source, address, &options());
        for _ in 0..5 {
            // There are four blocks; samples beyond them are lost.
            thread::sleep(Duration::from_millis(20));
            for _ in 0..4 {
                sender.push(source.next().unwrap()).unwrap();
            }
            while sender.unacknowledged() > 0 {
                sender.wait_timeout(LOOK).unwrap();
            }
        }
        sender.finish(Lost::Unknown);
        assert!(sender.wait_timeout(PATIENCE).unwrap());
    });
    let (mut next, mut all) = (0, 0);
    while !receiver.is_finished() {
        let Some(samples) = receiver.next_timeout(PATIENCE).unwrap() else { continue };
        let Lost::Samples(lost) = samples.meta().lost else { panic!("{:?}", samples.meta()) };
        all += lost;
        next += lost;
        for number in numbers(&samples) {
            assert_eq!(number, next);
            next += 1;
        }
    }
    assert!(all > 0);
    assert_eq!(receiver.end(), Some(Lost::Unknown));
    sender.join().unwrap();
}

fn who_is_refused_is_told_why_and_does_not_come_back(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    while receiver.format().is_none() {
        sender.wait_timeout(LOOK).unwrap();
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    assert_eq!(receiver.format(), Some(source.format()));
    receiver.refuse("the disk is full");
    let error = sender.wait_timeout(PATIENCE).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::ConnectionRefused, Reason::Refused));
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

fn another_sender_is_refused_while_there_is_one_and_goes_on_after_it(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut first = connect(&source, address, &options());
    let hold = |sender: &mut FrameSender, receiver: &mut FrameReceiver, sequence| loop {
        if sender.unacknowledged() == 0 {
            sender.push(source.next().unwrap()).unwrap();
        }
        sender.wait_timeout(LOOK).unwrap();
        if let Some(samples) = receiver.next_timeout(LOOK).unwrap() {
            assert_eq!(samples.meta().sequence, sequence);
            return samples;
        }
    };
    drop(hold(&mut first, &mut receiver, 0));

    let other = thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(4096)).unwrap();
        send(&source, address, &options(), 1).unwrap_err().to_string()
    });
    while !other.is_finished() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    let refused = other.join().unwrap();
    assert!(refused.contains("another sender's stream"), "{refused}");

    // The first sender dies while its second block is not taken over.
    let kept = hold(&mut first, &mut receiver, 1);
    drop(first);
    while receiver.take_trouble().is_none() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    let narrow = Source::open("synth:counter?channels=1", &setup(4096)).unwrap();
    let odd = thread::spawn(move || send(&narrow, address, &options(), 1).unwrap_err().to_string());
    while !odd.is_finished() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    assert!(odd.join().unwrap().contains("another format"));

    let mut second = connect(&source, address, &options());
    let samples = hold(&mut second, &mut receiver, 0);
    assert_eq!(samples.meta().lost, Lost::Unknown);
    drop((samples, kept));
    assert_eq!(hold(&mut second, &mut receiver, 1).meta().lost, Lost::Samples(0));
    second.finish(Lost::Samples(0));
    while !receiver.is_finished() {
        second.wait_timeout(LOOK).unwrap();
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    assert_eq!(receiver.reconnects(), 1);
}

fn tiny() -> Hello {
    let channel = Channel {
        name: "voltage0".into(),
        signed: true,
        bits: 16,
        storage_bits: 16,
        shift: 0,
        big_endian: false,
        repeat: 1,
        offset: 0,
    };
    Hello { format: Format { channels: vec![channel], sample_len: 2, rate: None }, block_len: 100 }
}

/// The first frame of a sender.
fn hello(stream: u64, sequence: u64) -> Vec<u8> {
    let payload = tiny().encode().unwrap();
    let len = u32::try_from(payload.len()).unwrap();
    let header = Header { len, ..Header::new(Kind::Hello, stream, sequence) }.checked(&payload);
    [&header.encode()[..], &payload].concat()
}

fn data(stream: u64, sequence: u64, len: usize) -> Vec<u8> {
    let header = Header::data(stream, sequence, len).unwrap();
    [&header.encode()[..], &vec![7; len]].concat()
}

/// The next frame that is not a repeated acknowledgement.
fn answer(from: &mut TcpStream, receiver: &mut FrameReceiver, kind: Kind) -> Option<Header> {
    from.set_read_timeout(Some(LOOK)).unwrap();
    let (mut header, mut filled) = ([0; HEADER_LEN], 0);
    loop {
        drop(receiver.next_timeout(LOOK).unwrap());
        match from.read(&mut header[filled..]) {
            Ok(0) => return None,
            Ok(count) => filled += count,
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
        if filled == HEADER_LEN {
            let header = Header::decode(&header).unwrap();
            filled = 0;
            if header.kind == kind {
                return Some(header);
            }
        }
    }
}

fn what_a_hostile_sender_says_ends_its_connection_and_nothing_else(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let mut good = TcpStream::connect(address).unwrap();
    good.write_all(&hello(1, 5)).unwrap();
    assert_eq!(answer(&mut good, &mut receiver, Kind::Welcome).unwrap().sequence, 5);
    good.write_all(&data(1, 5, 100)).unwrap();
    let taken = |header: Option<Header>| header.is_some_and(|header| header.sequence == 6);
    while !taken(answer(&mut good, &mut receiver, Kind::Ack)) {}

    let mut mad = hello(1, 6);
    mad[HEADER_LEN..].fill(b'{');
    let before_hello: [Vec<u8>; 4] = [
        b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: text/html\r\n\r\n".to_vec(),
        data(1, 6, 100),
        mad,
        Header { len: u32::MAX, ..Header::new(Kind::Hello, 1, 6) }.encode().to_vec(),
    ];
    for (count, said) in (1..).zip(before_hello) {
        let mut bad = TcpStream::connect(address).unwrap();
        bad.write_all(&said).unwrap();
        assert_eq!(answer(&mut bad, &mut receiver, Kind::Welcome), None);
        assert_eq!(receiver.corrupted(), count);
        let trouble = receiver.take_trouble().unwrap();
        assert!(trouble.to_string().contains("the field `"), "{trouble}");
    }
    // None of it has affected the connection of the sender.
    good.write_all(&data(1, 6, 100)).unwrap();
    while answer(&mut good, &mut receiver, Kind::Ack).unwrap().sequence < 7 {}

    let after_hello = [
        (data(1, 8, 100), "sequence"),
        (data(1, 6, 100), "sequence"),
        (data(2, 7, 100), "stream"),
        (data(1, 7, 99), "payload length"),
        (data(1, 7, 102), "payload length"),
        (hello(1, 7), "kind"),
        (Header::new(Kind::Ack, 1, 7).encode().to_vec(), "kind"),
        (Header::new(Kind::End, 1, 8).encode().to_vec(), "sequence"),
        (
            Header::data(1, 7, 100)
                .unwrap()
                .checked(b"?")
                .encode()
                .into_iter()
                .chain([7; 100])
                .collect(),
            "payload check",
        ),
    ];
    for (count, (said, field)) in (5..).zip(after_hello) {
        let mut bad = TcpStream::connect(address).unwrap();
        bad.write_all(&hello(1, 7)).unwrap();
        assert_eq!(answer(&mut bad, &mut receiver, Kind::Welcome).unwrap().sequence, 7);
        bad.write_all(&said).unwrap();
        while answer(&mut bad, &mut receiver, Kind::Ack).is_some() {}
        assert_eq!(receiver.corrupted(), count, "{field}");
        let trouble = receiver.take_trouble().unwrap().to_string();
        assert!(trouble.contains(&format!("`{field}`")), "{field}: {trouble}");
    }
    // The end comes once on a connection, and again on the next one.
    let end = Header::new(Kind::End, 1, 7).encode();
    let mut bad = TcpStream::connect(address).unwrap();
    bad.write_all(&[&hello(1, 7)[..], &end, &end].concat()).unwrap();
    while answer(&mut bad, &mut receiver, Kind::Ack).is_some() {}
    assert_eq!(receiver.corrupted(), 14);
}

fn a_sender_that_repeats_the_end_stops_nothing(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bad = TcpStream::connect(address).unwrap();
            bad.write_all(&hello(1, 0)).unwrap();
            let ends = Header::new(Kind::End, 1, 0).encode().repeat(1000);
            while !is_over.load(Ordering::Relaxed) && bad.write_all(&ends).is_ok() {
                std::hint::spin_loop();
            }
        });
        while receiver.take_trouble().is_none() {
            assert!(receiver.next_timeout(LOOK).unwrap().is_none());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(receiver.corrupted(), 1);
}

fn a_half_open_connection_is_replaced_by_a_new_one(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options());
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&hello(1, 7)).unwrap();
    assert!(answer(&mut half, &mut receiver, Kind::Welcome).is_some());
    let mut good = TcpStream::connect(address).unwrap();
    good.write_all(&hello(1, 7)).unwrap();
    good.write_all(&data(1, 7, 100)).unwrap();
    good.write_all(&Header::new(Kind::End, 1, 8).encode()).unwrap();
    while answer(&mut good, &mut receiver, Kind::Ack).unwrap().sequence < 9 {}
    while answer(&mut half, &mut receiver, Kind::Ack).is_some() {}
    assert!(receiver.next_timeout(PATIENCE).unwrap().is_none() && receiver.is_finished());
}

#[test]
fn what_a_hostile_receiver_says_ends_its_connection() {
    let refuses = |said: fn(u64) -> Vec<u8>, text: &str| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let liar = thread::spawn(move || {
            let mut conn = listener.accept().unwrap().0;
            let mut header = [0; HEADER_LEN];
            conn.read_exact(&mut header).unwrap();
            let stream = Header::decode(&header).unwrap().stream;
            conn.write_all(&said(stream)).unwrap();
            // Until the sender closes the connection.
            let _ = std::io::copy(&mut conn, &mut std::io::sink());
        });
        let source = Source::open("synth:counter", &setup(4096)).unwrap();
        let mut sender = connect(&source, address, &options());
        let trouble = loop {
            sender.wait_timeout(LOOK).unwrap();
            if let Some(trouble) = sender.take_trouble() {
                break trouble.to_string();
            }
        };
        assert!(trouble.contains(text), "{text}: {trouble}");
        liar.join().unwrap();
    };
    refuses(|stream| Header::new(Kind::Welcome, stream, 1).encode().to_vec(), "`sequence`");
    refuses(|stream| Header::new(Kind::Welcome, stream + 1, 0).encode().to_vec(), "`stream`");
    refuses(|stream| Header::new(Kind::Ack, stream, 0).encode().to_vec(), "`kind`");
    refuses(|stream| Header::new(Kind::End, stream, 0).encode().to_vec(), "`kind`");
    refuses(|_| vec![0xff; HEADER_LEN], "`magic`");
    let twice =
        |stream| [Kind::Welcome; 2].map(|kind| Header::new(kind, stream, 0).encode()).concat();
    refuses(twice, "`kind`");
    let early = |stream| {
        let welcome = Header::new(Kind::Welcome, stream, 0).encode();
        [welcome, Header::new(Kind::Ack, stream, 1).encode()].concat()
    };
    refuses(early, "`sequence`");
}

fn a_sender_that_does_not_complete_a_frame_makes_room_for_another(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options().silence(Duration::from_secs(3)));
    let frame = data(1, 0, 100);
    // It stops within a header, within a block, or sends a byte now and then.
    for (sent, drips) in [(20, false), (HEADER_LEN + 1, false), (0, true)] {
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(&hello(1, 0)).unwrap();
        assert!(answer(&mut slow, &mut receiver, Kind::Welcome).is_some());
        slow.write_all(&frame[..sent]).unwrap();
        let mut rest = frame[sent..].iter();
        let trouble = loop {
            for _ in 0..20 {
                assert!(receiver.next_timeout(LOOK).unwrap().is_none(), "it came in the end");
            }
            if drips && let Some(byte) = rest.next() {
                let _ = slow.write_all(&[*byte]);
            }
            if let Some(trouble) = receiver.take_trouble() {
                break trouble;
            }
        };
        assert!(trouble.to_string().contains("does not complete a frame"), "{trouble}");
    }
    // Another sender of the same format.
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(&[hello(2, 5), data(2, 5, 100)].concat()).unwrap();
    assert!(answer(&mut other, &mut receiver, Kind::Welcome).is_some());
    assert_eq!(receiver.corrupted(), 0);
}

#[test]
fn connections_without_a_hello_do_not_use_up_the_descriptors() {
    const WHERE: &str = "BUSBAR_TEST_CALLERS";
    // In a process of its own, which may have few descriptors.
    if std::env::var_os(WHERE).is_none() {
        let name = "connections_without_a_hello_do_not_use_up_the_descriptors";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = alone.args(["--exact", name]).env(WHERE, "1").output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
        return;
    }
    let (mut receiver, address) = Sockets.listen(&options());
    let callers: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut sender = TcpStream::connect(address).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = Rlimit { current: Some(open + 30), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
    assert!(receiver.take_trouble().is_none());
    drop(callers);
}

#[test]
fn a_receiver_that_repeats_itself_does_not_hold_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = thread::spawn(move || {
        let mut conn = listener.accept().unwrap().0;
        let mut header = [0; HEADER_LEN];
        conn.read_exact(&mut header).unwrap();
        let stream = Header::decode(&header).unwrap().stream;
        conn.write_all(&Header::new(Kind::Welcome, stream, 0).encode()).unwrap();
        let acks = Header::new(Kind::Ack, stream, 0).encode().repeat(1000);
        while conn.write_all(&acks).is_ok() {}
    });
    let (done, is_done) = std::sync::mpsc::channel();
    let sender = thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(4096)).unwrap();
        let mut sender = connect(&source, address, &options());
        for _ in 0..20 {
            assert!(!sender.wait_timeout(LOOK).unwrap());
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("the sender still reads");
    sender.join().unwrap();
    liar.join().unwrap();
}

fn a_sender_that_does_not_come_back_is_an_error(place: &impl Place) {
    let options = impatient();
    let (mut receiver, address) = place.listen(&options);
    let mut sender = TcpStream::connect(address).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
    drop(sender);
    let error = loop {
        match receiver.next_timeout(PATIENCE) {
            Ok(samples) => assert!(samples.is_none()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("has not come back"), "{error}");
}

fn no_descriptor_is_left_behind(place: &impl Place) {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = || {
        let (mut receiver, address) = place.listen(&options());
        let sender = send_counter(address, 4096, 3, &options());
        take_counter(&mut receiver);
        sender.join().unwrap();
    };
    round();
    let before = open();
    let rounds = place.rounds(200);
    (0..rounds).for_each(|_| round());
    // Other tests run at the same time and have a few each.
    let most = before + rounds * 3 / 4;
    assert!(open() < most, "{before} before, {} after", open());
}

#[test]
fn a_connection_that_always_breaks_is_an_error_in_the_end() {
    let options = options().checksum(true);
    let (mut receiver, address) = Sockets.listen(&options);
    // The same byte of the first block is wrong each time.
    let proxy = Proxy::start(address, |_, passed, bytes| {
        let index = 20_000u64.checked_sub(passed).and_then(|index| usize::try_from(index).ok());
        if let Some(byte) = index.and_then(|index| bytes.get_mut(index)) {
            *byte ^= 1;
        }
        true
    });
    let to = proxy.address;
    let sender = thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(65_536)).unwrap();
        send(&source, to, &options, 1).unwrap_err().to_string()
    });
    while !sender.is_finished() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    let error = sender.join().unwrap();
    assert!(error.contains("before a block is taken over"), "{error}");
    assert!(receiver.corrupted() > 10);
}

fn after_the_end_there_is_nothing_more_to_send(place: &impl Place) {
    let (_receiver, address) = place.listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    sender.finish(Lost::Samples(0));
    let error = sender.push(source.next().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

fn blocks_stay_where_they_came(place: &impl Apart) {
    let mut receiver = place.receiver_with(8 << 20);
    let address = receiver.local_addr().unwrap();
    let sender = send_counter(address, 65_536, 20, &options());
    let mut read = 0;
    while !receiver.is_finished() {
        let Some(samples) = receiver.next_timeout(PATIENCE).unwrap() else { continue };
        assert!(samples.block().is_none());
        let another = samples.clone();
        let before = receiver.copied();
        assert_eq!(
            another.read().unwrap().bytes().to_vec(),
            samples.parts().unwrap().iter().flat_map(Bytes::to_vec).collect::<Vec<_>>()
        );
        // Putting it together is a copy.
        assert_eq!(receiver.copied() - before, 65_536);
        read += 65_536;
    }
    sender.join().unwrap();
    let arrived = if place.copies() { read } else { 0 };
    assert_eq!(receiver.copied(), read + arrived);
    let statistics = receiver.receiver().unwrap().statistics().unwrap();
    assert_eq!((statistics.views, statistics.held, statistics.refused), (0, 0, 0));
}

fn blocks_that_are_too_long_for_the_memory_are_refused(place: &impl Apart) {
    let mut receiver = place.receiver_with(place.least());
    let address = receiver.local_addr().unwrap();
    let (len, most) = (2 * place.least(), place.least());
    let sender = thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(len)).unwrap();
        send(&source, address, &options(), 1).unwrap_err()
    });
    while !sender.is_finished() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    let error = sender.join().unwrap();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::ConnectionRefused, Reason::Refused));
    assert!(error.to_string().contains(&format!("{len} bytes are too long")), "{error}");
    assert!(error.to_string().contains(&format!("of {most} bytes")), "{error}");
    let trouble = receiver.take_trouble().unwrap().to_string();
    assert!(trouble.contains(&format!("at most {most} bytes")), "{trouble}");
    // One with shorter blocks is welcome.
    let sender = send_counter(address, len / 2, 3, &options());
    assert_eq!(take_counter(&mut receiver), (len / 2 * 3 / 8) as u64);
    sender.join().unwrap();
}

fn little_memory_is_enough_whatever_is_held(place: &impl Apart) {
    // Each block takes most of the memory, and all but one are always held.
    let memory = 2 * place.least();
    let (len, blocks) = (memory / 4 * 3, 20);
    let mut receiver = place.receiver_with(memory);
    let address = receiver.local_addr().unwrap();
    let sender = send_counter(address, len, blocks, &options());
    let mut held = std::collections::VecDeque::new();
    let mut next = 0;
    for _ in 0..blocks {
        let samples = receiver.next_timeout(PATIENCE).unwrap().expect("a block in time");
        held.push_back(samples);
        if held.len() == 4 {
            for number in numbers(&held.pop_front().unwrap()) {
                assert_eq!(number, next);
                next += 1;
            }
        }
    }
    let left: Vec<_> = held.drain(..).flat_map(|samples| numbers(&samples)).collect();
    assert!(left.into_iter().eq(next..(len * blocks / 8) as u64));
    assert_eq!(take_counter_end(&mut receiver), 0);
    sender.join().unwrap();
    let statistics = receiver.receiver().unwrap().statistics().unwrap();
    assert_eq!((statistics.views, statistics.held), (0, 0));
}

/// Verifies that no block comes after the last one.
fn take_counter_end(receiver: &mut FrameReceiver) -> usize {
    let mut more = 0;
    while !receiver.is_finished() {
        more += usize::from(receiver.next_timeout(PATIENCE).unwrap().is_some());
    }
    more
}

fn the_smallest_segments_do_not_use_up_the_memory(place: &impl Apart) {
    // A device takes a page for each segment.
    let mut receiver = place.receiver_with(place.least());
    let mut sender = TcpStream::connect(receiver.local_addr().unwrap()).unwrap();
    sender.set_nodelay(true).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
    for sequence in 0..3 {
        for byte in data(1, sequence, 100) {
            sender.write_all(&[byte]).unwrap();
            if byte == 7 {
                receiver.advance().unwrap();
            }
        }
    }
    for sequence in 0..3 {
        let samples = receiver.next_timeout(PATIENCE).unwrap().expect("a block in time");
        assert_eq!(samples.meta().sequence, sequence);
        assert_eq!(samples.read().unwrap().bytes().to_vec(), [7; 100]);
    }
}

fn blocks_outlive_connection_and_receiver(place: &impl Apart) {
    let mut receiver = place.receiver_with(MEMORY);
    let mut sender = TcpStream::connect(receiver.local_addr().unwrap()).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
    let mut held = Vec::new();
    for sequence in 0..3 {
        sender.write_all(&data(1, sequence, 100)).unwrap();
        held.push(receiver.next_timeout(PATIENCE).unwrap().expect("a block in time"));
    }
    // In the middle of the fourth block.
    sender.write_all(&data(1, 3, 100)[..90]).unwrap();
    drop(sender);
    while receiver.take_trouble().is_none() {
        assert!(receiver.next_timeout(LOOK).unwrap().is_none());
    }
    let mut sender = TcpStream::connect(receiver.local_addr().unwrap()).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    assert_eq!(answer(&mut sender, &mut receiver, Kind::Welcome).unwrap().sequence, 3);
    sender.write_all(&data(1, 3, 100)).unwrap();
    held.push(receiver.next_timeout(PATIENCE).unwrap().expect("a block in time"));
    assert_eq!(receiver.reconnects(), 1);
    drop((sender, receiver));
    for (sequence, samples) in (0..).zip(&held) {
        assert_eq!(samples.meta().sequence, sequence);
        assert_eq!(samples.read().unwrap().bytes().to_vec(), [7; 100]);
    }
}

fn a_sender_that_wants_more_memory_than_is_allowed_is_refused(place: &impl Place) {
    let (mut receiver, address) = place.listen(&options().memory_limit(1 << 20));
    let address = address.to_string();
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    // Four blocks each.
    for (block_len, is_allowed) in [(1 << 28, false), ((256 << 10) + 8, false), (256 << 10, true)] {
        let mut sender =
            FrameSender::open(&address, source.format(), block_len, &options()).unwrap();
        sender.finish(Lost::Samples(0));
        let since = Instant::now();
        let said = loop {
            receiver.advance().unwrap();
            match sender.advance() {
                Ok(()) if sender.is_finished() => break None,
                Ok(()) => assert!(since.elapsed() < PATIENCE, "{block_len}"),
                Err(error) => break Some(error.to_string()),
            }
        };
        assert_eq!(said.is_none(), is_allowed, "{block_len}: {said:?}");
        let expected = "more than the 1048576 bytes allowed here";
        assert!(said.is_none_or(|said| said.contains(expected)));
        assert_eq!(receiver.format().is_some(), is_allowed);
    }
}

#[test]
fn a_sender_that_falls_silent_between_frames_makes_room_for_another() {
    let (mut receiver, address) = Sockets.listen(&options().silence(Duration::from_secs(3)));
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut first, &mut receiver, Kind::Welcome).is_some());
    let alive = Header::new(Kind::Alive, 1, 1).encode();
    first.write_all(&[&data(1, 0, 100)[..], &alive].concat()).unwrap();
    let trouble = loop {
        drop(receiver.next_timeout(LOOK).unwrap());
        if let Some(trouble) = receiver.take_trouble() {
            break trouble;
        }
    };
    assert!(trouble.to_string().contains("the sender has been silent for 3 s"), "{trouble}");
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(&hello(2, 5)).unwrap();
    assert!(answer(&mut other, &mut receiver, Kind::Welcome).is_some());
    assert_eq!(receiver.corrupted(), 0);
}

#[test]
fn a_sender_that_only_says_that_it_is_there_stops_nothing() {
    let (mut receiver, address) = Sockets.listen(&options());
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut first, &mut receiver, Kind::Welcome).is_some());
    let alive = Header::new(Kind::Alive, 1, 0).encode();
    first.write_all(&alive.repeat(1000)).unwrap();
    first.write_all(&data(1, 0, 100)).unwrap();
    while receiver.next_timeout(LOOK).unwrap().is_none() {}
}

#[test]
fn a_sender_with_nothing_to_send_says_that_it_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, listener.local_addr().unwrap(), &options());
    let reader = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut header = [0; HEADER_LEN];
        let mut next = |socket: &mut TcpStream| {
            socket.read_exact(&mut header).unwrap();
            let header = Header::decode(&header).unwrap();
            socket.read_exact(&mut vec![0; header.len as usize]).unwrap();
            header
        };
        let hello = next(&mut socket);
        socket.write_all(&Header::new(Kind::Welcome, hello.stream, 0).encode()).unwrap();
        (next(&mut socket), socket)
    });
    while !reader.is_finished() {
        sender.wait_timeout(LOOK).unwrap();
    }
    let (header, _) = reader.join().unwrap();
    assert_eq!((header.kind, header.sequence), (Kind::Alive, 0));
}

#[test]
fn a_block_other_than_announced_is_refused_when_it_is_pushed() {
    let (_receiver, address) = Sockets.listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let long = Source::open("synth:counter", &setup(8192)).unwrap();
    let narrow = Source::open("synth:counter?channels=1", &setup(12)).unwrap();
    let mut sender = connect(&source, address, &options());
    for other in [long, narrow] {
        let error = sender.push(other.next().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(sender.unacknowledged(), 0);
    sender.push(source.next().unwrap()).unwrap();
}

#[test]
fn no_limit_of_silence_is_a_limit_that_the_kernel_takes() {
    for silence in [Duration::from_secs(30 * 24 * 3600), Duration::MAX] {
        let (mut receiver, address) = Sockets.listen(&options().silence(silence));
        let mut sender = TcpStream::connect(address).unwrap();
        sender.write_all(&[hello(1, 0), data(1, 0, 100)].concat()).unwrap();
        assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
        assert!(receiver.take_trouble().is_none());
    }
}

#[test]
fn a_name_can_have_a_limit_of_silence() {
    for (address, is_right) in [
        ("127.0.0.1:0?silence=5s", true),
        ("127.0.0.1:0?silence=5", true),
        ("127.0.0.1:0?silence=5h", false),
        ("127.0.0.1:0?silence=2s", false),
        ("0?other=1", false),
    ] {
        let listened = FrameReceiver::listen(address, &setup(4096), &options());
        assert_eq!(listened.is_ok(), is_right, "{address}");
        let source = Source::open("synth:counter", &setup(4096)).unwrap();
        let sender = FrameSender::open(address, source.format(), 4096, &options());
        assert_eq!(sender.is_ok(), is_right, "{address}");
    }
}
