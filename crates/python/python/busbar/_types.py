"""Plain values that the library returns, and the exception of a loss."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass


class LossError(OSError):
    """Samples are missing before the end of a block, and the source is to raise on that.

    `lost` is how many, or None if that is not known; `block` is the block, which is valid. A copy of the error has no
    block: that stays with the process that has it.
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
    """One value of a sample, as IIO describes it."""

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
    """A service that a coprocessor has announced."""

    name: str
    address: int
    driver: str | None


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """A control device and its coprocessor."""

    path: str
    driver: str | None
    remoteproc: str | None
    channels: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class ReceiveStatistics:
    """Counters of a receiver, in bytes and events."""

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
    """Counters of a source of a pipeline."""

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
    """Counters of a stage of a pipeline."""

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
    """Counters of a sink of a pipeline. Latencies are in microseconds."""

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
    """Counters of a control of a pipeline. `slowest` is in microseconds."""

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
    """Totals of a pipeline since it was opened."""

    sources: tuple[SourceCounters, ...]
    stages: tuple[StageCounters, ...]
    sinks: tuple[SinkCounters, ...]
    controls: tuple[ControlCounters, ...]
    copied: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a pipeline: the node, a word (`trouble`, `restarted`, `came`, `event`, `refused`), details."""

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
