//! A stream consumer: prints the level of a signal, block by block, and how many samples were lost.
//!
//! `cargo run --example stream -- 'synth:sine?rate=48k&frequency=1k' voltage0_i voltage0_q`

use std::io::{self, Write};

use busbar::stream::{Lost, Source, StreamSetup};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, i, q] = &arguments[..] else {
        return Err(io::Error::other("usage: stream SOURCE CHANNEL-I CHANNEL-Q"));
    };
    watch(name, i, q, 10, io::stdout().lock())
}

/// Takes this many blocks of a source, and writes a line about each.
pub fn watch(name: &str, i: &str, q: &str, blocks: usize, mut out: impl Write) -> io::Result<()> {
    let source = Source::open(name, &StreamSetup::new().blocks(8).channels([i, q]))?;
    let format = source.format();
    // In millivolts, where the converter has a scale.
    let signal = format.pairs::<f64>(i, q)?.scaled(source.scale(i)?);
    let mut values = vec![[0.0; 2]; source.block_len() / format.sample_len];
    for _ in 0..blocks {
        let samples = source.next()?;
        let count = signal.read(&samples, &mut values)?;
        let meta = *samples.meta();
        // The converter fills the block again, while this one computes.
        drop(samples);
        let power: f64 = values[..count].iter().map(|[i, q]| i * i + q * q).sum();
        let level = (power / f64::from(u32::try_from(count).unwrap_or(u32::MAX))).sqrt();
        let lost = match meta.lost {
            Lost::Samples(lost) => lost.to_string(),
            Lost::Unknown => "unknown".into(),
        };
        writeln!(out, "block {}: {count} samples, rms {level:.0}, lost: {lost}", meta.sequence)?;
    }
    Ok(())
}
