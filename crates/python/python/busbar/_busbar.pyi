"""The part of the package that is written in Rust. Times are in seconds, lengths in bytes unless `samples` is said.

A `timeout` of None has no limit. Failures are subclasses of OSError with `errno`, `strerror` and `reason`; bad arguments
are ValueError. A closed object raises ValueError.
"""

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, Self, final

import numpy
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer, CapsuleType

from ._types import Channel, ControllerInfo, Counters, Event, ReceiveStatistics, Service

@final
class Source:
    """A stream of samples from a converter: an iterator of blocks.

    `name` is `iio:NAME`, `iio:NAME@ip:HOST` for a converter of another machine, or `synth:PATTERN`. `block_len` is a
    number of bytes or a text such as "1M" (K is 1024), rounded down to whole samples. `memory` is `heap:NAME`, `pages`,
    `huge` or `memfd`, `interface` is `dmabuf`, `fileio`, `synth` or `iiod`; without them the library chooses. With
    `on_loss="raise"`, iterators raise LossError before a block in front of whose end samples are missing, or may be.
    """

    def __new__(
        cls,
        name: str,
        *,
        blocks: int = 4,
        block_len: int | str = "64K",
        memory: str | None = None,
        interface: str | None = None,
        channels: Sequence[str] | None = None,
        on_loss: Literal["ignore", "raise"] = "ignore",
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> numpy.dtype[numpy.void]:
        """The type of a sample: a field for each channel, as it is stored."""
    @property
    def channels(self) -> tuple[Channel, ...]: ...
    @property
    def rate(self) -> float | None:
        """Samples per second, or None if that is not known."""
    @property
    def sample_len(self) -> int:
        """Bytes of a sample."""
    @property
    def interface(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block_len(self) -> int:
        """Bytes of samples that a block holds."""
    @property
    def copied(self) -> int:
        """Bytes that were copied in memory on the way into blocks."""
    @property
    def closed(self) -> bool: ...
    def scale(self, channel: str) -> tuple[float, float]:
        """`(offset, scale)`: (value + offset) * scale is in the channel's unit, millivolts for a voltage."""
    def next(self, timeout: float | None = None) -> Block | None:
        """The next block, or None if none came in time. BrokenPipeError once the device is gone."""
    def try_next(self) -> Block | None: ...
    def fileno(self) -> int:
        """A descriptor that is readable while a block is complete."""
    def close(self) -> None:
        """Stops the device and restores its settings. Blocks that were handed out stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def __iter__(self) -> Iterator[Block]: ...
    def __next__(self) -> Block: ...
    def __aiter__(self) -> AsyncIterator[Block]: ...

@final
class Block:
    """A block of samples, in the memory that the converter has filled. `numpy.asarray(block)` is a view of it.

    It goes back to its driver with the last reference to it and to its views.
    """

    @property
    def sequence(self) -> int:
        """Number of the block, from 0. Blocks that the converter has failed to fill count, too."""
    @property
    def time(self) -> float:
        """When the block was complete, in seconds since 1970."""
    @property
    def time_ns(self) -> int: ...
    @property
    def lost(self) -> int | None:
        """Samples missing between the end of the block before and the end of this one; None if that is not known."""
    @property
    def rate(self) -> float | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> numpy.dtype[numpy.void]: ...
    @property
    def channels(self) -> tuple[Channel, ...]: ...
    @property
    def released(self) -> bool: ...
    @property
    def data(self) -> memoryview:
        """The bytes in place, read-only."""
    @property
    def array(self) -> NDArray[numpy.void]:
        """The samples in place, read-only, of shape (samples,): what `numpy.asarray(block)` is."""
    def pairs(self, i: str, q: str) -> NDArray[Any]:
        """Two channels of one type in place, read-only, of shape (samples, 2)."""
    def values(
        self,
        channel: str,
        dtype: Literal["int16", "int32", "int64", "float32", "float64"] = "float32",
        scale: tuple[float, float] | None = None,
    ) -> NDArray[Any]:
        """A new array of shape (samples,): shifted, sign-extended, and converted by the result of Source.scale."""
    def complex(
        self,
        i: str,
        q: str,
        dtype: Literal["complex64", "complex128"] = "complex64",
        scale: tuple[float, float] | None = None,
    ) -> NDArray[numpy.complexfloating]:
        """A new array of shape (samples,)."""
    def release(self) -> None:
        """Gives the block back. BufferError while an array or memoryview refers to it."""
    def __len__(self) -> int:
        """Number of samples."""
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Sink:
    """A stream of samples to a converter, `iio:NAME`.

    With `like`, it has the channels of a source, whose blocks it then can forward; a ValueError if their types differ.
    The other arguments are those of Source. A sink is a converter of this machine.
    """

    def __new__(
        cls,
        name: str,
        *,
        blocks: int = 4,
        block_len: int | str = "64K",
        memory: str | None = None,
        interface: str | None = None,
        channels: Sequence[str] | None = None,
        like: Source | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> numpy.dtype[numpy.void]: ...
    @property
    def channels(self) -> tuple[Channel, ...]: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def interface(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block_len(self) -> int: ...
    @property
    def copied(self) -> int:
        """Bytes that were copied in memory by the library or by `write`."""
    @property
    def queued(self) -> int:
        """Blocks that the device has not transmitted yet, as far as is known."""
    @property
    def closed(self) -> bool: ...
    def space(self, timeout: float | None = None) -> Space | None: ...
    def try_space(self) -> Space | None: ...
    def write(self, samples: Buffer) -> None:
        """Copies whole samples into free blocks and transmits them. Waits for free blocks.

        They are bytes, values of `dtype`, or, where all channels have one type, values of that. Otherwise a ValueError.
        """
    def forward(self, block: Block, timeout: float | None = None) -> bool:
        """Transmits a received block, by reference where the device can use its memory. False if there was no room."""
    def cyclic(self, samples: Buffer) -> None:
        """Transmits these samples, as those of `write`, again and again, until it is closed."""
    def reap(self) -> None:
        """Takes transmitted blocks back from the driver. Does not wait."""
    def drain(self, timeout: float | None = None) -> bool:
        """Waits until everything was transmitted. False if that took longer."""
    def fileno(self) -> int: ...
    def close(self) -> None:
        """Stops the device at once and restores its settings."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Space:
    """A free block of a sink: `numpy.asarray(space)` is a writable view of it. Without `send` it goes back unsent."""

    @property
    def dtype(self) -> numpy.dtype[numpy.void]: ...
    @property
    def data(self) -> memoryview:
        """The bytes in place, writable."""
    @property
    def array(self) -> NDArray[numpy.void]:
        """The samples in place, writable, of shape (samples,)."""
    def send(self, samples: int | None = None) -> None:
        """Transmits the first samples, or all. BufferError while an array or memoryview refers to it."""
    def release(self) -> None: ...
    def __len__(self) -> int: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...

@final
class Pipeline:
    """Sources, stages and sinks in one loop, from TOML text or a dict of the same tables. `name` is for errors.

    Nodes are in the order of the text or dict.
    """

    def __new__(cls, config: str | dict[str, Any], *, name: str = "pipeline") -> Self: ...
    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """From a TOML file."""
    def turn(self, timeout: float | None = None) -> Literal["running", "draining", "finished"]:
        """Does what can be done now; if there is nothing, waits for the next event: 100 ms at most.

        To connect to another machine again takes longer, also with a `timeout` of 0.
        """
    def run(self, seconds: float | None = None) -> None:
        """Turns until it has finished. After `seconds` it is stopped, and blocks under way are delivered."""
    def run_async(self, seconds: float | None = None) -> Awaitable[None]: ...
    def stop(self) -> None:
        """Takes no more blocks from the sources. Further turns deliver those under way."""
    @property
    def counters(self) -> Counters: ...
    @property
    def remaining(self) -> dict[str, int]:
        """Blocks not delivered yet, by the name of each sink that has some."""
    def take_events(self) -> list[Event]: ...
    def fileno(self) -> int: ...
    def close(self) -> None:
        """Ends it at once and drops blocks under way."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Controller:
    """The control device of one coprocessor, `/dev/rpmsg_ctrlN`."""

    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @classmethod
    def list(cls) -> list[ControllerInfo]: ...
    @property
    def path(self) -> PathLike[str]: ...
    def channels(self) -> tuple[Service, ...]: ...
    def supports_fd(self) -> bool: ...
    def endpoint(
        self,
        name: str,
        *,
        source: int | None = None,
        destination: int | None = None,
        implementation: Literal["auto", "fd", "node"] = "auto",
        timeout: float | None = 5.0,
    ) -> Endpoint:
        """Makes an endpoint that sends to the service `name`, or to the address `destination`."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Endpoint:
    """Messages to and from a coprocessor. Each arrives whole, and may be empty."""

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """From a descriptor that was made elsewhere, which belongs to the endpoint from now on."""
    def send(self, message: Buffer, timeout: float | None = None) -> bool:
        """False if no buffer became free in time. BrokenPipeError once the remote is gone."""
    def try_send(self, message: Buffer) -> bool: ...
    def send_async(self, message: Buffer) -> Awaitable[None]: ...
    def recv(self, timeout: float | None = None, *, max_len: int = 496) -> bytes | None:
        """None if no message came in time. EMSGSIZE for a longer message, which is lost; ENOBUFS once after a loss."""
    def try_recv(self, *, max_len: int = 496) -> bytes | None: ...
    def recv_async(self, *, max_len: int = 496) -> Awaitable[bytes]: ...
    @property
    def implementation(self) -> str: ...
    def set_paused(self, paused: bool) -> None: ...
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Receiver:
    """Receives TCP into `len` bytes of memory. With `device`, its queues write there, and no processor copies."""

    def __new__(
        cls,
        device: str | None = None,
        *,
        len: int | str = "4M",
        memory: str | None = None,
        queues: str | None = None,
        tokens: str | None = None,
    ) -> Self: ...
    def listen(self, host: str, port: int = 0) -> Listener: ...
    def connect(self, host: str, port: int, timeout: float | None = 10.0) -> Connection: ...
    def statistics(self) -> ReceiveStatistics: ...
    @property
    def queues(self) -> list[int]: ...
    def close(self) -> None:
        """Undoes all settings of the device. Connections go on without it; views stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Listener:
    @property
    def address(self) -> tuple[str, int]: ...
    def accept(self, timeout: float | None = None) -> Connection | None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

@final
class Connection:
    """A connection: an iterator of pieces, each a View of the receiver's memory, or bytes that are not there."""

    def next(self, timeout: float | None = None) -> View | bytes | None:
        """The next piece; None at the end, or if none came in time: `finished` tells."""
    def try_next(self) -> View | bytes | None: ...
    @property
    def finished(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def __iter__(self) -> Iterator[View | bytes]: ...
    def __next__(self) -> View | bytes: ...
    def __aiter__(self) -> AsyncIterator[View | bytes]: ...

@final
class View:
    """A part of the receiver's memory, which is free for other data once it and its arrays are dropped."""

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def array(self) -> NDArray[numpy.uint8]: ...
    def release(self) -> None:
        """Frees the memory for other data. BufferError while an array or memoryview refers to it."""
    def __len__(self) -> int: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]: ...

class Firmware(Protocol):
    """A service of a coprocessor; `on_start(port)`, and `on_tick(port)` each `period` seconds, if it has them."""

    name: str
    def on_message(self, port: Port, sender: int, message: bytes) -> None: ...

@final
class Port:
    """What a service can do while it is called. Once the call has returned, a ValueError."""

    @property
    def address(self) -> int: ...
    @property
    def room(self) -> int:
        """Messages that can still be sent in this call."""
    def send(self, to: int, message: Buffer) -> None:
        """Sends a message to an address of Linux, when the call has returned or raised an exception."""
    def crash(self, reason: str) -> None:
        """Makes the coprocessor crash after this call."""

@final
class Coprocessor:
    """A virtual coprocessor (module vcoproc) that runs services in a thread while it is entered.

    Each service is an object, or a text as for `busbar coprocessor run --service`.
    """

    def __new__(cls, services: Sequence[Firmware | str], *, device: str | PathLike[str] | None = None) -> Self: ...
    def start(self, timeout: float | None = 30.0) -> None:
        """Starts it. Returns when Linux knows the services; TimeoutError if that takes longer."""
    def stop(self) -> None: ...
    def take_events(self) -> list[tuple[str, str]]: ...
    @property
    def statistics(self) -> dict[str, Any] | None:
        """What it has done, once it was stopped."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
