//! Any text is a pipeline or an error with its position; an accepted pipeline is valid.

#![no_main]

use std::io::ErrorKind;

use arbitrary::Arbitrary;
use busbar::pipeline::Config;
use libfuzzer_sys::fuzz_target;

/// Random bytes, or a valid file with some bytes changed.
#[derive(Arbitrary, Debug)]
enum Input {
    Text(Vec<u8>),
    Damaged { example: u8, changes: Vec<(u16, u8, String)> },
}

const EXAMPLES: [&str; 3] = [
    include_str!("pipeline_file.toml"),
    include_str!("../../demo/sender.toml"),
    include_str!("../../demo/receiver.toml"),
];

fuzz_target!(|input: Input| match input {
    Input::Text(bytes) => parse(&bytes),
    Input::Damaged { example, changes } => {
        let mut bytes = EXAMPLES[usize::from(example) % EXAMPLES.len()].as_bytes().to_vec();
        for (at, gone, new) in changes {
            let at = usize::from(at).min(bytes.len());
            let end = (at + usize::from(gone)).min(bytes.len());
            bytes.splice(at..end, new.bytes());
        }
        parse(&bytes);
    }
});

fn parse(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Config::parse("the file", &text) {
        Ok(config) => config.check().unwrap(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.contains("the file, line ") || text.contains("the file as"), "{text}");
        }
    }
}
