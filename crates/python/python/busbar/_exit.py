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
        for each in list(_running):
            ends.callback(each.stop)


def remember(coprocessor):
    _running.add(coprocessor)
