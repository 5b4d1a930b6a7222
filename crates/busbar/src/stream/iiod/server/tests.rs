use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tempfile::TempDir;

use super::*;

/// How long nothing may happen before it is taken for never.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder like that of the kernel, with these devices: `PATH` and content.
fn machine(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let root = TempDir::new().unwrap();
    let roots = Roots { devices: root.path().join("devices"), debug: root.path().join("debug") };
    fs::create_dir(&roots.devices).unwrap();
    for (name, content) in files {
        write(&roots.devices.join(name), content);
    }
    (root, roots)
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{content}\n")).unwrap();
}

fn content(path: &Path) -> String {
    fs::read_to_string(path).unwrap().trim_end_matches(['\0', '\n']).to_owned()
}

fn setup() -> ServerSetup {
    ServerSetup::new().listen("127.0.0.1:0")
}

/// A server of a machine's devices.
fn server(setup: &ServerSetup, roots: &Roots) -> Server {
    let mut server = Server::of_machine(setup, Context::of_machine(roots).unwrap()).unwrap();
    server.hub.roots = roots.clone();
    server
}

fn synth(setup: ServerSetup) -> Server {
    Server::open(&setup.devices(["adc=synth:counter?rate=1k"])).unwrap()
}

/// Has the server work until something is so.
fn until(server: &mut Server, mut is_so: impl FnMut(&mut Server) -> bool) {
    let begun = Instant::now();
    while !is_so(server) {
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        server.turn_timeout(Duration::from_millis(10)).unwrap();
    }
}

/// A client of the text protocol, and what it was answered.
struct Raw(BufReader<TcpStream>);

impl Raw {
    /// A client with this address of the loopback interface.
    fn of(server: &Server, machine: u8) -> Self {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&fd, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, machine), 0)).unwrap();
        connect(&fd, &server.address()).unwrap();
        let socket = TcpStream::from(fd);
        socket.set_nonblocking(true).unwrap();
        Self(BufReader::new(socket))
    }

    fn say(&mut self, bytes: &[u8]) {
        // The server may have closed it.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// The next line; empty at the end of the connection.
    fn line(&mut self, server: &mut Server) -> String {
        let mut line = Vec::new();
        until(server, |_| match self.0.read_until(b'\n', &mut line) {
            Ok(_) => true,
            Err(why) => why.kind() != ErrorKind::WouldBlock,
        });
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    fn ask(&mut self, server: &mut Server, line: &str) -> String {
        self.say(format!("{line}\r\n").as_bytes());
        self.line(server)
    }

    fn value(&mut self, server: &mut Server, line: &str) -> String {
        let len = self.ask(server, line);
        assert!(!len.starts_with('-'), "{line}: {len}");
        self.line(server).trim_end_matches('\0').to_owned()
    }

    /// All that comes until the server closes the connection.
    fn rest(&mut self, server: &mut Server) -> Vec<u8> {
        let mut rest = Vec::new();
        until(server, |_| match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(why) => why.kind() != ErrorKind::WouldBlock,
        });
        rest
    }
}

fn has_come(server: &mut Server, clients: usize) {
    until(server, |server| server.counters().clients == clients);
}

fn turned_away(server: &mut Server) -> Vec<Refusal> {
    let events = server.take_events().into_iter();
    events
        .filter_map(|it| if let ServerEvent::TurnedAway(_, why) = it { Some(why) } else { None })
        .collect()
}

const BODY: &str =
    "VERSION\r\nWRITE adc busbar_report_loss 1\r\n1READ adc busbar_report_loss\r\nEXIT\r\n";

/// What a browser sends for `fetch(url, {method: "POST", mode: "no-cors", body})`.
fn post() -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:30431\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\nAccept: */*\r\n\
         Content-Type: text/plain;charset=UTF-8\r\nOrigin: http://a.example\r\nReferer: http://a.example/\r\n\
         Accept-Encoding: gzip, deflate\r\nAccept-Language: en-US,en;q=0.9\r\n\r\n{BODY}",
        BODY.len()
    )
    .into()
}

/// What it sends to ask whether another method is allowed.
fn preflight() -> Vec<u8> {
    "OPTIONS / HTTP/1.1\r\nHost: 127.0.0.1:30431\r\nAccept: */*\r\nAccess-Control-Request-Method: PUT\r\n\
     Access-Control-Request-Headers: version\r\nOrigin: http://a.example\r\n\r\n"
        .into()
}

/// The first message of TLS 1.3, with a ticket of a session that a web page has chosen.
fn client_hello() -> Vec<u8> {
    let ticket = format!("\n{BODY}").into_bytes();
    let with_len =
        |bytes: Vec<u8>| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat();
    let extensions = with_len([vec![0, 35], with_len(ticket)].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &extensions].concat();
    let handshake = [&[1, 0][..], &with_len(body)].concat();
    [&[0x16, 3, 1][..], &with_len(handshake)].concat()
}

#[test]
fn what_a_web_browser_sends_is_not_obeyed() {
    let mut server = synth(setup());
    let mut watcher = Raw::of(&server, 1);
    assert_eq!(watcher.ask(&mut server, "VERSION"), "0.24.busbar");
    for bytes in [post(), preflight(), client_hello()] {
        for piece in [bytes.len(), 7, 1] {
            let mut client = Raw::of(&server, 1);
            for piece in bytes.chunks(piece) {
                client.say(piece);
                server.turn_timeout(Duration::ZERO).unwrap();
            }
            assert_eq!(client.rest(&mut server), b"");
            assert_eq!(turned_away(&mut server), [Refusal::Foreign]);
        }
    }
    assert_eq!(watcher.value(&mut server, "READ adc busbar_report_loss"), "0");
}

#[test]
fn what_clients_of_libiio_send_is_no_request_of_a_browser() {
    let mut server = synth(setup());
    let mut client = Raw::of(&server, 1);
    for line in ["VERSION", "TIMEOUT 2500", "NONSENSE", "ZPRINT", "READ adc busbar_lost"] {
        assert_ne!(client.ask(&mut server, line), "", "{line}");
        if line.starts_with("READ") {
            client.line(&mut server);
        }
    }
    // A value of any bytes.
    client.say(b"WRITE adc busbar_report_loss 9\r\n\x16\x03Host: a");
    assert_eq!(client.line(&mut server), "-22");
    assert_eq!(client.ask(&mut server, "BINARY"), "0");
}

#[test]
fn machines_that_have_few_places_get_one_from_those_that_have_many() {
    let mut server = synth(setup().clients(16));
    let mut clients: Vec<_> = (0..16).map(|_| Raw::of(&server, 1)).collect();
    // The last eighth is for others. Who is refused is told so, if it says something.
    has_come(&mut server, 14);
    assert_eq!(clients[15].ask(&mut server, "VERSION"), "-16");
    assert_eq!(clients[15].rest(&mut server), b"");
    assert_eq!(clients[14].rest(&mut server), b"");
    // Half a command is not more than none.
    clients[0].say(b"VERS");
    clients[1].say(b"WRITE adc busbar_report_loss 5\r\n");
    assert_eq!(clients[2].ask(&mut server, "OPEN adc 64 00000003"), "0");
    let mut others: Vec<_> = (2..=14).map(|machine| Raw::of(&server, machine)).collect();
    for other in &mut others {
        assert_eq!(other.ask(&mut server, "VERSION"), "0.24.busbar");
    }
    // One is left of the first machine, and 13 of others: those have no more than the one who comes.
    let more = server.clients.iter().filter(|it| it.peer.machine().to_string() == "127.0.0.1");
    assert_eq!(more.count(), 3);
    // Who streams has stayed.
    assert_eq!(clients[2].ask(&mut server, "CLOSE adc"), "0");
    let why = server.take_events();
    assert!(why.iter().any(|event| event.to_string().contains("places")), "{why:?}");
}

#[test]
fn who_owes_something_is_not_waited_for_without_end() {
    let silence = Duration::from_secs(5);
    let mut server = synth(setup().silence(silence));
    let mut fine = Raw::of(&server, 1);
    assert_eq!(fine.ask(&mut server, "VERSION"), "0.24.busbar");
    let owing = [
        &b""[..],
        b"VERS",
        b"VERSION\r\nREAD",
        b"WRITE adc busbar_report_loss 5\r\n1",
        b"BINARY\r\n\0\0",
    ];
    let mut owing = owing.map(|bytes| {
        let mut client = Raw::of(&server, 1);
        client.say(bytes);
        client
    });
    for client in &mut owing {
        client.rest(&mut server);
    }
    let why = turned_away(&mut server);
    assert!(!why.is_empty() && why.iter().all(|why| *why == Refusal::Silent(silence)), "{why:?}");
    assert_eq!(fine.ask(&mut server, "VERSION"), "0.24.busbar");
}

#[test]
fn limits_of_silence_are_those_of_the_kernel() {
    for bad in [Duration::ZERO, Duration::from_millis(4999), Duration::MAX] {
        let error = Server::open(&setup().devices(["synth:counter"]).silence(bad)).unwrap_err();
        assert!(error.to_string().contains("5 s to 1 day"), "{error}");
    }
    let server = synth(setup().silence(Duration::from_secs(24 * 60 * 60)));
    let client = TcpStream::connect(server.address()).unwrap();
    let (accepted, peer) = server.listener.accept().unwrap();
    assert!(Tcp::new(accepted, peer, server.silence).is_ok());
    drop(client);
}

#[test]
fn the_kernel_ends_connections_whose_data_nobody_acknowledges() {
    let mut server = synth(setup().silence(Duration::from_secs(7)));
    let _client = Raw::of(&server, 1);
    has_come(&mut server, 1);
    let timeout = rustix::net::sockopt::tcp_user_timeout(server.clients[0].link()).unwrap();
    assert_eq!(timeout, 7000);
}

const ONE: [(&str, &str); 7] = [
    ("iio:device0/name", "adc"),
    ("iio:device0/uevent", "MAJOR=1"),
    ("iio:device0/rate", "1000"),
    ("iio:device0/in_voltage0_raw", "5"),
    ("iio:device0/buffer/enable", "0"),
    ("iio:device0/buffer/data_available", "0"),
    ("iio:device1/name", "other"),
];

#[test]
fn only_attributes_of_the_context_are_read_and_written() {
    let (_root, roots) = machine(&ONE);
    let mut server = server(&setup(), &roots);
    let dir = roots.devices.join("iio:device0");
    let mut client = Raw::of(&server, 1);
    for (place, value) in [
        ("adc rate", "1000"),
        ("adc INPUT voltage0 raw", "5"),
        ("adc INPUT voltage0 in_voltage0_raw", "7"),
        ("adc BUFFER data_available", "0"),
    ] {
        assert_eq!(client.value(&mut server, &format!("READ {place}")), value, "{place}");
        client.say(format!("WRITE {place} 2\r\n7\0").as_bytes());
        assert_eq!(client.line(&mut server), "2", "{place}");
    }
    assert_eq!(
        (content(&dir.join("rate")), content(&dir.join("in_voltage0_raw"))),
        ("7".into(), "7".into())
    );
    for place in [
        "adc uevent",
        "adc name",
        "adc ..",
        "adc BUFFER enable",
        "adc INPUT voltage0 uevent",
        "adc INPUT voltage0 rate",
        "adc DEBUG direct_reg_access",
    ] {
        assert_eq!(client.ask(&mut server, &format!("READ {place}")), "-2", "{place}");
        client.say(format!("WRITE {place} 2\r\n7\0").as_bytes());
        assert_eq!(client.line(&mut server), "-13", "{place}");
    }
    assert_eq!(content(&dir.join("uevent")), "MAJOR=1");
    assert_eq!(content(&dir.join("buffer/enable")), "0");
}

/// Has a file wait as a driver that is slow.
fn make_slow(path: &Path) {
    fs::remove_file(path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[test]
fn a_slow_attribute_stops_no_other_device_and_has_a_limit() {
    let (_root, roots) = machine(&[ONE[0], ONE[2], ONE[6], ("iio:device1/rate", "44")]);
    let mut server = server(&setup().silence(Duration::from_secs(5)), &roots);
    let slow = roots.devices.join("iio:device0/rate");
    make_slow(&slow);
    let mut waits = Raw::of(&server, 1);
    waits.say(b"READ adc rate\r\n");
    until(&mut server, |server| server.clients.first().is_some_and(|it| !it.is_idle(&server.hub)));
    // Those who ask and go leave nothing to do.
    for _ in 0..100 {
        let mut client = Raw::of(&server, 1);
        client.say(b"READ adc rate\r\n");
        has_come(&mut server, 2);
        drop(client);
        has_come(&mut server, 1);
    }
    let mut other = Raw::of(&server, 1);
    assert_eq!(other.value(&mut server, "READ other rate"), "44");
    assert_eq!(waits.line(&mut server), "-110");
    // The driver answers at last: nobody takes that for the answer to something else.
    fs::write(&slow, "9\n").unwrap();
    assert_eq!(waits.ask(&mut server, "VERSION"), "0.24.busbar");
    fs::remove_file(&slow).unwrap();
    write(&slow, "10");
    assert_eq!(waits.value(&mut server, "READ adc rate"), "10");
}

#[test]
fn devices_that_come_later_are_served_and_those_that_go_are_not() {
    let (_root, roots) = machine(&[ONE[0], ONE[2]]);
    let mut server = server(&setup(), &roots);
    let mut early = Raw::of(&server, 1);
    assert_eq!(early.value(&mut server, "READ adc rate"), "1000");
    assert_eq!(early.ask(&mut server, "READ dac rate"), "-19");
    write(&roots.devices.join("iio:device1/name"), "dac");
    write(&roots.devices.join("iio:device1/rate"), "48");
    let mut events = Vec::new();
    let mut heard = |server: &mut Server, event| {
        until(server, |server| {
            events.extend(server.take_events());
            events.contains(&event)
        });
    };
    heard(&mut server, ServerEvent::DeviceCame("dac".into()));
    assert_eq!(early.value(&mut server, "READ dac rate"), "48");
    let ids: Vec<_> = server.devices().map(|(id, _)| id.to_owned()).collect();
    assert_eq!(ids, ["iio:device0", "iio:device1"]);
    fs::remove_dir_all(roots.devices.join("iio:device0")).unwrap();
    heard(&mut server, ServerEvent::DeviceGone("adc".into()));
    assert_eq!(early.ask(&mut server, "READ adc rate"), "-19");
    assert!(!server.hub.xml.contains("\"adc\"") && server.hub.xml.contains("\"dac\""));
    // It comes back with another attribute.
    write(&roots.devices.join("iio:device0/name"), "adc");
    write(&roots.devices.join("iio:device0/gain"), "3");
    heard(&mut server, ServerEvent::DeviceCame("adc".into()));
    assert_eq!(early.value(&mut server, "READ adc gain"), "3");
}

#[test]
fn a_list_is_made_anew_when_that_is_asked_for() {
    let (_root, roots) = machine(&[ONE[0], ONE[2]]);
    let mut server = server(&setup(), &roots);
    write(&roots.devices.join("iio:device0/gain"), "3");
    let mut client = Raw::of(&server, 1);
    assert_eq!(client.ask(&mut server, "READ adc gain"), "-2");
    server.list_devices();
    until(&mut server, |server| server.hub.xml.contains("\"gain\""));
    assert_eq!(client.value(&mut server, "READ adc gain"), "3");
}

#[test]
fn numbers_of_devices_stay_while_a_client_counts_them() {
    let (_root, roots) = machine(&[("iio:device1/name", "adc"), ("iio:device1/rate", "1000")]);
    let mut server = server(&setup(), &roots);
    let mut client = Raw::of(&server, 1);
    assert_eq!(client.ask(&mut server, "BINARY"), "0");
    write(&roots.devices.join("iio:device0/name"), "first");
    server.list_devices();
    until(&mut server, |server| server.lister.as_ref().is_some_and(|it| it.found.is_some()));
    assert_eq!((server.hub.numbered(0), server.hub.numbered(1)), (Some(0), None));
    write(&roots.devices.join("iio:device2/name"), "last");
    drop(client);
    until(&mut server, |server| server.hub.numbered(2).is_some());
    let ids = (0..3).map(|it| &server.hub.context.devices[server.hub.numbered(it).unwrap()].id);
    assert_eq!(ids.collect::<Vec<_>>(), ["iio:device0", "iio:device1", "iio:device2"]);
}

#[test]
fn a_server_without_a_device_fails_unless_it_is_to_wait() {
    let (_root, roots) = machine(&[("trigger0/name", "clock")]);
    let error = Server::of_machine(&setup(), Context::of_machine(&roots).unwrap()).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NODEV));
    assert!(error.to_string().contains("`wait`"), "{error}");
    let mut server = server(&setup().wait(true), &roots);
    write(&roots.devices.join("iio:device0/name"), "adc");
    until(&mut server, |server| server.devices().count() == 2);
}

#[test]
fn a_name_is_given_once() {
    for devices in [["a=synth:counter", "a=synth:sine"], ["synth:counter", "synth:counter?rate=1k"]]
    {
        let error = Server::open(&setup().devices(devices)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("NAME="), "{error}");
    }
    assert!(Server::open(&setup().devices(["synth:counter", "b=synth:counter"])).is_ok());
}

/// Four channels of 16 bits.
const SAMPLE: usize = 8;
/// Samples of a block that is sent by reference.
const BLOCK: usize = 4096;

impl Raw {
    fn open(&mut self, server: &mut Server, device: &str) -> String {
        self.ask(server, &format!("OPEN {device} {BLOCK} 0000000f"))
    }

    /// Reads so many bytes of samples: those that come, or the answer if none do.
    fn samples(&mut self, server: &mut Server, device: &str, bytes: usize) -> Result<(), String> {
        self.say(format!("READBUF {device} {bytes}\r\n").as_bytes());
        let (mut left, mut is_first) = (bytes, true);
        while left > 0 {
            let count = self.line(server);
            let count: usize = count.parse().map_err(|_| count)?;
            if std::mem::take(&mut is_first) {
                self.line(server);
            }
            let (mut samples, mut at) = (vec![0; count], 0);
            until(server, |_| {
                match self.0.read(&mut samples[at..]) {
                    Ok(read) => at += read,
                    Err(why) => assert_eq!(why.kind(), ErrorKind::WouldBlock),
                }
                at == count
            });
            left -= count;
        }
        Ok(())
    }
}

#[test]
fn a_client_with_one_block_waits_for_none_that_it_has() {
    let setup = setup().devices(["adc=synth:counter?rate=1M"]);
    // One block for it, for want of memory; or since it wants no more.
    for (setup, buffers) in [(setup.clone().memory_limit(3 * BLOCK * SAMPLE), "4"), (setup, "1")] {
        let mut server = Server::open(&setup).unwrap();
        let mut client = Raw::of(&server, 1);
        client.ask(&mut server, &format!("SET adc BUFFERS_COUNT {buffers}"));
        assert_eq!(client.open(&mut server, "adc"), "0");
        for blocks in [2, 3] {
            let bytes = blocks * BLOCK * SAMPLE - SAMPLE;
            assert_eq!(client.samples(&mut server, "adc", bytes), Ok(()), "{buffers} {blocks}");
        }
    }
}

#[test]
fn what_a_client_has_read_is_for_others_although_it_says_nothing_more() {
    let limit = 5 * BLOCK * SAMPLE;
    let setup = setup().devices(["adc=synth:counter?rate=1M"]).memory_limit(limit);
    let mut server = Server::open(&setup).unwrap();
    let mut first = Raw::of(&server, 1);
    assert_eq!(first.open(&mut server, "adc"), "0");
    first.samples(&mut server, "adc", 2 * BLOCK * SAMPLE).unwrap();
    let mut second = Raw::of(&server, 2);
    assert_eq!(second.open(&mut server, "adc"), "0");
    let mut third = Raw::of(&server, 3);
    let begun = Instant::now();
    while third.open(&mut server, "adc") != "0" {
        assert!(begun.elapsed() < PATIENCE, "its blocks stay with the first one");
    }
}

#[test]
fn one_device_leaves_memory_to_the_others() {
    let limit = 32 * BLOCK * SAMPLE;
    let devices = ["a=synth:counter?rate=1M", "b=synth:counter?rate=1M"];
    let mut server = Server::open(&setup().devices(devices).memory_limit(limit)).unwrap();
    let mut client = Raw::of(&server, 1);
    for device in ["a", "b"] {
        client.ask(&mut server, &format!("SET {device} BUFFERS_COUNT 64"));
        assert_eq!(client.open(&mut server, device), "0", "{device}");
    }
}

#[test]
fn nobody_makes_blocks_of_seconds() {
    let mut server = Server::open(&setup().devices(["adc=synth:counter?rate=100k"])).unwrap();
    let mut client = Raw::of(&server, 1);
    assert_eq!(client.ask(&mut server, "OPEN adc 1000000 0000000f"), "0");
    client.say(b"READBUF adc 8000000\r\n");
    assert_eq!(client.line(&mut server), (25_000 * SAMPLE).to_string());
}

/// Two clients that read nothing, one of which comes when the other has all that there is.
#[test]
fn clients_that_do_not_read_leave_a_source_its_blocks() {
    use crate::block::{Block, Memory};
    use crate::stream::format::Meta;
    use crate::stream::net::Pool;

    const TOTAL: usize = 16;
    let format = synth::format("counter?rate=1M").unwrap();
    let mut server = Server::pushed(&setup(), "adc", &format, true).unwrap();
    let blocks = Block::several(TOTAL, BLOCK * SAMPLE, &Memory::Memfd).unwrap();
    let pool = Pool::new(blocks).unwrap();
    let push = |server: &mut Server| {
        pool.returned(|_| {});
        let block = pool.take().expect("a block for the source");
        let meta = Meta {
            sequence: 0,
            time: std::time::SystemTime::now(),
            lost: Lost::Samples(0),
            len: BLOCK * SAMPLE,
        };
        server.push(&pool.hand_out(block, meta, TOTAL, 0), Lost::Samples(0))
    };
    let mut first = Raw::of(&server, 1);
    assert_eq!(first.open(&mut server, "adc"), "0");
    for _ in 0..2 * TOTAL {
        assert!(push(&mut server));
    }
    let mut second = Raw::of(&server, 2);
    assert_eq!(second.open(&mut server, "adc"), "0");
    for _ in 0..2 * TOTAL {
        assert!(push(&mut server));
    }
}
