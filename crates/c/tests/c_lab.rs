//! C programs use a converter, a coprocessor and a NIC, in the lab.

#[path = "../../busbar/tests/pair/mod.rs"]
mod pair;
mod tools;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;

use busbar_lab::stage::{self, Driver, Side};
use pair::{PATIENCE, Pair, Place};
use tools::{Way, built, built_soapy, folder, run, soapy};

fn busbar() -> PathBuf {
    let built = folder().join("../../target/release/busbar");
    std::env::var_os("BUSBAR_PROGRAM").map_or(built, PathBuf::from)
}

/// Run on the host before, this saves time in the lab.
#[test]
fn programs_compile() {
    for name in ["converter", "coprocessor", "receive"] {
        for way in Way::ALL {
            built(name, way);
        }
    }
    built_soapy(Way::Plain);
}

#[test]
#[ignore = "needs the lab"]
fn a_converter_fills_and_sends_blocks_in_place() {
    stage::load_converter().unwrap();
    for way in Way::ALL {
        assert!(run(&mut way.command(&built("converter", way))).ends_with("done\n"));
    }
}

#[test]
#[ignore = "needs the lab"]
fn soapysdr_uses_a_converter() {
    stage::load_converter().unwrap();
    let place = soapy(Way::Plain);
    let mut command = Way::Plain.command(&place.join("converter"));
    assert!(run(command.env("SOAPY_SDR_PLUGIN_PATH", &place)).ends_with("done\n"));
}

#[test]
#[ignore = "needs the lab"]
fn a_coprocessor_answers_and_takes_blocks() {
    // The library does the same with both drivers, but for how it makes endpoints: the slowest way needs one of them.
    let drivers = [
        (0, Driver::Eptfd, "fd", &Way::ALL[..]),
        (1, Driver::InTree, "node", &[Way::Plain, Way::Sanitizer]),
    ];
    for (index, driver, name, ways) in drivers {
        let side = Side::up(index, driver, &busbar(), &["echo", "bulk"]).unwrap();
        for way in ways {
            let mut command = way.command(&built("coprocessor", *way));
            assert!(run(command.arg(side.controller()).arg(name)).ends_with("done\n"), "{name}");
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_nic_receives_into_a_block() {
    let pair = Pair::new();
    for (way, port) in Way::ALL.into_iter().zip(5301..) {
        let address = format!("{}:{port}", pair.address());
        let mut receiver = way
            .command(&built("receive", way))
            .args([pair::DEVICE, &address])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(receiver.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "listening");
        pair.far(|| {
            let mut sender =
                TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE).unwrap();
            sender.write_all(&vec![7; 1 << 20]).unwrap();
        });
        let rest: Vec<_> = said.map(|line| line.unwrap()).collect();
        assert!(receiver.wait().unwrap().success(), "{rest:?}");
        assert!(rest[0].starts_with("1048576 bytes, ") && rest[1] == "done", "{rest:?}");
    }
}
