//! Descriptors that receivers have opened are closed. A program of its own: in others, tests open and
//! close descriptors at the same time.

mod common;
mod pair;

use std::time::Duration;

use busbar::receive::Receiver;
use common::descriptors;
use pair::{Check, Loopback, Place, send, take, take_all};

#[test]
fn no_descriptor_is_left() {
    let round = |seed| {
        let receiver = Loopback.receiver(256 << 10);
        let (mut connection, sender) = Loopback.connect(&receiver);
        let sending = send(sender, seed, 300_000);
        let held = take(&mut connection);
        let mut check = Check::new(seed);
        check.piece(&held);
        take_all(&mut connection, &mut check);
        sending.join().unwrap();
        drop((connection, receiver));
        drop(held);
        // A failed call leaves no descriptor open either.
        let receiver = Loopback.receiver(4096);
        let nobody = Loopback.listen(&receiver).1;
        assert!(receiver.connect_timeout(nobody, Duration::from_secs(1)).is_err());
        assert!(Receiver::offered("busbar-none").is_err() && Receiver::offered("lo").is_err());
    };
    round(0);
    let before = descriptors();
    (1..20).for_each(round);
    assert_eq!(descriptors(), before);
}
