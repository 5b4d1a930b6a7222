//! `busbar serve` and events of a device, which a driver of Linux makes up: `iio_dummy`.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use busbar_uapi::iio::{EVENT_LEN, event_fd};
use rustix::io::Errno;
use support::iiod::{Binary, Server, op};
use support::{modprobe, wait_until};

/// The first voltage has risen above a threshold: `IIO_EV_DIR_RISING` is 1, the others are 0.
const RISEN: u64 = 1 << 48;
/// A step was made: `IIO_EV_TYPE_CHANGE` is 5, `IIO_EV_DIR_NONE` 3, `IIO_STEPS` 20.
const STEP: u64 = (5 << 56) | (3 << 48) | (20 << 32);

/// A device of `iio_dummy`, which stays: Linux 6.12 leaks memory when one is removed.
struct Dummy {
    name: &'static str,
    folder: PathBuf,
}

impl Dummy {
    fn new(name: &'static str) -> Self {
        converter::load();
        modprobe(&["iio_dummy"]).unwrap();
        let made = fs::create_dir(Path::new("/sys/kernel/config/iio/devices/dummy").join(name));
        assert!(made.is_ok() || made.unwrap_err().kind() == ErrorKind::AlreadyExists, "{name}");
        let mut all = fs::read_dir("/sys/bus/iio/devices").unwrap().map(|it| it.unwrap().path());
        let is_it = |path: &PathBuf| {
            fs::read_to_string(path.join("name")).is_ok_and(|found| found.trim() == name)
        };
        Self { name, folder: all.find(is_it).unwrap() }
    }

    fn serve(&self, arguments: &[&str]) -> Server {
        Server::start(&[&[&*format!("iio:{}", self.name)], arguments].concat())
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let node = Path::new("/dev").join(self.folder.file_name().unwrap());
        event_fd(File::open(node).map_err(|why| Errno::from_io_error(&why).unwrap())?)
    }

    fn get(&self, event: &str) -> String {
        fs::read_to_string(self.folder.join("events").join(event)).unwrap().trim().to_owned()
    }
}

/// Has all devices of this driver tell of an event. An event that comes before one was handled replaces it.
fn poke(what: &str) {
    // There is one file for each device, and some for further ones, which cannot be written.
    let file = |number: u8| format!("/sys/bus/iio/devices/iio_evgen/poke_ev{number}");
    let count = (0..10).take_while(|number| fs::write(file(*number), what).is_ok()).count();
    assert!(count > 0);
}

/// Asks for an event, for which the client of this id waits.
fn ask(client: &mut Binary, id: u16) {
    client.command(id, op::READ_EVENT, 0, 0, &[]);
}

/// Its code and its time.
fn event(client: &mut Binary, id: u16) -> (u64, u64) {
    assert_eq!(client.answer(), (id, 16));
    let bytes = client.bytes(EVENT_LEN);
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (number(0), number(8))
}

fn create(client: &mut Binary, id: u16) -> i32 {
    client.command(id, op::CREATE_EVENTS, 0, 0, &[]);
    after_events(client, id)
}

/// The next answer to `id` that is no event: those of an earlier round may come late.
fn after_events(client: &mut Binary, id: u16) -> i32 {
    loop {
        match client.answer() {
            (_, 16) => _ = client.bytes(EVENT_LEN),
            (to, number) => {
                assert_eq!(to, id);
                return number;
            }
        }
    }
}

/// The names of attributes in a part of the context, as libiio numbers them.
fn names<'a>(xml: &'a str, tag: &str) -> BTreeSet<&'a str> {
    let tag = format!("<{tag} name=\"");
    xml.split(&*tag).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn number(names: &BTreeSet<&str>, name: &str) -> i32 {
    let at = names.iter().position(|found| *found == name);
    i32::try_from(at.unwrap_or_else(|| panic!("{name}: {names:?}"))).unwrap() << 16
}

/// What an attribute of the device itself says.
fn attribute(client: &mut Binary, name: &str) -> String {
    let xml = String::from_utf8(client.value(op::PRINT, 0, 0, &[]).unwrap()).unwrap();
    let own = xml.rsplit("</channel>").next().unwrap();
    let value = client.value(op::READ, 0, number(&names(own, "attribute"), name), &[]).unwrap();
    String::from_utf8(value).unwrap().trim_end_matches('\0').to_owned()
}

#[test]
#[ignore = "needs the lab"]
fn attributes_of_events_are_read_and_written() {
    let dummy = Dummy::new("iiod-events");
    let server = dummy.serve(&[]);
    let mut client = Binary::connect(server.port);
    let xml = String::from_utf8(client.value(op::PRINT, 0, 0, &[]).unwrap()).unwrap();
    let (_, body) = xml.split_once("]>").unwrap();
    let channels: Vec<_> = body.split("<channel ").skip(1).collect();
    let wanted = "id=\"voltage0\" type=\"input\"";
    let at = channels.iter().position(|channel| channel.starts_with(wanted)).unwrap();
    let own = names(channels[at].split("</channel>").next().unwrap(), "event-attribute");
    let shared = names(body.rsplit("</channel>").next().unwrap(), "event-attribute");
    let write = |value: &str| [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat();
    let channel = i32::try_from(at).unwrap();
    for (op, code, file) in [
        (
            op::READ_CHANNEL_EVENTS,
            channel | number(&own, "thresh_rising_en"),
            "in_voltage0_thresh_rising_en",
        ),
        (
            op::READ_CHANNEL_EVENTS,
            channel | number(&own, "thresh_rising_value"),
            "in_voltage0_thresh_rising_value",
        ),
        (op::READ_EVENTS, number(&shared, "in_steps_change_en"), "in_steps_change_en"),
    ] {
        for value in ["1", "0"] {
            assert_eq!(client.ask(op + 6, 0, code, &write(value)), 1, "{file}");
            assert_eq!(dummy.get(file), value, "{file}");
            let read = client.value(op, 0, code, &[]).unwrap();
            assert_eq!(read, format!("{value}\0").as_bytes(), "{file}");
        }
    }
    assert_eq!(client.ask(op::READ_CHANNEL_EVENTS, 0, channel | (99 << 16), &[]), -22);
    assert_eq!(client.ask(op::READ_CHANNEL_EVENTS, 0, 99, &[]), -22);
    assert_eq!(client.ask(op::READ_EVENTS, 0, 99 << 16, &[]), -22);
    // Clients of libiio 0.x do not know events.
    let text = String::from_utf8(server.connect().value("PRINT").unwrap()).unwrap();
    assert!(!text.contains("event-attribute") && text.contains("busbar_lost_events"));
    // Whoever may only read gets events, but changes nothing.
    let server = dummy.serve(&["--read-only"]);
    let mut client = Binary::connect(server.port);
    let code = channel | number(&own, "thresh_rising_en");
    assert_eq!(client.ask(op::READ_CHANNEL_EVENTS + 6, 0, code, &write("1")), -1);
    assert_eq!(create(&mut client, 9), 0);
}

#[test]
#[ignore = "needs the lab"]
fn every_client_gets_each_event_and_goes_on_meanwhile() {
    let dummy = Dummy::new("iiod-several");
    let server = dummy.serve(&[]);
    let before = server.descriptors();
    let mut clients: Vec<_> = (0..3).map(|_| Binary::connect(server.port)).collect();
    for client in &mut clients {
        assert_eq!(create(client, 0xffff), 0);
        ask(client, 0xffff);
        // It is answered while it waits for an event.
        assert_eq!(client.ask(op::NOTHING, 0, 0, &[]), 0);
        assert_eq!(attribute(client, "busbar_lost_events"), "0");
    }
    assert_eq!(create(&mut clients[0], 5), 0);
    assert_eq!(dummy.open().err(), Some(Errno::BUSY));
    let mut last = 0;
    for (what, code) in [("0", RISEN), ("3", STEP), ("0", RISEN)] {
        poke(what);
        let told: Vec<_> = clients.iter_mut().map(|client| event(client, 0xffff)).collect();
        assert_eq!(told[0].0, code, "{:x}", told[0].0);
        assert!(told[0].1 > last && told.iter().all(|it| *it == told[0]), "{told:?}");
        last = told[0].1;
        for client in &mut clients {
            ask(client, 0xffff);
        }
    }
    let first = &mut clients[0];
    // Another stream of the same client, which has asked for nothing so far, and does not wait.
    for code in [RISEN, STEP, RISEN] {
        first.command(5, op::READ_EVENT, 0, 1, &[]);
        assert_eq!(event(first, 5).0, code);
    }
    first.command(5, op::READ_EVENT, 0, 1, &[]);
    assert_eq!(first.answer(), (5, -11));
    // One that waits is told when its stream is freed.
    first.command(0, op::FREE_EVENTS, 0, 0xffff, &[]);
    assert_eq!(first.answer(), (0xffff, -4));
    assert_eq!(first.answer(), (0, 0));
    assert_eq!(first.ask(op::FREE_EVENTS, 0, 0xffff, &[]), -9);
    assert_eq!(first.ask(op::CREATE_EVENTS, 1, 0, &[]), -22);
    poke("0");
    for client in &mut clients[1..] {
        assert_eq!(event(client, 0xffff).0, RISEN);
    }
    // The clients go, and with the last of them the file is closed.
    drop(clients);
    wait_until("another program gets the events", || dummy.open().is_ok());
    wait_until("the descriptors are closed", || server.descriptors() == before);
    // It is opened again, unless another program has it.
    let other = dummy.open().unwrap();
    let mut client = Binary::connect(server.port);
    assert_eq!(create(&mut client, 1), -16);
    drop(other);
    assert_eq!(create(&mut client, 1), 0);
}

#[test]
#[ignore = "needs the lab"]
fn a_slow_client_is_told_how_many_events_it_has_missed() {
    let dummy = Dummy::new("iiod-slow");
    let server = dummy.serve(&[]);
    let mut fast = Binary::connect(server.port);
    let mut slow = Binary::connect(server.port);
    for client in [&mut fast, &mut slow] {
        assert_eq!(create(client, 1), 0);
    }
    let mut all = Vec::new();
    for round in 0..1030 {
        ask(&mut fast, 1);
        poke(if round % 3 == 0 { "3" } else { "0" });
        all.push(event(&mut fast, 1));
    }
    for expected in &all[6..] {
        ask(&mut slow, 1);
        assert_eq!(event(&mut slow, 1), *expected);
    }
    assert_eq!(attribute(&mut fast, "busbar_lost_events"), "6");
    let told = server.finish().into_iter().find(|line| line["event"] == "lost_events").unwrap();
    assert_eq!((&told["device"], &told["lost"]), (&"iiod-slow".into(), &6.into()));
}

#[test]
#[ignore = "needs the lab"]
fn clients_that_mean_harm_leave_nothing_open() {
    let dummy = Dummy::new("iiod-harm");
    let server = dummy.serve(&[]);
    let mut honest = Binary::connect(server.port);
    let before = server.descriptors();
    for round in 0..30_u16 {
        let mut client = Binary::connect(server.port);
        match round % 3 {
            // More streams than there may be, and more reads.
            0 => {
                for id in 0..16 {
                    assert_eq!(create(&mut client, id), 0);
                    ask(&mut client, id);
                }
                assert_eq!((create(&mut client, 16), create(&mut client, 3)), (-12, -16));
                // Some of them may be answered by events that come late.
                for _ in 0..64 {
                    ask(&mut client, 3);
                }
                assert_eq!(after_events(&mut client, 3), -16);
            }
            // It goes before it has an answer.
            1 => client.command(0, op::CREATE_EVENTS, 0, 0, &[]),
            _ => {
                let noise = (0..500).flat_map(|_| {
                    let op = fastrand::u8(op::CREATE_EVENTS..=op::READ_EVENT);
                    [fastrand::u8(0..3), 0, op, 0, fastrand::u8(0..3), 0, 0, 0]
                });
                client.send(&noise.collect::<Vec<_>>());
            }
        }
        poke("0");
    }
    assert_eq!(create(&mut honest, 7), 0);
    ask(&mut honest, 7);
    poke("3");
    // Those that come late for others may come first.
    while event(&mut honest, 7).0 != STEP {
        ask(&mut honest, 7);
    }
    assert_eq!(honest.ask(op::FREE_EVENTS, 0, 7, &[]), 0);
    wait_until("another program gets the events", || dummy.open().is_ok());
    wait_until("the descriptors are closed", || server.descriptors() == before);
}
