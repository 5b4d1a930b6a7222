//! `busbar doctor`.

use std::process::ExitCode;

use busbar::Result;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: &Args) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
