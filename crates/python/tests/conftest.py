"""What the tests share. Those marked `lab` need the lab's kernel: `tests/run python` runs the others."""

import contextlib
import os
import signal
import time

import pytest


def pytest_collection_modifyitems(config, items):
    if os.environ.get("BUSBAR_LAB"):
        return
    skip = pytest.mark.skip(reason="needs the lab: tests/python.sh lab")
    for item in items:
        if "lab" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def descriptors():
    """The number of open descriptors of this process."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_calls():
    """Waits until no call that the test has begun is under way in a thread of its own."""

    def count():
        names = []
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/comm") as comm:
                    names.append(comm.read().strip())
            except (FileNotFoundError, ProcessLookupError):
                # It has ended meanwhile.
                pass
        return names.count("busbar-call")

    before = count()

    def wait():
        # A thread goes a moment after its call has returned; one that was left behind, when its machine has not answered.
        limit = time.monotonic() + 60
        while count() > before and time.monotonic() < limit:
            time.sleep(0.001)
        return count() <= before

    return wait


class Alarm(Exception):
    """What the signal handler of `alarm` raises."""


@pytest.fixture
def alarm():
    """What is done within is interrupted by a signal, and raises the exception."""

    def handler(*_):
        raise Alarm

    @contextlib.contextmanager
    def alarm(handler=handler, exception=Alarm, *, match=None, after=0.05, every=0):
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, after, every)
            with pytest.raises(exception, match=match) as raised:
                yield raised
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return alarm
