# SPDX-License-Identifier: MIT OR Apache-2.0
"""The consumer in Python of `busbar bench languages`: as consume() in languages.rs."""

import sys
import time

import busbar
import numpy


def first(source):
    block = source.next(60)
    # The sample as 64 bits; a view goes with the block.
    return int(numpy.asarray(block).view("u8")[0])


def main(name, block_len, queue, blocks):
    channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
    with busbar.Source(name, block_len=block_len, blocks=queue, channels=channels) as source:
        first(source)
        micros, cpu_micros, total = time.perf_counter(), time.process_time(), 0
        for _ in range(blocks):
            total += first(source)
        micros, cpu_micros = time.perf_counter() - micros, time.process_time() - cpu_micros
    outcome = f'"micros":{micros * 1e6:.3f},"cpu_micros":{cpu_micros * 1e6:.3f},"sum":{total % 2**64}'
    print(f"{{{outcome}}}")


for line in sys.stdin:
    name, *numbers = line.split()
    main(name, *map(int, numbers))
