"""pylibiio: attributes, blocks, errors. Usage: with_pylibiio.py URI DEVICE ATTRIBUTE VALUE [READ-ONLY-ATTRIBUTE ERRNO]"""

import sys

import iio
import numpy

from samples import CHANNELS, check

uri, name, attribute, value, *denied = sys.argv[1:]
context = iio.Context(uri)
assert context.name == "network" and "Linux" in context.description, context.description
device = context.find_device(name)
assert device.name == name and name in context.xml
assert context.find_device("nothing") is None

before = device.attrs[attribute].value
for wanted in (value, before):
    device.attrs[attribute].value = wanted
    assert device.attrs[attribute].value == wanted
if denied:
    try:
        device.attrs[denied[0]].value = "1"
    except OSError as error:
        assert error.errno == int(denied[1]), error
    else:
        raise AssertionError("it was written")

for channel in CHANNELS:
    channel = device.find_channel(channel)
    assert channel.scan_element and not channel.output and channel.data_format.bits == 16
    channel.enabled = True
device.set_kernel_buffers_count(8)
for length in (1000, 20_000):
    buffer = iio.Buffer(device, length)
    parts = []
    for _ in range(10):
        buffer.refill()
        parts.append(numpy.frombuffer(buffer.read(), "<u8"))
    check(numpy.concatenate(parts))
    one = device.find_channel(CHANNELS[0]).read(buffer)
    assert one == parts[-1].astype("<u2").tobytes(), "a channel of a block"
    # A device has one buffer.
    del buffer
