//! Whatever clients of libiio's protocol send, the server goes on: it forgets those that go, and answers others.

#![no_main]

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use busbar::stream::iiod::{Server, ServerSetup};
use libfuzzer_sys::fuzz_target;

/// What a client sends at once; the server has its turns between these.
#[derive(Arbitrary, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// Some of [`WORDS`], as a line.
    Line(Vec<u8>),
    /// So many bytes that are no text, such as samples.
    Zeros(u16),
    /// The binary protocol from now on, with these commands.
    Binary(Vec<Frame>),
    /// Nothing, but it reads what it was answered.
    Reads,
}

/// A command of the binary protocol, most often one that the server knows.
#[derive(Arbitrary, Debug)]
struct Frame {
    id: u16,
    op: u8,
    device: u8,
    low: u8,
    high: u8,
    /// A length, and what follows it.
    len: u32,
    more: Vec<u8>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let small = self.low % 8 != 0;
        let len = if small { self.len % 8192 } else { self.len };
        let mut bytes = self.id.to_le_bytes().to_vec();
        bytes.extend([self.op % 34, self.device % 3, self.low / 64, 0, self.high % 4, 0]);
        match self.op % 34 {
            // Some channels.
            17 => bytes.extend((len % 64).to_le_bytes()),
            9..=14 | 21 | 23 | 24 => bytes.extend(u64::from(len).to_le_bytes()),
            30 => bytes.extend(len.to_le_bytes()),
            _ => {}
        }
        bytes.extend(&self.more);
        bytes
    }
}

const WORDS: [&str; 40] = [
    "HELP", "VERSION", "PRINT", "ZPRINT", "TIMEOUT", "OPEN", "CLOSE", "READ", "WRITE", "READBUF",
    "WRITEBUF", "GETTRIG", "SETTRIG", "SET", "BUFFERS_COUNT", "DEBUG", "BUFFER", "INPUT", "OUTPUT",
    "CYCLIC", "EXIT", "adc", "paced", "iio:device0", "iio:device1", "voltage0_i", "busbar_lost",
    "busbar_report_loss", "sampling_frequency", "0", "1", "-1", "8", "64", "4096", "100000",
    "9223372036854775807", "0000000f", "0000003f", "00000000",
];
/// How long it may take until a client is forgotten.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    static SERVER: RefCell<Server> = RefCell::new(Server::open(
        &ServerSetup::new()
            .listen("127.0.0.1:0")
            .devices(["adc=synth:counter", "paced=synth:sine?rate=1M"])
            .memory_limit(8 << 20),
    ).unwrap());
}

fuzz_target!(|pieces: Vec<Piece>| {
    SERVER.with_borrow_mut(|server| {
        let mut client = connect(server);
        for piece in &pieces {
            send(&mut client, piece);
            for _ in 0..4 {
                server.try_turn().unwrap();
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        drop(client);
        let mut other = connect(server);
        other.write_all(b"VERSION\r\n").unwrap();
        let mut answer = [0; 12];
        wait(server, |_| matches!(other.peek(&mut answer), Ok(12)));
        assert_eq!(&answer, b"0.24.busbar ");
        drop(other);
        wait(server, |server| server.counters().clients == 0);
    });
});

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(server.address()).unwrap();
    client.set_nonblocking(true).unwrap();
    client
}

fn send(client: &mut TcpStream, piece: &Piece) {
    // The server may have closed the connection, or take no more for now.
    let _ = match piece {
        Piece::Bytes(bytes) => client.write(bytes),
        Piece::Line(words) => {
            let words = words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]);
            let line = words.collect::<Vec<_>>().join(" ") + "\r\n";
            client.write(line.as_bytes())
        }
        Piece::Zeros(len) => client.write(&vec![0; usize::from(*len)]),
        Piece::Binary(frames) => {
            let frames = frames.iter().flat_map(Frame::bytes);
            client.write(&b"BINARY\r\n".iter().copied().chain(frames).collect::<Vec<_>>())
        }
        Piece::Reads => client.read(&mut [0; 1 << 16]),
    };
}

fn wait(server: &mut Server, mut is_done: impl FnMut(&Server) -> bool) {
    let begun = Instant::now();
    while !is_done(server) {
        assert!(begun.elapsed() < PATIENCE, "the server does not go on");
        match server.turn_timeout(Duration::from_millis(1)) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
        }
    }
}
