//! Any announcement is decoded or refused, and the directory stays a bounded set.

#![no_main]

use busbar_coprocessor::name_service::{Announcement, Change, Directory, MAX_CHANNELS};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|messages: Vec<Vec<u8>>| {
    let mut directory = Directory::default();
    for message in messages {
        let Ok(announcement) = Announcement::decode(&message) else {
            assert!(message.len() != 40 || message[0] == 0);
            continue;
        };
        let again = Announcement::decode(&announcement.encode()).unwrap();
        assert_eq!(again, announcement);
        let before = directory.channels().len();
        let known = directory.channels().contains(&announcement.channel);
        let after = match directory.apply(&announcement) {
            Change::Added => before + 1,
            Change::Removed => before - 1,
            Change::Duplicate | Change::Unknown | Change::Full => before,
        };
        assert_eq!(directory.channels().len(), after);
        assert!(after <= MAX_CHANNELS);
        assert!(known || before < MAX_CHANNELS || after == before);
        assert_ne!(directory.channels().contains(&announcement.channel), announcement.withdrawn);
    }
});
