//! The command `busbar`.

use std::process::ExitCode;

fn main() -> ExitCode {
    busbar_cli::main()
}
