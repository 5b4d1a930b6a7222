//! A converter where the kernel uses bounce buffers for all DMA (`swiotlb=force`): DMABUFs are refused, and streams
//! are copied.

mod converter;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use busbar_uapi::iio;
use converter::{Block, Converter, FRAME, RX_VOLTAGES};
use rustix::io::Errno;
use support::{command, summary};

#[test]
#[ignore = "needs the lab"]
fn no_dmabuf_is_attached() {
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        let attached = iio::attach(device.buffer(), Block::new(4096));
        assert_eq!(attached, Err(Errno::OPNOTSUPP), "{}", device.name);
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_stream_is_copied() {
    let converter = Converter::new();
    converter.rx.channels(&RX_VOLTAGES);
    let from = format!("iio:{}", converter.rx.name);
    let output = command(&["stream", &from, "null:", "--count", "100000", "--json"]).output();
    let summary = summary(&output.unwrap());
    let samples = summary["samples"].as_u64().unwrap();
    assert!(samples >= 100_000, "{summary}");
    assert_eq!(summary["lost"], 0, "{summary}");
    assert_eq!(summary["copied"], samples * FRAME as u64, "{summary}");
}
