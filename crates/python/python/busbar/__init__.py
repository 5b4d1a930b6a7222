"""Moves data between a coprocessor (rpmsg), an ADC or DAC (IIO) and TCP on Linux with few or no copies.

    with busbar.Source("synth:sine?rate=1M", block_len="1M") as source:
        for block in source:
            samples = numpy.asarray(block)      # the memory that the converter has filled
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
)
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
    "Block",
    "Channel",
    "Connection",
    "ControlCounters",
    "Controller",
    "ControllerInfo",
    "Counters",
    "Endpoint",
    "Event",
    "Listener",
    "LossError",
    "Pipeline",
    "ReceiveStatistics",
    "Receiver",
    "Service",
    "Sink",
    "SinkCounters",
    "Source",
    "SourceCounters",
    "Space",
    "StageCounters",
    "View",
]

# A virtual coprocessor needs a machine of 64 bits.
if hasattr(_busbar, "Coprocessor"):
    from ._busbar import Coprocessor, Port

    __all__ += ["Coprocessor", "Port"]
