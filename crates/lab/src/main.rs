//! Builds the release kernel, as `busbar lab build` does: `demo/run` has it while that is still compiled.

use std::process::ExitCode;

use busbar_lab::{Flavour, Lab};

fn main() -> ExitCode {
    match Lab::open().and_then(|lab| lab.build(Flavour::Release)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("busbar: {error}");
            ExitCode::FAILURE
        }
    }
}
