"""pyadi-iio: a class of its own, and its base classes. Usage: with_pyadi_iio.py URI DEVICE [TRANSMITTER]

`adi.adrv9009` finds its devices by their names, and its receiver has the same channels as ours. The base classes are for
devices of any name.
"""

import sys

import adi
import numpy
from adi.context_manager import context_manager
from adi.rx_tx import rx, tx

from samples import CHANNELS, check, numbers

uri, name, *transmitter = sys.argv[1:]


def receive(receiver, blocks=5):
    """Counts of some blocks. Each is a list of complex samples for each pair of channels."""
    receiver.rx_enabled_channels = [0, 1]
    receiver.rx_buffer_size = 5000
    parts = []
    for _ in range(blocks):
        one, two = receiver.rx()
        parts.append(numbers([one.real, one.imag, two.real, two.imag]))
    receiver.rx_destroy_buffer()
    return numpy.concatenate(parts)


radio = adi.adrv9009(uri)
assert radio._rxadc is not None
check(receive(radio))


class Converter(rx, tx, context_manager):
    _complex_data = True
    _rx_channel_names = CHANNELS
    _tx_channel_names = CHANNELS if transmitter else []

    def __init__(self):
        context_manager.__init__(self, uri)
        self._ctrl = self._rxadc = self._ctx.find_device(name)
        self._txdac = self._ctx.find_device(transmitter[0]) if transmitter else None
        rx.__init__(self)
        tx.__init__(self)


converter = Converter()
check(receive(converter))
if transmitter:
    rate = converter._get_iio_dev_attr("sampling_frequency")
    converter._set_iio_dev_attr("sampling_frequency", 48000)
    assert converter._get_iio_dev_attr("sampling_frequency") == 48000
    converter._set_iio_dev_attr("sampling_frequency", rate)
    converter._set_iio_attr_float("voltage0_q", "hardwaregain", False, 0.25)
    assert converter._get_iio_attr("voltage0_q", "hardwaregain", False) == 0.25
    converter._set_iio_attr_float("voltage0_q", "hardwaregain", False, 1)
    # What is transmitted is received.
    converter._set_iio_dev_attr("loopback", 1)
    converter.tx_enabled_channels = [0, 1]
    sent = [numpy.arange(1000) + 1j * first for first in (7, -9)]
    converter.rx_enabled_channels = [0, 1]
    converter.rx_buffer_size = 1000
    converter._rx_init_channels()
    converter.tx(sent)
    received = converter.rx()
    assert all((one == other).all() for one, other in zip(sent, received)), received
    converter.tx_destroy_buffer()
    converter.rx_destroy_buffer()
    converter._set_iio_dev_attr("loopback", 0)
