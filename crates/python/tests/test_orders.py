"""Things are opened, used, closed and dropped in any order.

BUSBAR_SEED=NUMBER repeats an order that has failed; the failure tells the number.
"""

import contextlib
import errno
import os
import random
import socket

import busbar
import numpy
import pytest

PIPELINE = """
source.adc = {{ from = "synth:counter", count = {count}, block-len = 800, blocks = 2 }}
sink.check = {{ input = "adc", to = "verify:counter" }}
"""


def arrays(source):
    """A generator that has a block, and an array of it, while it is suspended."""
    while (block := source.try_next()) is not None:
        yield block.array


class Order:
    """Steps that a program may take, chosen by a seed; `sinks` are the names of converters to transmit to, if there are
    some, in place of messages and connections."""

    def __init__(self, seed, sinks=()):
        self.random = random.Random(seed)
        # What the program refers to, and views with what they have shown at first.
        self.things, self.views = [], []
        self.opens = [self.open_source, self.open_pipeline]
        if sinks:
            self.opens.append(lambda: self.open_sink(self.random.choice(sinks)))
        else:
            self.opens += [self.open_endpoint, self.open_receiver]
        self.steps = [
            lambda: self.random.choice(self.opens)(),
            self.take,
            self.take,
            self.begin,
            self.go_on,
            self.view,
            self.view,
            self.turn,
            self.transmit,
            self.release,
            self.close,
            self.drop,
            self.drop_view,
        ]

    def one(self, *classes):
        """One of the things of a class, or None."""
        return self.random.choice([it for it in self.things if isinstance(it, classes)] or [None])

    def open_source(self):
        self.things.append(busbar.Source("synth:counter", blocks=self.random.randint(1, 4), block_len=800))

    def open_pipeline(self):
        self.things.append(busbar.Pipeline(PIPELINE.format(count=self.random.randint(1, 2000))))

    def open_endpoint(self):
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        far.send(b"hello")
        self.things += [busbar.Endpoint.from_fd(near.detach()), far]

    def open_receiver(self):
        receiver = busbar.Receiver(len="64K")
        listener = receiver.listen("127.0.0.1")
        peer = socket.create_connection(listener.address)
        peer.sendall(self.random.randbytes(5000))
        self.things += [receiver, listener, peer, listener.accept(30)]

    def open_sink(self, name):
        try:
            self.things.append(busbar.Sink(name, blocks=self.random.randint(1, 4), block_len=800))
        except OSError as error:
            # Another one is open.
            assert error.errno == errno.EBUSY and self.one(busbar.Sink), error

    def take(self):
        thing = self.one(busbar.Source, busbar.Connection, busbar.Endpoint, busbar.Sink)
        if isinstance(thing, busbar.Endpoint):
            found = thing.try_recv()
        elif isinstance(thing, busbar.Sink):
            found = thing.try_space()
        else:
            found = thing and thing.try_next()
        if found is not None:
            self.things.append(found)

    def begin(self):
        """An iterator, or a task that is not over."""
        thing = self.one(busbar.Source, busbar.Connection, busbar.Endpoint)
        if isinstance(thing, busbar.Source):
            made = self.random.choice([arrays, lambda it: iter(it.try_next, None), lambda it: aiter(it).__anext__()])(thing)
        elif isinstance(thing, busbar.Connection):
            made = self.random.choice([lambda it: iter(it.try_next, None), lambda it: aiter(it).__anext__()])(thing)
        elif isinstance(thing, busbar.Endpoint):
            made = thing.recv_async()
        else:
            return
        if hasattr(made, "send") and not hasattr(made, "__next__"):
            # As far as a loop would run it at first.
            made.send(None)
        self.things.append(made)

    def go_on(self):
        """The next item of an iterator."""
        iterators = [it for it in self.things if hasattr(it, "__next__") and not hasattr(it, "fileno")]
        if iterators:
            item = next(self.random.choice(iterators), None)
            if isinstance(item, numpy.ndarray):
                self.views.append((item, item.tobytes()))
            elif item is not None:
                self.things.append(item)

    def view(self):
        thing = self.one(busbar.Block, busbar.View, busbar.Space)
        ways = [lambda it: it.array, lambda it: it.data, numpy.asarray, lambda it: it.data[8:16]]
        if isinstance(thing, busbar.Block):
            ways += [numpy.from_dlpack, lambda it: it.pairs("voltage0_i", "voltage0_q").T, lambda it: it.array[50:]]
        if thing is not None:
            view = self.random.choice(ways)(thing)
            self.views.append((view, view.tobytes()))

    def turn(self):
        thing = self.one(busbar.Pipeline)
        if thing is not None:
            uses = [lambda it: it.turn(0), lambda it: it.run(), lambda it: it.stop(), lambda it: it.take_events()]
            self.random.choice(uses)(thing)
            assert all(sink.lost == 0 for sink in thing.counters.sinks)

    def transmit(self):
        space, sink, block = self.one(busbar.Space), self.one(busbar.Sink), self.one(busbar.Block)
        if space is not None:
            with contextlib.suppress(BufferError):
                space.send(self.random.randint(1, len(space)))
        if sink is not None:
            sink.reap()
            if block is not None:
                sink.forward(block, 0)

    def release(self):
        thing = self.one(busbar.Block, busbar.View, busbar.Space)
        if thing is not None:
            try:
                thing.release()
            except BufferError:
                assert self.views or any(hasattr(it, "gi_frame") for it in self.things), "nothing refers to it"

    def close(self):
        thing = self.random.choice([it for it in self.things if hasattr(it, "close")] or [None])
        if thing is not None:
            thing.close()

    def drop(self):
        if self.things:
            self.things.pop(self.random.randrange(len(self.things)))

    def drop_view(self):
        if self.views:
            self.views.pop(self.random.randrange(len(self.views)))

    def step(self):
        try:
            self.random.choice(self.steps)()
        except ValueError as error:
            assert "is closed" in str(error) or "was given back" in str(error), error
        except (BrokenPipeError, ConnectionResetError):
            # Its peer is gone.
            pass
        for view, shown in self.views:
            assert view.tobytes() == shown, "memory has changed under a view"

    def run(self):
        for _ in range(self.random.randint(1, 3)):
            self.random.choice(self.opens)()
        for _ in range(self.random.randint(5, 40)):
            self.step()
        # Arrays may outlive all else.
        while self.things or self.views:
            self.random.choice([self.drop, self.drop, self.drop_view])()
            for view, shown in self.views:
                assert view.tobytes() == shown, "memory has changed under a view"


def mappings():
    """The number of blocks that are mapped."""
    with open("/proc/self/maps") as maps:
        return sum("busbar-block" in line for line in maps)


def orders(count, descriptors, no_calls, sinks=()):
    """Runs orders. Each leaves what was there before it, without the garbage collector."""
    first = os.environ.get("BUSBAR_SEED")
    seeds = [int(first)] if first else [random.randrange(1 << 32) for _ in range(count)]
    # What is loaded at the first use stays.
    for warm in range(5):
        Order(warm, sinks).run()
    for seed in seeds:
        assert no_calls()
        before = descriptors(), mappings()
        try:
            Order(seed, sinks).run()
            assert no_calls() and (descriptors(), mappings()) == before, "something is left"
        except BaseException as error:
            error.add_note(f"BUSBAR_SEED={seed} repeats it")
            raise


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_thousand_orders_leave_nothing_and_change_no_memory_under_a_view(descriptors, no_calls):
    orders(1000, descriptors, no_calls)
