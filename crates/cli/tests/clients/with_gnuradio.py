"""GNU Radio's gr-iio, without a display: every sample is verified. Usage: with_gnuradio.py URI DEVICE SAMPLES"""

import sys

import numpy
from gnuradio import blocks, gr, iio

from samples import CHANNELS, check

uri, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
graph = gr.top_block()
# The second name is that of the device whose attributes are set.
source = iio.device_source(uri, name, CHANNELS, name, [], 4096, 0)
samples = blocks.interleave(gr.sizeof_short)
end = blocks.head(gr.sizeof_short, len(CHANNELS) * count)
sink = blocks.vector_sink_s()
for index in range(len(CHANNELS)):
    graph.connect((source, index), (samples, index))
graph.connect(samples, end, sink)
graph.run()
counts = numpy.array(sink.data(), "<i2").view("<u8")
assert len(counts) == count
check(counts)
