"""Ctrl-C ends every call that waits, soon and wherever it waits; other threads go on meanwhile."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

# Far above what a call takes to end, and below the 30 s after which one of them would end by itself.
SOON = 20

PROGRAM = """
import busbar, sys, threading, time
turns = 0
def turn():
    global turns
    while True:
        turns += 1
        time.sleep(0.001)
threading.Thread(target=turn, daemon=True).start()
print("begins", flush=True)
begin = turns
try:
    {call}
except BaseException as error:
    print(type(error).__name__, turns - begin > 10, flush=True)
"""
PIPE = 'busbar.Pipeline({{"source": {{"a": {{"from": {0}}}}}, "sink": {{"n": {{"input": "a", "to": "null:"}}}}}}).run()'


@pytest.fixture
def silent():
    """The port of a machine that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def fifo(tmp_path):
    """A recording that is a FIFO: to open it waits for a writer, whatever the library does."""
    os.mkfifo(tmp_path / "recording.sigmf-meta")
    return tmp_path / "recording"


def interrupted(call):
    """What a child prints of a call that it waits in, once it was sent SIGINT; and after what time it has ended."""
    child = subprocess.Popen([sys.executable, "-c", PROGRAM.format(call=call)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begins\n"
        # It waits soon; one that has not begun to is interrupted, too.
        time.sleep(0.3)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
        return out, time.monotonic() - begin
    finally:
        child.kill()
        child.wait()


def ends(call):
    out, seconds = interrupted(call)
    assert out == "KeyboardInterrupt True\n"
    assert seconds < SOON


@pytest.mark.parametrize("call", ["busbar.Source({0})", PIPE])
def test_a_source_that_waits_for_its_first_sender_ends(call):
    ends(call.format("'tcp-listen:127.0.0.1:0'"))


@pytest.mark.parametrize("call", ["busbar.Source({0})", "busbar.Sink({0})", PIPE])
def test_what_waits_for_another_machine_ends(call, silent):
    ends(call.format(f"'iio:x@ip:127.0.0.1:{silent}'"))


@pytest.mark.parametrize("call", ["busbar.Source({0})", PIPE])
def test_what_waits_for_a_file_is_left_behind(call, fifo):
    ends(call.format(f"'file:{fifo}'"))


def test_a_sink_whose_receiver_takes_nothing_ends(silent):
    ends(f"busbar.Sink('tcp:127.0.0.1:{silent}').write(bytes(1 << 24))")
