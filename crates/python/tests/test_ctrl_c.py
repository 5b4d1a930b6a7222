"""Ctrl-C ends every call that waits, soon and wherever it waits; other threads go on meanwhile."""

import os
import socket
import subprocess
import sys
import time

import pytest

# Far above what a program and the end of its call take, and below the 30 s after which some would end by themselves.
SOON = 20

# Another thread sends the signal: it goes on during the call.
PROGRAM = """
import busbar, os, signal, threading, time
def interrupt():
    for _ in range(30):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    {call}
except BaseException as error:
    print(type(error).__name__, flush=True)
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


def ends(call):
    """The call is ended by SIGINT, which its process gets while it waits."""
    begin = time.monotonic()
    child = subprocess.run([sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, text=True, timeout=60)
    assert child.stdout == "KeyboardInterrupt\n", child.stderr
    assert time.monotonic() - begin < SOON


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
