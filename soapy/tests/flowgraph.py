# SPDX-License-Identifier: MIT OR Apache-2.0
"""GNU Radio's gr-soapy takes a counter from the module, with the time behind each loss, and sends it to a sink that
verifies it.

Usage: flowgraph.py [SAMPLES]
"""
import sys
import tempfile

import numpy
import pmt
from gnuradio import blocks, gr, soapy

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
RATE = 4e6
SOURCE = "driver=busbar,uri=synth:counter?channels=1"


def receive(kind, sink, stream):
    """Runs a flow graph: source, head, sink."""
    graph = gr.top_block()
    source = soapy.source(SOURCE, kind, 1, "", stream, [""], [""])
    source.set_sample_rate(0, RATE)
    graph.connect(source, blocks.head(sink.input_signature().sizeof_stream_item(0), SAMPLES), sink)
    graph.run()
    assert len(sink.data()) == SAMPLES


def check_integers(stream):
    """Returns how many samples were lost: gr-soapy goes on, and prints sO."""
    # An item of sc16 has 4 bytes, as an int has.
    sink = blocks.vector_sink_i()
    receive("sc16", sink, stream)
    numbers = numpy.array(sink.data(), "i4").view("u4").astype("i8")
    behind_loss = numpy.flatnonzero(numpy.diff(numbers) != 1) + 1
    times = {tag.offset: tag.value for tag in sink.tags() if str(tag.key) == "rx_time"}
    seconds = {at: pmt.to_uint64(pmt.tuple_ref(it, 0)) + pmt.to_double(pmt.tuple_ref(it, 1)) for at, it in times.items()}
    # There is a time at the beginning and behind each loss, and it is that of the sample.
    assert set(seconds) == {0, *behind_loss}, (seconds, behind_loss)
    for at, time in seconds.items():
        assert abs(time - seconds[0] - (numbers[at] - numbers[0]) / RATE) < 1e-6, (at, time)
    return numbers[-1] - numbers[0] + 1 - SAMPLES


def check_floats():
    sink = blocks.vector_sink_c()
    receive("fc32", sink, "blocks=64")
    samples = numpy.array(sink.data(), "c8")
    parts = [numpy.round(part * 32768).astype("i2").view("u2").astype("i8") for part in (samples.real, samples.imag)]
    assert (numpy.diff(parts[0] | parts[1] << 16) >= 1).all()


def transmit(name):
    graph = gr.top_block()
    sink = soapy.sink(f"driver=busbar,tx={name}", "sc16", 1, "", "", [""], [""])
    numbers = numpy.arange(SAMPLES, dtype="i4")
    graph.connect(blocks.vector_source_i(numbers.tolist()), sink)
    graph.run()
    return numbers


def check_recording():
    with tempfile.TemporaryDirectory() as folder:
        numbers = transmit(f"file:{folder}/recording")
        recorded = numpy.fromfile(f"{folder}/recording.sigmf-data", "i4")
        assert numpy.array_equal(recorded, numbers), (len(recorded), len(numbers))


print(f"{check_integers('blocks=64')} lost")
print(f"{check_integers('blocks=2,block_len=1K')} lost")
check_floats()
transmit("verify:counter")
check_recording()
print("done")
