//! C programs use the library: plainly, under `AddressSanitizer` and under valgrind.

mod tools;

use std::process::Command;

use tools::{Way, build, run, served};

fn works(name: &str, way: Way) {
    let scratch = tempfile::tempdir().unwrap();
    let program = build(name, way, scratch.path());
    let mut command = way.command(&program);
    let ends = |command: &mut Command| {
        assert!(run(command).ends_with("done\n"), "{name}");
    };
    match name {
        "context" => served(|address| ends(command.arg(address))),
        "ends" | "pipeline" => ends(command.arg(scratch.path())),
        _ => ends(&mut command),
    }
}

macro_rules! programs {
    ($($name:ident)*) => {$(
        mod $name {
            use super::{Way, works};

            #[test]
            fn works_alone() {
                works(stringify!($name), Way::Plain);
            }

            #[test]
            fn works_under_address_sanitizer() {
                works(stringify!($name), Way::Sanitizer);
            }

            #[test]
            fn works_under_valgrind() {
                works(stringify!($name), Way::Valgrind);
            }
        }
    )*};
}

/// Those that need the lab to run.
#[test]
fn programs_of_the_lab_compile() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["converter", "coprocessor"] {
        build(name, Way::Plain, scratch.path());
    }
}

programs!(block closes connect context endpoint ends errors pipeline receive stream);
