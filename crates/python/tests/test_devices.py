"""Devices and their attributes, over a server of its own that the test makes, and over `busbar serve`."""

import errno
import json
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import busbar
import numpy
import pytest

XML = """<?xml version="1.0" encoding="utf-8"?><context name="local">
<device id="iio:device0" name="phy">
<channel id="altvoltage0" name="RX_LO" type="output"><attribute name="frequency" filename="out_altvoltage0_RX_LO_frequency"/></channel>
<channel id="voltage0" type="output"><attribute name="hardwaregain" filename="out_voltage0_hardwaregain"/></channel>
<channel id="voltage0" type="input"><attribute name="hardwaregain" filename="in_voltage0_hardwaregain"/>
<attribute name="hardwaregain_available" filename="in_voltage0_hardwaregain_available"/></channel>
<attribute name="ensm_mode"/><attribute name="ensm_mode_available"/><attribute name="calib"/>
<debug-attribute name="direct_reg_access"/></device>
<device id="iio:device1" name="adc" label="first">
<channel id="voltage0_i" type="input"><scan-element index="0" format="le:s12/16&gt;&gt;4"/>
<attribute name="scale" filename="in_voltage0_i_scale"/><attribute name="label" filename="in_voltage0_i_label"/></channel>
<channel id="timestamp" type="input"><scan-element index="1" format="le:S64/64&gt;&gt;0"/></channel>
<buffer-attribute name="data_available"/></device>
<device id="trigger0" name="clock"/></context>"""

VALUES = {
    "iio:device0 ensm_mode": "fdd",
    "iio:device0 ensm_mode_available": "sleep wait alert fdd ",
    "iio:device0 calib": "auto",
    "iio:device0 OUTPUT altvoltage0 frequency": "2400000000",
    "iio:device0 OUTPUT voltage0 hardwaregain": "-10.0 dB",
    "iio:device0 INPUT voltage0 hardwaregain": "71.0 dB",
    "iio:device0 INPUT voltage0 hardwaregain_available": "[-3 1 71]",
    "iio:device0 DEBUG direct_reg_access": "0x3f",
    "iio:device1 INPUT voltage0_i scale": "0.25",
    "iio:device1 INPUT voltage0_i label": "antenna",
    "iio:device1 BUFFER data_available": "12",
}


class Handler(socketserver.StreamRequestHandler):
    """A client, by the text protocol."""

    def value(self, text):
        self.wfile.write(f"{len(text)}\n{text}\n".encode())

    def number(self, number):
        self.wfile.write(f"{number}\n".encode())

    def handle(self):
        server = self.server
        server.clients.append(self.connection)
        try:
            self.answer(server)
        finally:
            server.left.release()

    def answer(self, server):
        for line in self.rfile:
            command, *rest = line.decode().split()
            value = self.rfile.read(int(rest.pop())) if command == "WRITE" else b""
            place = " ".join(rest)
            server.said.append(f"{command} {place}".strip())
            server.silent.wait()
            if command == "PRINT":
                self.value(XML)
            elif command == "GETTRIG":
                self.value(server.trigger) if server.trigger else self.number(0)
            elif command == "SETTRIG":
                server.trigger = "".join(rest[1:])
                self.number(0)
            elif place not in server.values:
                self.number(-errno.ENOENT)
            elif command == "READ":
                self.value(server.values[place] + "\0")
            elif server.error:
                self.number(-server.error)
            else:
                server.values[place] = value.decode().rstrip("\0")
                self.number(len(value))


@pytest.fixture
def server():
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        # Set: it answers.
        silent = threading.Event()
        silent.set()
        # Clients that have gone.
        left = threading.Semaphore(0)
        values, said, clients, error, trigger = dict(VALUES), [], [], 0, ""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.host = "127.0.0.1:%d" % server.server_address[1]
        yield server
        server.silent.set()
        server.shutdown()


@pytest.fixture
def phy(server):
    return busbar.devices(server.host)[0]


def test_devices_and_channels_are_those_of_the_machine(server):
    for host in (server.host, f"ip:{server.host}"):
        phy, adc = busbar.devices(host)
        assert (phy.id, phy.name, phy.label, phy.uri) == ("iio:device0", "phy", None, f"iio:iio:device0@ip:{server.host}")
        assert (adc.id, adc.name, adc.label) == ("iio:device1", "adc", "first")
        assert [(it.id, it.name, it.is_output) for it in phy.channels] == [
            ("altvoltage0", "RX_LO", True),
            ("voltage0", None, True),
            ("voltage0", None, False),
        ]
        assert all(it.format is None for it in phy.channels)
        channel, timestamp = adc.channels
        assert channel.format == busbar.Channel("voltage0_i", True, 12, 16, 4, False, 1, 0)
        assert (timestamp.format.bits, timestamp.format.offset) == (64, 8)
        assert (channel.label, channel.scale, channel.offset) == ("antenna", 0.25, 0.0)
        assert (timestamp.label, timestamp.scale) == (None, 1.0)
        assert phy["RX_LO"] is phy["altvoltage0"] is phy["out_altvoltage0_RX_LO"] is phy.channels[0]
        assert phy["voltage0"] is phy["in_voltage0"] is phy.channels[2] and phy["out_voltage0"] is phy.channels[1]
        assert adc["voltage0_i"] is channel
        for name in ("voltage1", "out_voltage0_i", 0):
            with pytest.raises(KeyError, match="there are: voltage0_i, timestamp"):
                adc[name]
        with pytest.raises(TypeError):
            iter(adc)
        assert repr(phy) == f"<busbar.Device {phy.uri} (phy)>"
        assert repr(phy["RX_LO"]) == "<busbar.DeviceChannel out_altvoltage0 (RX_LO)>"
        assert repr(phy.debug) == "<busbar.Attributes ['direct_reg_access']>"


def test_attributes_are_a_mapping(server, phy):
    assert list(phy.attributes) == ["ensm_mode", "ensm_mode_available", "calib"] and len(phy.attributes) == 3
    assert "calib" in phy.attributes and "other" not in phy.attributes and 1 not in phy.attributes
    assert phy.attributes["ensm_mode"] == "fdd" and phy.attributes.get("other") is None
    assert dict(phy["RX_LO"].attributes) == {"frequency": "2400000000"}
    assert phy.debug["direct_reg_access"] == "0x3f" and not phy.buffer
    assert busbar.devices(server.host)[1].buffer["data_available"] == "12"
    assert phy.attributes.available("ensm_mode") == ["sleep", "wait", "alert", "fdd"]
    assert phy["in_voltage0"].attributes.available("hardwaregain") == busbar.Range("-3", "1", "71")
    for name in ("other", "calib\r\nEXIT", ""):
        for call in (lambda: phy.attributes[name], lambda: phy.attributes.__setitem__(name, 1)):
            with pytest.raises(KeyError, match="no such attribute of iio:device0; there are: ensm_mode, "):
                call()
    with pytest.raises(KeyError):
        phy.attributes.available("calib")
    # An attribute that has gone.
    del server.values["iio:device0 calib"]
    with pytest.raises(FileNotFoundError):
        phy.attributes["calib"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("manual", "manual"),
        (7, "7"),
        (True, "1"),
        (2.4e9, "2400000000"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        (numpy.int16(-3), "-3"),
        (numpy.float64(0.5), "0.5"),
        (numpy.float32(0.5), "0.5"),
    ],
)
def test_values_are_written_as_the_kernel_reads_them(server, phy, value, text):
    phy.attributes["calib"] = value
    assert server.values["iio:device0 calib"] == text


def test_values_that_no_attribute_has_are_refused(server, phy):
    before = list(server.said)
    for value in (float("nan"), float("inf"), "a\0b"):
        with pytest.raises(ValueError, match="^calib: `"):
            phy.attributes["calib"] = value
    for value in (None, b"1", [1], Decimal(1), 1j):
        with pytest.raises(TypeError, match="^calib: a text or a number is needed"):
            phy.attributes["calib"] = value
    assert server.said == before


def test_a_value_is_always_written_and_a_busy_device_refuses_only_a_change(server, phy):
    phy.attributes["calib"] = "auto"
    assert server.said[-1] == "WRITE iio:device0 calib"
    server.error = errno.EBUSY
    phy.attributes["calib"] = "auto"
    with pytest.raises(OSError) as raised:
        phy.attributes["calib"] = "manual"
    assert (raised.value.errno, raised.value.reason) == (errno.EBUSY, "busy")
    server.error = errno.EINVAL
    with pytest.raises(OSError) as raised:
        phy.attributes["calib"] = "auto"
    assert raised.value.errno == errno.EINVAL and "write `auto` to `calib`" in raised.value.strerror


def test_triggers_are_set_by_name(server, phy):
    assert phy.triggers == ("clock",) and phy.trigger is None
    phy.trigger = "clock"
    assert phy.trigger == "clock"
    with pytest.raises(ValueError, match="^trigger: `other` is not allowed; allowed: one of: clock"):
        phy.trigger = "other"
    phy.trigger = None
    assert phy.trigger is None


def test_all_devices_have_one_connection_which_is_made_anew(server):
    all = busbar.devices(server.host)
    for device in all:
        for name in device.attributes:
            device.attributes[name]
    assert len(server.clients) == 1
    server.clients[0].shutdown(socket.SHUT_RDWR)
    # The next access may find it closed already.
    for _ in range(2):
        try:
            all[0].attributes["calib"]
        except OSError:
            pass
    assert all[0].attributes["calib"] == "auto" and len(server.clients) == 2
    assert server.left.acquire(timeout=30)
    del all, device
    # With the last device, the connection is closed.
    assert server.left.acquire(timeout=30)


def test_threads_take_turns(server, phy):
    wrong = []

    def read(name, text):
        for _ in range(50):
            if phy.attributes[name] != text:
                wrong.append(name)

    threads = [threading.Thread(target=read, args=it) for it in [("ensm_mode", "fdd"), ("calib", "auto")] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(it.is_alive() for it in threads) and len(server.clients) == 1


def test_a_machine_that_does_not_answer_is_waited_for_up_to_the_limit(server, phy):
    server.silent.clear()
    with pytest.raises(TimeoutError):
        busbar.devices(server.host, timeout=0.1)
    server.silent.set()
    quick = busbar.devices(server.host, timeout=2)[0]
    # A late answer to another call is not taken for this one's.
    server.silent.clear()
    failed = []

    def read():
        try:
            quick.attributes["calib"]
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(30)
    server.silent.set()
    assert [type(it) for it in failed] == [TimeoutError]
    assert quick.attributes["ensm_mode"] == "fdd"


def test_a_signal_ends_an_access_and_the_next_one_is_right(server, phy, alarm):
    server.silent.clear()
    for access in (lambda: phy.attributes["calib"], lambda: phy.attributes.__setitem__("calib", "manual"), lambda: phy.trigger):
        with alarm():
            access()
    with alarm():
        busbar.devices(server.host)
    server.silent.set()
    assert phy.attributes["ensm_mode"] == "fdd"


def test_ctrl_c_ends_an_access(server):
    program = f"""
import busbar
phy = busbar.devices({server.host!r}, timeout=None)[0]
print("begins", flush=True)
try:
    input()
    phy.attributes["calib"]
except BaseException as error:
    print(type(error).__name__, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begins\n"
        server.silent.clear()
        child.stdin.write("\n")
        child.stdin.flush()
        while server.said[-1] != "READ iio:device0 calib":
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "KeyboardInterrupt\n"
        assert child.wait(30) == 0
    finally:
        child.kill()


def test_errors_of_the_network_are_those_of_the_system(server):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match="does `iiod` or `busbar serve` run there"):
        busbar.devices(f"127.0.0.1:{port}")
    for host in ("", "ip:", "a\0b"):
        with pytest.raises(ValueError, match="^host: `"):
            busbar.devices(host)
    for timeout in (-1, 0, float("nan")):
        with pytest.raises(ValueError, match="^timeout: `"):
            busbar.devices(server.host, timeout=timeout)
        with pytest.raises(ValueError, match="^timeout: `"):
            busbar.servers(timeout)
    with pytest.raises(ValueError, match="^timeout: `None`"):
        busbar.servers(None)


def test_this_machine_has_a_list_too():
    for device in busbar.devices():
        assert device.id.startswith("iio:device") and device.uri == f"iio:{device.id}"
    assert all(isinstance(it, busbar.Server) for it in busbar.servers(0.05))


@pytest.fixture
def served():
    """The address of `busbar serve` with a device that counts."""
    target = Path(__file__).resolve().parents[3] / "target"
    built = [it for it in (target / "release" / "busbar", target / "debug" / "busbar") if it.exists()]
    if not built:
        pytest.skip("needs the command busbar")
    command = [built[0], "serve", "--listen", "127.0.0.1:0", "--json", "adc=synth:counter?rate=100k&channels=1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(server.stdout.readline())["address"]
    finally:
        server.kill()
        server.communicate()


def test_a_device_that_busbar_serves_is_listed_asked_and_read(served):
    (device,) = busbar.devices(f"ip:{served}")
    assert device.name == "adc" and device["voltage0_i"].format.bits == 16
    assert device.attributes["busbar_report_loss"] == "0"
    device.attributes["busbar_report_loss"] = 1
    assert device.attributes["busbar_report_loss"] == "1"
    device.attributes["busbar_report_loss"] = 0
    with busbar.Source(device.uri, channels=["voltage0_i"], block_len=800) as source:
        assert source.rate == 100e3 and len(source.next(30)) == 400
