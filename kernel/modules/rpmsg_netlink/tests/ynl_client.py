#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A client that is built from the driver's netlink specification alone.

Usage: ynl_client.py YNL TREE    the folder of the kernel's YNL, and a tree with specification and schema
"""
import errno
import os
import sys
import time

folder, tree = sys.argv[1:]
sys.path.insert(0, folder)
from lib import NlError, YnlFamily  # noqa: E402

PART = 32768

ynl = YnlFamily(
    os.path.join(tree, "Documentation/netlink/specs/rpmsg_netlink.yaml"),
    os.path.join(tree, "Documentation/netlink/genetlink.yaml"),
)


class Notes(list):
    """Notifications. YNL of Linux 6.12 has a list of them, that of later versions a queue."""

    put = list.append


ynl.async_msg_queue = Notes()


def crc16(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x6001 if byte & 1 else 0)
        table.append(byte)
    crc = 0
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


def note(name):
    until = time.monotonic() + 60
    while not ynl.async_msg_queue:
        assert time.monotonic() < until, f"no {name}"
        ynl.check_ntf()
    came = ynl.async_msg_queue.pop(0)
    assert came["name"] == name, came
    return came["msg"]


def send(channel, data, crc=None):
    request = {"channel": channel, "length": len(data)}
    if len(data) > PART:
        request["crc"] = crc16(data) if crc is None else crc
    for offset in range(0, len(data), PART):
        part = data[offset : offset + PART]
        ynl.do("send", request | {"offset": offset, "data": part.hex()})
        if offset + PART < len(data):
            assert note("send-next-ntf")["offset"] == offset + PART
    return note("send-done-ntf")


def receive(channel, length=0):
    data = b""
    ynl.do("receive", {"channel": channel, "length": length})
    while True:
        part = note("data-ntf")
        assert part["status"] == 0 and part["offset"] == len(data), part
        data += part["data"]
        if len(data) == part["length"]:
            return data
        ynl.do("fetch", {"channel": channel})


def refused(name, request):
    try:
        ynl.do(name, request)
    except NlError as error:
        return error.nl_msg
    raise AssertionError(f"{name} was not refused")


(found,) = ynl.dump("channel-get", {})
assert found["name"] == "rpmsg-netlink" and found["mtu"] == 496, found
channel = found["id"]
assert ynl.do("channel-get", {"id": channel}) == found

for length in (1, 490, 512, 4096, PART, PART + 1, 65529, 65530, 200001):
    data = os.urandom(length)
    assert send(channel, data) == {"channel": channel, "length": length, "status": 0}
    assert receive(channel) == data
    assert receive(channel, length) == bytes(i & 0xFF for i in range(length))
    print(f"{length} bytes there and back")

spoilt = os.urandom(PART + 1)
told = send(channel, spoilt, crc16(spoilt) ^ 1)
assert told["status"] == errno.EBADMSG, told
missing = refused("fetch", {})
assert missing.extack["miss-type"] == "channel", missing
bad = refused("send", {"channel": channel, "length": 1, "data": b"xx".hex()})
assert bad.extack["bad-attr"] == ".data", bad
ynl.do("reset", {"channel": channel})
print("all is well")
