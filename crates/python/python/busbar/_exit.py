"""Ends coprocessors before the interpreter, which their threads call."""

import atexit
import contextlib
import weakref

from . import _busbar

_running: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _stop():
    # One that fails, or that Ctrl-C leaves, does not keep the others.
    with contextlib.ExitStack() as ends:
        ends.callback(_busbar._join)
        running = list(_running)
        for each in running:
            ends.callback(each.stop)
        # Linux may take long for each: they end at the same time.
        for each in running:
            each._ask_to_end()


def remember(coprocessor):
    _running.add(coprocessor)
