"""Sources and their blocks, with `synth:` sources, which every host has."""

import asyncio
import copy
import errno
import gc
import os
import pickle
import socket
import sys
import threading
import time

import busbar
import numpy
import pytest

CHANNELS = ["voltage0_i", "voltage0_q", "count0", "timestamp"]


def mapping(address):
    """The line of /proc/self/maps that has an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address < last:
                return line
    return None


def address(array):
    return array.__array_interface__["data"][0]


def test_an_array_is_the_memory_that_was_filled():
    with busbar.Source("synth:counter", block_len="64K") as source:
        block = source.next()
        for array in (numpy.asarray(block), block.array, numpy.frombuffer(block.data, source.dtype)):
            assert array.dtype == source.dtype and len(array) == len(block) == 8192
            assert array["voltage0_i"][:3].tolist() == [0, 1, 2]
            assert "memfd:busbar-block" in mapping(address(array))
            assert not array.flags.writeable
        assert len({address(array) for array in (block.array, numpy.asarray(block))}) == 1
        with pytest.raises(ValueError):
            block.array["voltage0_i"][0] = 1
        assert source.copied == 0


def test_the_fields_are_the_channels():
    with busbar.Source("synth:counter?channels=1", channels=CHANNELS, block_len=24 * 100) as source:
        assert source.dtype.names == tuple(CHANNELS)
        assert [channel.name for channel in source.channels] == CHANNELS
        for channel in source.channels:
            dtype, offset = source.dtype.fields[channel.name]
            assert (offset, dtype.itemsize * 8) == (channel.offset, channel.storage_bits)
            assert (dtype.kind == "i") == channel.signed
        blocks = [source.next() for _ in range(3)]
        counts = numpy.concatenate([block.array["count0"] for block in blocks])
        assert counts.tolist() == list(range(300))
        assert [block.sequence for block in blocks] == [0, 1, 2]


def test_pairs_are_a_view_and_complex_values_are_converted():
    with busbar.Source("synth:sine", block_len="64K") as source:
        block = source.next()
        pairs = block.pairs("voltage0_i", "voltage0_q")
        assert pairs.shape == (8192, 2) and pairs.dtype == numpy.int16 and not pairs.flags.writeable
        assert numpy.shares_memory(pairs, block.array)
        expected = pairs[:, 0].astype("f4") + 1j * pairs[:, 1]
        for dtype in ("complex64", "complex128"):
            iq = block.complex("voltage0_i", "voltage0_q", dtype)
            assert iq.dtype == dtype and numpy.array_equal(iq, expected.astype(dtype))
            assert not numpy.shares_memory(iq, block.array)
        values = block.values("voltage0_q", scale=(1.0, 0.5))
        assert numpy.array_equal(values, (pairs[:, 1].astype("f4") + 1) * 0.5)
        assert numpy.array_equal(block.values("voltage0_q", "int16"), pairs[:, 1])
        with pytest.raises(ValueError, match="^q: `voltage0_i` is not allowed; allowed: a channel behind"):
            block.pairs("voltage0_q", "voltage0_i")
        with pytest.raises(ValueError, match='^dtype: `int8` is not allowed; allowed: "int16"'):
            block.values("voltage0_q", "int8")
        with pytest.raises(ValueError, match="^channel: `no` is not allowed; allowed: voltage0_i, "):
            block.values("no")
    with busbar.Source("synth:counter", channels=["count0"]) as source:
        block = source.next()
        with pytest.raises(ValueError, match="^dtype: `int16` is not allowed; allowed: .* that hold 64 bits, unsigned$"):
            block.values("count0", "int16")
        assert block.values("count0")[:3].tolist() == [0, 1, 2]


def test_dlpack_passes_memory_on():
    with busbar.Source("synth:counter", block_len="64K") as source:
        block = source.next()
        array = numpy.from_dlpack(block)
        assert array.shape == (8192, 4) and array.dtype == numpy.int16
        assert address(array) == address(block.array) and block.__dlpack_device__() == (1, 0)
        # Whoever does not know that memory can be read-only does not get it.
        with pytest.raises(BufferError):
            block.__dlpack__()
        with pytest.raises(TypeError):
            block.__dlpack__(unknown=1)
        with pytest.raises(BufferError):
            block.release()
        del array
        block.release()
    with busbar.Source("synth:counter", channels=CHANNELS) as source:
        block = source.next()
        assert numpy.from_dlpack(block).shape == (len(block), source.sample_len)


def test_a_block_goes_back_with_its_last_view():
    with busbar.Source("synth:counter", blocks=1, block_len=800) as source:
        block = source.next()
        view = block.array["voltage0_i"][10:20]
        assert source.try_next() is None
        with pytest.raises(BufferError, match="1 arrays or memoryviews refer to it"):
            block.release()
        # The array alone keeps it.
        del block
        assert source.try_next() is None and view.tolist() == list(range(10, 20))
        del view
        assert source.next(10).sequence == 1


def test_every_way_to_refer_to_the_memory_keeps_it():
    ways = [
        lambda block: block.data,
        lambda block: numpy.asarray(block)[5:],
        lambda block: numpy.frombuffer(block.data, "u1"),
        # NumPy releases this buffer at once, and refers to the object behind it.
        lambda block: numpy.ndarray(10, "u1", block.data),
        lambda block: memoryview(block.data)[1:].cast("b"),
        lambda block: block.pairs("voltage0_i", "voltage0_q").T,
        lambda block: numpy.from_dlpack(block),
    ]
    with busbar.Source("synth:counter", blocks=1, block_len=800) as source:
        for number, way in enumerate(ways):
            block = source.next(10)
            assert block.sequence == number
            view = way(block)
            with pytest.raises(BufferError):
                block.release()
            assert not block.released
            del view
            block.release()
            assert block.released
            block.release()
            with pytest.raises(ValueError, match="the block was given back"):
                block.array
            with pytest.raises(ValueError, match="the block was given back"):
                block.complex("voltage0_i", "voltage0_q")


def test_blocks_outlive_their_source():
    source = busbar.Source("synth:counter", block_len=800)
    array = source.next().array
    source.close()
    source.close()
    del source
    gc.collect()
    assert array["voltage0_i"].tolist() == list(range(100))


def test_a_closed_source_says_so_and_ends_iterators():
    source = busbar.Source("synth:counter", block_len=800)
    for number, _ in enumerate(source):
        if number == 2:
            source.close()
    assert number == 2 and source.closed
    for call in (source.next, source.try_next, source.fileno, lambda: source.copied):
        with pytest.raises(ValueError, match="the source is closed"):
            call()


def test_loss_is_a_number_and_an_exception_if_asked_for():
    name = "synth:counter?rate=1M"
    with busbar.Source(name, blocks=2, block_len=8000) as source:
        held = [source.next(), source.next()]
        time.sleep(0.02)
        held.clear()
        lost = [source.next().lost for _ in range(3)]
        assert sum(lost) > 0
    with busbar.Source(name, blocks=2, block_len=8000, on_loss="raise") as source:
        held = [next(source), next(source)]
        assert [block.lost for block in held] == [0, 0]
        time.sleep(0.02)
        held.clear()
        with pytest.raises(busbar.LossError, match="samples are missing before the end of block") as raised:
            for _ in range(3):
                next(source)
        error = raised.value
        assert isinstance(error, OSError) and error.errno == errno.ENOBUFS and error.reason == "lost"
        assert error.lost == error.block.lost > 0 and len(error.block.array) == 1000
        # A pool of processes passes it on.
        for copied in [copy.copy(error), pickle.loads(pickle.dumps(error))]:
            assert (str(copied), copied.errno, copied.lost) == (str(error), error.errno, error.lost)
            assert isinstance(copied, busbar.LossError) and (copied.block, copied.reason) == (None, "lost")
        # It goes on behind the loss.
        del error, raised
        assert next(source).lost == 0


def test_times_and_rates():
    before = time.time()
    with busbar.Source("synth:counter?rate=1M", block_len=8000) as source:
        block = source.next()
        assert source.rate == block.rate == 1e6
        assert before <= block.time <= time.time() + 1 and abs(block.time_ns / 1e9 - block.time) < 1e-3
    assert busbar.Source("synth:counter").rate is None


def test_arguments_are_named_with_what_is_allowed():
    for arguments, text in [
        ({"name": "x"}, "name: `x` is not allowed; allowed: iio:NAME, iio:NAME@ip:HOST, synth:PATTERN"),
        ({"name": "synth:x"}, "name: the pattern of `synth:`: `x` is not allowed; allowed: counter, "),
        ({"name": "synth:sine?rate=x"}, "name: `rate` of `synth:`: `x` is not allowed; allowed: "),
        ({"name": "synth:sine?channels=3"}, "name: `channels` of `synth:`: `3` is not allowed; allowed: 1, 2"),
        ({"blocks": 0}, "blocks: `0` is not allowed; allowed: 1 to 1024"),
        ({"block_len": 0}, "block_len: `0` is not allowed; allowed: 1 to 1073741824 bytes"),
        ({"block_len": "1T"}, "block_len: `1T` is not allowed; allowed: a number of bytes"),
        ({"block_len": "\ud800"}, "block_len: `\ufffd"),
        ({"memory": "disk"}, "memory: `disk` is not allowed; allowed: heap:NAME, pages, huge, memfd"),
        ({"memory": "heap:../x"}, "memory: `heap:../x` is not allowed; allowed: heap:NAME, "),
        ({"interface": "usb"}, "interface: `usb` is not allowed; allowed: dmabuf, fileio, synth, iiod"),
        ({"interface": "fileio"}, "interface: `fileio` is not allowed; allowed: synth"),
        ({"on_loss": "cry"}, 'on_loss: `cry` is not allowed; allowed: "ignore", "raise"'),
        ({"channels": ["x"]}, "channels: `x` is not allowed; allowed: voltage0_i"),
    ]:
        with pytest.raises(ValueError) as raised:
            busbar.Source(**{"name": "synth:counter", **arguments})
        assert str(raised.value).startswith(text), raised.value
    with busbar.Source("synth:counter?rate=1") as source:
        assert source.next(0) is None and source.next(0.01) is None


def test_errors_of_the_system_are_the_class_of_their_number():
    with pytest.raises(FileNotFoundError) as raised:
        busbar.Source("iio:there-is-no-such-device")
    error = raised.value
    assert error.errno == errno.ENOENT and error.strerror.startswith("cannot ") and error.reason == "not_found"


@pytest.mark.parametrize("wait", ["next", "for"])
def test_a_signal_ends_a_wait(alarm, wait):
    with busbar.Source("synth:counter?rate=1") as source, alarm():
        source.next() if wait == "next" else list(source)


def test_other_threads_run_during_a_wait():
    with busbar.Source("synth:counter?rate=1") as source:
        waiter = threading.Thread(target=lambda: source.next(0.5))
        waiter.start()
        turns = 0
        while waiter.is_alive():
            turns += 1
        assert turns > 1000
    # A wait of another thread ends when the source is closed.
    with busbar.Source("synth:counter?rate=1") as source:
        ended = []
        waiter = threading.Thread(target=lambda: ended.append(list(source)))
        waiter.start()
        time.sleep(0.05)
        source.close()
        waiter.join(30)
        assert ended == [[]]


async def test_blocks_come_in_an_event_loop():
    with busbar.Source("synth:counter?rate=1M", block_len=8000) as source:
        numbers, ticks = [], 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async for block in source:
            numbers.append(block.sequence)
            if len(numbers) == 10:
                break
        ticking.cancel()
        assert numbers == list(range(10)) and ticks > 10 and threading.active_count() == 1


async def test_several_tasks_wait_for_one_source():
    with busbar.Source("synth:counter?rate=1M", blocks=8, block_len=8000) as source:
        seen = []

        async def take(count):
            async for block in source:
                seen.append(block.sequence)
                count -= 1
                if not count:
                    return

        await asyncio.wait_for(asyncio.gather(*(take(5) for _ in range(4))), 60)
        assert sorted(seen) == list(range(20))
        # A cancelled wait leaves nothing behind.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(take(10**9), 0.05)
        from busbar import _aio

        assert not _aio._watches[source]


def test_nothing_grows_over_ten_thousand_blocks(descriptors):
    def turn(source, count):
        for number, block in enumerate(source):
            array = numpy.asarray(block)
            pairs = block.pairs("voltage0_i", "voltage0_q")
            assert array["voltage0_i"][0] == pairs[0, 0]
            if number == count:
                return

    with busbar.Source("synth:counter", block_len=800) as source:
        turn(source, 100)
        gc.collect()
        before = descriptors(), len(gc.get_objects()), sys.getrefcount(source)
        blocks = sys.getallocatedblocks()
        turn(source, 10_000)
        gc.collect()
        after = descriptors(), len(gc.get_objects()), sys.getrefcount(source)
        assert after == before
        assert sys.getallocatedblocks() - blocks < 100


def test_a_forked_child_reads_what_its_parent_has():
    with busbar.Source("synth:counter", block_len=800) as source:
        array = source.next().array
        pid = os.fork()
        if pid == 0:
            os._exit(0 if array["voltage0_i"][99] == 99 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_recording_is_made_and_played(tmp_path):
    numbers = numpy.arange(5000, dtype="u4").tobytes()
    with busbar.Sink(f"file:{tmp_path}/recording") as sink:
        sink.write(numbers)
    played = []
    with busbar.Source(f"file:{tmp_path}/recording", block_len="1K") as source:
        assert source.interface == "library" and source.dtype.names == ("voltage0_i", "voltage0_q")
        with pytest.raises(BrokenPipeError):
            for block in source:
                played.append(numpy.asarray(block).tobytes())
    assert b"".join(played) == numbers


def test_there_are_as_many_blocks_as_in_other_languages():
    with busbar.Source("synth:counter") as source, busbar.Sink("null:") as sink:
        assert (source.blocks, sink.blocks, source.block_len) == (16, 16, 65536)
    with busbar.Source("synth:counter", block_len="1M") as source, busbar.Sink("null:", blocks=3) as sink:
        assert (source.blocks, sink.blocks) == (4, 3)


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert busbar.__version__ == version("busbar")


def test_a_recording_has_the_rate_that_its_sink_was_told(tmp_path):
    with busbar.Sink(f"file:{tmp_path}/recording", rate=48e3) as sink:
        assert sink.rate == 48e3
        assert sink.write(bytes(400)) == 100
    with busbar.Source(f"file:{tmp_path}/recording") as source:
        assert source.rate == 48e3 and len(source.next()) == 100
        for rate in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="^rate: `"):
                busbar.Sink("null:", rate=rate)
        with pytest.raises(ValueError, match="^rate: `"):
            busbar.Sink("null:", rate=1.0, like=source)


def test_what_was_written_is_told_also_after_a_timeout_and_a_signal(alarm):
    # What a receiver does not acknowledge stays in the blocks of the sink.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with busbar.Sink(name, blocks=4, block_len=4000) as sink:
            assert sink.write(bytes(4000), timeout=0) == 1000
            assert sink.write(bytes(20_000), timeout=0.01) == 3000
            assert sink.write(bytes(20_000), timeout=0) == 0
            with alarm() as raised:
                sink.write(bytes(20_000))
            assert raised.value.written == 0
        with busbar.Sink(name, blocks=4, block_len=4000) as sink:
            with alarm() as raised:
                sink.write(bytes(20_000))
            assert raised.value.written == 4000
            sink.close()
            with pytest.raises(ValueError) as raised:
                sink.write(bytes(4))
            assert raised.value.written == 0


def test_everything_says_what_it_is(tmp_path):
    config = 'source.adc = { from = "synth:counter" }\nsink.no = { input = "adc", to = "null:" }'
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    endpoint = busbar.Endpoint.from_fd(near.detach())
    source, sink, pipeline = busbar.Source("synth:counter"), busbar.Sink("null:"), busbar.Pipeline(config, name="one")
    block, space, receiver = source.next(), sink.space(), busbar.Receiver()
    listener = receiver.listen("127.0.0.1")
    with far, socket.create_connection(listener.address) as peer:
        connection = listener.accept(30)
        peer.send(b"xyz")
        view = connection.next(30)
        port, host = peer.getsockname()[1], listener.address
    controller = busbar.Controller("/dev/null")
    for it, text in [
        (source, '<busbar.Source "synth:counter"'),
        (block, "<busbar.Block 0 of 8192 samples, lost 0"),
        (sink, '<busbar.Sink "null:"'),
        (space, "<busbar.Space of 16384 samples"),
        (pipeline, '<busbar.Pipeline "one"'),
        (receiver, '<busbar.Receiver "memory"'),
        (listener, f'<busbar.Listener "{host[0]}:{host[1]}"'),
        (connection, f'<busbar.Connection "127.0.0.1:{port}"'),
        (view, "<busbar.View of 3 bytes"),
        (controller, '<busbar.Controller "/dev/null"'),
        (endpoint, '<busbar.Endpoint "descriptor '),
    ]:
        assert repr(it).startswith(text) and repr(it).endswith(">"), repr(it)
        it.release() if hasattr(it, "release") else it.close()
        assert repr(it).endswith((", closed>", "released>")), repr(it)
    if hasattr(busbar, "Coprocessor"):
        assert repr(busbar.Coprocessor(["echo"])) == '<busbar.Coprocessor any device, not started>'
