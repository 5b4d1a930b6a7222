//! Builds a kernel like `busbar lab build`; `demo/run` uses it while the command is still being compiled.
//!
//! Usage: `busbar-lab-build [--stock]`

use std::process::ExitCode;

use busbar_lab::{Flavour, Lab, Variant};

fn main() -> ExitCode {
    let stock = std::env::args().nth(1).is_some_and(|word| word == "--stock");
    let flavour = if stock { Flavour::Stock } else { Flavour::Release };
    match Lab::open().and_then(|lab| lab.build(Variant::own(flavour))) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("busbar: {error}");
            ExitCode::FAILURE
        }
    }
}
