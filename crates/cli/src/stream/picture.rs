//! `busbar stream picture`.

use std::path::PathBuf;

use busbar::stream::picture::{Plot, draw};
use busbar::stream::sigmf::Recording;
use busbar::{Error, Result};

#[derive(clap::Args)]
#[command(after_help = "\
Example, 480 samples from number 1000 on:
  busbar stream picture sine.sigmf-meta sine.png --from 1000 --samples 480")]
pub struct Args {
    /// The recording, with either extension or none
    recording: PathBuf,
    /// The PNG file
    picture: PathBuf,
    /// The first sample
    #[arg(long, value_name = "SAMPLE", default_value_t = 0)]
    from: u64,
    /// How many samples, such as 500, 10k or 1M
    #[arg(long, value_name = "SAMPLES", value_parser = super::count, default_value = "1000")]
    samples: u64,
    /// Width and height in pixels
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = pixels, default_value = "1200x600")]
    size: (u32, u32),
}

pub fn run(args: &Args) -> Result<()> {
    let recording = Recording::open(&args.recording)?;
    let (width, height) = args.size;
    let plot = Plot { width, height, from: args.from, samples: args.samples };
    let picture = draw(&recording, &plot)?;
    std::fs::write(&args.picture, picture)
        .map_err(|why| Error::new("write", args.picture.display().to_string(), why))
}

fn pixels(text: &str) -> Result<(u32, u32), String> {
    let numbers = text
        .split_once('x')
        .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    numbers.ok_or_else(|| "allowed: WIDTHxHEIGHT, such as 1200x600".to_owned())
}
