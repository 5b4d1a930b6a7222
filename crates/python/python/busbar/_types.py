"""Plain values that the library returns, and the exception of a loss."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass


class LossError(OSError):
    """Samples are missing before the end of a block, and the source is to raise on that.

    lost: number of samples that are missing, or None if that is not known
    block: the block, which is valid; None in a copy of the error, as it stays with the process that has it
    errno: ENOBUFS
    reason: `lost`
    """

    def __init__(self, name, lost, block):
        how_many = f"{lost} samples are missing" if lost is not None else "samples may be missing"
        text = f"{name}: {how_many} before the end of block {block.sequence}"
        if lost is None:
            text += " (to know it, take a channel that counts samples, or `timestamp`)"
        super().__init__(errno.ENOBUFS, text)
        self.lost = lost
        self.block = block
        self.reason = "lost"

    def __reduce__(self):
        return _copy_of_loss, (self.errno, self.strerror, self.lost)


def _copy_of_loss(number, text, lost):
    error = LossError.__new__(LossError)
    OSError.__init__(error, number, text)
    error.lost, error.block, error.reason = lost, None, "lost"
    return error


@dataclass(frozen=True, slots=True)
class Channel:
    """One value of a sample, as IIO describes it.

    name: such as `voltage0_i`
    signed: whether the value is a two's complement
    bits: valid bits
    storage_bits: bits that the value takes up
    shift: how many bits the value is to be shifted to the right
    big_endian: whether the first byte is the most significant one
    repeat: number of values in a row, 1 for all but vectors
    offset: of its first byte in the sample, in bytes
    """

    name: str
    signed: bool
    bits: int
    storage_bits: int
    shift: int
    big_endian: bool
    repeat: int
    offset: int


@dataclass(frozen=True, slots=True)
class Service:
    """A service that a coprocessor has announced.

    name: the name
    address: to which messages are sent
    driver: the kernel's driver that uses it, or None
    """

    name: str
    address: int
    driver: str | None


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """A control device and its coprocessor.

    path: `/dev/rpmsg_ctrlN`
    driver: `rpmsg_ctrl` or `rpmsg_eptfd`, or None
    remoteproc: the processor behind it, or None if the remoteproc framework does not manage it
    channels: the services that it has announced
    """

    path: str
    driver: str | None
    remoteproc: str | None
    channels: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class ReceiveStatistics:
    """Counters of a receiver: totals of all its connections.

    bytes: bytes that were received
    copied: bytes of these that a processor has copied
    views: views that exist
    held: bytes of the memory that views hold, in whole pages
    memory: bytes of the memory
    shortages: how often memory was short, or None if the driver does not count that
    returns: calls in which memory was given back to the device
    refused: parts of the memory that the kernel has refused to take back
    """

    bytes: int
    copied: int
    views: int
    held: int
    memory: int
    shortages: int | None
    returns: int
    refused: int


@dataclass(frozen=True, slots=True)
class SourceCounters:
    """Counters of a source of a pipeline: totals since that was opened.

    name: of the node
    state: `off`, `down`, `open` or `ended`
    interface: `dmabuf`, `fileio`, `synth` or `iiod` for a converter, else None
    memory: of the blocks of a converter, else None
    blocks: blocks received
    samples: samples in them
    bytes: bytes of them
    lost: samples that are known to be missing
    unknown: blocks of which it is not known whether samples are missing before their end
    failed: blocks that a converter has failed to fill
    restarts: how often it was opened again after a failure
    reconnects: how often a sender came back
    corrupted: invalid frames
    copied: bytes copied in memory
    """

    name: str
    state: str
    interface: str | None
    memory: str | None
    blocks: int
    samples: int
    bytes: int
    lost: int
    unknown: int
    failed: int
    restarts: int
    reconnects: int
    corrupted: int
    copied: int


@dataclass(frozen=True, slots=True)
class StageCounters:
    """Counters of a stage of a pipeline: totals since that was opened.

    name: of the node
    waiting: blocks that wait for it now
    blocks: blocks that came out of it
    samples: samples in them
    dropped_blocks: blocks that were dropped in front of it
    dropped_samples: samples in those
    kept_back: samples that a gate has kept back
    opened: how often a gate was opened
    copied: bytes copied in memory
    """

    name: str
    waiting: int
    blocks: int
    samples: int
    dropped_blocks: int
    dropped_samples: int
    kept_back: int
    opened: int
    copied: int


@dataclass(frozen=True, slots=True)
class SinkCounters:
    """Counters of a sink of a pipeline: totals since that was opened.

    name: of the node
    state: `new` (no samples yet), `down`, `open` or `finished`
    blocks: blocks that were delivered
    samples: samples in them
    bytes: bytes of them
    lost: samples that are known to be missing in what was delivered
    unknown: blocks of which it is not known whether samples are missing before their end
    waiting: blocks that wait now
    under_way: blocks that are under way now
    dropped_blocks: blocks that were dropped in front of it
    dropped_samples: samples in those
    failed: blocks that were lost when it failed
    restarts: how often it was opened again after a failure
    reconnects: how often a connection was made again
    resent: blocks that were sent again
    verified: samples that were verified
    copied: bytes copied in memory
    latency_p50: median latency in microseconds, from the completion of a block to its delivery
    latency_p99: 99th percentile of it, in microseconds
    latency_max: the longest one, in microseconds
    """

    name: str
    state: str
    blocks: int
    samples: int
    bytes: int
    lost: int
    unknown: int
    waiting: int
    under_way: int
    dropped_blocks: int
    dropped_samples: int
    failed: int
    restarts: int
    reconnects: int
    resent: int
    verified: int
    copied: int
    latency_p50: int
    latency_p99: int
    latency_max: int


@dataclass(frozen=True, slots=True)
class ControlCounters:
    """Counters of a control of a pipeline: totals since that was opened.

    name: of the node
    state: `down` or `up`
    commands: commands that were carried out
    refused: commands that were refused
    events: events received
    malformed: invalid messages
    late: reactions that took longer than the deadline
    slowest: the slowest reaction, in microseconds
    restarts: how often it came back
    """

    name: str
    state: str
    commands: int
    refused: int
    events: int
    malformed: int
    late: int
    slowest: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of a pipeline since it was opened.

    sources: of each source, in the order of the nodes
    stages: of each stage
    sinks: of each sink
    controls: of each control
    copied: bytes copied in memory in all nodes, each time they were
    """

    sources: tuple[SourceCounters, ...]
    stages: tuple[StageCounters, ...]
    sinks: tuple[SinkCounters, ...]
    controls: tuple[ControlCounters, ...]
    copied: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a pipeline.

    node: the name of the node
    what: `trouble`, `restarted`, `came`, `event` or `refused`
    text: details: the text of an error, or the name of a coprocessor's event and its value
    """

    node: str
    what: str
    text: str


def counters(text: str) -> Counters:
    found = json.loads(text)
    return Counters(
        sources=tuple(SourceCounters(**each) for each in found["sources"]),
        stages=tuple(StageCounters(**each) for each in found["stages"]),
        sinks=tuple(SinkCounters(**each) for each in found["sinks"]),
        controls=tuple(ControlCounters(**each) for each in found["controls"]),
        copied=found["copied"],
    )


def events(text: str) -> list[Event]:
    return [Event(**each) for each in json.loads(text)]
