//! What each path began with: the figures that others have published, with their source.

use super::mark::{Mark, Whose};
use crate::{Case, PATHS, Spread, words};

/// A publication, and what it says.
pub(super) struct Seed {
    /// Who, where and when.
    pub source: &'static str,
    /// On what, and what it means.
    pub says: &'static str,
    pub tables: Vec<Table>,
}

/// A table as it was published, or of its medians.
pub(super) struct Table {
    pub caption: &'static str,
    pub head: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
}

/// Loops, microseconds of all of them with a device node and with a descriptor.
const ENDPOINT: [(u32, u32, u32); 30] = [
    (1_000, 148_362, 1_153),
    (1_000, 145_640, 1_121),
    (1_000, 145_303, 1_174),
    (1_000, 150_294, 1_142),
    (1_000, 160_877, 1_175),
    (1_000, 154_400, 1_134),
    (1_000, 143_252, 1_163),
    (1_000, 148_758, 1_161),
    (1_000, 149_044, 1_112),
    (1_000, 146_895, 1_192),
    (10_000, 1_428_967, 11_627),
    (10_000, 1_367_015, 10_557),
    (10_000, 1_371_919, 11_663),
    (10_000, 1_358_447, 11_080),
    (10_000, 1_375_463, 11_245),
    (10_000, 1_364_901, 11_153),
    (10_000, 1_352_665, 10_735),
    (10_000, 1_400_873, 11_341),
    (10_000, 1_391_276, 10_892),
    (10_000, 1_394_367, 11_110),
    (100_000, 14_069_671, 115_569),
    (100_000, 13_663_364, 117_074),
    (100_000, 13_735_740, 115_638),
    (100_000, 13_714_441, 119_362),
    (100_000, 13_904_366, 118_282),
    (100_000, 13_870_560, 117_717),
    (100_000, 13_713_605, 118_312),
    (100_000, 13_872_852, 114_347),
    (100_000, 13_777_964, 119_072),
    (100_000, 13_725_654, 116_296),
];

/// Bytes of a block, milliseconds by TTY, where it got that far, and by netlink.
const BULK: [(u32, Option<f64>, f64); 7] = [
    (512, Some(11.97), 21.38),
    (1_024, Some(15.32), 27.19),
    (2_048, Some(21.74), 27.43),
    (4_096, Some(37.64), 31.33),
    (8_192, None, 55.59),
    (16_384, None, 88.09),
    (32_768, None, 162.54),
];

/// Descriptors, the number of them that a benchmark here has, and microseconds by which a read of
/// 4 KiB takes longer with `ppoll` and with `epoll_pwait1`.
const WAIT: [(&str, u32, f64, f64); 3] =
    [("10 to 20", 16, 37.0, 36.0), ("80 to 90", 85, 49.0, 37.0), ("about 200", 200, 83.0, 47.0)];

/// What was done, and megabytes a second by `read()` and by DMABUF; MiB where nothing is looked at.
const STREAM: [(&str, &str, f64, f64); 3] = [
    ("fetched, not looked at: iio_rwdev -b 4096 -B", "MiB/s", 116.0, 475.0),
    ("read: iio_rwdev -b 4096 | dd", "MB/s", 111.0, 114.0),
    ("from the converter on to USB 3", "MiB/s", 127.0, 274.0),
];

/// Percent of the time that receiving threads are idle, with four flows: xarray, index tokens.
const RECEIVE: (f64, f64) = (13.13, 26.32);

/// The one of `path`, which is one of [`PATHS`]. The last two of those have none.
pub(super) fn of(path: &str) -> Option<Seed> {
    let makers = [endpoint, bulk, wait, stream, receive];
    let (_, make) = PATHS.into_iter().zip(makers).find(|(name, _)| *name == path)?;
    Some(make())
}

fn endpoint() -> Seed {
    let each = |total: u32, loops: u32| f64::from(total) / f64::from(loops);
    let column = |loops: u32, pick: fn(&(u32, u32, u32)) -> f64| {
        let values: Vec<_> = ENDPOINT.iter().filter(|row| row.0 == loops).map(pick).collect();
        Spread::of(&values).map_or(String::new(), words::spread)
    };
    let median = |loops| {
        vec![
            words::number(f64::from(loops)),
            column(loops, |row| f64::from(row.1) / f64::from(row.0)),
            column(loops, |row| f64::from(row.2) / f64::from(row.0)),
            column(loops, |row| f64::from(row.1) / f64::from(row.2)),
        ]
    };
    let row = |(number, &(loops, node, descriptor)): (usize, &(u32, u32, u32))| {
        vec![
            format!("{}", number + 1),
            words::number(f64::from(loops)),
            words::number(each(node, loops)),
            words::number(each(descriptor, loops)),
            words::number(each(node, descriptor)),
        ]
    };
    Seed {
        source: "Dawei Li, “rpmsg: Introduce RPMSG_CREATE_EPT_FD_IOCTL uAPI”, v5, linux-remoteproc, October 2025",
        says: "An endpoint made, destroyed and closed, on hardware; microseconds for each.",
        tables: vec![
            Table {
                caption: "Minimum / median / maximum of ten runs",
                head: &["loops", "device node, us", "descriptor, us", "ratio"],
                rows: [1_000, 10_000, 100_000].map(median).to_vec(),
            },
            Table {
                caption: "All thirty runs",
                head: &["test", "loops", "device node, us", "descriptor, us", "ratio"],
                rows: ENDPOINT.iter().enumerate().map(row).collect(),
            },
        ],
    }
}

fn bulk() -> Seed {
    let row = |&(bytes, tty, netlink): &(u32, Option<f64>, f64)| {
        vec![
            words::size(f64::from(bytes)),
            tty.map_or("stops".into(), |tty| format!("{tty:.2}")),
            format!("{netlink:.2}"),
            tty.map_or(String::new(), |tty| words::number(tty / netlink)),
        ]
    };
    Seed {
        source: "Dimitris Tassopoulos, “Benchmarking the STM32MP1 IPC between the MCU and CPU (part 2)”, August 2020",
        says: "Blocks to the Cortex-M4 of an STM32MP1, through a TTY and through a netlink driver; \
               milliseconds for each block. Shared buffers were announced for a third part.",
        tables: vec![Table {
            caption: "As published, with the ratio",
            head: &["block", "TTY, ms", "netlink, ms", "ratio"],
            rows: BULK.iter().map(row).collect(),
        }],
    }
}

fn wait() -> Seed {
    let row = |&(descriptors, _, ppoll, epoll): &(&str, u32, f64, f64)| {
        let ratio = words::number(ppoll / epoll);
        vec![descriptors.into(), ppoll.to_string(), epoll.to_string(), ratio]
    };
    Seed {
        source: "Fam Zheng, “epoll: Introduce new syscalls, epoll_ctl_batch and epoll_pwait1”, v4, linux-fsdevel, 2015",
        says: "What QEMU’s main loop adds to a read of 4 KiB in a virtual machine, by the number of \
               descriptors that it waits for; microseconds.",
        tables: vec![Table {
            caption: "As published, with the ratio",
            head: &["descriptors", "ppoll, us", "epoll_pwait1, us", "ratio"],
            rows: WAIT.iter().map(row).collect(),
        }],
    }
}

fn stream() -> Seed {
    let row = |&(what, unit, read, dmabuf): &(&str, &str, f64, f64)| {
        let ratio = words::number(dmabuf / read);
        vec![what.into(), unit.into(), read.to_string(), dmabuf.to_string(), ratio]
    };
    Seed {
        source: "Paul Cercueil, “iio: new DMABUF based API”, v5, linux-iio, December 2023",
        says: "On a ZCU102 with an FMComms3, blocks of 4 096 samples. In blocks of 64 MiB of small \
               pages, DMABUF was behind.",
        tables: vec![Table {
            caption: "As published, with the ratio",
            head: &["what", "unit", "read()", "DMABUF", "ratio"],
            rows: STREAM.iter().map(row).collect(),
        }],
    }
}

fn receive() -> Seed {
    let (before, after) = RECEIVE;
    let row = |what: &str, before: f64, after: f64| {
        vec![what.into(), format!("{before:.2}"), format!("{after:.2}")]
    };
    Seed {
        source: "Bobby Eshleman, the series on the CPU cost of receive tokens of device memory, v9, netdev, January 2026",
        says: "Four flows into device memory, eleven runs; the averages of the receiving threads.",
        tables: vec![Table {
            caption: "As published, and what is left of the time",
            head: &["share of the time, %", "xarray tokens", "index tokens"],
            rows: vec![row("idle", before, after), row("busy", 100.0 - before, 100.0 - after)],
        }],
    }
}

/// What the ratio of a case of `path` is held against.
pub(super) fn mark(path: &str, case: &Case) -> Option<Mark> {
    let param = |key: &str| case.params.get(key).and_then(serde_json::Value::as_u64);
    let (name, against) = (case.name.as_str(), case.against.as_str());
    let value = match (path, name) {
        ("endpoint", "create") => endpoint_mark(param("loops")?)?,
        ("bulk", "netlink") => bulk_mark(param("bytes")?)?,
        ("wait", "turn-p50") if against == "ppoll" => wait_mark(param("descriptors")?)?,
        // The seed's 4 096 samples, of two channels of 16 bits twice.
        ("stream", "fetch-none") if param("bytes") == Some(32_768) => STREAM[0].3 / STREAM[0].2,
        // The seed does not say how long its blocks were.
        ("stream", "usb-to-host") if param("bytes")? >= 65_536 => STREAM[2].3 / STREAM[2].2,
        ("receive", "flows-cpu") if param("flows") == Some(4) => {
            (100.0 - RECEIVE.0) / (100.0 - RECEIVE.1)
        }
        _ => return target(path, case).map(|value| Mark { of: Whose::Target, value }),
    };
    Some(Mark { of: Whose::Seed, value })
}

/// Of as many loops, or of all of them: what one loop takes hardly depends on how many there are.
fn endpoint_mark(loops: u64) -> Option<f64> {
    let same = ENDPOINT.iter().any(|row| u64::from(row.0) == loops);
    let ratios: Vec<_> = ENDPOINT
        .iter()
        .filter(|row| !same || u64::from(row.0) == loops)
        .map(|row| f64::from(row.1) / f64::from(row.2))
        .collect();
    Spread::of(&ratios).map(|ratio| ratio.median)
}

fn bulk_mark(bytes: u64) -> Option<f64> {
    let (_, tty, netlink) = BULK.iter().find(|row| u64::from(row.0) == bytes)?;
    Some((*tty)? / netlink)
}

fn wait_mark(descriptors: u64) -> Option<f64> {
    let (_, _, ppoll, epoll) = WAIT.iter().find(|row| u64::from(row.1) == descriptors)?;
    Some(ppoll / epoll)
}

/// What Busbar set itself, where the seed has no figure.
fn target(path: &str, case: &Case) -> Option<f64> {
    let param = |key: &str| case.params.get(key).and_then(serde_json::Value::as_u64);
    match (path, case.name.as_str()) {
        ("bulk", "buffer") => match param("bytes")? {
            32_768 => Some(10.0),
            0x10_0000 => Some(30.0),
            _ => None,
        },
        ("wait", "mod") if param("descriptors") == Some(64) => Some(1.3),
        ("wait", "add" | "del") if param("descriptors") == Some(64) => Some(1.1),
        ("stream", "sum-none") => Some(1.5),
        ("stream", "network-cpu") => Some(2.1),
        ("stream", "usb-from-host") if param("bytes")? >= 65_536 => Some(2.2),
        ("stream", "usb-to-host-cpu" | "usb-from-host-cpu") if param("bytes")? >= 65_536 => {
            Some(4.0)
        }
        ("iiod", name) if name.ends_with("-cpu") => Some(2.0),
        ("iiod", _) => Some(1.3),
        ("receive", name) if name.starts_with("tokens") && param("sockets") == Some(4) => Some(2.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_seed_whose_tables_are_whole() {
        for path in &PATHS[..5] {
            let seed = of(path).unwrap();
            for table in seed.tables {
                assert!(!table.rows.is_empty(), "{path}");
                for row in &table.rows {
                    assert_eq!(row.len(), table.head.len(), "{path}: {row:?}");
                }
            }
        }
        assert!(of("languages").is_none() && of("iiod").is_none() && of("other").is_none());
    }

    #[test]
    fn ratios_of_the_seeds_are_those_that_they_print() {
        let ratios: Vec<_> =
            ENDPOINT.iter().map(|row| f64::from(row.1) / f64::from(row.2)).collect();
        let spread = Spread::of(&ratios).unwrap();
        assert!((spread.min - 114.897_882).abs() < 1e-6, "{spread:?}");
        assert!((spread.max - 136.916_596).abs() < 1e-6, "{spread:?}");
    }

    #[test]
    fn a_case_is_held_against_the_seed_or_a_target() {
        let case =
            |name, key, value| Case::new(name, &[(key, value)], "us", "ppoll", &[(1.0, 1.0)]);
        let marked =
            |path, case: Case| mark(path, &case).map(|mark| (mark.of, words::number(mark.value)));
        for (path, case, wanted) in [
            ("endpoint", case("create", "loops", 1_000), Some((Whose::Seed, "129"))),
            ("endpoint", case("create", "loops", 100), Some((Whose::Seed, "123"))),
            ("endpoint", case("create-settled", "loops", 1_000), None),
            ("bulk", case("netlink", "bytes", 512), Some((Whose::Seed, "0.56"))),
            ("bulk", case("netlink", "bytes", 8_192), None),
            ("bulk", case("buffer", "bytes", 1 << 20), Some((Whose::Target, "30.0"))),
            ("wait", case("turn-p50", "descriptors", 200), Some((Whose::Seed, "1.77"))),
            ("stream", case("fetch-none", "bytes", 32_768), Some((Whose::Seed, "4.09"))),
            ("stream", case("usb-to-host", "bytes", 1 << 20), Some((Whose::Seed, "2.16"))),
            ("stream", case("usb-from-host-cpu", "bytes", 16_384), None),
            ("receive", case("flows-cpu", "flows", 4), Some((Whose::Seed, "1.18"))),
            ("receive", case("tokens random", "sockets", 4), Some((Whose::Target, "2.00"))),
        ] {
            let wanted = wanted.map(|(whose, value): (_, &str)| (whose, value.to_string()));
            assert_eq!(marked(path, case), wanted, "{path}");
        }
    }
}
