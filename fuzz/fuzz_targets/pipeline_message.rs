//! Any message between a pipeline and a coprocessor is accepted or refused, and an accepted one has only
//! one spelling.

#![no_main]

use std::io::ErrorKind;

use busbar::pipeline::message::{MAX_LEN, Report, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Request::decode(bytes) {
        Ok(request) => assert_eq!(request.encode().unwrap(), bytes),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput),
    }
    match Report::decode(bytes) {
        Ok(report) => {
            assert!(bytes.len() <= MAX_LEN);
            assert_eq!(report.encode().unwrap(), bytes);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            answered(bytes.first().copied().unwrap_or(0), &error);
        }
    }
});

/// Every error text can be sent back.
fn answered(number: u8, error: &busbar::Error) {
    let answer = Request::error(number.into(), error);
    assert_eq!(Request::decode(&answer.encode().unwrap()).unwrap(), answer);
}
