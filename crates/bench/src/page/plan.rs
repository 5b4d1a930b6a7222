//! The sections of the page and their plots.

use crate::{Case, Spread};

/// A section of the page.
pub(super) struct Path {
    pub name: &'static str,
    /// One sentence: what the path is.
    pub says: &'static str,
    /// The case for the top of the page, and what its ratio is about.
    pub headline: (Pick, &'static str),
    pub plots: &'static [Plan],
}

/// Selects cases by name, by baseline and by parameters; an empty field selects all.
#[derive(Clone, Copy)]
pub(super) struct Pick {
    name: &'static str,
    against: &'static str,
    params: &'static [(&'static str, u64)],
}

impl Pick {
    const fn name(name: &'static str) -> Self {
        Self { name, against: "", params: &[] }
    }

    const fn against(self, against: &'static str) -> Self {
        Self { against, ..self }
    }

    const fn with(self, params: &'static [(&'static str, u64)]) -> Self {
        Self { params, ..self }
    }

    pub(super) fn has(&self, case: &Case) -> bool {
        let is = |(key, value): &(&str, u64)| {
            case.params.get(*key).and_then(serde_json::Value::as_u64) == Some(*value)
        };
        case.name == self.name
            && (self.against.is_empty() || case.against == self.against)
            && self.params.iter().all(is)
    }
}

/// A plot.
pub(super) struct Plan {
    pub title: &'static str,
    pub kind: Kind,
}

pub(super) enum Kind {
    /// The ratios of these cases.
    Bars(&'static [Pick]),
    /// The cost of each way, by this parameter.
    Lines(&'static str, &'static [Way]),
}

/// One side of some cases.
pub(super) struct Way {
    pub label: &'static str,
    pub pick: Pick,
    pub ours: bool,
}

impl Way {
    pub(super) fn cost(&self, case: &Case) -> Spread {
        if self.ours { case.busbar } else { case.baseline }
    }
}

const fn bars(title: &'static str, picks: &'static [Pick]) -> Plan {
    Plan { title, kind: Kind::Bars(picks) }
}

const fn lines(title: &'static str, by: &'static str, ways: &'static [Way]) -> Plan {
    Plan { title, kind: Kind::Lines(by, ways) }
}

const fn usual(label: &'static str, pick: Pick) -> Way {
    Way { label, pick, ours: false }
}

const fn ours(label: &'static str, pick: Pick) -> Way {
    Way { label, pick, ours: true }
}

const fn of(name: &'static str) -> Pick {
    Pick::name(name)
}

/// In the order of [`crate::PATHS`].
pub(super) const PATHS: [Path; 7] = [
    Path {
        name: "endpoint",
        says: "Messages to and from a coprocessor: the usual way is a device node for each endpoint, \
               Busbar’s endpoint is a file descriptor.",
        headline: (of("create"), "to create an endpoint"),
        plots: &[
            bars("Creating an endpoint", &[of("create"), of("create-settled"), of("create-floor")]),
            lines(
                "A message, by its length",
                "bytes",
                &[
                    usual("round trip, node", of("round-trip")),
                    ours("round trip, descriptor", of("round-trip")),
                    usual("send, node", of("send")),
                    ours("send, descriptor", of("send")),
                ],
            ),
            bars("Round trip", &[of("round-trip")]),
            bars("Send", &[of("send")]),
        ],
    },
    Path {
        name: "bulk",
        says: "Blocks of any length to and from a coprocessor: the usual way cuts them into messages \
               for a TTY, Busbar’s are netlink parts, messages through a descriptor, or shared buffers \
               that change hands.",
        headline: (of("buffer").with(&[("bytes", 1 << 20)]), "for 1 MiB, checked, against netlink"),
        plots: &[
            lines(
                "A block, by its length",
                "bytes",
                &[
                    usual("TTY", of("netlink")),
                    ours("shared buffer, checked", of("buffer")),
                    ours("netlink", of("netlink")),
                    usual("device node", of("fd")),
                    ours("descriptor", of("fd")),
                    ours("shared buffer, handed over", of("hand-over")),
                ],
            ),
            bars("Netlink against TTY", &[of("netlink")]),
            bars("Descriptor against device node", &[of("fd")]),
            bars("Shared buffer, checked, against netlink", &[of("buffer")]),
            bars("Shared buffer, handed over, against netlink", &[of("hand-over")]),
        ],
    },
    Path {
        name: "wait",
        says: "Waiting for many descriptors: the usual way is one system call for each change and waits \
               in milliseconds, Busbar’s is many changes in one call and waits in nanoseconds.",
        headline: (
            of("turn-p50").against("ppoll").with(&[("descriptors", 200)]),
            "latency of a loop with 200 descriptors, against ppoll",
        ),
        plots: &[
            lines(
                "Latency of the loop, by descriptors (p50)",
                "descriptors",
                &[
                    usual("ppoll", of("turn-p50").against("ppoll")),
                    ours("Busbar", of("turn-p50").against("ppoll")),
                    usual("epoll_wait", of("turn-p50").against("epoll_wait")),
                ],
            ),
            bars(
                "Latency of the loop",
                &[of("turn-p50").against("ppoll"), of("turn-p99").against("ppoll")],
            ),
            bars(
                "The same, against epoll_wait",
                &[of("turn-p50").against("epoll_wait"), of("turn-p99").against("epoll_wait")],
            ),
            lines(
                "A change, by the length of the batch",
                "descriptors",
                &[
                    usual("ADD, each", of("add")),
                    ours("ADD, batch", of("add")),
                    usual("MOD, each", of("mod")),
                    ours("MOD, batch", of("mod")),
                    usual("DEL, each", of("del")),
                    ours("DEL, batch", of("del")),
                ],
            ),
            bars("ADD, one batch against one by one", &[of("add")]),
            bars("MOD, one batch against one by one", &[of("mod")]),
            bars("DEL, one batch against one by one", &[of("del")]),
            bars("Later than asked, slack of 1 ns", &[of("overshoot")]),
            bars("Later than asked, slack of 50 us", &[of("overshoot-slack")]),
            bars(
                "48 changes while another thread waits; the library without the calls",
                &[of("contended"), of("fallback-mod"), of("fallback-wait")],
            ),
        ],
    },
    Path {
        name: "stream",
        says: "Samples from a converter, through a program, to the network: the usual way copies each \
               block with read() and write(), Busbar’s blocks are filled in place and passed on without a copy.",
        headline: (
            of("sum-none").with(&[("bytes", 1 << 20)]),
            "for 1 MiB of samples, each one read",
        ),
        plots: &[
            lines(
                "Fetched, not read",
                "bytes",
                &[
                    usual("read()", of("fetch-none")),
                    ours("blocks in place", of("fetch-none")),
                    usual("iio_readdev", of("peer")),
                ],
            ),
            lines(
                "Every sample read",
                "bytes",
                &[usual("read()", of("sum-none")), ours("blocks in place", of("sum-none"))],
            ),
            bars("Fetched, not read", &[of("fetch-none")]),
            bars("Every sample read", &[of("sum-none")]),
            bars("Fetched while the converter writes", &[of("fetch-counter")]),
            bars("Every sample read, while the converter writes", &[of("sum-counter")]),
            bars("A peer: iio_readdev of libiio, fetch only", &[of("peer")]),
            bars("To another host, time", &[of("network")]),
            bars("To another host, processor time of the sender", &[of("network-cpu")]),
            bars("To a USB host and from it, time", &[of("usb-to-host"), of("usb-from-host")]),
            bars(
                "To a USB host and from it, processor time of the device",
                &[of("usb-to-host-cpu"), of("usb-from-host-cpu")],
            ),
            bars(
                "Kinds of memory, every sample read",
                &[of("memory-heap-system"), of("memory-pages"), of("memory-huge-pages")],
            ),
            bars("Processor time: fetched, not read", &[of("fetch-none-cpu")]),
            bars("Processor time: every sample read", &[of("sum-none-cpu")]),
        ],
    },
    Path {
        name: "receive",
        says: "Data from the network in a block of device memory: the usual way keeps a table entry under \
               a lock for each fragment, Busbar’s token is an index with an atomic count.",
        headline: (
            of("tokens in order").with(&[("held", 128), ("sockets", 4)]),
            "to receive and return a fragment",
        ),
        plots: &[
            lines(
                "A fragment, by how many are held (four sockets)",
                "held",
                &[
                    usual(
                        "given and returned, xarray",
                        of("tokens in order").with(&[("sockets", 4)]),
                    ),
                    ours(
                        "given and returned, index",
                        of("tokens in order").with(&[("sockets", 4)]),
                    ),
                    usual("given, xarray", of("give in order").with(&[("sockets", 4)])),
                    ours("given, index", of("give in order").with(&[("sockets", 4)])),
                ],
            ),
            bars(
                "Given and returned, four sockets",
                &[
                    of("tokens in order").with(&[("sockets", 4)]),
                    of("tokens reversed").with(&[("sockets", 4)]),
                    of("tokens random").with(&[("sockets", 4)]),
                ],
            ),
            bars("Streams, index against xarray tokens", &[of("flows-time"), of("flows-cpu")]),
            bars("Streams, against ordinary receive", &[of("copy-time"), of("copy-cpu")]),
        ],
    },
    Path {
        name: "languages",
        says: "The same program that consumes a stream, in Rust and in other languages.",
        headline: (of("c").with(&[("bytes", 4 << 10)]), "for a block of 4 KiB, C against Rust"),
        plots: &[bars("C, against Rust", &[of("c"), of("c-cpu")])],
    },
    Path {
        name: "iiod",
        says: "Samples for clients on the network: the usual way is libiio’s own server, Busbar’s sends blocks \
               without a copy.",
        headline: (
            of("loopback-readdev-cpu").with(&[("bytes", 64 << 10), ("clients", 1)]),
            "processor time of the server, for iio_readdev",
        ),
        plots: &[
            bars(
                "Processor time of the server: iio_readdev",
                &[of("loopback-readdev-cpu"), of("nic-readdev-cpu"), of("veth-readdev-cpu")],
            ),
            bars(
                "Processor time of the server: Busbar’s source",
                &[of("loopback-source-cpu"), of("nic-source-cpu"), of("veth-source-cpu")],
            ),
            bars(
                "Time: iio_readdev",
                &[of("loopback-readdev"), of("nic-readdev"), of("veth-readdev")],
            ),
            bars(
                "Time: Busbar’s source",
                &[of("loopback-source"), of("nic-source"), of("veth-source")],
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_has_every_path_in_order() {
        assert_eq!(PATHS.map(|path| path.name), crate::PATHS);
    }

    #[test]
    fn a_pick_takes_name_rival_and_parameters() {
        let case = Case::new("turn", &[("descriptors", 16)], "us", "ppoll", &[(1.0, 1.0)]);
        assert!(of("turn").has(&case));
        assert!(of("turn").against("ppoll").with(&[("descriptors", 16)]).has(&case));
        assert!(!of("tur").has(&case));
        assert!(!of("turn").against("epoll").has(&case));
        assert!(!of("turn").with(&[("descriptors", 17)]).has(&case));
    }
}
