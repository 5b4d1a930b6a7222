"""The part of the package that is written in Rust. The docstring of the package says what units and errors all have in
common; the docstrings here are those of the module, word for word.
"""

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from os import PathLike
from socket import socket as Socket
from typing import Any, Literal, Protocol, Self, final

import numpy
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer, CapsuleType

from ._types import Channel, ControllerInfo, Counters, Event, ReceiveStatistics, Service

__version__: str

def _servers(timeout: float | None) -> list[tuple[str, str]]: ...
@final
class _Devices:
    def __new__(cls, host: str | None, timeout: float | None) -> Self: ...
    def list(self) -> list[tuple[Any, Any, Any]]: ...
    def triggers(self) -> list[str]: ...
    def read(self, device: str, kind: str, channel: tuple[str, bool] | None, name: str) -> str: ...
    def write(
        self, device: str, kind: str, channel: tuple[str, bool] | None, name: str, value: str
    ) -> None: ...
    def trigger(self, device: str) -> str | None: ...
    def set_trigger(self, device: str, trigger: str | None) -> None: ...

@final
class Source:
    """A stream of samples from a converter: an iterator of blocks, which ends when it is closed.

    `name` is `iio:NAME`, `iio:NAME@ip:HOST` for a converter of another machine, `synth:PATTERN`, `file:NAME` for a
    recording, or `tcp-listen:PORT` for what is sent to it, where this waits for the sender, for 30 s at most.
    `blocks` is a number of blocks, 1 to 1024; by default as many as have 1 MiB together, from 4 to 64, which is 16 of
    `"64K"`. `block_len` is a number of bytes or a text such as `"1M"` (K is 1024), rounded down to whole samples. `memory` is `heap:NAME`, `pages`, `huge` or `memfd`, and `interface` is `dmabuf`, `fileio`, `synth`,
    `iiod` or `library`; without them the library chooses. `channels` are the names of the channels to receive, in any order;
    without it, all voltages, or if there are none, all but `timestamp`. With `on_loss="raise"`, iterators raise
    `LossError` before a block in front of whose end samples are missing, or may be.

    Errors: `ValueError` for a bad argument; `FileNotFoundError` if there is no such device; `PermissionError`;
    `OSError` with `EBUSY` if another program uses it.
    """

    def __new__(
        cls,
        name: str,
        *,
        blocks: int | None = None,
        block_len: int | str = "64K",
        memory: str | None = None,
        interface: str | None = None,
        channels: Sequence[str] | None = None,
        on_loss: Literal["ignore", "raise"] = "ignore",
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The name that it was opened by."""
    @property
    def dtype(self) -> numpy.dtype[numpy.void]:
        """The type of a sample, structured: a field for each channel, as it is stored. A copy."""
    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, a tuple of `Channel`, in their order in the sample."""
    @property
    def rate(self) -> float | None:
        """Samples per second, or `None` if that is not known."""
    @property
    def sample_len(self) -> int:
        """Bytes of a sample."""
    @property
    def interface(self) -> str:
        """The interface to the driver: `dmabuf`, `fileio`, `synth` or `iiod`. Errors: `ValueError` once it is closed.
        """
    @property
    def memory(self) -> str:
        """The memory of the blocks: `heap:NAME`, `pages`, `huge` or `memfd`. Errors: `ValueError` once it is closed."""
    @property
    def blocks(self) -> int:
        """Number of blocks. Errors: `ValueError` once it is closed."""
    @property
    def block_len(self) -> int:
        """Bytes of samples that a block holds: whole samples. Errors: `ValueError` once it is closed."""
    @property
    def copied(self) -> int:
        """Bytes that were copied in memory on the way into blocks. Errors: `ValueError` once it is closed."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def scale(self, channel: str) -> tuple[float, float]:
        """How to convert the values of a channel into its unit: `(offset, scale)`, where `(value + offset) * scale` is
        in that unit, millivolts for a voltage. Errors: `ValueError` for a channel that is not received, and once it is
        closed.
        """
    def next(self, timeout: float | None = None) -> Block | None:
        """The next block, or `None` if none came within `timeout` seconds (`None`: no limit). Never raises `LossError`.
        Errors: `BrokenPipeError` once the device is gone; another `OSError` if the driver has failed with a block,
        after which the next block can be taken; `ValueError` for a bad `timeout`, and once it is closed.
        """
    def try_next(self) -> Block | None:
        """The next block, or `None` if none is complete now. Does not wait. Errors: as `next`."""
    def fileno(self) -> int:
        """A descriptor that is readable while a block is complete. Its number belongs to the source. Errors:
        `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Stops the device and restores its settings. Blocks that were handed out stay valid. To close it again does
        nothing. Errors: `OSError` for a setting that could not be restored.
        """
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """
    def __iter__(self) -> Iterator[Block]: ...
    def __next__(self) -> Block: ...
    def __aiter__(self) -> AsyncIterator[Block]: ...

@final
class Block:
    """A block of samples, in the memory that the converter has filled. `numpy.asarray(block)` is a view of it, of shape
    `(samples,)`, and `len(block)` the number of samples.

    It goes back to its driver with the last reference to it and to its views, by `release`, or at the end of `with
    block:`.
    """

    @property
    def sequence(self) -> int:
        """Number of the block, from 0. Blocks that the converter has failed to fill count, too."""
    @property
    def time(self) -> float:
        """When the block was complete, in seconds since 1970."""
    @property
    def time_ns(self) -> int:
        """When the block was complete, in nanoseconds since 1970."""
    @property
    def lost(self) -> int | None:
        """Samples that are missing between the end of the block before and the end of this one; `None` if it is not
        known how many.
        """
    @property
    def rate(self) -> float | None:
        """Samples per second, or `None` if that is not known."""
    @property
    def nbytes(self) -> int:
        """Bytes of the samples."""
    @property
    def dtype(self) -> numpy.dtype[numpy.void]:
        """The type of a sample, structured: a field for each channel, as it is stored. A copy."""
    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, a tuple of `Channel`, in their order in the sample."""
    @property
    def released(self) -> bool:
        """Whether it was given back."""
    @property
    def data(self) -> memoryview:
        """A memoryview of the bytes in place, read-only, of shape `(nbytes,)`: for files and sockets. Errors:
        `ValueError` once it was given back; `OSError` if the kernel refuses the access.
        """
    @property
    def array(self) -> NDArray[numpy.void]:
        """The samples in place, read-only, of shape `(samples,)` and type `dtype`: what `numpy.asarray(block)` is.
        Errors: `ValueError` once it was given back; `OSError` if the kernel refuses the access.
        """
    def pairs(self, i: str, q: str) -> NDArray[Any]:
        """Two channels of the same type in place, read-only, of shape `(samples, 2)`. Errors: `ValueError` for an
        unknown channel, and for a `q` that is not behind `i` or has another type; as `array`.
        """
    def values(
        self,
        channel: str,
        dtype: DTypeLike = "float32",
        scale: tuple[float, float] | None = None,
    ) -> NDArray[Any]:
        """The values of a channel as a new array of shape `(samples,)` and type `dtype`, which is `int16`, `int32`,
        `int64`, `float32` or `float64`, by name or as NumPy has it: shifted and sign-extended. With a `scale`, the result of `Source.scale`, they
        are in the channel's unit; it needs a float. Errors: `ValueError` for an unknown channel, for a type that cannot
        hold its values, and once the block was given back.
        """
    def complex(
        self,
        i: str,
        q: str,
        dtype: DTypeLike = "complex64",
        scale: tuple[float, float] | None = None,
    ) -> NDArray[numpy.complexfloating]:
        """I and Q as a new array of shape `(samples,)` and type `dtype`, which is `complex64` or `complex128`. With a
        `scale`, the result of `Source.scale`, they are in the channels' unit. Errors: `ValueError` for an unknown
        channel or type, and once the block was given back.
        """
    def release(self) -> None:
        """Gives the block back to its driver. To release it again does nothing. Errors: `BufferError` while an array or
        memoryview refers to it.
        """
    def __len__(self) -> int:
        """Number of samples."""
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """What `numpy.asarray` calls: `array`, or a copy of it where `copy` is true or `dtype` is another type. Errors:
        as `array`; `ValueError` if another type needs a copy and `copy` is false.
        """
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """A DLPack capsule, made by NumPy, read-only: values of shape `(samples, channels)` if all channels have the
        same type and there is nothing between them, else bytes of shape `(samples, bytes)`. Errors: `BufferError` for a
        consumer, or a NumPy before 2.1, that does not know of read-only memory (before DLPack 1.0); as `array`.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the memory: `(1, 0)`, a processor. Errors: as `array`."""
    def __enter__(self) -> Self:
        """Returns itself; `release` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `release`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `release`.
        """

@final
class Sink:
    """A stream of samples to a converter of this machine, `iio:NAME`, or of another one, `iio:NAME@ip:HOST`, to a new
    recording, `file:NAME`, over the network, `tcp:HOST:PORT`, or to nowhere, `verify:counter` and `null:`.

    With `like`, it has the channels and the rate of a source, whose blocks it can then forward. `rate` is the number of
    samples per second that a recording or a receiver is told, where there is no `like`; a converter has its own. The
    other arguments are those of `Source`.

    Errors: as `Source`, and `ValueError` if the channels of `like` have other types here.
    """

    def __new__(
        cls,
        name: str,
        *,
        blocks: int | None = None,
        block_len: int | str = "64K",
        memory: str | None = None,
        interface: str | None = None,
        channels: Sequence[str] | None = None,
        rate: float | None = None,
        like: Source | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The name that it was opened by."""
    @property
    def dtype(self) -> numpy.dtype[numpy.void]:
        """The type of a sample, structured: a field for each channel, as it is stored. A copy."""
    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, a tuple of `Channel`, in their order in the sample."""
    @property
    def rate(self) -> float | None:
        """Samples per second, or `None` if that is not known."""
    @property
    def interface(self) -> str:
        """The interface to the driver: `dmabuf` or `fileio`. Errors: `ValueError` once it is closed."""
    @property
    def memory(self) -> str:
        """The memory of the blocks: `heap:NAME`, `pages`, `huge` or `memfd`. Errors: `ValueError` once it is closed."""
    @property
    def blocks(self) -> int:
        """Number of blocks. Errors: `ValueError` once it is closed."""
    @property
    def block_len(self) -> int:
        """Bytes of samples that a block holds: whole samples. Errors: `ValueError` once it is closed."""
    @property
    def copied(self) -> int:
        """Bytes that were copied in memory, by the library or by `write`. Errors: `ValueError` once it is closed."""
    @property
    def queued(self) -> int:
        """Number of blocks that the device has not transmitted yet, as far as is known. Errors: `ValueError` once it is
        closed.
        """
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def space(self, timeout: float | None = None) -> Space | None:
        """A block to fill, or `None` if none was free within `timeout` seconds (`None`: no limit). Errors:
        `BrokenPipeError` once the device is gone; `OSError` with `EBUSY` while samples are repeated by `cyclic`;
        another `OSError` if the driver has failed with a block; `ValueError` for a bad `timeout`, and once it is
        closed.
        """
    def try_space(self) -> Space | None:
        """A block to fill, or `None` if none is free now. Does not wait. Errors: as `space`."""
    def write(self, samples: Buffer, timeout: float | None = None) -> int:
        """Copies samples into free blocks and transmits them. Returns how many samples it took: all of them, unless
        there was no free block for the rest within `timeout` seconds (`None`: no limit). `samples` is anything with
        contiguous memory that holds bytes, values of `dtype`, or, where all channels have one type, values of that,
        such as an array of shape `(samples, channels)`: whole samples. Nothing is converted. Errors: `ValueError` for
        other samples, for a bad `timeout`, and once it is closed; `OSError` as `space`. An exception that ends it, such
        as `KeyboardInterrupt`, has that number as its attribute `written`.
        """
    def forward(self, block: Block, timeout: float | None = None) -> bool:
        """Transmits a received block, which then goes back to its source; by reference where the device can use its
        memory, else as a copy. `False` if there was no room within `timeout` seconds (`None`: no limit). Errors:
        `ValueError` for a block that does not fit, for one that was given back, and as `space`; `OSError` as `space`.
        """
    def cyclic(self, samples: Buffer) -> None:
        """Transmits these samples, which are as those of `write` and fit into a block, again and again, until it is
        closed. Errors: `ValueError` for other samples, and once it is closed; `OSError` with `EOPNOTSUPP` where the
        interface is `fileio`.
        """
    def reap(self) -> None:
        """Takes transmitted blocks back from the driver. Does not wait. Errors: as `space`."""
    def drain(self, timeout: float | None = None) -> bool:
        """Waits until everything was transmitted. `False` if it was not within `timeout` seconds (`None`: no limit).
        Errors: as `space`.
        """
    def fileno(self) -> int:
        """A descriptor that is readable while a block is free, or can go back to its source. Its number belongs to the
        sink. Errors: `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Stops the device at once and restores its settings; `drain` before has everything transmitted. To close it
        again does nothing. Errors: `OSError` for a setting that could not be restored.
        """
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Space:
    """A free block of a sink. `numpy.asarray(space)` is a writable view of its memory, of shape `(samples,)`, and
    `len(space)` the number of samples that fit. Without `send`, it goes back unsent.
    """

    @property
    def dtype(self) -> numpy.dtype[numpy.void]:
        """The type of a sample, structured: a field for each channel, as it is stored. A copy."""
    @property
    def data(self) -> memoryview:
        """A memoryview of the bytes in place, writable, of shape `(bytes,)`: for files and sockets. Errors:
        `ValueError` once it was sent or given back; `OSError` if the kernel refuses the access.
        """
    @property
    def array(self) -> NDArray[numpy.void]:
        """The samples in place, writable, of shape `(samples,)` and type `dtype`: what `numpy.asarray(space)` is.
        Errors: as `data`.
        """
    def send(self, samples: int | None = None) -> None:
        """Transmits the first `samples` samples, or all of them. Errors: `ValueError` for another number than 1 to
        `len(space)`, and once it was sent or given back; `BufferError` while an array or memoryview refers to it;
        `OSError` as `Sink.space`.
        """
    def release(self) -> None:
        """Gives it back unsent. To release it again does nothing. Errors: `BufferError` while an array or memoryview
        refers to it.
        """
    def __len__(self) -> int: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """What `numpy.asarray` calls: `array`, or a copy of it where `copy` is true or `dtype` is another type. Errors:
        as `array`; `ValueError` if another type needs a copy and `copy` is false.
        """

@final
class Pipeline:
    """Sources, stages and sinks that are joined in one loop: from TOML text, or from a dict of the same tables. Nodes
    are in the order of the text or dict. `name` stands in errors for the name of a file.

    Errors: `ValueError` that names the line or key; `OSError` of a source or sink that cannot be opened.
    """

    def __new__(cls, config: str | dict[str, Any], *, name: str = "pipeline") -> Self: ...
    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """From a TOML file. Errors: `FileNotFoundError`, `PermissionError`; `ValueError` for what is no regular file; as
        `Pipeline`.
        """
    def turn(self, timeout: float | None = None) -> Literal["running", "draining", "finished"]:
        """Does what can be done now; if there is nothing, waits for the next event, for `timeout` seconds at most, and
        for 100 ms in any case. Returns
        `running`, `draining` (the blocks under way are delivered) or `finished`. Errors: `OSError` of a node that has
        failed for good; `TimeoutError` if not all blocks could be delivered in time at the end; `ValueError` for a bad
        `timeout`, and once it is closed.
        """
    def run(self, seconds: float | None = None) -> None:
        """Turns until it has finished. After `seconds` seconds (`None`: never) it is stopped, and blocks under way are
        delivered. Errors: as `turn`, and `ValueError` for bad `seconds`.
        """
    def run_async(self, seconds: float | None = None) -> Awaitable[None]:
        """As `run`, in the event loop of asyncio, without a thread: to be awaited. Errors: as `run`."""
    def stop(self) -> None:
        """Takes no more blocks from the sources. Further turns deliver those under way. Errors: `ValueError` once it is
        closed.
        """
    @property
    def counters(self) -> Counters:
        """Totals since it was opened, as `Counters`. Errors: `ValueError` once it is closed."""
    @property
    def remaining(self) -> dict[str, int]:
        """Number of blocks that were not delivered yet, by the name of each sink that has some. Errors: `ValueError`
        once it is closed.
        """
    def take_events(self) -> list[Event]:
        """Events since the last call, a list of `Event`. The oldest are left out if there are more than 1024. Errors:
        `ValueError` once it is closed.
        """
    def fileno(self) -> int:
        """A descriptor that is readable while a turn has something to do, and possibly without. Its number belongs to
        the pipeline. Errors: `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Ends it at once and drops blocks under way. To close it again does nothing. Errors: none."""
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Controller:
    """The control device of one coprocessor, `/dev/rpmsg_ctrlN`.

    Errors: `FileNotFoundError` if there is none, with what to do; `PermissionError`; `ValueError` for a path of
    something else.
    """

    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @classmethod
    def list(cls) -> list[ControllerInfo]:
        """All control devices of this machine, a list of `ControllerInfo` by number; an empty one if the kernel has no
        rpmsg. Errors: `OSError` if sysfs cannot be read.
        """
    @property
    def path(self) -> PathLike[str]:
        """The path that it was opened by."""
    def channels(self) -> tuple[Service, ...]:
        """The services that the coprocessor has announced, a tuple of `Service`. Errors: `BrokenPipeError` once the
        coprocessor has stopped; `ValueError` once it is closed.
        """
    def supports_fd(self) -> bool:
        """Whether it makes endpoints that are descriptors alone, without a device node. Errors: as `channels`."""
    def endpoint(
        self,
        name: str,
        *,
        source: int | None = None,
        destination: int | None = None,
        implementation: Literal["auto", "fd", "node"] = "auto",
        timeout: float | None = 5.0,
    ) -> Endpoint:
        """Makes an endpoint that sends to the service `name`, or to the address `destination`. `source` is its own
        address, 0 to 0x7fffffff; without one the kernel chooses. `implementation` is `auto`, `fd` (a descriptor alone)
        or `node`, and `timeout` the seconds (`None`: no limit) that a device node has to appear. Errors:
        `FileNotFoundError` if no such service is announced; `OSError` with `EADDRINUSE` if another endpoint has the
        source address, and with `EOPNOTSUPP` if the controller makes no descriptors; `TimeoutError` or
        `PermissionError` for a device node that did not appear, or may not be opened; `BrokenPipeError` once the
        coprocessor is gone; `ValueError` for a bad argument, and once it is closed.
        """
    def close(self) -> None:
        """Closes the device. Its endpoints stay. To close it again does nothing. Errors: none."""
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Endpoint:
    """Messages to and from a coprocessor. Each arrives whole, and may be empty. `Controller.endpoint` makes one."""

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """From a descriptor that was made elsewhere, which belongs to the endpoint from now on. Errors: `OSError` with
        `EBADF` if it is not open; `ValueError` for a number that no descriptor has.
        """
    def send(self, message: Buffer, timeout: float | None = None) -> bool:
        """Sends one message, of 496 bytes at most on the virtio bus: `bytes`, or anything with contiguous memory.
        `False` if no buffer became free within `timeout` seconds (`None`: no limit). Errors: `BrokenPipeError` once the
        remote is gone; `OSError` with `EMSGSIZE` for a message that is too long; `ValueError` for a bad `timeout`, and
        once it is closed.
        """
    def try_send(self, message: Buffer) -> bool:
        """Sends one message if that is possible at once; `False` if no buffer is free. Errors: as `send`, and `OSError`
        with `EOPNOTSUPP` on a device node in blocking mode that was opened elsewhere.
        """
    def send_async(self, message: Buffer) -> Awaitable[None]:
        """As `send`, without a limit, in the event loop of asyncio, without a thread: to be awaited. Errors: as `send`.
        """
    def recv(self, timeout: float | None = None, *, max_len: int = 496) -> bytes | None:
        """Takes one message, or returns `None` if none came within `timeout` seconds (`None`: no limit). `max_len` is
        in bytes, 1 to 65535. Errors: `OSError` with `EMSGSIZE` for a message that is longer than that, which is lost,
        and with `ENOBUFS` once after messages were lost; `BrokenPipeError` once the remote is gone; `ValueError` for a
        bad `max_len`; `ValueError` for a bad `timeout`, and once it is closed.
        """
    def try_recv(self, *, max_len: int = 496) -> bytes | None:
        """Takes one message, or returns `None` if there is none now. Does not wait. Errors: as `recv`."""
    def recv_async(self, *, max_len: int = 496) -> Awaitable[bytes]:
        """As `recv`, without a limit, in the event loop of asyncio, without a thread: to be awaited. Errors: as `recv`.
        """
    @property
    def implementation(self) -> str:
        """What it is made of: `fd` (a descriptor alone) or `node` (a device node). Errors: `ValueError` once it is
        closed.
        """
    def set_paused(self, paused: bool) -> None:
        """Asks the remote to pause sending, or to go on. Errors: `OSError` with `EOPNOTSUPP` on a bus without flow
        control, such as the virtio bus; `ValueError` once it is closed.
        """
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def fileno(self) -> int:
        """The descriptor, which is readable while a message is there. Its number belongs to the endpoint. Errors:
        `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Closes it. Other threads and tasks that wait for it get a `ValueError`. To close it again does nothing.
        Errors: none.
        """
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Receiver:
    """Receives TCP into `len` bytes of memory, of which the program gets views.

    Without `device`, it receives on any host with one copy. With `device`, the name of a network device, its queues
    write into the memory, and no processor copies. `len` is a number of bytes or a text such as `"4M"` (K is 1024),
    rounded up to whole pages. `memory` is as for `Source`. Only with `device`: `queues`, a number of queues or a list
    such as `8-15`, and `tokens`, which is `default`, `index` or `autorelease`: who records which memory is in use.

    Errors: `ValueError` for a bad argument; `OSError` with `ENODEV` if there is no such device, with `EOPNOTSUPP` if it
    or the kernel cannot do it, with `EBUSY` if other memory is bound to its queues; `PermissionError`.
    """

    def __new__(
        cls,
        device: str | None = None,
        *,
        len: int | str = "4M",
        memory: str | None = None,
        queues: str | None = None,
        tokens: str | None = None,
    ) -> Self: ...
    def listen(self, host: str, port: int = 0) -> Listener:
        """Listens on an address, or on one of those of a host name; port 0 chooses a free one. Errors:
        `FileNotFoundError` if nobody knows the name; `OSError` with `EADDRINUSE` if the port is taken, and with
        `ENOSPC` if the device has no room for a rule; `PermissionError`; `ValueError` for a bad argument, and once it
        is closed.
        """
    def connect(self, host: str, port: int, timeout: float | None = 10.0) -> Connection:
        """Connects to an address, or to one of those of a host name, within `timeout` seconds (`None`: no limit).
        Errors: `TimeoutError`, `ConnectionRefusedError`; as `listen`.
        """
    def statistics(self) -> ReceiveStatistics:
        """The counters of all its connections together, as `ReceiveStatistics`. Errors: `OSError` with `ENODEV` if the
        device is gone; `ValueError` once it is closed.
        """
    @property
    def queues(self) -> list[int]:
        """The numbers of the queues that fill the memory; none without a device. Errors: `ValueError` once it is
        closed.
        """
    def close(self) -> None:
        """Undoes all settings of the device. Connections go on without it; views stay valid. To close it again does
        nothing. Errors: `OSError` for a setting that could not be undone.
        """
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Listener:
    """Accepts connections. `Receiver.listen` makes one."""

    @property
    def address(self) -> tuple[str, int]:
        """Its address and port: `(address, port)`. Errors: `ValueError` once it is closed."""
    def accept(self, timeout: float | None = None) -> Connection | None:
        """The next connection, or `None` if none came within `timeout` seconds (`None`: no limit). Errors: `OSError`
        with `EMFILE` if the process has too many descriptors; `ValueError` for a bad `timeout`, and once it is closed.
        """
    def fileno(self) -> int:
        """A descriptor that is readable while a connection waits. Its number belongs to the listener. Errors:
        `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Closes it. Its connections stay. To close it again does nothing. Errors: none."""
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """

@final
class Connection:
    """A connection: an iterator of pieces, each a `View` of the receiver's memory, or `bytes` that are not there. It
    ends when the peer has ended.
    """

    def next(self, timeout: float | None = None) -> View | bytes | None:
        """The next piece; `None` at the end, or if none came within `timeout` seconds (`None`: no limit): `finished`
        tells. Without a device, it also waits for memory that views hold. Errors: `ConnectionResetError` or
        `TimeoutError` if the peer has disappeared; `ValueError` for a bad `timeout`, and once it is closed.
        """
    def try_next(self) -> View | bytes | None:
        """The next piece, or `None` if there is none now, or at the end: `finished` tells. Does not wait. Errors: as
        `next`.
        """
    @property
    def finished(self) -> bool:
        """Whether the peer has ended and everything was received. Errors: `ValueError` once it is closed."""
    def fileno(self) -> int:
        """A descriptor that is readable when there may be something new: then call `try_next` until it returns `None`. Its
        number belongs to the connection. Errors: `ValueError` once it is closed.
        """
    def socket(self) -> Socket:
        """The connection as a `socket.socket` with a descriptor of its own, which the caller closes: to send, to ask for
        addresses, to set options. It does not block; after `settimeout(seconds)`, `sendall` waits. What is received by
        it is missing in the pieces. Errors: `OSError` with `EMFILE` if the process has too many descriptors;
        `ValueError` once it is closed.
        """
    def close(self) -> None:
        """Closes it. Views stay valid. To close it again does nothing. Errors: none."""
    def __enter__(self) -> Self:
        """Returns itself; `close` is called at the end of the `with` block. Errors: none."""
    def __exit__(self, *args: object) -> None:
        """Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `close`.
        """
    def __iter__(self) -> Iterator[View | bytes]: ...
    def __next__(self) -> View | bytes: ...
    def __aiter__(self) -> AsyncIterator[View | bytes]: ...

@final
class View:
    """A part of the receiver's memory, which is free for other data once it and its arrays are dropped.
    `numpy.asarray(view)` is its bytes, read-only, and `len(view)` their number.
    """

    @property
    def offset(self) -> int:
        """The offset of its first byte in the memory, in bytes. Errors: `ValueError` once it was given back."""
    @property
    def data(self) -> memoryview:
        """A memoryview of the bytes in place, read-only, of shape `(bytes,)`: for files and sockets. Errors:
        `ValueError` once it was given back; `OSError` if the kernel refuses the access.
        """
    @property
    def array(self) -> NDArray[numpy.uint8]:
        """The bytes in place, read-only, of shape `(bytes,)` and type `uint8`: what `numpy.asarray(view)` is. Errors:
        `ValueError` once it was given back; `OSError` if the kernel refuses the access.
        """
    def release(self) -> None:
        """Frees the memory for other data. To release it again does nothing. Errors: `BufferError` while an array or
        memoryview refers to it.
        """
    def __len__(self) -> int: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """What `numpy.asarray` calls: `array`, or a copy of it where `copy` is true or `dtype` is another type. Errors:
        as `array`; `ValueError` if another type needs a copy and `copy` is false.
        """

class Firmware(Protocol):
    """A service of a coprocessor; `on_start(port)`, and `on_tick(port)` each `period` seconds, if it has them."""

    name: str
    def on_message(self, port: Port, sender: int, message: bytes) -> None: ...

@final
class Port:
    """What a service can do while it is called. Once the call has returned, every use but `address` is a `ValueError`.
    """

    @property
    def address(self) -> int:
        """The address of the service."""
    @property
    def room(self) -> int:
        """Number of messages that can still be sent in this call. Errors: `ValueError` once the call has returned."""
    def send(self, to: int, message: Buffer) -> None:
        """Sends a message of 496 bytes at most to an address of Linux, when the call has returned or raised an
        exception. Errors: `ValueError` for a bad address, for a message that is too long, and once the call has
        returned; `BlockingIOError` if this call has sent as many as it may (`room`).
        """
    def crash(self, reason: str) -> None:
        """Makes the coprocessor crash after this call; `reason` is a text for events. Errors: `ValueError` once the
        call has returned.
        """

@final
class Coprocessor:
    """A virtual coprocessor (module vcoproc): runs services in a thread while it is entered.

    Each service is a text as for `busbar coprocessor run --service`, or an object with `name` and `on_message(port,
    sender, message)`; `on_start(port)`, and `on_tick(port)` each `period` seconds, if it has them. `device` is
    `/dev/vcoprocN`; without it, the first one that is free.

    Errors: `ValueError` or `TypeError` for a bad argument.
    """

    def __new__(cls, services: Sequence[Firmware | str], *, device: str | PathLike[str] | None = None) -> Self: ...
    def start(self, timeout: float | None = 30.0) -> None:
        """Starts it, and returns when Linux knows the services and each `on_start` has returned. Errors: `TimeoutError`
        if that takes longer than `timeout` seconds (`None`: no limit): it is then stopped, as by `stop`, or ends when the
        call of a service that is under way has returned; `FileNotFoundError` without the module or a device, after which
        it can be started again; `OSError` with `EBUSY` if another process has it; `PermissionError`; `RuntimeError` if
        it was started before; `ValueError` for a bad `timeout`.
        """
    def stop(self) -> None:
        """Withdraws the services, stops the coprocessor and ends. Waits for the call of a service that is under way,
        without a limit. Then Linux has 2 seconds to take the withdrawals, 30 seconds to finish a start that is under
        way, and 30 seconds to stop it. A signal ends the wait, not the end itself: call it again to go on waiting. A
        service that calls it ends the coprocessor when its call has returned. To stop it again does nothing. Errors:
        the `OSError` that has ended it before; `TimeoutError` if Linux does not start or stop it in time.
        """
    def take_events(self) -> list[tuple[str, str]]:
        """What has happened since the last call: a list of pairs of a word (`started`, `ready`, `channel`, `failed`,
        `transferred`, `stopped`, `crashed`) and a text. The newest are left out if there are more than 1024. Errors:
        `ValueError` in the child of a fork.
        """
    @property
    def statistics(self) -> dict[str, Any] | None:
        """What it has done, as a dict, once it was stopped; `None` before. Errors: `ValueError` in the child of a fork.
        """
    def __enter__(self) -> Self:
        """Calls `start` with its limit of 30 seconds, and returns itself; `stop` is called at the end of the `with`
        block. Errors: as `start`.
        """
    def __exit__(self, *args: object) -> None:
        """Calls `stop`. An error of that is a note of the exception that leaves the `with` block, if there is one.
        Errors: as `stop`.
        """
