"""Waiting in the event loop of asyncio, without a thread."""

import asyncio
import contextlib
import os
import weakref

# For each thing: by loop and side, what the tasks of that loop wait for.
_watches: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class _Watch:
    """Tasks of a loop that wait until the descriptor of a thing is readable, or writable.

    It has a copy of the descriptor: if another thread closes the thing, its number may be used again before the loop
    removes it.
    """

    def __init__(self, loop, side, thing, end):
        self.loop, self.side, self.futures, self.end = loop, side, set(), end
        fd = thing.fileno()
        try:
            self.fd = os.dup(fd)
        except OSError:
            # Another thread has closed it: that is the error.
            thing.fileno()
            raise
        try:
            getattr(loop, f"add_{side}")(self.fd, end)
        except BaseException:
            os.close(self.fd)
            raise

    def wake(self):
        if not self.loop.is_closed():
            getattr(self.loop, f"remove_{self.side}")(self.fd)
            for future in self.futures:
                if not future.done():
                    future.set_result(None)
        os.close(self.fd)


async def _ready(thing, side="reader"):
    """Waits until a thing is readable, writable, or closed."""
    loop = asyncio.get_running_loop()
    watches, key = _watches.setdefault(thing, {}), (loop, side)

    def end():
        if (watch := watches.pop(key, None)) is not None:
            watch.wake()

    if key not in watches:
        watches[key] = _Watch(loop, side, thing, end)
    watch, future = watches[key], loop.create_future()
    watch.futures.add(future)
    try:
        # Another thread may have closed it before the watch was there to be woken.
        thing.fileno()
        await future
    finally:
        watch.futures.discard(future)
        if not watch.futures and watches.get(key) is watch:
            end()


def wake(thing):
    """Wakes all tasks that wait for a thing, which was closed. Any thread may call it."""
    for watch in list(_watches.pop(thing, {}).values()):
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if watch.loop is running:
            # Now, so that nothing of it is left once it is closed.
            watch.end()
        else:
            # A closed loop has no task to wake.
            with contextlib.suppress(RuntimeError):
                watch.loop.call_soon_threadsafe(watch.end)


class Blocks:
    """The blocks of a source, until it is closed."""

    def __init__(self, source):
        self._source = source

    def __aiter__(self):
        return self

    async def __anext__(self):
        # Other tasks run as well if there is always a block.
        await asyncio.sleep(0)
        try:
            while (block := self._source._try_next()) is None:
                await _ready(self._source)
        except (BrokenPipeError, ValueError):
            if self._source.closed:
                raise StopAsyncIteration from None
            raise
        return block


class Pieces:
    """The pieces of a connection, up to its end."""

    def __init__(self, connection):
        self._connection = connection

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.sleep(0)
        while (piece := self._connection.try_next()) is None:
            if self._connection.finished:
                raise StopAsyncIteration
            # Another thread may have taken what was new, and left some of it.
            await _ready_within(0.1, self._connection)
        return piece


async def recv(endpoint, max_len):
    """The next message."""
    await asyncio.sleep(0)
    while (message := endpoint.try_recv(max_len=max_len)) is None:
        await _ready(endpoint)
    return message


async def _ready_within(seconds, thing, side="reader"):
    """As _ready, for so long at most. `asyncio.wait_for` of Python 3.11 may swallow that the task is cancelled."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _ready(thing, side)


async def send(endpoint, message):
    """Sends a message once there is a buffer."""
    await asyncio.sleep(0)
    while not endpoint.try_send(message):
        # The in-tree driver never reports that there is one, so it is tried again after 5 ms.
        await _ready_within(0.005, endpoint, "writer")


async def run(pipeline, seconds):
    """Turns a pipeline until it has finished; stops it after a time."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    while pipeline.turn(0) != "finished":
        if end is not None and loop.time() >= end:
            pipeline.stop()
            end = None
        # Time limits of its own, of 100 ms and more, are not in the descriptor.
        await _ready_within(0.1, pipeline)
