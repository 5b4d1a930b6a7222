//! One suite over both implementations of endpoints, on the real kernel.
//!
//! `cargo test -p busbar --all-features --test endpoint -- --ignored` in the lab; see `common` for
//! what it needs.

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busbar::endpoint::{ADDR_ANY, Controller, Endpoint, Implementation, MAX_MESSAGE, Messages};
use busbar_coprocessor::service::data;
use busbar_coprocessor::service::sink::{Answer, Query};
use busbar_coprocessor::service::source::{Outcome, Request, Summary};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};

use common::{
    Bench, MOMENT, PATIENCE, alone, child, descriptors, exchange, inherited, message, plays,
    succeed, take, wait_until,
};

/// Makes two tests of each function: over descriptors and over device nodes.
macro_rules! on_both {
    ($(fn $name:ident($bench:ident) $body:block)*) => {
        mod fd {
            use super::*;
            $(#[test]
            #[ignore = "needs the lab"]
            fn $name() { super::cases::$name(Bench::new(Implementation::Fd)) })*
        }
        mod node {
            use super::*;
            $(#[test]
            #[ignore = "needs the lab"]
            fn $name() { super::cases::$name(Bench::new(Implementation::Node)) })*
        }
        #[allow(clippy::needless_pass_by_value)]
        mod cases {
            use super::*;
            $(pub fn $name($bench: Bench) $body)*
        }
    };
}

/// The name of a case in the test harness.
fn test_name(bench: &Bench, case: &str) -> String {
    format!("{}::{case}", bench.implementation)
}

fn events(endpoint: &Endpoint, asked: PollFlags, timeout: Duration) -> PollFlags {
    let mut fds = [PollFd::new(endpoint, asked)];
    poll(&mut fds, Some(&Timespec::try_from(timeout).unwrap())).unwrap();
    fds[0].revents()
}

fn assert_gone<T: std::fmt::Debug>(result: busbar::Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    assert!(error.to_string().contains("the coprocessor stopped or crashed"), "{error}");
}

on_both! {
    fn messages_of_every_length_come_back_whole(bench) {
        let echo = bench.echo();
        assert_eq!(echo.implementation(), bench.implementation);
        for length in 1..=MAX_MESSAGE {
            let sent = message(length, 7);
            echo.send(&sent).unwrap();
            assert_eq!(take(&echo), sent, "{length} bytes");
        }
    }

    fn messages_keep_their_order_and_boundaries(bench) {
        let echo = bench.echo();
        let sent: Vec<_> = (0..100u8).map(|n| message(1 + usize::from(n) * 4, n)).collect();
        for one in &sent {
            echo.send(one).unwrap();
        }
        let received: Vec<_> = sent.iter().map(|_| take(&echo)).collect();
        assert_eq!(received, sent);
    }

    fn an_empty_message_is_a_message(bench) {
        let echo = bench.echo();
        echo.send(&[]).unwrap();
        assert_eq!(take(&echo), [0u8; 0]);
        assert!(echo.try_send(&[]).unwrap());
        echo.send(b"after").unwrap();
        assert_eq!(take(&echo), [0u8; 0]);
        assert_eq!(take(&echo), b"after");
    }

    fn a_message_too_long_is_refused_and_nothing_else(bench) {
        let echo = bench.echo();
        for length in [MAX_MESSAGE + 1, 4096, 65535, 65536, 16 << 20] {
            let long = vec![1; length];
            for error in [
                echo.send(&long).unwrap_err(),
                echo.try_send(&long).unwrap_err(),
                echo.send_timeout(&long, MOMENT).unwrap_err(),
            ] {
                assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{length}: {error}");
                assert!(error.to_string().contains("0 to 496 bytes"), "{error}");
            }
        }
        exchange(&echo, 1);
    }

    fn a_buffer_too_short_is_an_error_and_the_next_message_is_whole(bench) {
        let echo = bench.echo();
        for length in [10, 11, 12] {
            echo.send(&message(length, 1)).unwrap();
        }
        let mut buffer = [0; 10];
        assert_eq!(echo.recv(&mut buffer).unwrap(), 10);
        assert_eq!(buffer[..], message(10, 1));
        let error = echo.recv(&mut buffer).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{error}");
        wait_until("the third message", || {
            !events(&echo, PollFlags::IN, Duration::ZERO).is_empty()
        });
        let error = echo.try_recv(&mut buffer).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{error}");
        let error = echo.recv(&mut []).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        exchange(&echo, 2);
    }

    fn two_endpoints_get_their_own_messages(bench) {
        let (one, two) = (bench.echo(), bench.echo());
        for seed in 0..20 {
            one.send(&message(100, seed)).unwrap();
            two.send(&message(100, seed + 100)).unwrap();
        }
        for seed in 0..20 {
            assert_eq!(take(&one), message(100, seed));
            assert_eq!(take(&two), message(100, seed + 100));
        }
    }

    fn an_address_in_use_is_refused_and_nothing_is_left(bench) {
        let name = "in-use";
        let make = |name| bench.builder(name, "echo").source(0x7001).create();
        let first = make("first").unwrap();
        let error = make(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        assert_eq!(bench.nodes(name), [""; 0]);
        exchange(&first, 1);
        drop(first);
        // A process that another test is just starting may have a copy of the descriptor for now.
        wait_until("a free address", || match make(name) {
            Ok(again) => {
                exchange(&again, 2);
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
                false
            }
        });
    }

    fn the_address_of_the_name_service_is_in_use(bench) {
        let error = bench.builder("ns", "echo").source(53).create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        assert_eq!(bench.nodes("ns"), [""; 0]);
    }

    fn a_chosen_source_is_where_replies_go(bench) {
        let echo = bench.builder("chosen", "echo").source(0x7002).create().unwrap();
        exchange(&echo, 3);
        // A second endpoint of any name sends from another address and receives nothing of this.
        let other = bench.echo();
        echo.send(b"to 0x7002").unwrap();
        assert_eq!(take(&echo), b"to 0x7002");
        assert_eq!(other.try_recv(&mut [0; MAX_MESSAGE]).unwrap(), None);
    }

    fn nothing_to_receive_is_told_at_once(bench) {
        let echo = bench.echo();
        let mut buffer = [0; MAX_MESSAGE];
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(echo.try_recv(&mut buffer).unwrap(), None);
            assert_eq!(echo.try_recv(&mut buffer[..10]).unwrap(), None);
        }
        assert!(begun.elapsed() < PATIENCE);
        assert_eq!(echo.recv_timeout(&mut buffer, Duration::ZERO).unwrap(), None);
    }

    fn a_timeout_ends_the_wait_and_not_before(bench) {
        let echo = bench.echo();
        let begun = Instant::now();
        assert_eq!(echo.recv_timeout(&mut [0; MAX_MESSAGE], MOMENT).unwrap(), None);
        assert!(begun.elapsed() >= MOMENT);
        exchange(&echo, 1);
    }

    fn a_timeout_beyond_all_clocks_still_takes_the_message(bench) {
        let echo = bench.echo();
        assert!(echo.send_timeout(b"soon", Duration::MAX).unwrap());
        let mut buffer = [0; MAX_MESSAGE];
        assert_eq!(echo.recv_timeout(&mut buffer, Duration::MAX).unwrap(), Some(4));
    }

    fn a_message_ends_the_wait_for_it(bench) {
        let source = bench.endpoint("source");
        // The first of two messages comes at once, the other one after half a second.
        source.send(&Request { token: 1, count: 2, size: 100, rate: 2 }.encode()).unwrap();
        for sequence in 0..2 {
            let mut buffer = [0; MAX_MESSAGE];
            let length = source.recv(&mut buffer).unwrap();
            assert_eq!(data::Data::decode(&buffer[..length]).unwrap().sequence, sequence);
        }
        assert_eq!(Summary::decode(&take(&source)).unwrap().outcome, Outcome::Done);
    }

    fn what_was_accepted_arrives_once_and_in_order(bench) {
        let sink = bench.endpoint("sink");
        let mut buffer = [0; 200];
        let count = 5000;
        for sequence in 0..count {
            data::fill(sequence, &mut buffer).unwrap();
            match sequence % 3 {
                0 => sink.send(&buffer).unwrap(),
                1 => assert!(sink.send_timeout(&buffer, PATIENCE).unwrap()),
                _ => wait_until("a free buffer", || sink.try_send(&buffer).unwrap()),
            }
        }
        sink.send(&Query { token: 9, reset: true }.encode()).unwrap();
        let answer = Answer::decode(&take(&sink)).unwrap();
        assert!(answer.counts.is_complete(u64::from(count)), "{answer:?}");
    }

    fn many_messages_by_one_call_arrive_once_and_in_order(bench) {
        let echo = bench.echo();
        let sent: Vec<_> =
            (0..200u8).map(|seed| message(usize::from(seed) * 31 % (MAX_MESSAGE + 1), seed)).collect();
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(echo.send_many(&sent).unwrap(), sent.len()));
            let mut messages = Messages::new(48).unwrap();
            let mut received = Vec::new();
            while received.len() < sent.len() {
                let count = echo.recv_many(&mut messages).unwrap();
                assert!((1..=48).contains(&count));
                assert_eq!(count, messages.len());
                received.extend(messages.iter().map(<[u8]>::to_vec));
            }
            assert_eq!(received, sent);
            assert_eq!(echo.try_recv_many(&mut messages).unwrap(), 0);
            assert!(messages.is_empty());
        });
        assert_eq!(echo.send_many::<&[u8]>(&[]).unwrap(), 0);
    }

    fn many_messages_go_up_to_one_that_fails(bench) {
        let echo = bench.echo();
        let long = vec![1; MAX_MESSAGE + 1];
        let messages = [&b"one"[..], b"two", &long, b"four"];
        assert_eq!(echo.send_many(&messages).unwrap(), 2);
        assert_eq!(echo.try_send_many(&messages[..2]).unwrap(), 2);
        for error in [
            echo.send_many(&messages[2..]).unwrap_err(),
            echo.try_send_many(&messages[2..]).unwrap_err(),
        ] {
            assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{error}");
        }
        for sent in [b"one", b"two", b"one", b"two"] {
            assert_eq!(take(&echo), sent);
        }
        let none = bench.builder("none", "echo").destination(ADDR_ANY).create().unwrap();
        assert_eq!(none.send_many(&[b"x"]).unwrap_err().errno(), Some(Errno::INVAL));
    }

    fn many_messages_are_received_up_to_one_that_is_too_long(bench) {
        let echo = bench.echo();
        echo.send_many(&[&[1; 8][..], &[2; 8], &[3; 9], &[4; 8]]).unwrap();
        let mut messages = Messages::with_size(16, 8).unwrap();
        let mut received = Vec::new();
        let error = loop {
            match echo.recv_many(&mut messages) {
                Ok(_) => received.extend(messages.iter().map(|message| message[0])),
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Some(Errno::MSGSIZE), "{error}");
        assert_eq!(received, [1, 2]);
        assert_eq!(echo.recv_many(&mut messages).unwrap(), 1);
        assert_eq!(messages.get(0), Some(&[4; 8][..]));
        assert_eq!(messages.get(1), None);
    }

    fn many_messages_wait_for_a_first_one_and_end_with_the_endpoint(bench) {
        let source = bench.endpoint("source");
        source.send(&Request { token: 1, count: 2, size: 100, rate: 2 }.encode()).unwrap();
        let mut messages = Messages::new(64).unwrap();
        assert_eq!(source.recv_many(&mut messages).unwrap(), 1);
        // The second message comes half a second later, the summary behind it.
        let mut left = 2;
        while left > 0 {
            left -= source.recv_many(&mut messages).unwrap();
        }
        thread::scope(|scope| {
            let echo = bench.echo();
            let reader = scope.spawn({
                let echo = Endpoint::from(echo.as_fd().try_clone_to_owned().unwrap());
                move || echo.recv_many(&mut Messages::new(4).unwrap())
            });
            thread::sleep(MOMENT);
            assert!(!reader.is_finished());
            echo.destroy().unwrap();
            assert_gone(reader.join().unwrap());
            assert_gone(echo.send_many(&[b"x"]));
            assert_gone(echo.try_send_many(&[b"x"]));
            assert_gone(echo.try_recv_many(&mut messages));
        });
    }

    fn senders_in_many_threads_share_an_endpoint(bench) {
        let sink = bench.endpoint("sink");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|n| sink.send(&message(n % 400, 1)).unwrap()));
            }
        });
        sink.send(&Query { token: 9, reset: true }.encode()).unwrap();
        let answer = Answer::decode(&take(&sink)).unwrap();
        assert_eq!(answer.counts.messages, 2000);
    }

    fn receivers_in_many_threads_share_the_messages(bench) {
        let source = bench.endpoint("source");
        source.send(&Request { token: 1, count: 1000, size: 64, rate: 0 }.encode()).unwrap();
        let receive = || {
            let mut buffer = [0; MAX_MESSAGE];
            let mut sequences = Vec::new();
            while let Some(length) = source.recv_timeout(&mut buffer, MOMENT * 20).unwrap() {
                if let Ok(data) = data::Data::decode(&buffer[..length]) {
                    sequences.push(data.sequence);
                }
            }
            sequences
        };
        let all: Vec<_> = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(receive));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(all.len(), 1000);
        assert_eq!(all.into_iter().collect::<HashSet<_>>(), (0..1000).collect());
    }

    fn poll_tells_when_a_message_waits(bench) {
        let echo = bench.echo();
        assert_eq!(events(&echo, PollFlags::IN, MOMENT), PollFlags::empty());
        echo.send(b"wake").unwrap();
        assert_eq!(events(&echo, PollFlags::IN, PATIENCE), PollFlags::IN);
        take(&echo);
        assert_eq!(events(&echo, PollFlags::IN, Duration::ZERO), PollFlags::empty());
    }

    fn epoll_tells_when_a_message_waits(bench) {
        let echo = bench.echo();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &echo, epoll::EventData::new_u64(5), flags).unwrap();
        let wait = |timeout: Duration| {
            let mut list = Vec::with_capacity(4);
            let timeout = Timespec::try_from(timeout).unwrap();
            epoll::wait(&set, rustix::buffer::spare_capacity(&mut list), Some(&timeout)).unwrap();
            list.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(wait(MOMENT), [0u64; 0]);
        for _ in 0..3 {
            echo.send(b"edge").unwrap();
            assert_eq!(wait(PATIENCE), [5]);
            take(&echo);
        }
        echo.destroy().unwrap();
        assert_eq!(wait(PATIENCE), [5]);
    }

    fn destroyed_endpoints_are_a_broken_pipe(bench) {
        let echo = bench.echo();
        exchange(&echo, 1);
        echo.destroy().unwrap();
        let mut buffer = [0; MAX_MESSAGE];
        assert_gone(echo.send(b"x"));
        assert_gone(echo.try_send(b"x"));
        assert_gone(echo.send_timeout(b"x", MOMENT));
        assert_gone(echo.recv(&mut buffer));
        assert_gone(echo.recv(&mut buffer[..10]));
        assert_gone(echo.try_recv(&mut buffer));
        assert_gone(echo.recv_timeout(&mut buffer, MOMENT));
        assert_gone(echo.set_paused(true));
        assert!(events(&echo, PollFlags::IN, Duration::ZERO).contains(PollFlags::ERR));
        assert!(echo.destroy().is_ok(), "once more does no harm");
    }

    fn destroying_wakes_a_blocked_reader(bench) {
        let echo = bench.echo();
        thread::scope(|scope| {
            let reader = scope.spawn(|| echo.recv(&mut [0; MAX_MESSAGE]));
            thread::sleep(MOMENT);
            assert!(!reader.is_finished());
            echo.destroy().unwrap();
            assert_gone(reader.join().unwrap());
        });
    }

    fn endpoints_outlive_their_controller(bench) {
        let controller = Controller::open(&bench.path).unwrap();
        let address = controller.find("echo").unwrap().destination;
        let echo = controller
            .endpoint("orphan")
            .destination(address)
            .implementation(bench.implementation)
            .create()
            .unwrap();
        drop(controller);
        exchange(&echo, 1);
        drop(echo);
        assert_eq!(bench.nodes("orphan"), [""; 0]);
    }

    fn many_endpoints_live_at_once(bench) {
        let name = "many";
        let all: Vec<_> =
            (0..200).map(|_| bench.builder(name, "echo").create().unwrap()).collect();
        for (endpoint, seed) in all.iter().zip((0..=u8::MAX).cycle()) {
            endpoint.send(&message(30, seed)).unwrap();
        }
        for (endpoint, seed) in all.iter().zip((0..=u8::MAX).cycle()) {
            assert_eq!(take(endpoint), message(30, seed));
        }
        let nodes = if bench.implementation == Implementation::Node { 200 } else { 0 };
        assert_eq!(bench.nodes(name).len(), nodes);
        drop(all);
        assert_eq!(bench.nodes(name), [""; 0]);
    }

    fn no_descriptor_stays_open(bench) {
        alone(&test_name(&bench, "no_descriptor_stays_open"), || {
            // The first use may open something for good.
            exchange(&bench.echo(), 1);
            let before = descriptors();
            for seed in 0..20 {
                exchange(&bench.echo(), seed);
                assert!(bench.builder("x", "echo").source(53).create().is_err());
                assert!(bench.builder("", "echo").create().is_err());
                let (here, there) = UnixStream::pair().unwrap();
                bench.echo().send_to_process(&here).unwrap();
                exchange(&Endpoint::receive_from_process(&there).unwrap(), seed);
                bench.echo().destroy().unwrap();
            }
            assert_eq!(descriptors(), before);
            assert_eq!(bench.nodes("x"), [""; 0]);
        });
    }

    fn without_a_descriptor_left_nothing_is_made(bench) {
        alone(&test_name(&bench, "without_a_descriptor_left_nothing_is_made"), || {
            exchange(&bench.echo(), 1);
            let address = bench.address("echo");
            let maximum = getrlimit(Resource::Nofile);
            // A copy gets the lowest number that is free.
            let free = inherited().as_raw_fd().cast_unsigned();
            for left in 0..8 {
                let mut limit = maximum;
                limit.current = Some(u64::from(free + left));
                setrlimit(Resource::Nofile, limit).unwrap();
                let made = bench.controller.endpoint("poor").destination(address)
                    .implementation(bench.implementation).create();
                setrlimit(Resource::Nofile, maximum).unwrap();
                match made {
                    Ok(endpoint) => exchange(&endpoint, 2),
                    Err(error) => assert_eq!(error.errno(), Some(Errno::MFILE), "{error}"),
                }
                assert_eq!(bench.nodes("poor"), [""; 0], "{left} left");
            }
            exchange(&bench.echo(), 3);
        });
    }

    fn threads_make_endpoints_of_one_name_at_once(bench) {
        let name = "same";
        thread::scope(|scope| {
            for thread in 0..4u8 {
                let bench = &bench;
                scope.spawn(move || {
                    let controller = Controller::open(&bench.path).unwrap();
                    // Half of them share a control device file, half have their own.
                    let controller = if thread < 2 { &bench.controller } else { &controller };
                    let address = controller.find("echo").unwrap().destination;
                    for seed in 0..10 {
                        let endpoint = controller
                            .endpoint(name)
                            .destination(address)
                            .implementation(bench.implementation)
                            .timeout(PATIENCE)
                            .create()
                            .unwrap();
                        exchange(&endpoint, thread * 50 + seed);
                    }
                });
            }
        });
        assert_eq!(bench.nodes(name), [""; 0]);
    }

    fn processes_make_endpoints_of_one_name_at_once(bench) {
        let test = test_name(&bench, "processes_make_endpoints_of_one_name_at_once");
        let name = "same-process";
        if plays("maker") {
            // All share the file of the control device that they have inherited.
            let controller = Controller::from(inherited());
            for seed in 0..10 {
                let address = controller.find("echo").unwrap().destination;
                let endpoint = controller.endpoint(name).destination(address)
                    .implementation(bench.implementation).timeout(PATIENCE).create().unwrap();
                exchange(&endpoint, seed);
            }
            return;
        }
        let makers = [(); 3].map(|()| {
            let control = bench.controller.as_fd().try_clone_to_owned().unwrap();
            child(&test, "maker").stdin(control).spawn().unwrap()
        });
        makers.into_iter().for_each(succeed);
        assert_eq!(bench.nodes(name), [""; 0]);
    }

    fn another_process_uses_an_inherited_endpoint(bench) {
        let test = test_name(&bench, "another_process_uses_an_inherited_endpoint");
        if plays("heir") {
            let echo = Endpoint::from(inherited());
            assert_eq!(echo.implementation(), bench.implementation);
            exchange(&echo, 8);
            assert!(echo.try_send(b"try").unwrap());
            assert_eq!(take(&echo), b"try");
            assert_eq!(echo.try_recv(&mut [0; 10]).unwrap(), None);
            return;
        }
        let echo = bench.builder("inherited", "echo").create().unwrap();
        let copy = echo.as_fd().try_clone_to_owned().unwrap();
        succeed(child(&test, "heir").stdin(copy).spawn().unwrap());
        // The end of the other process does not affect ours.
        exchange(&echo, 9);
        drop(echo);
        assert_eq!(bench.nodes("inherited"), [""; 0]);
    }

    fn an_endpoint_passed_on_is_the_others(bench) {
        let test = test_name(&bench, "an_endpoint_passed_on_is_the_others");
        if plays("receiver") {
            let socket = UnixStream::from(inherited());
            let echo = Endpoint::receive_from_process(&socket).unwrap();
            assert_eq!(echo.implementation(), bench.implementation);
            exchange(&echo, 4);
            return;
        }
        let echo = bench.builder("passed", "echo").create().unwrap();
        exchange(&echo, 3);
        let (here, there) = UnixStream::pair().unwrap();
        let receiver = child(&test, "receiver").stdin(OwnedFd::from(there)).spawn().unwrap();
        echo.send_to_process(&here).unwrap();
        succeed(receiver);
        assert_eq!(bench.nodes("passed"), [""; 0]);
    }

    fn an_endpoint_comes_back_from_another_process(bench) {
        let test = test_name(&bench, "an_endpoint_comes_back_from_another_process");
        if plays("maker") {
            let echo = bench.builder("made-there", "echo").create().unwrap();
            echo.send(b"from there").unwrap();
            echo.send_to_process(&UnixStream::from(inherited())).unwrap();
            return;
        }
        let (here, there) = UnixStream::pair().unwrap();
        let maker = child(&test, "maker").stdin(OwnedFd::from(there)).spawn().unwrap();
        let echo = Endpoint::receive_from_process(&here).unwrap();
        succeed(maker);
        assert_eq!(take(&echo), b"from there");
        exchange(&echo, 5);
        drop(echo);
        assert_eq!(bench.nodes("made-there"), [""; 0]);
    }

    fn the_mode_of_the_file_is_what_was_asked_for_and_stays(bench) {
        let mode = |endpoint: &Endpoint| fcntl_getfl(endpoint).unwrap().contains(OFlags::NONBLOCK);
        let always = bench.implementation == Implementation::Node;
        for nonblocking in [false, true] {
            let echo = bench.builder("mode", "echo").nonblocking(nonblocking).create().unwrap();
            assert_eq!(mode(&echo), nonblocking || always);
            assert_eq!(echo.try_recv(&mut [0; MAX_MESSAGE]).unwrap(), None);
            assert!(echo.try_send(b"1").unwrap());
            assert_eq!(take(&echo), b"1");
            echo.send(b"2").unwrap();
            // This waits in any mode.
            let mut buffer = [0; MAX_MESSAGE];
            assert_eq!(echo.recv(&mut buffer).unwrap(), 1);
            assert_eq!(mode(&echo), nonblocking || always);
        }
    }

    fn descriptors_are_closed_on_exec(bench) {
        let flags = rustix::io::fcntl_getfd(bench.echo()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    fn names_of_up_to_31_bytes_work(bench) {
        for name in ["a", "käse und brot", "1234567890123456789012345678901", "with.dots-1.2"] {
            let endpoint = bench.builder(name, "echo").create().unwrap();
            exchange(&endpoint, 1);
            drop(endpoint);
            assert_eq!(bench.nodes(name), [""; 0]);
        }
    }

    fn the_name_alone_leads_to_the_service(bench) {
        let make = bench.controller.endpoint("echo").implementation(bench.implementation);
        exchange(&make.create().unwrap(), 1);
        let make = bench.controller.endpoint("nowhere").implementation(bench.implementation);
        let error = make.create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("has announced echo, sink, source"), "{error}");
    }

    fn an_endpoint_without_destination_only_receives(bench) {
        let name = "listen";
        let make = bench.controller.endpoint(name).destination(ADDR_ANY).source(0x7003);
        let endpoint = make.implementation(bench.implementation).create().unwrap();
        let error = endpoint.send(b"where to?").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL));
        assert!(error.to_string().contains("can only receive"), "{error}");
        assert_eq!(endpoint.try_recv(&mut [0; MAX_MESSAGE]).unwrap(), None);
    }

    fn the_virtio_bus_has_no_flow_control_and_says_so(bench) {
        let echo = bench.echo();
        let error = echo.set_paused(true).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::OPNOTSUPP), "{error}");
        assert!(!echo.paused_by_remote().unwrap());
    }
}

mod controllers {
    use super::*;

    #[test]
    #[ignore = "needs the lab"]
    fn each_says_what_it_can_do_and_auto_does_it() {
        for (implementation, expected) in
            [(Implementation::Fd, true), (Implementation::Node, false)]
        {
            let bench = Bench::new(implementation);
            assert_eq!(bench.controller.supports_fd().unwrap(), expected);
            assert_eq!(bench.controller.supports_fd().unwrap(), expected, "once more");
            let auto = bench.controller.endpoint("echo").create().unwrap();
            assert_eq!(auto.implementation(), implementation);
            exchange(&auto, 1);
        }
    }

    #[test]
    #[ignore = "needs the lab"]
    fn descriptors_on_the_in_tree_driver_are_refused_with_advice() {
        let bench = Bench::new(Implementation::Node);
        let make = bench.controller.endpoint("echo").implementation(Implementation::Fd);
        let error = make.create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("rpmsg_eptfd"), "{error}");
    }

    #[test]
    #[ignore = "needs the lab"]
    fn device_nodes_work_on_our_driver_too() {
        let bench = Bench::new(Implementation::Fd);
        let make = bench.controller.endpoint("echo").implementation(Implementation::Node);
        let echo = make.create().unwrap();
        assert_eq!(echo.implementation(), Implementation::Node);
        exchange(&echo, 1);
    }

    #[test]
    #[ignore = "needs the lab"]
    fn the_list_has_both_with_their_services() {
        let all = Controller::list().unwrap();
        for implementation in [Implementation::Fd, Implementation::Node] {
            let bench = Bench::new(implementation);
            let one = all.iter().find(|one| one.path == std::path::Path::new(&bench.path)).unwrap();
            assert_eq!(one.remoteproc.as_ref().unwrap().state, "running");
            let names: Vec<_> = one.channels.iter().map(|it| it.name.as_str()).collect();
            assert!(["echo", "sink", "source"].iter().all(|it| names.contains(it)), "{names:?}");
            assert!(one.driver.is_some());
        }
    }
}

mod only_descriptors {
    use super::*;

    /// The other process sees neither `/dev` nor `/sys`.
    #[test]
    #[ignore = "needs the lab"]
    fn an_inherited_controller_is_enough() {
        if plays("contained") {
            let path = std::env::var("BUSBAR_TEST_CTRL_FD").unwrap();
            assert!(!fs::exists(path).unwrap() && !fs::exists("/sys/class").unwrap());
            let controller = Controller::from(inherited());
            let address = std::env::var("BUSBAR_TEST_ADDRESS").unwrap().parse().unwrap();
            let echo = controller.endpoint("contained").destination(address).create().unwrap();
            exchange(&echo, 6);
            let error = controller.endpoint("echo").create().unwrap_err();
            assert!(error.to_string().contains("give the destination address"), "{error}");
            return;
        }
        let bench = Bench::new(Implementation::Fd);
        let test = child("only_descriptors::an_inherited_controller_is_enough", "contained");
        let hide = "mount -t tmpfs none /sys && mount -t tmpfs none /dev && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", hide]).arg(test.get_program()).args(test.get_args());
        for (name, value) in test.get_envs() {
            command.env(name, value.unwrap());
        }
        let control = bench.controller.as_fd().try_clone_to_owned().unwrap();
        command.env("BUSBAR_TEST_ADDRESS", bench.address("echo").to_string());
        succeed(command.stdin(control).stdout(Stdio::null()).spawn().unwrap());
    }

    /// A reader that is too slow gets one error, and can continue.
    #[test]
    #[ignore = "needs the lab"]
    fn lost_messages_are_told() {
        let bench = Bench::new(Implementation::Fd);
        let limit = "/sys/module/rpmsg_eptfd/parameters/rx_limit";
        let usual = fs::read_to_string(limit).unwrap();
        fs::write(limit, "65536").unwrap();
        let source = bench.endpoint("source");
        source.send(&Request { token: 1, count: 1000, size: 400, rate: 0 }.encode()).unwrap();
        // The summary is sent last; it may be lost too.
        thread::sleep(MOMENT * 40);
        let mut buffer = [0; MAX_MESSAGE];
        let error = source.recv(&mut buffer).unwrap_err();
        fs::write(limit, usual.trim()).unwrap();
        assert_eq!(error.errno(), Some(Errno::NOBUFS), "{error}");
        assert!(error.to_string().contains("messages were lost"), "{error}");
        let mut received = 0;
        while source.try_recv(&mut buffer).unwrap().is_some() {
            received += 1;
        }
        assert!((1..1000).contains(&received), "{received}");
        source.send(&Request { token: 2, count: 1, size: 40, rate: 0 }.encode()).unwrap();
        assert!(source.recv_timeout(&mut buffer, PATIENCE).unwrap().is_some());
    }
}

mod only_nodes {
    use busbar_uapi::rpmsg::{self, EndpointInfo};

    use super::*;

    fn open(node: &str) -> rustix::io::Result<OwnedFd> {
        rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty())
    }

    fn make(bench: &Bench, name: &str) {
        let mut info =
            EndpointInfo { src: ADDR_ANY, dst: bench.address("echo"), ..Default::default() };
        info.name[..name.len()].copy_from_slice(name.as_bytes());
        rpmsg::create_ept(&bench.controller, info).unwrap();
    }

    /// Excludes all other tests, because numbers of nodes are used again.
    #[test]
    #[ignore = "needs the lab"]
    fn the_file_of_a_node_goes_with_the_endpoint() {
        let (_guard, bench) = Bench::exclusive(Implementation::Node);
        let name = "left";
        for seed in 0..5 {
            let endpoint = bench.builder(name, "echo").create().unwrap();
            exchange(&endpoint, seed);
            let nodes = bench.nodes(name);
            assert!(nodes.len() == 1 && fs::exists(&nodes[0]).unwrap(), "{nodes:?}");
            drop(endpoint);
            assert_eq!(bench.nodes(name), [""; 0]);
            assert!(!fs::exists(&nodes[0]).unwrap(), "{nodes:?}");
        }
    }

    /// Another process has made a node to open it later.
    #[test]
    #[ignore = "needs the lab"]
    fn a_node_that_was_there_before_is_left_alone() {
        let bench = Bench::new(Implementation::Node);
        let name = "foreign";
        make(&bench, name);
        let foreign = bench.nodes(name);
        assert_eq!(foreign.len(), 1);
        let ours = bench.builder(name, "echo").create().unwrap();
        exchange(&ours, 1);
        assert_eq!(bench.nodes(name).len(), 2);
        drop(ours);
        assert_eq!(bench.nodes(name), foreign);
        let fd = open(&foreign[0]).unwrap();
        rpmsg::destroy_ept(&fd).unwrap();
        assert_eq!(bench.nodes(name), [""; 0]);
    }

    /// Device files that udev does not make in time.
    #[test]
    #[ignore = "needs the lab"]
    fn a_node_without_a_file_is_waited_for_until_the_deadline() {
        let name = "no-file";
        if plays("blind") {
            let controller = Controller::from(inherited());
            let address = controller.find("echo").unwrap().destination;
            let deadline = MOMENT * 4;
            let begun = Instant::now();
            let make = controller.endpoint(name).destination(address);
            let make = make.implementation(Implementation::Node).timeout(deadline);
            let error = make.create().unwrap_err();
            assert!(begun.elapsed() >= deadline && begun.elapsed() < PATIENCE);
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("/dev/rpmsg"), "{error}");
            return;
        }
        // No other process makes nodes meanwhile.
        let (_guard, bench) = Bench::exclusive(Implementation::Node);
        let test = "only_nodes::a_node_without_a_file_is_waited_for_until_the_deadline";
        let test = child(test, "blind");
        let hide = "mount -t tmpfs none /dev && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", hide]).arg(test.get_program()).args(test.get_args());
        for (name, value) in test.get_envs() {
            command.env(name, value.unwrap());
        }
        let control = bench.controller.as_fd().try_clone_to_owned().unwrap();
        succeed(command.stdin(control).stdout(Stdio::null()).spawn().unwrap());
        // As the error says, the node is left: without a file it cannot be destroyed.
        let left = bench.nodes(name);
        assert_eq!(left.len(), 1);
        rpmsg::destroy_ept(open(&left[0]).unwrap()).unwrap();
    }

    /// A node in blocking mode that this library has not opened.
    #[test]
    #[ignore = "needs the lab"]
    fn a_blocking_node_from_elsewhere_receives_without_waiting() {
        let bench = Bench::new(Implementation::Node);
        let name = "blocking";
        make(&bench, name);
        let echo = Endpoint::from(open(&bench.nodes(name)[0]).unwrap());
        let mut buffer = [0; MAX_MESSAGE];
        assert_eq!(echo.try_recv(&mut buffer).unwrap(), None);
        assert_eq!(echo.recv_timeout(&mut buffer, MOMENT).unwrap(), None);
        echo.send(b"waits").unwrap();
        assert_eq!(echo.recv(&mut buffer).unwrap(), 5);
        let error = echo.try_send(b"may wait").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::OPNOTSUPP), "{error}");
        echo.destroy().unwrap();
        drop(echo);
        assert_eq!(bench.nodes(name), [""; 0]);
    }
}

#[cfg(feature = "tokio")]
mod tokio_runtime {
    use busbar::endpoint::AsyncEndpoint;

    use super::*;

    /// Works without the timer of the runtime.
    fn run(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(future);
    }

    fn endpoint(implementation: Implementation, service: &str) -> (Bench, AsyncEndpoint) {
        let bench = Bench::new(implementation);
        let endpoint = AsyncEndpoint::new(bench.endpoint(service)).unwrap();
        (bench, endpoint)
    }

    macro_rules! on_both {
        ($(fn $name:ident($implementation:ident) $body:block)*) => {$(
            mod $name {
                use super::*;
                fn case($implementation: Implementation) $body
                #[test]
                #[ignore = "needs the lab"]
                fn fd() { case(Implementation::Fd) }
                #[test]
                #[ignore = "needs the lab"]
                fn node() { case(Implementation::Node) }
            }
        )*};
    }

    on_both! {
        fn messages_come_back(implementation) {
            run(async {
                let (_bench, echo) = endpoint(implementation, "echo");
                let mut buffer = [0; MAX_MESSAGE];
                for seed in 0..100 {
                    echo.send(&message(50, seed)).await.unwrap();
                    let length = echo.recv(&mut buffer).await.unwrap();
                    assert_eq!(buffer[..length], message(50, seed));
                }
            });
        }

        fn many_senders_and_one_receiver_share_an_endpoint(implementation) {
            run(async {
                let (_bench, echo) = endpoint(implementation, "echo");
                let send = async |seed| for _ in 0..500 {
                    echo.send(&message(50, seed)).await.unwrap();
                };
                let receive = async {
                    let mut buffer = [0; MAX_MESSAGE];
                    for _ in 0..1000 {
                        assert_eq!(echo.recv(&mut buffer).await.unwrap(), 50);
                    }
                };
                tokio::join!(send(1), send(2), receive);
            });
        }

        fn a_full_ring_is_waited_for(implementation) {
            run(async {
                let (_bench, sink) = endpoint(implementation, "sink");
                let mut buffer = [0; MAX_MESSAGE];
                for sequence in 0..5000 {
                    data::fill(sequence, &mut buffer).unwrap();
                    sink.send(&buffer).await.unwrap();
                }
                sink.send(&Query { token: 9, reset: true }.encode()).await.unwrap();
                let length = sink.recv(&mut buffer).await.unwrap();
                let answer = Answer::decode(&buffer[..length]).unwrap();
                assert!(answer.counts.is_complete(5000), "{answer:?}");
            });
        }

        fn destroying_wakes_a_waiting_receiver(implementation) {
            run(async {
                let (_bench, echo) = endpoint(implementation, "echo");
                let mut buffer = [0; MAX_MESSAGE];
                let destroy = async { echo.get_ref().destroy().unwrap() };
                let (received, ()) = tokio::join!(echo.recv(&mut buffer), destroy);
                assert_gone(received);
                assert_gone(echo.send(b"x").await);
            });
        }

        fn an_endpoint_comes_back_from_the_runtime(implementation) {
            run(async {
                let (_bench, echo) = endpoint(implementation, "echo");
                echo.send(b"there").await.unwrap();
                let echo = echo.into_inner();
                assert_eq!(take(&echo), b"there");
                exchange(&echo, 1);
            });
        }
    }
}
