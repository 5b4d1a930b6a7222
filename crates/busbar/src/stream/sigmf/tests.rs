use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::block::{Block, Memory};
use crate::stream::net::Pool;
use crate::stream::{Channel, Format, Lost, Meta, Samples, StreamSetup};

/// A format as `vconv` has it, and what may be wrong with one.
fn format(names: &[&str], change: impl Fn(usize, &mut Channel)) -> Format {
    let mut format = Format { rate: Some(1000.0), ..Format::of_shorts(names) };
    format.channels.iter_mut().enumerate().for_each(|(index, channel)| change(index, channel));
    format
}

fn iq() -> Format {
    format(&["voltage0_i", "voltage0_q"], |_, _| {})
}

/// A block that goes nowhere when it is dropped.
fn samples(bytes: &[u8], lost: Lost, time: SystemTime) -> Samples {
    let mut block = Block::with(bytes.len(), &Memory::Memfd).unwrap();
    block.write().unwrap().bytes_mut().slice(..bytes.len()).copy_from(bytes);
    let meta = Meta { sequence: 0, time, lost, len: bytes.len() };
    Pool::new(Vec::<Block>::new()).unwrap().hand_out(block, meta, 1, 0)
}

/// Records blocks of so many samples, sample i being i, with so much lost before each.
fn record(folder: &TempDir, blocks: &[(u32, Lost)], end: Lost) -> PathBuf {
    let path = folder.path().join("recording");
    let mut recorder = Recorder::create(&path, &iq(), Some("a test")).unwrap();
    let (mut at, mut time) = (0u32, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    for (count, lost) in blocks {
        let bytes: Vec<u8> = (at..at + count).flat_map(u32::to_le_bytes).collect();
        time += Duration::from_millis(u64::from(*count));
        recorder.write(&samples(&bytes, *lost, time)).unwrap();
        at += count;
    }
    assert_eq!(recorder.copied(), u64::from(at) * 4);
    recorder.finish(end).unwrap();
    path
}

/// What is known of each sample: what is missing before it.
fn play(path: &Path, block_len: usize) -> (Vec<Lost>, Lost) {
    let recording = Recording::open(path).unwrap();
    let setup = StreamSetup { blocks: Some(2), block_len, ..StreamSetup::default() };
    let mut player = Player::new(recording, &setup).unwrap();
    let mut all = Vec::new();
    let mut sequence = 0;
    while let Some(samples) = player.next().unwrap() {
        let meta = *samples.meta();
        assert_eq!((meta.sequence, meta.len % 4), (sequence, 0));
        sequence += 1;
        for (index, bytes) in samples.read().unwrap().bytes().to_vec().chunks_exact(4).enumerate() {
            let number = u32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(usize::try_from(number).unwrap(), all.len());
            let inside = if meta.lost == Lost::Unknown { Lost::Unknown } else { Lost::Samples(0) };
            all.push(if index == 0 { meta.lost } else { inside });
        }
    }
    assert!(player.is_finished());
    assert_eq!(player.copied(), all.len() as u64 * 4);
    (all, player.end())
}

fn expected(blocks: &[(u32, Lost)]) -> Vec<Lost> {
    let each = |(count, lost): &(u32, Lost)| {
        let inside = if *lost == Lost::Unknown { Lost::Unknown } else { Lost::Samples(0) };
        std::iter::once(*lost).chain(std::iter::repeat_n(inside, *count as usize - 1))
    };
    blocks.iter().flat_map(each).collect()
}

#[test]
fn a_recording_says_what_the_specification_asks_for() {
    let folder = TempDir::new().unwrap();
    let blocks =
        [(100, Lost::Samples(0)), (50, Lost::Samples(7)), (10, Lost::Unknown), (10, Lost::Unknown)];
    let path = record(&folder, &blocks, Lost::Samples(3));
    let text = fs::read_to_string(path.with_extension("sigmf-meta")).unwrap();
    let meta: serde_json::Value = serde_json::from_str(&text).unwrap();
    let global = &meta["global"];
    assert_eq!(global["core:datatype"], "ci16_le");
    assert_eq!(global["core:num_channels"], 1);
    assert_eq!(global["core:sample_rate"], 1000.0);
    assert_eq!(global["core:version"], "1.2.6");
    assert_eq!(global["core:hw"], "a test");
    assert_eq!(global["core:extensions"][0]["optional"], true);
    let captures = meta["captures"].as_array().unwrap();
    assert_eq!(captures.len(), 2);
    assert_eq!(captures[0]["core:datetime"], "1970-01-12T13:46:40.000000000Z");
    assert_eq!(captures[1]["core:sample_start"], 100);
    assert_eq!(captures[1]["core:global_index"], 107);
    assert_eq!(captures[1]["core:datetime"], "1970-01-12T13:46:40.100000000Z");
    let annotations = meta["annotations"].as_array().unwrap();
    let of = |key: &str| annotations.iter().map(|one| one[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("core:sample_start"), [100, 150, 170]);
    assert_eq!(of("core:sample_count"), [0, 20, 0]);
    assert_eq!(of("core:label"), ["lost", "loss unknown", "lost"]);
    assert_eq!(
        of("busbar:lost"),
        [serde_json::json!(7), serde_json::Value::Null, serde_json::json!(3)]
    );
    assert_eq!(fs::metadata(path.with_extension("sigmf-data")).unwrap().len(), 170 * 4);
}

#[test]
fn no_other_file_is_overwritten_and_no_link_followed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let (partial, other) =
        (folder.path().join("recording.sigmf-meta.partial"), folder.path().join("other"));
    fs::write(&other, "text").unwrap();
    std::os::unix::fs::symlink(&other, &partial).unwrap();
    let error = Recorder::create(&path, &iq(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(error.to_string().contains("recording.sigmf-meta.partial"), "{error}");
    assert!(partial.is_symlink());
    assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    // It has left nothing, so the next attempt succeeds.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    fs::remove_file(&partial).unwrap();
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    // The same while it records.
    std::os::unix::fs::symlink(&other, &partial).unwrap();
    let now = SystemTime::now();
    recorder.write(&samples(&[0; 4], Lost::Samples(0), now)).unwrap();
    let error = recorder.finish(Lost::Samples(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    assert_eq!(Recording::open(&path).unwrap().samples(), 1);
}

#[test]
fn metadata_that_is_too_long_is_not_read() {
    let folder = TempDir::new().unwrap();
    let path = record(&folder, &[(1, Lost::Samples(0))], Lost::Samples(0));
    let meta = fs::File::options().write(true).open(path.with_extension("sigmf-meta")).unwrap();
    meta.set_len(recording::MAX_META + 1).unwrap();
    assert_eq!(Recording::open(&path).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(recording::MAX_META, 32 << 20);
}

#[test]
fn a_recording_is_never_overwritten() {
    let folder = TempDir::new().unwrap();
    let path = record(&folder, &[(1, Lost::Samples(0))], Lost::Samples(0));
    for path in [path.clone(), path.with_extension("sigmf-data"), path.with_extension("sigmf-meta")]
    {
        let error = Recorder::create(&path, &iq(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(Recording::open(&path).unwrap().samples(), 1);
    }
    // One file alone is somebody's, too, and nothing comes beside it.
    for (there, other) in [("sigmf-meta", "sigmf-data"), ("sigmf-data", "sigmf-meta")] {
        let path = folder.path().join(format!("only-{there}"));
        fs::write(path.with_extension(there), "precious").unwrap();
        let error = Recorder::create(&path, &iq(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains("never overwritten"), "{error}");
        assert_eq!(fs::read_to_string(path.with_extension(there)).unwrap(), "precious");
        assert!(!path.with_extension(other).exists());
    }
}

/// The size of the metadata of a recording with so many losses, one in three of which is not known, and
/// what is said of it.
fn many(losses: u32, has_unknown: bool) -> (u64, Recording, u64) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("many");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let one = samples(&[0; 8], Lost::Unknown, time);
    let mut all = 0;
    for number in 0..losses {
        let known = Lost::Samples(u64::from(number % 5 + 1));
        let lost = if has_unknown && number % 3 == 0 { Lost::Unknown } else { known };
        all += if let Lost::Samples(lost) = lost { lost } else { 0 };
        recorder.write_as(&one, lost).unwrap();
    }
    recorder.finish(Lost::Samples(9)).unwrap();
    let len = fs::metadata(path.with_extension("sigmf-meta")).unwrap().len();
    (len, Recording::open(&path).unwrap(), all + 9)
}

#[test]
fn metadata_stays_small_whatever_is_lost_and_keeps_the_sum() {
    for has_unknown in [false, true] {
        let (len, recording, all) = many(40_000, has_unknown);
        assert!(len < 16 << 20, "{len}");
        let gaps = recording.gaps();
        assert!((4096..=16384).contains(&gaps.len()), "{}", gaps.len());
        assert!(gaps.windows(2).all(|pair| pair[0].end <= pair[1].at), "they are apart");
        assert_eq!(gaps.iter().map(|gap| gap.known).sum::<u64>(), all);
        let samples = recording.samples();
        let mut player = Player::new(recording, &StreamSetup::default()).unwrap();
        let (mut count, mut unknown) = (0, 0);
        while let Some(samples) = player.next().unwrap() {
            count += samples.meta().len as u64 / 4;
            unknown += u64::from(samples.meta().lost == Lost::Unknown);
        }
        assert_eq!(count, samples);
        assert!(unknown > 0);
    }
}

#[test]
fn losses_that_are_few_are_kept_apart() {
    let (_, recording, all) = many(10_000, false);
    assert_eq!(recording.gaps().len(), 10_001);
    let known = recording.gaps().iter().map(|gap| match gap.lost {
        Lost::Samples(lost) => lost,
        Lost::Unknown => panic!("{gap:?}"),
    });
    assert_eq!(known.sum::<u64>(), all);
}

#[test]
fn a_recording_that_was_cut_off_can_be_read() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("cut.off");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    let now = SystemTime::now();
    recorder.write(&samples(&[1; 40], Lost::Samples(0), now)).unwrap();
    drop(recorder);
    let data = folder.path().join("cut.off.sigmf-data");
    fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(39).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.samples(), 9);
    let mut bytes = [0; 100];
    assert_eq!(recording.read(7, &mut bytes).unwrap(), 8);
    assert_eq!(recording.read(9, &mut bytes).unwrap(), 0);
    assert_eq!(recording.read(u64::MAX, &mut bytes).unwrap(), 0);
}

/// Blocks of ten samples, each with its number, and with a loss before it, as [`record`] has them.
fn tens(from: u32, lost: Lost) -> Samples {
    let bytes: Vec<u8> = (from..from + 10).flat_map(u32::to_le_bytes).collect();
    samples(&bytes, lost, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000))
}

#[test]
fn after_a_failed_write_nothing_of_the_block_is_there_and_going_on_is_right() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let data = path.with_extension("sigmf-data");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    recorder.write(&tens(0, Lost::Samples(0))).unwrap();
    let good = std::mem::replace(&mut recorder.data, fs::File::open(&data).unwrap());
    recorder.write(&tens(10, Lost::Samples(5))).unwrap_err();
    // As if it had failed in the middle of a sample, and then once more.
    fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(10 * 4 + 7).unwrap();
    recorder.write(&tens(10, Lost::Samples(5))).unwrap_err();
    recorder.data = good;
    recorder.write(&tens(10, Lost::Samples(5))).unwrap();
    assert_eq!(recorder.copied(), 80);
    recorder.finish(Lost::Samples(0)).unwrap();
    assert_eq!(fs::metadata(&data).unwrap().len(), 80);
    let blocks = [(10, Lost::Samples(0)), (10, Lost::Samples(5))];
    assert_eq!(play(&path, 60), (expected(&blocks), Lost::Samples(0)));
}

#[test]
fn metadata_that_cannot_be_written_is_told_before_the_next_block() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let partial = folder.path().join("recording.sigmf-meta.partial");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    fs::write(&partial, "").unwrap();
    recorder.next_update = std::time::Instant::now();
    recorder.write(&tens(0, Lost::Samples(3))).unwrap();
    for _ in 0..2 {
        let error = recorder.write(&tens(10, Lost::Samples(5))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    }
    fs::remove_file(&partial).unwrap();
    recorder.write(&tens(10, Lost::Samples(5))).unwrap();
    recorder.finish(Lost::Samples(0)).unwrap();
    let blocks = [(10, Lost::Samples(3)), (10, Lost::Samples(5))];
    assert_eq!(play(&path, 60), (expected(&blocks), Lost::Samples(0)));
}

/// What a power cut may leave of a recording: of each file that was not synced, its name with less content. Of a folder
/// that was not synced, names of before. (To cut the power of a file system in earnest takes root and dm-log-writes: log
/// the writes below ext4, XFS, F2FS and FAT while `busbar stream … file:NAME` records, replay them up to each flush, mount,
/// and open.)
fn power_cuts(folder: &Path) -> Vec<TempDir> {
    let read = |end: &str| fs::read(folder.join(format!("recording.{end}"))).unwrap_or_default();
    let (data, meta, begun) = (read("sigmf-data"), read("sigmf-meta"), read("sigmf-meta.begun"));
    let metas = [Some(&*meta), Some(&meta[..meta.len() / 2]), Some(b""), Some(&begun[..]), None];
    let datas = [&*data, &data[..data.len() * 2 / 3], b""];
    let left = |(meta, data): (Option<&[u8]>, &[u8])| {
        let left = TempDir::new().unwrap();
        let write = |end: &str, bytes: &[u8]| {
            fs::write(left.path().join(format!("recording.{end}")), bytes).unwrap();
        };
        write("sigmf-meta.begun", &begun);
        write("sigmf-meta.partial", b"{");
        write("sigmf-data", data);
        if let Some(meta) = meta {
            write("sigmf-meta", meta);
        }
        left
    };
    metas.into_iter().flat_map(|meta| datas.map(|data| (meta, data))).map(left).collect()
}

#[test]
fn after_a_power_cut_a_recording_opens_and_says_what_it_lacks() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    let all =
        [Lost::Samples(0), Lost::Samples(7), Lost::Samples(0), Lost::Unknown, Lost::Samples(4)];
    let blocks = all.map(|lost| (10, lost));
    let check = || {
        for left in power_cuts(folder.path()) {
            let path = left.path().join("recording");
            assert!(!Recording::open(&path).unwrap().is_complete());
            let (played, end) = play(&path, 60);
            assert_eq!(end, Lost::Unknown);
            let truth = expected(&blocks);
            assert!(
                played
                    .iter()
                    .zip(truth)
                    .all(|(played, true_one)| { *played == true_one || *played == Lost::Unknown }),
                "{played:?}"
            );
        }
    };
    check();
    for (index, lost) in (0..).step_by(10).zip(all) {
        if index == 20 {
            recorder.next_update = std::time::Instant::now();
        }
        recorder.write(&tens(index, lost)).unwrap();
        check();
    }
    // What the metadata has already is known exactly.
    assert_eq!(play(&path, 60).0[..30], expected(&blocks[..3]));
    recorder.finish(Lost::Samples(0)).unwrap();
    assert!(Recording::open(&path).unwrap().is_complete());
    assert_eq!(play(&path, 60), (expected(&blocks), Lost::Samples(0)));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn a_read_that_fails_once_loses_no_gap() {
    let folder = TempDir::new().unwrap();
    let blocks = [(10, Lost::Samples(2)), (10, Lost::Samples(7)), (10, Lost::Unknown)];
    let path = record(&folder, &blocks, Lost::Samples(0));
    let data = path.with_extension("sigmf-data");
    let all = fs::read(&data).unwrap();
    let mut player = Player::new(Recording::open(&path).unwrap(), &StreamSetup::default()).unwrap();
    for (_, lost) in blocks {
        fs::write(&data, "").unwrap();
        assert_eq!(player.next().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        fs::write(&data, &all).unwrap();
        let samples = player.next().unwrap().unwrap();
        assert_eq!((samples.meta().lost, samples.meta().len), (lost, 40));
    }
    assert!(player.next().unwrap().is_none() && player.end() == Lost::Samples(0));
}

#[test]
fn a_recorder_that_is_dropped_keeps_what_it_knows_and_does_not_say_that_this_is_all() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    recorder.write(&tens(0, Lost::Samples(3))).unwrap();
    drop(recorder);
    assert_eq!(play(&path, 60), (expected(&[(10, Lost::Samples(3))]), Lost::Unknown));
    assert!(!Recording::open(&path).unwrap().is_complete());
}

#[test]
fn a_recorder_that_finishes_later_has_all_samples_at_once_and_is_complete_then() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("recording");
    let mut recorder = Recorder::create(&path, &iq(), None).unwrap();
    recorder.write(&tens(0, Lost::Samples(3))).unwrap();
    recorder.finish_later().unwrap();
    assert_eq!(play(&path, 60).0, expected(&[(10, Lost::Samples(3))]));
    // `.begun` goes last.
    while fs::read_dir(&folder).unwrap().count() > 2 {
        std::thread::yield_now();
    }
    assert!(Recording::open(&path).unwrap().is_complete());
}

#[test]
fn scans_that_are_no_sigmf_type_name_the_channels_to_select() {
    let names = ["voltage0_i", "voltage0_q", "count0", "timestamp"];
    let wide = format(&names, |index, channel| {
        if index > 1 {
            (channel.bits, channel.storage_bits, channel.offset) = (64, 64, 8 * (index - 1));
        }
    });
    let text = Datatype::of(&wide).unwrap_err().to_string();
    assert!(text.contains("--channels voltage0_i,voltage0_q)"), "{text}");
    let shifted = format(&names[..2], |_, channel| (channel.bits, channel.shift) = (12, 4));
    assert!(Datatype::of(&shifted).unwrap_err().to_string().contains("has none"));
    let mut padded = iq();
    padded.sample_len = 8;
    assert!(Datatype::of(&padded).is_err());
    let mixed = format(&names[..2], |index, channel| channel.signed = index == 0);
    assert!(Datatype::of(&mixed).is_err());
    let repeated = format(&names[..1], |_, channel| channel.repeat = 2);
    assert!(Datatype::of(&repeated).is_err());
    let none = Format { channels: Vec::new(), sample_len: 1, rate: None };
    assert!(Datatype::of(&none).is_err());
}

#[test]
fn types_are_named_as_in_the_specification() {
    let name =
        |format: &Format| Datatype::of(format).map(|(kind, count)| (kind.to_string(), count));
    assert_eq!(name(&iq()).unwrap(), ("ci16_le".into(), 1));
    let four = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
    assert_eq!(name(&format(&four, |_, _| {})).unwrap(), ("ci16_le".into(), 2));
    assert_eq!(name(&format(&four[..3], |_, _| {})).unwrap(), ("ri16_le".into(), 3));
    let crossed = format(&["voltage0_i", "voltage1_q"], |_, channel| channel.big_endian = true);
    assert_eq!(name(&crossed).unwrap(), ("ri16_be".into(), 2));
    for text in ["ci8", "ru8", "ci16_le", "ru16_be", "ci32_be", "ru32_le"] {
        assert_eq!(text.parse::<Datatype>().unwrap().to_string(), text);
    }
    for text in ["", "cf32_le", "ci8_le", "ci16", "ri64_le", "CI16_LE", "ci16_le "] {
        assert!(text.parse::<Datatype>().is_err(), "{text:?}");
    }
}

#[test]
fn metadata_that_cannot_be_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = record(&folder, &[(4, Lost::Samples(0))], Lost::Samples(0));
    let meta = path.with_extension("sigmf-meta");
    let good = fs::read_to_string(&meta).unwrap();
    let cases = [
        ("\"ci16_le\"", "\"cf32_le\"", "core:datatype"),
        ("\"core:num_channels\": 1", "\"core:num_channels\": 0", "core:num_channels"),
        ("\"core:num_channels\": 1", "\"core:num_channels\": 257", "core:num_channels"),
        ("\"core:num_channels\": 1", "\"core:num_channels\": -1", "invalid value"),
        ("1000.0", "-1.0", "core:sample_rate"),
        ("\"core:hw\"", "\"core:dataset\"", "core:dataset"),
        (
            "\"core:sample_start\": 0,",
            "\"core:sample_start\": 0, \"core:header_bytes\": 9,",
            "core:header_bytes",
        ),
        ("{", "[", "sigmf-meta"),
    ];
    for (from, to, says) in cases {
        assert!(good.contains(from), "{from}");
        fs::write(&meta, good.replace(from, to)).unwrap();
        let error = Recording::open(&path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData),
            "{error}"
        );
        assert!(error.to_string().contains(says), "{to}: {error}");
    }
}

fn losses() -> impl Strategy<Value = Lost> {
    prop_oneof![
        4 => Just(Lost::Samples(0)),
        2 => (1u64..100).prop_map(Lost::Samples),
        1 => Just(Lost::Unknown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_lost_is_played_as_it_was_recorded(
        blocks in prop::collection::vec((1u32..20, losses()), 1..20),
        block_len in 1usize..60,
        end in losses(),
    ) {
        let folder = TempDir::new().unwrap();
        let path = record(&folder, &blocks, end);
        let (played, played_end) = play(&path, block_len);
        prop_assert_eq!(played, expected(&blocks));
        prop_assert_eq!(played_end, end);
    }

    #[test]
    fn any_metadata_is_refused_or_played(
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        numbers in prop::collection::vec(any::<u64>(), 4),
    ) {
        let folder = TempDir::new().unwrap();
        let blocks = [(5, Lost::Samples(0)), (5, Lost::Samples(7)), (5, Lost::Unknown)];
        let path = record(&folder, &blocks, Lost::Samples(3));
        let meta = path.with_extension("sigmf-meta");
        let mut text = fs::read_to_string(&meta).unwrap();
        for (key, number) in ["_start\": 5", "_index\": 12", "_start\": 10", "_count\": 5"].into_iter().zip(numbers) {
            let name = key.split(' ').next().unwrap();
            text = text.replace(key, &format!("{name} {number}"));
        }
        let mut bytes = text.into_bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        fs::write(&meta, bytes).unwrap();
        let Ok(recording) = Recording::open(&path) else { return Ok(()) };
        let (samples, len) = (recording.samples(), recording.format().sample_len as u64);
        let mut player = Player::new(recording, &StreamSetup::default()).unwrap();
        let mut bytes = 0;
        while let Some(samples) = player.next().unwrap() {
            bytes += samples.meta().len as u64;
        }
        let _ = player.end();
        prop_assert_eq!(bytes, samples * len);
    }
}
