"""What the programs here share: the counter of `synth:` and of `vconv`, in four channels of 16 bits."""

import numpy

CHANNELS = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]


def numbers(parts):
    """The numbers of samples, of which each part has 16 bits."""
    return numpy.stack(parts, axis=1).astype("<i2").view("<u8").ravel()


def check(counts):
    """The numbers of samples follow one another."""
    assert len(counts) > 1 and (numpy.diff(counts) == 1).all(), counts
