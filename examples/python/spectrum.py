"""The spectrum of a stream, averaged over some blocks, as a picture.

python spectrum.py [SOURCE [FILE]]      such as: python spectrum.py iio:vconv0 spectrum.png
"""

import sys

import busbar
import matplotlib
import numpy

matplotlib.use("Agg")
from matplotlib import pyplot

POINTS = 4096


def spectrum(source, blocks=16):
    """Frequencies in hertz, or parts of the rate, and the mean power of I and Q there, in dB of full scale."""
    window = numpy.hanning(POINTS)
    power, count = numpy.zeros(POINTS), 0
    for block in source:
        if block.lost != 0:
            print(f"block {block.sequence}: {block.lost} samples are missing", file=sys.stderr)
        iq = block.complex("voltage0_i", "voltage0_q") / 32768
        for part in iq[: len(iq) // POINTS * POINTS].reshape(-1, POINTS):
            power += abs(numpy.fft.fft(part * window)) ** 2
            count += 1
        if block.sequence + 1 >= blocks:
            break
    level = 10 * numpy.log10(power / count / window.sum() ** 2 + 1e-15)
    frequencies = numpy.fft.fftfreq(POINTS, 1 / (source.rate or 1))
    return numpy.fft.fftshift(frequencies), numpy.fft.fftshift(level)


def draw(name, file):
    with busbar.Source(name, block_len="256K") as source:
        frequencies, level = spectrum(source)
        unit = "Hz" if source.rate else "of the rate"
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axes.plot(frequencies, level, linewidth=0.8)
    axes.set(title=name, xlabel=f"frequency, {unit}", ylabel="power, dB of full scale", ylim=(-130, 5))
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    strongest = level.argmax()
    print(f"{file}: strongest at {frequencies[strongest]:.6g} {unit}, {level[strongest]:.1f} dB")


if __name__ == "__main__":
    arguments = sys.argv[1:] + ["synth:sine?rate=1M&frequency=125k", "spectrum.png"][len(sys.argv) - 1 :]
    draw(*arguments)
