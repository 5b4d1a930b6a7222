//! Shared buffers with the real kernel: an answer reports buffers that Linux takes back during the service's
//! work, or never gave; they do not end the process.
//!
//! The program `busbar` is that of `BUSBAR_PROGRAM`, as in the lab.

use std::fs;
use std::time::{Duration, Instant};

use busbar::block::Block;
use busbar::bulk::packet::{BufferMessage, Direction, Kind, errno};
use busbar::bulk::{Link, Wanted, done};
use busbar::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use busbar_lab::stage::{Driver, Side};
use rustix::process::Pid;

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes for which the service needs many turns.
const LONG: usize = 48 << 20;
/// First address of the kernel's shared buffers.
const BUFFERS: u64 = 1 << 40;

struct Bench {
    side: Side,
    process: Pid,
}

impl Bench {
    fn new(service: &str) -> Self {
        Self::with(&[service])
    }

    fn with(services: &[&str]) -> Self {
        let program = std::env::var("BUSBAR_PROGRAM").expect("BUSBAR_PROGRAM");
        let side = Side::up(0, Driver::Eptfd, program.as_ref(), services).unwrap();
        let process = side.process().unwrap();
        Self { side, process }
    }

    fn endpoint(&self, service: &str) -> Endpoint {
        let controller = Controller::open(self.side.controller()).unwrap();
        // After a start it is announced with a delay.
        let until = Instant::now() + PATIENCE;
        let destination = loop {
            match controller.find(service) {
                Ok(channel) => break channel.destination,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        controller.endpoint(service).destination(destination).create().unwrap()
    }

    /// The same process still serves.
    fn check(&self) {
        assert!(rustix::process::test_kill_process(self.process).is_ok(), "it has died");
        let mut link = Link::over(self.endpoint("bulk"));
        link.send(b"still there").unwrap();
        assert_eq!(link.recv(Wanted::Last).unwrap(), b"still there");
    }

    fn set(&self, state: &str) {
        fs::write(self.side.remoteproc().join("state"), state).unwrap();
    }
}

/// The answer to the buffer that was given as `cookie`.
fn answer(endpoint: &Endpoint, cookie: u64) -> BufferMessage {
    let mut message = [0; MAX_MESSAGE];
    let length = endpoint.recv_timeout(&mut message, PATIENCE).unwrap().expect("an answer");
    let done = done(&message[..length]).expect("the answer");
    assert_eq!(done.cookie, cookie);
    done
}

fn long_block() -> Block {
    let mut block = Block::new(LONG).unwrap();
    block.write().unwrap().bytes_mut().fill(7);
    block
}

#[test]
#[ignore = "needs the lab"]
fn a_stop_under_the_work_on_a_buffer_is_survived() {
    let mut bench = Bench::new("bulk");
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        let endpoint = bench.endpoint("bulk");
        let mut block = long_block();
        endpoint.attach(&block).unwrap();
        endpoint.give(&mut block, 0..LONG, direction).unwrap();
        bench.set("stop");
        drop((endpoint, block));
        bench.set("start");
        bench.side.bind().unwrap();
        bench.check();
    }
}

#[test]
#[ignore = "needs the lab"]
fn an_endpoint_that_ends_under_the_work_on_its_buffer_is_survived() {
    let bench = Bench::new("bulk");
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        for destroyed in [false, true] {
            let endpoint = bench.endpoint("bulk");
            let mut block = long_block();
            endpoint.attach(&block).unwrap();
            endpoint.give(&mut block, 0..LONG, direction).unwrap();
            if destroyed {
                endpoint.destroy().unwrap();
            }
            drop((endpoint, block));
            bench.check();
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_buffer_that_was_never_given_is_answered_with_an_error() {
    let bench = Bench::with(&["bulk", "echo"]);
    // One is mapped, so that there are valid addresses. A service that echoes the message shows its address.
    let owner = bench.endpoint("echo");
    let mut block = Block::new(1 << 20).unwrap();
    owner.attach(&block).unwrap();
    owner.give(&mut block, 0..4096, Direction::ToRemote).unwrap();
    let mut message = [0; MAX_MESSAGE];
    let length = owner.recv_timeout(&mut message, PATIENCE).unwrap().expect("the echo");
    let real = BufferMessage::decode(&message[..length]).expect("what was given");
    assert_eq!(real.kind, Kind::Given);

    // With an endpoint that shares nothing: the kernel keeps wrong answers from one that does.
    let endpoint = bench.endpoint("bulk");
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        for (address, offset, length) in [
            (real.address + 4096, 0, 4096),
            (real.address, 8192, 1),
            (real.address, 4095, 2),
            (BUFFERS + (1 << 39), 0, 100),
            (u64::MAX - 4095, 0, 100),
            // The rings of the coprocessor lie there.
            (0, 0, 100),
            (0x1000, 1, 100),
        ] {
            let (kind, cookie, status) = (Kind::Given, 0xf0f0, 0);
            let forged = BufferMessage { kind, direction, cookie, address, offset, length, status };
            endpoint.send(&forged.encode()).unwrap();
            let refused = answer(&endpoint, cookie);
            assert_eq!(refused.length, 0, "{forged:?}");
            assert!(errno(refused.status).is_some(), "{forged:?}");
        }
    }
    endpoint.send(&BufferMessage { length: 0, ..real }.encode()).unwrap();
    bench.check();
}

#[test]
#[ignore = "needs the lab"]
fn bytes_are_those_that_were_given_at_any_offset_and_again_and_again() {
    let bench = Bench::new("bulk");
    let endpoint = bench.endpoint("bulk");
    let mut block = Block::new(1 << 20).unwrap();
    endpoint.attach(&block).unwrap();
    for (round, part) in [0..1, 4095..4097, 1..1 << 20, 0..1 << 20, 70_000..70_001, 4096..8192]
        .into_iter()
        .enumerate()
    {
        let expected: Vec<u8> = part.clone().map(|at| (at / 7 + round).to_le_bytes()[0]).collect();
        block.write().unwrap().bytes_mut().slice(part.clone()).copy_from(&expected);
        for direction in [Direction::ToRemote, Direction::FromRemote] {
            let cookie = endpoint.give(&mut block, part.clone(), direction).unwrap();
            let done = answer(&endpoint, cookie);
            assert_eq!((done.length, done.status), (part.len() as u64, 0));
            if direction == Direction::ToRemote {
                block.write().unwrap().bytes_mut().fill(0);
            }
        }
        let bytes = block.read().unwrap().bytes().to_vec();
        assert!(bytes[part.clone()] == expected, "{part:?}");
        let others = bytes[..part.start].iter().chain(&bytes[part.end..]);
        assert!(others.copied().all(|byte| byte == 0), "{part:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn delayed_answers_are_late_and_the_buffer_is_not_usable_before() {
    let bench = Bench::new("handover+delay=300");
    let endpoint = bench.endpoint("handover");
    let mut block = Block::new(4096).unwrap();
    endpoint.attach(&block).unwrap();
    let begun = Instant::now();
    let cookie = endpoint.give(&mut block, 0..4096, Direction::FromRemote).unwrap();
    assert!(!block.try_wait_filled().unwrap());
    assert!(block.wait_filled_timeout(PATIENCE).unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    assert_eq!(answer(&endpoint, cookie).status, 0);
}
