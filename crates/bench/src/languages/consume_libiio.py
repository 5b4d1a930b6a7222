# SPDX-License-Identifier: MIT OR Apache-2.0
"""The consumer with pylibiio of `busbar bench languages`: as consume.py, for a source `iio:NAME`."""

import sys
import time

import iio


def first(buffer):
    buffer.refill()
    # pylibiio has the samples as a copy.
    return int.from_bytes(buffer.read()[:8], sys.byteorder)


def main(name, block_len, queue, blocks):
    device = iio.LocalContext().find_device(name.removeprefix("iio:"))
    for channel in device.channels:
        if not channel.output:
            channel.enabled = channel.id in ("voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q")
    device.set_kernel_buffers_count(queue)
    buffer = iio.Buffer(device, block_len // device.sample_size)
    first(buffer)
    micros, cpu_micros, total = time.perf_counter(), time.process_time(), 0
    for _ in range(blocks):
        total += first(buffer)
    micros, cpu_micros = time.perf_counter() - micros, time.process_time() - cpu_micros
    outcome = f'"micros":{micros * 1e6:.3f},"cpu_micros":{cpu_micros * 1e6:.3f},"sum":{total % 2**64}'
    return f"{{{outcome}}}"


for line in sys.stdin:
    name, *numbers = line.split()
    # Now that the buffer is gone: the next consumer needs the device.
    print(main(name, *map(int, numbers)))
