"""IIO devices and their attributes, of this machine or of another one."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from . import _busbar
from ._types import Channel


class Range(NamedTuple):
    """What an attribute takes: values from `minimum` to `maximum` in steps of `step`, as the driver writes them."""

    minimum: str
    step: str
    maximum: str


@dataclass(frozen=True, slots=True)
class Server:
    """An IIO server of the local network.

    name: the name that it is announced with
    host: its address and port, as `devices` takes them
    """

    name: str
    host: str


def _text(name: str, value: object) -> str:
    """A value as the kernel reads it: no exponents, no sign of a type."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"{name}: `{value!r}` is not allowed; allowed: no NUL")
        return value
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{name}: `{number}` is not allowed; allowed: a finite number")
        return str(int(number)) if number.is_integer() else format(decimal.Decimal(repr(number)), "f")
    raise TypeError(f"{name}: a text or a number is needed, not {type(value).__name__}")


class Attributes(Mapping[str, str]):
    """The attributes of a device, a channel or a buffer: a mapping of names to texts. Each access asks the driver.

    `attributes[name]` reads one, and `attributes[name] = value` writes a text or a number, also one that it has already.
    Errors: `KeyError` for an unknown name; `OSError` as the driver returns it, such as `EBUSY` while the device is used
    and has another value, `EINVAL` or `EACCES`, and those of the network; after these it is not known whether a value was
    written.
    """

    __slots__ = ("_channel", "_device", "_kind", "_machine", "_names")

    def __init__(self, machine, device, kind, channel, names):
        self._machine, self._device, self._kind, self._channel = machine, device, kind, channel
        self._names = tuple(names)

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(f"{name}: no such attribute of {self._device}; there are: {', '.join(self._names)}")
        return name

    def __getitem__(self, name: str) -> str:
        return self._machine.read(self._device, self._kind, self._channel, self._known(name))

    def __setitem__(self, name: str, value: str | float) -> None:
        text = _text(name, value)
        self._machine.write(self._device, self._kind, self._channel, self._known(name), text)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def available(self, name: str) -> list[str] | Range:
        """What an attribute takes, by its attribute `name_available`: a list of texts, or a `Range`. Errors: `KeyError` if
        the driver does not tell; as to read it.
        """
        text = self[f"{name}_available"].strip()
        if text.startswith("["):
            words = text.strip("[]").split()
            if len(words) == 3:
                return Range(*words)
        return text.split()

    def __repr__(self) -> str:
        return f"<busbar.Attributes {list(self._names)}>"


class DeviceChannel:
    """A channel of a device.

    id: such as `voltage0`
    name: that its driver has given it, or None
    is_output: whether it transmits
    format: how its values are stored, a `Channel`, whose offset is that in a sample of all channels; None if it cannot be
        in a sample
    attributes: `Attributes`, by their short names, such as `raw`
    """

    __slots__ = ("attributes", "format", "id", "is_output", "name")

    id: str
    name: str | None
    is_output: bool
    format: Channel | None
    attributes: Attributes

    def __init__(self, machine, device, channel):
        self.id, self.name, self.is_output, self.format, names = channel
        self.attributes = Attributes(machine, device, "channel", (self.id, self.is_output), names)

    @property
    def label(self) -> str | None:
        """Its attribute `label`, or None. Errors: as to read it."""
        return self.attributes.get("label")

    @property
    def scale(self) -> float:
        """Its attribute `scale`, or 1: `(value + offset) * scale` is in its unit. Errors: as to read it."""
        return float(self.attributes.get("scale", 1))

    @property
    def offset(self) -> float:
        """Its attribute `offset`, or 0. Errors: as to read it."""
        return float(self.attributes.get("offset", 0))

    def __repr__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"<busbar.DeviceChannel {'out' if self.is_output else 'in'}_{self.id}{name}>"


class Device:
    """An IIO device of this machine or of another one. `devices` lists them. All devices of a list have one connection,
    which is closed with the last of them, and made anew by the next access after it was lost.

    id: `iio:deviceN`
    name: its name, or None
    label: its label, or None
    uri: the name by which `Source` and `Sink` open it
    channels: a tuple of `DeviceChannel`, those of a sample first, in its order
    attributes: its own `Attributes`
    buffer: those of its buffer
    debug: those in debugfs, such as `direct_reg_access`; for root
    triggers: the names of the triggers that the machine has
    """

    __slots__ = ("_machine", "attributes", "buffer", "channels", "debug", "id", "label", "name", "triggers", "uri")

    id: str
    name: str | None
    label: str | None
    uri: str
    channels: tuple[DeviceChannel, ...]
    attributes: Attributes
    buffer: Attributes
    debug: Attributes
    triggers: tuple[str, ...]

    def __init__(self, machine, host, triggers, listed):
        (self.id, self.name, self.label), names, channels = listed
        self._machine, self.triggers = machine, triggers
        self.uri = f"iio:{self.id}" + (f"@ip:{host}" if host else "")
        self.channels = tuple(DeviceChannel(machine, self.id, it) for it in channels)
        self.attributes, self.buffer, self.debug = (
            Attributes(machine, self.id, kind, None, it) for kind, it in zip(("device", "buffer", "debug"), names)
        )

    def __getitem__(self, name: str) -> DeviceChannel:
        """The channel of an id or name; `in_` or `out_` before it says which one, where there are both. Errors: `KeyError`.
        """
        for channel in sorted(self.channels, key=lambda it: it.is_output):
            names = {channel.id, channel.name, f"{channel.id}_{channel.name}"} - {None}
            way = "out_" if channel.is_output else "in_"
            if isinstance(name, str) and (name in names or name in {way + it for it in names}):
                return channel
        raise KeyError(f"{name}: no such channel of {self.id}; there are: {', '.join(it.id for it in self.channels)}")

    # Otherwise Python would count up from 0.
    __iter__ = None

    @property
    def trigger(self) -> str | None:
        """The name of its trigger, or None; one of `triggers` can be set. Errors: `FileNotFoundError` for a device that has
        none; `ValueError` for an unknown one; `OSError` with `EBUSY` while the device is used; those of the network.
        """
        return self._machine.trigger(self.id)

    @trigger.setter
    def trigger(self, name: str | None) -> None:
        self._machine.set_trigger(self.id, name)

    def __repr__(self) -> str:
        return f"<busbar.Device {self.uri}{f' ({self.name})' if self.name else ''}>"


def devices(host: str | None = None, *, timeout: float | None = 10.0) -> list[Device]:
    """The IIO devices of this machine, or of another one where `iiod` or `busbar serve` runs: `HOST`, `HOST:PORT`, or with
    `ip:` before it. `timeout` is the limit in seconds for this, and then for each access to an attribute (`None`: no limit);
    5 s without an answer are always the end.

    Errors: `ConnectionRefusedError`, `TimeoutError` and other errors of the network; `OSError` with `EBADMSG` if what answers
    has another protocol; `ValueError` for a bad argument.
    """
    if host is not None:
        host = host.removeprefix("ip:")
        if not host or "\0" in host:
            raise ValueError(f"host: `{host!r}` is not allowed; allowed: HOST, HOST:PORT, ip:HOST, ip:HOST:PORT")
    machine = _busbar._Devices(host, timeout)
    triggers = tuple(machine.triggers())
    return [Device(machine, host, triggers, it) for it in machine.list()]


def servers(timeout: float = 2.0) -> list[Server]:
    """The IIO servers that the local network announces (DNS-SD) within `timeout` seconds. Names and addresses are what any
    neighbour says.

    Errors: `OSError` of the network interfaces; `ValueError` for a bad `timeout`.
    """
    return [Server(*it) for it in _busbar._servers(timeout)]
