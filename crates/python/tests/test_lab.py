"""Over the lab's virtual hardware: vconv, vcoproc, vnic. Runs as root in the guest."""

import array
import asyncio
import errno
import fcntl
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import busbar
import numpy
import pytest

from test_orders import orders
from test_source import address, mapping

pytestmark = pytest.mark.lab


def modprobe(*arguments):
    subprocess.run(["modprobe", *arguments], check=True)


@pytest.fixture(scope="module")
def converter():
    modprobe("vconv")
    return "iio:vconv0"


def test_an_array_is_the_memory_that_the_converter_has_filled(converter):
    with busbar.Source(converter, block_len="1M", interface="dmabuf") as source:
        assert source.interface == "dmabuf"
        addresses, sequence = set(), 0
        for block in source:
            array = numpy.asarray(block)
            # The converter counts: 64 bits in four channels of 16.
            counter = array.view("<u8")
            assert counter.shape == (131072,) and int(counter[-1]) - int(counter[0]) == 131071
            assert "dmabuf" in mapping(address(array)) or "busbar-block" in mapping(address(array))
            addresses.add(address(array))
            assert block.sequence == sequence and not array.flags.writeable
            sequence += 1
            if sequence == 40:
                break
            del array, counter
        assert 1 < len(addresses) <= source.blocks, "blocks are used again, in place"
        assert source.copied == 0


def test_nothing_grows_over_ten_thousand_blocks_of_a_converter(converter, descriptors):
    with busbar.Source(converter, block_len=4096) as source:

        def turn(count):
            for number, block in enumerate(source):
                assert len(block.array) == 512
                if number == count:
                    return

        turn(100)
        gc.collect()
        before = descriptors(), len(gc.get_objects())
        turn(10_000)
        gc.collect()
        after = descriptors(), len(gc.get_objects())
        # Each queued block may have a descriptor of its fence.
        assert after[0] <= before[0] + source.blocks, (before, after)
        assert after[1] <= before[1] + 10, (before, after)
        assert source.copied == 0


def test_a_sink_transmits_what_is_written_in_place(converter):
    with busbar.Source(converter, block_len="64K") as source:
        with busbar.Sink("iio:vconv0-tx", block_len="64K", like=source) as sink:
            assert sink.dtype == source.dtype
            for _ in range(8):
                space = sink.space(10)
                array = numpy.asarray(space)
                assert array.flags.writeable and len(array) == len(space) == 8192
                array["voltage0_i"] = 7
                with pytest.raises(BufferError):
                    space.send()
                del array
                with pytest.raises(ValueError, match="^samples: `8193` is not allowed; allowed: 1 to 8192"):
                    space.send(8193)
                space.send()
                with pytest.raises(ValueError, match="was given back"):
                    space.send()
            assert sink.drain(30)
            copied = sink.copied
            sink.write(numpy.zeros(20_000, sink.dtype))
            assert sink.drain(30)
            with pytest.raises(ValueError, match="^samples: `3 bytes` is not allowed; allowed: whole samples"):
                sink.write(b"abc")
            # Received blocks go on as they are.
            copied = sink.copied
            for _ in range(16):
                assert sink.forward(source.next(10), 10)
            assert sink.drain(30)
            sink.reap()
            assert sink.copied == copied


def test_a_sink_takes_bytes_and_samples_of_its_type(converter):
    with busbar.Sink("iio:vconv0-tx", block_len="64K") as sink:
        assert len(sink.channels) == 4 and sink.dtype.itemsize == 8
        for samples in (
            numpy.zeros(100, sink.dtype),
            numpy.zeros((100, 4), "i2"),
            numpy.zeros(800, "u1"),
            bytes(800),
            array.array("h", range(400)),
            memoryview(bytes(800)).cast("h"),
        ):
            sink.write(samples)
        other = numpy.dtype([(name, "f4") for name in sink.dtype.names])
        for samples in (
            numpy.zeros(100),
            numpy.zeros((100, 4), ">i2"),
            numpy.zeros(100, other),
            numpy.full(100, None),
            array.array("d", [0.0] * 100),
        ):
            for call in (sink.write, sink.cyclic):
                with pytest.raises(ValueError, match=r"^samples: `.*` is not allowed; allowed: bytes, or the dtype .*int16 f"):
                    call(samples)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_orders_with_a_sink_leave_nothing_and_change_no_memory_under_a_view(converter, descriptors, no_calls):
    orders(100, descriptors, no_calls, sinks=["iio:vconv0-tx"])


async def test_blocks_of_a_converter_come_in_an_event_loop(converter):
    with busbar.Source(converter, block_len="64K") as source:
        sequence = 0
        async for block in source:
            assert block.sequence == sequence
            sequence += 1
            if sequence == 100:
                break
        assert threading.active_count() == 1


READER = """
import os, sys
import busbar, numpy
say = lambda text: os.write(1, text.encode())
with busbar.Source(sys.argv[1], block_len=4096, interface="dmabuf") as source:
    block = source.next(30)
    say("taken\\n")
    array = numpy.asarray(block)
    say("exported\\n")
    other, view = block.pairs("voltage0_i", "voltage0_q"), memoryview(block.data)[:8]
    del array, view
    say("exported once more\\n")
    del other
    say("dropped\\n")
    array = block.array
    del block
    say("alone\\n")
    del array
    say("gone\\n")
"""


def test_the_processor_has_access_as_long_as_an_array_exists(converter):
    """DMA_BUF_SYNC begins when the block is first exported, and ends with the last export."""
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=ioctl,write", "-e", "raw=ioctl", "-o", "trace"]
    subprocess.run([*command, sys.executable, "-S", "-c", READER, converter], check=True, stdout=subprocess.PIPE)
    seen, phase = {}, None
    with open("trace") as trace:
        for line in trace:
            if found := re.search(r'write\(1, "(.*)\\n"', line):
                phase = found[1]
                seen[phase] = []
            # _IOW('b', 0, 8)
            elif re.search(r"ioctl\(0x[0-9a-f]+, 0x40086200, .*\) = 0$", line) and phase:
                seen[phase].append("sync")
    assert seen == {
        "taken": ["sync"],
        "exported": [],
        "exported once more": ["sync"],
        "dropped": ["sync"],
        "alone": ["sync"],
        "gone": [],
    }


def test_a_child_that_ends_leaves_the_converter_running(converter):
    with busbar.Source(converter, block_len="64K") as source:
        held = source.next(30)
        samples = held.array
        pid = os.fork()
        if pid == 0:
            # As at the end of a program: everything is dropped, and the source is closed.
            try:
                with busbar.Sink("iio:vconv0-tx", block_len="64K") as sink:
                    with pytest.raises(ValueError, match="the block belongs to the process"):
                        sink.forward(held)
                del samples, held
                source.close()
                del source
                gc.collect()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        first = int(samples.view("<u8")[0])
        for number in range(1, 40):
            assert source.next(30).sequence == number
        # Nobody else has given it back, so it was not filled again.
        assert int(samples.view("<u8")[0]) == first


def test_waits_for_a_converter_end(converter):
    def waiting(wait):
        errors = []

        def body():
            try:
                wait()
            except ValueError as error:
                errors.append(str(error))

        thread = threading.Thread(target=body)
        thread.start()
        time.sleep(0.2)
        return thread, errors

    with busbar.Source(converter, blocks=1) as source, busbar.Sink("iio:vconv0-tx", blocks=1) as sink:
        held = source.next(30), sink.space(30)
        for thing, wait, name in [(source, source.next, "source"), (sink, sink.space, "sink")]:
            thread, errors = waiting(wait)
            thing.close()
            thread.join(60)
            assert errors == [f"the {name} is closed"]
        del held


class Calculator:
    """The firmware of these tests: adds numbers, crashes on request, and ticks."""

    name = "calculator"
    period = 0.05

    def __init__(self):
        self.ticks = 0
        self.started = 0

    def on_start(self, port):
        self.started += 1

    def on_message(self, port, sender, message):
        if message == b"crash":
            port.crash("as requested")
        elif message == b"many":
            for number in range(3):
                port.send(sender, bytes([number]))
        else:
            port.send(sender, str(sum(map(int, message.split(b"+")))).encode())

    def on_tick(self, port):
        self.ticks += 1


@pytest.fixture(scope="module")
def coprocessor():
    modprobe("vcoproc")
    # A test before may have left it without the option, and tests after need the other two.
    modprobe("-rq", "rpmsg_eptfd", "rpmsg_ctrl", "rpmsg_char")
    modprobe("rpmsg_eptfd", "replace=1")
    yield
    modprobe("-r", "rpmsg_eptfd")


def controller(service):
    """The controller that has a service, which Linux gets to know a moment later."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for info in busbar.Controller.list():
            if any(channel.name == service for channel in info.channels):
                return busbar.Controller(info.path)
        time.sleep(0.01)
    raise AssertionError(f"no {service}")


def test_firmware_in_python_answers(coprocessor):
    firmware = Calculator()
    with busbar.Coprocessor([firmware, "echo"]) as core:
        with controller("calculator") as control, control.endpoint("calculator") as endpoint:
            assert {channel.name for channel in control.channels()} >= {"calculator", "echo"}
            for _ in range(50):
                endpoint.send(b"20+22")
                assert endpoint.recv(30) == b"42"
            endpoint.send(b"many")
            assert [endpoint.recv(30) for _ in range(3)] == [b"\0", b"\1", b"\2"]
            # An exception of the firmware is told, and the service stays.
            endpoint.send(b"x")
            endpoint.send(b"1+1")
            assert endpoint.recv(30) == b"2"
            failed = [text for word, text in core.take_events() if word == "failed"]
            assert len(failed) == 1 and "on_message of service `calculator`: ValueError" in failed[0]
            with control.endpoint("echo", implementation="fd") as echo:
                echo.send(b"hello")
                assert echo.recv(30) == b"hello" and echo.implementation == "fd"
            with pytest.raises(FileNotFoundError, match="the coprocessor has announced .*calculator"):
                control.endpoint("nobody")
    assert firmware.started == 1 and firmware.ticks > 0
    statistics = core.statistics
    assert statistics["boots"] == 1
    assert [each["name"] for each in statistics["services"]] == ["calculator", "echo"]


def test_a_port_is_of_one_call(coprocessor):
    class Keeper:
        name = "keeper"

        def __init__(self):
            self.kept = None

        def on_message(self, port, sender, message):
            for use in (lambda it: it.send(sender, b"lost"), lambda it: it.crash("late"), lambda it: it.room):
                try:
                    use(self.kept)
                except (AttributeError, ValueError) as error:
                    port.send(sender, type(error).__name__.encode())
            self.kept = port

    with busbar.Coprocessor([Keeper()]), controller("keeper") as control, control.endpoint("keeper") as endpoint:
        for name in (b"AttributeError", b"ValueError"):
            endpoint.send(b"x")
            assert [endpoint.recv(30) for _ in range(3)] == [name] * 3


def test_what_firmware_has_sent_before_an_exception_is_sent(coprocessor):
    class Clumsy:
        name = "clumsy"

        def on_message(self, port, sender, message):
            port.send(sender, b"before")
            if message == b"crash":
                port.crash("as requested")
            raise KeyError("mine")

    with busbar.Coprocessor([Clumsy()]) as core:
        with controller("clumsy") as control, control.endpoint("clumsy") as endpoint:
            endpoint.send(b"x")
            assert endpoint.recv(30) == b"before"
            endpoint.send(b"crash")
            events, limit = [], time.monotonic() + 30
            while ("crashed", "as requested") not in events and time.monotonic() < limit:
                time.sleep(0.01)
                events += core.take_events()
            assert ("crashed", "as requested") in events
            assert any(word == "failed" and "KeyError: 'mine'" in text for word, text in events)


@pytest.fixture
def state(coprocessor):
    """Linux's state of the coprocessor, to be read, and written to start and stop it."""
    (path,) = Path("/sys/class/vcoproc/vcoproc0/device/remoteproc").glob("*/state")
    return path


def test_a_coprocessor_that_another_process_has_stopped_ends_without_an_error(state):
    with busbar.Coprocessor(["echo"]) as core:
        state.write_text("stop")
    assert state.read_text() == "offline\n"
    words = [word for word, _ in core.take_events()]
    assert words.count("stopped") == 1, words


def test_an_end_amid_a_crash_leaves_the_coprocessor_stopped(state):
    for _ in range(5):
        with busbar.Coprocessor(["crash"]) as core:
            with controller("crash") as control, control.endpoint("crash") as endpoint:
                endpoint.send(b"crash")
                # While Linux recovers it, its state is `offline` for a moment, which may be missed here.
                limit = time.monotonic() + 2
                while state.read_text() != "offline\n" and time.monotonic() < limit:
                    pass
                core.stop()
        time.sleep(0.5)
        assert state.read_text() == "offline\n"


def test_a_start_has_its_time_limit_also_if_a_service_never_returns(coprocessor, alarm):
    class Stuck:
        name = "stuck"

        def __init__(self):
            self.entered, self.go_on = threading.Event(), threading.Event()

        def on_start(self, port):
            self.entered.set()
            self.go_on.wait()

        def on_message(self, port, sender, message):
            pass

    def interrupt(firmware):
        firmware.entered.wait()
        os.kill(os.getpid(), signal.SIGALRM)

    for limit in (20, None):
        firmware = Stuck()
        core = busbar.Coprocessor([firmware])
        if limit:
            with pytest.raises(TimeoutError, match="within 20s .on_start of service `stuck` has not returned") as raised:
                core.start(limit)
            assert (raised.value.errno, raised.value.reason) == (errno.ETIMEDOUT, "timed_out")
        else:
            threading.Thread(target=interrupt, args=(firmware,)).start()
            with alarm(after=200):
                core.start(limit)
            assert firmware.entered.is_set()
        # It ends once the service has returned.
        firmware.go_on.set()
        core.stop()
        assert core.statistics["boots"] == 1
        # Linux has stopped it: to stop it twice is no crash.
        events = core.take_events()
        assert "stopped" in [word for word, _ in events], events
    with busbar.Coprocessor(["echo"]), controller("echo"):
        pass


def test_a_signal_ends_the_wait_for_firmware_at_exit(coprocessor, alarm):
    class Slow:
        name = "slow"

        def __init__(self):
            self.entered, self.go_on = threading.Event(), threading.Event()

        def on_message(self, port, sender, message):
            self.entered.set()
            self.go_on.wait()

    firmware = Slow()
    core = busbar.Coprocessor([firmware])
    core.start()
    with controller("slow") as control, control.endpoint("slow") as endpoint:
        endpoint.send(b"x")
        assert firmware.entered.wait(30)
    del core
    with alarm(after=0.2):
        busbar._busbar._join()
    firmware.go_on.set()
    busbar._busbar._join()


def test_a_signal_ends_the_wait_for_a_device_node(coprocessor, alarm, no_calls):
    with busbar.Coprocessor(["echo"]), controller("echo") as control:
        # Who makes a node has this lock meanwhile.
        with open(control.path, "rb") as device:
            fcntl.flock(device, fcntl.LOCK_EX)
            with alarm(after=0.2):
                control.endpoint("echo", implementation="node", timeout=None)
        assert no_calls()
        with control.endpoint("echo", implementation="node") as endpoint:
            assert endpoint.implementation == "node"


class Director:
    """The firmware of a recorder: has it begin, and end after a while."""

    name = "recorder"
    period = 0.2

    def __init__(self):
        self.recorder, self.ticks, self.result = None, 0, None

    def on_message(self, port, sender, message):
        if message == b"ready":
            self.recorder = sender
            port.send(sender, b"start")
        else:
            self.result = message

    def on_tick(self, port):
        if self.recorder is not None:
            self.ticks += 1
            if self.ticks == 5:
                port.send(self.recorder, b"stop")


def test_the_recorder_does_what_the_coprocessor_wants(converter, coprocessor, tmp_path):
    firmware, file = Director(), tmp_path / "samples"
    program = Path(os.environ["BUSBAR_EXAMPLES"], "recorder.py")
    with busbar.Coprocessor([firmware]):
        with controller("recorder") as control:
            command = [sys.executable, "-S", program, control.path, "recorder", converter, file]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        limit = time.monotonic() + 30
        while firmware.result is None and time.monotonic() < limit:
            time.sleep(0.01)
    samples, lost = map(int, re.fullmatch(rb"(\d+) samples, (\d+) lost", firmware.result).groups())
    assert done.stdout.startswith(f"{file}: {samples} samples, {lost} lost, ")
    counted = numpy.fromfile(file, "<u8")
    assert len(counted) == samples > 0
    assert int(counted[-1] - counted[0]) == samples - 1 + lost


def test_a_crash_of_the_coprocessor_ends_its_endpoints(coprocessor):
    with busbar.Coprocessor([Calculator()]) as core:
        with controller("calculator") as control, control.endpoint("calculator") as endpoint:
            endpoint.send(b"crash")
            with pytest.raises(BrokenPipeError) as raised:
                endpoint.recv(30)
            assert raised.value.reason == "ended"
        # The thread of the firmware tells of the crash after the kernel has ended the endpoint.
        events, limit = [], time.monotonic() + 30
        while ("crashed", "as requested") not in events and time.monotonic() < limit:
            time.sleep(0.01)
            events += core.take_events()
        assert ("crashed", "as requested") in events


async def test_messages_of_a_coprocessor_in_an_event_loop(coprocessor):
    with busbar.Coprocessor([Calculator()]):
        with controller("calculator") as control, control.endpoint("calculator") as endpoint:
            for number in range(20):
                await endpoint.send_async(b"1+%d" % number)
                assert await asyncio.wait_for(endpoint.recv_async(), 30) == b"%d" % (number + 1)


def test_a_service_may_end_its_coprocessor(coprocessor):
    class Ender:
        name = "ender"

        def on_message(self, port, sender, message):
            core.stop()
            port.send(sender, b"bye")

    core = busbar.Coprocessor([Ender()])
    with core:
        with controller("ender") as control, control.endpoint("ender") as endpoint:
            endpoint.send(b"end")
            with pytest.raises(BrokenPipeError):
                while True:
                    endpoint.recv(30)
    assert core.statistics["boots"] == 1
    for period in (0, -1):
        Ender.period = period
        with pytest.raises(ValueError, match="^period: "):
            busbar.Coprocessor([Ender()])


def test_a_child_leaves_the_coprocessor_of_its_parent_running(coprocessor):
    with busbar.Coprocessor(["echo"]) as core:
        with controller("echo") as control, control.endpoint("echo") as endpoint:
            pid = os.fork()
            if pid == 0:
                try:
                    for use in (core.take_events, lambda: core.statistics):
                        with pytest.raises(ValueError, match="the coprocessor belongs to the process"):
                            use()
                    core.stop()
                    del core, use
                    endpoint.close()
                    gc.collect()
                except BaseException:
                    os._exit(1)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            endpoint.send(b"still there?")
            assert endpoint.recv(30) == b"still there?"


def test_a_coprocessor_that_still_runs_at_the_end_is_stopped(coprocessor):
    program = "import busbar; core = busbar.Coprocessor(['echo']); core.start()"
    for keep in ("", "; import sys; sys.keep = core", "; del core"):
        subprocess.run([sys.executable, "-c", program + keep], check=True, timeout=60)


def test_a_coprocessor_in_use_is_busy(coprocessor):
    with busbar.Coprocessor(["echo"], device="/dev/vcoproc0"):
        with pytest.raises(OSError, match="another process runs this coprocessor"):
            busbar.Coprocessor(["echo"], device="/dev/vcoproc0").start()
    for services, text in [([], "services: `\\[\\]`"), (["ehco"], "`ehco` is not allowed; allowed: echo, sink")]:
        with pytest.raises(ValueError, match=text):
            busbar.Coprocessor(services)


@pytest.fixture(scope="module")
def nic():
    """A pair of NICs: nic0 here, vnic0 in another network namespace."""

    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    modprobe("vnic")
    ip("link", "add", "nic0", "address", "02:00:00:00:57:01", "type", "vnic")
    # Otherwise udevd may give both ends the same one.
    ip("link", "set", "vnic0", "address", "02:00:00:00:57:02")
    ip("netns", "add", "python")
    ip("link", "set", "vnic0", "netns", "python")
    ip("-n", "python", "addr", "add", "10.57.9.2/24", "dev", "vnic0")
    ip("-n", "python", "link", "set", "vnic0", "up")
    ip("addr", "add", "10.57.9.1/24", "dev", "nic0")
    ip("link", "set", "nic0", "up")
    yield "nic0"
    # The pair goes with the end that is there.
    ip("netns", "del", "python")


SENDER = """
import socket, sys
with socket.create_connection(("10.57.9.1", int(sys.argv[1])), 30) as to:
    to.sendall(bytes(range(256)) * 4096)
"""


def test_a_device_receives_into_views(nic):
    with busbar.Receiver(nic, len="32M") as receiver:
        assert receiver.queues
        with receiver.listen("10.57.9.1") as listener:
            command = ["ip", "netns", "exec", "python", "python3", "-c", SENDER, str(listener.address[1])]
            with subprocess.Popen(command) as sender, listener.accept(60) as connection:
                received, views = bytearray(), 0
                for piece in connection:
                    if isinstance(piece, busbar.View):
                        array = numpy.asarray(piece)
                        assert not array.flags.writeable
                        received += array.tobytes()
                        views += len(array)
                        del array
                    else:
                        received += piece
                del piece
                assert sender.wait(30) == 0
        assert received == bytes(range(256)) * 4096
        statistics = receiver.statistics()
        assert views > len(received) // 2 and statistics.copied == len(received) - views
        assert statistics.views == 0 and statistics.refused == 0


def test_a_connect_that_a_signal_has_ended_leaves_the_device_as_it_was(nic, alarm, no_calls):
    receiver = busbar.Receiver(nic, len="32M")
    # Nobody has this address.
    with alarm(after=0.2):
        receiver.connect("10.57.9.77", 1, timeout=None)
    assert no_calls()
    receiver.close()
    # Otherwise its queues would still be bound to the memory.
    busbar.Receiver(nic, len="32M").close()
