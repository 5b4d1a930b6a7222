"""Moves data between a coprocessor (rpmsg), an ADC or DAC (IIO) and TCP on Linux with few or no copies.

    with busbar.Source("synth:sine?rate=1M", block_len="1M") as source:
        for block in source:
            samples = numpy.asarray(block)      # the memory that the converter has filled

    for device in busbar.devices("192.168.2.1"):     # or busbar.devices(), those of this machine
        print(device.name, list(device.attributes))

Times are in seconds, lengths in bytes unless samples are said. A `timeout` of None has no limit. A signal ends a wait, with
the exception of its handler.

A failure is the subclass of OSError that its `errno` has, with the library's text as `strerror` and a word for a program as
`reason`, such as "not_found". A bad argument is a ValueError that names it and what is allowed, or a TypeError. What is
closed, was given back, or belongs to the process that this one was forked from, raises ValueError.
"""

import os

from . import _busbar
from ._busbar import (
    Block,
    Connection,
    Controller,
    Endpoint,
    Listener,
    Pipeline,
    Receiver,
    Sink,
    Source,
    Space,
    View,
    __version__,
)
from ._devices import Attributes, Device, DeviceChannel, Range, Server, devices, servers
from ._types import (
    Channel,
    ControlCounters,
    ControllerInfo,
    Counters,
    Event,
    LossError,
    ReceiveStatistics,
    Service,
    SinkCounters,
    SourceCounters,
    StageCounters,
)

# A child of a fork leaves to its parent what belongs to that.
os.register_at_fork(after_in_child=_busbar._forked)

__all__ = [
    "Attributes",
    "Block",
    "Channel",
    "Connection",
    "ControlCounters",
    "Controller",
    "ControllerInfo",
    "Counters",
    "Device",
    "DeviceChannel",
    "Endpoint",
    "Event",
    "Listener",
    "LossError",
    "Pipeline",
    "Range",
    "ReceiveStatistics",
    "Receiver",
    "Server",
    "Service",
    "Sink",
    "SinkCounters",
    "Source",
    "SourceCounters",
    "Space",
    "StageCounters",
    "View",
    "devices",
    "servers",
]

# A virtual coprocessor needs a machine of 64 bits.
if hasattr(_busbar, "Coprocessor"):
    from ._busbar import Coprocessor, Port

    __all__ += ["Coprocessor", "Port"]
