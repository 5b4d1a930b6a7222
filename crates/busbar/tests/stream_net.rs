//! `busbar::stream::net` over the loopback interface, with every sample verified.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::Result;
use busbar::stream::frame::{HEADER_LEN, Header, Hello, Kind};
use busbar::stream::net::{Options, Receiver, Sender};
use busbar::stream::{Channel, Format, Lost, Meta, Samples, Setup, Source};

/// Time in which everything that is to happen happens.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

fn options() -> Options {
    Options { patience: PATIENCE, ..Options::default() }
}

fn impatient() -> Options {
    let (patience, silence) = (Duration::from_secs(1), Duration::from_secs(3));
    Options { patience, silence, ..Options::default() }
}

fn setup(block_len: usize) -> Setup {
    Setup { block_len, ..Setup::default() }
}

fn listen(options: &Options) -> (Receiver, SocketAddr) {
    let receiver = Receiver::listen("127.0.0.1:0", &setup(1), options).unwrap();
    let address = receiver.local_addr().unwrap();
    (receiver, address)
}

fn connect(source: &Source, to: SocketAddr, options: &Options) -> Sender {
    Sender::open(&to.to_string(), source.format(), source.block_len(), options).unwrap()
}

/// Sends so many blocks of the source, and waits until they are taken over.
fn send(source: &Source, to: SocketAddr, options: &Options, blocks: usize) -> Result<Sender> {
    let mut sender = connect(source, to, options);
    let mut pushed = 0;
    while pushed < blocks {
        match source.next(Some(Duration::ZERO))? {
            Some(samples) => {
                sender.push(samples)?;
                pushed += 1;
            }
            None => drop(sender.wait(Some(LOOK))?),
        }
    }
    sender.finish(Lost::Samples(0));
    assert!(sender.wait(Some(PATIENCE))?, "not finished within a minute");
    Ok(sender)
}

fn send_counter(
    to: SocketAddr,
    block_len: usize,
    blocks: usize,
    options: &Options,
) -> JoinHandle<Sender> {
    let options = options.clone();
    thread::spawn(move || {
        let source = Source::open("synth:counter", &setup(block_len)).unwrap();
        let sender = send(&source, to, &options, blocks).unwrap();
        assert_eq!(source.copied(), 0);
        sender
    })
}

/// The numbers of the samples, as the pattern `counter` has them.
fn numbers(samples: &Samples) -> Vec<u64> {
    let bytes = samples.read().unwrap();
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Takes everything and verifies that sample i says i, and block j is block j.
fn take_counter(receiver: &mut Receiver) -> u64 {
    let (mut samples, mut blocks) = (0, 0);
    while !receiver.is_finished() {
        let Some(block) = receiver.next(Some(PATIENCE)).unwrap() else { continue };
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

fn everything_arrives(block_len: usize, blocks: usize, checksum: bool) {
    let options = Options { checksum, ..options() };
    let (mut receiver, address) = listen(&options);
    let sender = send_counter(address, block_len, blocks, &options);
    let samples = (block_len / 8 * blocks) as u64;
    assert_eq!(take_counter(&mut receiver), samples);
    let sender = sender.join().unwrap();
    // Pages of a memfd go out as they are; what comes is copied once.
    assert_eq!((sender.copied(), receiver.copied()), (0, samples * 8));
    assert_eq!((sender.reconnects(), receiver.reconnects(), receiver.corrupted()), (0, 0, 0));
}

#[test]
fn every_sample_arrives() {
    for checksum in [false, true] {
        everything_arrives(8, 500, checksum);
        everything_arrives(4096, 500, checksum);
        everything_arrives(65_536, 200, checksum);
        everything_arrives(5 << 20, 9, checksum);
    }
}

/// Passes bytes on, and does to each connection what `harm` says; ends with the flag.
struct Proxy {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    /// `harm` is given the number of the connection, the bytes that have passed it from the sender,
    /// and the next ones; the connection is cut if it says false.
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

#[test]
fn cut_connections_lose_nothing_and_repeat_nothing() {
    for seed in 0..4 {
        let (mut receiver, address) = listen(&options());
        // Each of the first ones is cut somewhere, the hello and the headers included.
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
        // Those that were cut before a welcome are not counted.
        assert!(sender.reconnects() > 0 && sender.reconnects() < connections);
        assert!(receiver.reconnects() >= sender.reconnects());
        assert_eq!(sender.copied(), 0);
    }
}

#[test]
fn corrupted_bytes_are_seen_and_sent_again() {
    let options = Options { checksum: true, ..options() };
    let (mut receiver, address) = listen(&options);
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
    // Each was noticed, and each has ended a connection.
    assert_eq!((receiver.corrupted(), connections), (10, 11));
    assert!(sender.reconnects() > 0 && sender.resent() > 0);
}

#[test]
fn a_peer_that_never_answers_is_an_error() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    let error = send(&source, mute.local_addr().unwrap(), &impatient(), 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("no sign of life"), "{error}");
}

#[test]
fn nobody_there_is_an_error() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    let error = send(&source, address, &impatient(), 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("does `busbar stream tcp-listen:` run there?"), "{error}");
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let source = Source::open("synth:counter", &setup(65_536)).unwrap();
    for bad in ["", "localhost", "localhost:x", "localhost:65536"] {
        let opened = Sender::open(bad, source.format(), 4096, &options());
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
    }
    assert!(Receiver::listen("nowhere", &setup(1), &options()).is_err());
    let (_receiver, address) = listen(&options());
    let again = Receiver::listen(&address.to_string(), &setup(1), &options());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn blocks_come_back_only_when_they_were_taken_over() {
    let (mut receiver, address) = listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    while let Some(samples) = source.next(Some(Duration::ZERO)).unwrap() {
        sender.push(samples).unwrap();
    }
    assert_eq!(sender.unacknowledged(), source.blocks());
    // All are received, none is given back by who has received them.
    let mut held = Vec::new();
    while held.len() < source.blocks() {
        sender.turn().unwrap();
        held.extend(receiver.next(Some(LOOK)).unwrap());
    }
    for _ in 0..20 {
        sender.wait(Some(LOOK)).unwrap();
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    assert_eq!(sender.unacknowledged(), source.blocks());
    assert!(source.next(Some(Duration::ZERO)).unwrap().is_none());
    // The second one alone says nothing for the first.
    drop(held.remove(1));
    sender_sees(&mut sender, &mut receiver, |_| true);
    assert_eq!(sender.unacknowledged(), source.blocks());
    drop(held.remove(0));
    let left = source.blocks() - 2;
    sender_sees(&mut sender, &mut receiver, |sender| sender.unacknowledged() == left);
    assert!(source.next(Some(Duration::ZERO)).unwrap().is_some());
}

fn sender_sees(sender: &mut Sender, receiver: &mut Receiver, done: impl Fn(&Sender) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        for _ in 0..4 {
            assert!(receiver.next(Some(LOOK)).unwrap().is_none());
            sender.wait(Some(LOOK)).unwrap();
        }
        if done(sender) {
            return;
        }
        assert!(Instant::now() < until, "not within a minute");
    }
}

#[test]
fn loss_goes_with_its_block() {
    let (mut receiver, address) = listen(&options());
    let name = "synth:counter?rate=10M";
    let sender = thread::spawn(move || {
        let source = Source::open(name, &setup(8000)).unwrap();
        let mut sender = connect(&source, address, &options());
        for _ in 0..5 {
            // Four blocks are there, what comes meanwhile is lost.
            thread::sleep(Duration::from_millis(20));
            for _ in 0..4 {
                sender.push(source.next(None).unwrap().unwrap()).unwrap();
            }
            while sender.unacknowledged() > 0 {
                sender.wait(Some(LOOK)).unwrap();
            }
        }
        sender.finish(Lost::Unknown);
        assert!(sender.wait(Some(PATIENCE)).unwrap());
    });
    let (mut next, mut all) = (0, 0);
    while !receiver.is_finished() {
        let Some(samples) = receiver.next(Some(PATIENCE)).unwrap() else { continue };
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

#[test]
fn who_is_refused_is_told_why_and_does_not_come_back() {
    let (mut receiver, address) = listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    while receiver.format().is_none() {
        sender.wait(Some(LOOK)).unwrap();
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    assert_eq!(receiver.format(), Some(source.format()));
    receiver.refuse("the disk is full");
    let error = sender.wait(Some(PATIENCE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

#[test]
fn another_sender_is_refused_while_there_is_one_and_goes_on_after_it() {
    let (mut receiver, address) = listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut first = connect(&source, address, &options());
    let hold = |sender: &mut Sender, receiver: &mut Receiver, sequence| loop {
        if sender.unacknowledged() == 0 {
            sender.push(source.next(None).unwrap().unwrap()).unwrap();
        }
        sender.wait(Some(LOOK)).unwrap();
        if let Some(samples) = receiver.next(Some(LOOK)).unwrap() {
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
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    let refused = other.join().unwrap();
    assert!(refused.contains("another sender's stream"), "{refused}");

    // The first one dies while its second block is not taken over.
    let kept = hold(&mut first, &mut receiver, 1);
    drop(first);
    while receiver.take_trouble().is_none() {
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    let narrow = Source::open("synth:counter?channels=1", &setup(4096)).unwrap();
    let odd = thread::spawn(move || send(&narrow, address, &options(), 1).unwrap_err().to_string());
    while !odd.is_finished() {
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    assert!(odd.join().unwrap().contains("another format"));

    let mut second = connect(&source, address, &options());
    let samples = hold(&mut second, &mut receiver, 0);
    assert_eq!(samples.meta().lost, Lost::Unknown);
    drop((samples, kept));
    assert_eq!(hold(&mut second, &mut receiver, 1).meta().lost, Lost::Samples(0));
    second.finish(Lost::Samples(0));
    while !receiver.is_finished() {
        second.wait(Some(LOOK)).unwrap();
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
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

/// What a sender says first.
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

/// The next frame that is not a sign of life.
fn answer(from: &mut TcpStream, receiver: &mut Receiver, kind: Kind) -> Option<Header> {
    from.set_read_timeout(Some(LOOK)).unwrap();
    let (mut header, mut filled) = ([0; HEADER_LEN], 0);
    loop {
        drop(receiver.next(Some(LOOK)).unwrap());
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

#[test]
fn what_a_hostile_sender_says_ends_its_connection_and_nothing_else() {
    let (mut receiver, address) = listen(&options());
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
    // The connection of the sender was not harmed by any of it.
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
    // A half-open connection is given up for a new one of the same sender.
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&hello(1, 7)).unwrap();
    assert!(answer(&mut half, &mut receiver, Kind::Welcome).is_some());
    let mut good = TcpStream::connect(address).unwrap();
    good.write_all(&hello(1, 7)).unwrap();
    good.write_all(&data(1, 7, 100)).unwrap();
    good.write_all(&Header::new(Kind::End, 1, 8).encode()).unwrap();
    while answer(&mut good, &mut receiver, Kind::Ack).unwrap().sequence < 9 {}
    while answer(&mut half, &mut receiver, Kind::Ack).is_some() {}
    assert!(receiver.next(Some(PATIENCE)).unwrap().is_none() && receiver.is_finished());
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
            // Until the sender has had enough.
            let _ = std::io::copy(&mut conn, &mut std::io::sink());
        });
        let source = Source::open("synth:counter", &setup(4096)).unwrap();
        let mut sender = connect(&source, address, &options());
        let trouble = loop {
            sender.wait(Some(LOOK)).unwrap();
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

#[test]
fn a_sender_that_does_not_come_back_is_an_error() {
    let options = impatient();
    let (mut receiver, address) = listen(&options);
    let mut sender = TcpStream::connect(address).unwrap();
    sender.write_all(&hello(1, 0)).unwrap();
    assert!(answer(&mut sender, &mut receiver, Kind::Welcome).is_some());
    drop(sender);
    let error = loop {
        match receiver.next(Some(PATIENCE)) {
            Ok(samples) => assert!(samples.is_none()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("has not come back"), "{error}");
}

#[test]
fn no_descriptor_is_left_behind() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = || {
        let (mut receiver, address) = listen(&options());
        let sender = send_counter(address, 4096, 3, &options());
        take_counter(&mut receiver);
        sender.join().unwrap();
    };
    round();
    let before = open();
    (0..200).for_each(|_| round());
    // Other tests run beside this one, and have a few each.
    assert!(open() < before + 150, "{before} before, {} after", open());
}

#[test]
fn a_connection_that_always_breaks_is_an_error_in_the_end() {
    let options = Options { checksum: true, ..options() };
    let (mut receiver, address) = listen(&options);
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
        assert!(receiver.next(Some(LOOK)).unwrap().is_none());
    }
    let error = sender.join().unwrap();
    assert!(error.contains("before a block is taken over"), "{error}");
    assert!(receiver.corrupted() > 10);
}

#[test]
fn after_the_end_there_is_nothing_more_to_send() {
    let (_receiver, address) = listen(&options());
    let source = Source::open("synth:counter", &setup(4096)).unwrap();
    let mut sender = connect(&source, address, &options());
    sender.finish(Lost::Samples(0));
    let error = sender.push(source.next(None).unwrap().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
