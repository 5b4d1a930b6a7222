"""Runs one of the kernel's tests unmodified.

Two things are provided before: csum.py of Linux 6.12 uses an attribute that its library has only since
6.13, and PyYAML without its C extension is so slow in an emulated machine that tests time out.
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
