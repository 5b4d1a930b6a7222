"""Runs one of the kernel's tests, as it is.

Beforehand come two things that it misses: csum.py of Linux 6.12 uses an attribute that its library has
since 6.13 only; and PyYAML without its C part takes so long in an emulated machine that tests time out.
"""

import os
import runpy
import sys

import yaml

program = sys.argv[1]
sys.argv = [program]
sys.path.insert(0, os.path.dirname(program))

yaml.safe_load = lambda stream: yaml.load(stream, Loader=yaml.CSafeLoader)

from lib.py import NetDrvEpEnv  # noqa: E402

NetDrvEpEnv.remote_ifname = os.environ["REMOTE_NETIF"]

runpy.run_path(program, run_name="__main__")
