//! Any message, and any of its parts that services read, is decoded or refused.

#![no_main]

use busbar_coprocessor::message::{self, HEADER_SIZE, MTU, Message};
use busbar_coprocessor::service::data::{self, Data};
use busbar_coprocessor::service::{sink, source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, data)) = message::parse(bytes) {
        assert_eq!(data, &bytes[HEADER_SIZE..HEADER_SIZE + usize::from(header.length)]);
        let built = Message::new(header.source, header.destination, data);
        assert_eq!(built.is_ok(), data.len() <= MTU);
        if let Ok(built) = built {
            assert_eq!(message::parse(built.as_bytes()).unwrap().1, data);
        }
    }
    if let Ok(data) = Data::decode(bytes)
        && bytes.len() <= MTU
    {
        let mut again = bytes.to_vec();
        data::seal(data.sequence, &mut again).unwrap();
        assert_eq!(again, bytes);
    }
    if let Some(query) = sink::Query::decode(bytes) {
        assert_eq!(sink::Query::decode(&query.encode()), Some(query));
    }
    if let Ok(answer) = sink::Answer::decode(bytes) {
        assert_eq!(sink::Answer::decode(&answer.encode()).unwrap(), answer);
    }
    if let Ok(request) = source::Request::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Ok(summary) = source::Summary::decode(bytes) {
        assert_eq!(summary.encode(), bytes);
    }
});
