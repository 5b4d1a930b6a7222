"""The examples work, and are short."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import busbar
import nbclient
import nbformat
import numpy
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"
sys.path.insert(0, str(EXAMPLES))


def test_they_are_short():
    for example in EXAMPLES.glob("*.py"):
        assert len(example.read_text().splitlines()) < 60, example


def test_the_spectrum_has_its_peak_at_the_frequency(tmp_path):
    picture = tmp_path / "spectrum.png"
    name = "synth:sine?rate=100M&frequency=12.5M&amplitude=0.5"
    command = [sys.executable, EXAMPLES / "spectrum.py", name, picture]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out == f"{picture}: strongest at 1.25e+07 Hz, -6.0 dB\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_the_recorder_does_what_the_coprocessor_wants(tmp_path):
    import recorder

    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far.setblocking(False)
    loop = asyncio.get_running_loop()
    file = tmp_path / "samples"
    with (
        busbar.Endpoint.from_fd(near.detach()) as endpoint,
        far,
        busbar.Source("synth:counter?rate=10M", blocks=16, block_len=8000) as source,
        open(file, "wb") as out,
    ):
        recording = asyncio.create_task(recorder.record(source, endpoint, out))
        await loop.sock_sendall(far, b"start")
        while os.path.getsize(file) < 80_000:
            await asyncio.sleep(0.001)
        await loop.sock_sendall(far, b"stop")
        samples, lost = await asyncio.wait_for(recording, 60)
        assert await loop.sock_recv(far, 100) == b"%d samples, %d lost" % (samples, lost)
        dtype = source.dtype
    recorded = numpy.fromfile(file, dtype)
    assert len(recorded) == samples
    counted = recorded.view("<u8")
    assert int(counted[-1] - counted[0]) == samples - 1 + lost


async def test_the_recorder_reports_a_loss_of_unknown_length(tmp_path):
    import recorder

    class Block(list):
        def __init__(self, lost):
            super().__init__(range(8))
            self.data, self.lost = bytes(8), lost

    async def blocks(lost):
        # The recorder is told to begin meanwhile.
        for _ in range(100):
            await asyncio.sleep(0)
        for each in lost:
            yield Block(each)
        far.send(b"stop")

    for lost, expected in [([None, 0, 3], 3), ([0, None, 3], "unknown")]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with busbar.Endpoint.from_fd(near.detach()) as endpoint, far, open(tmp_path / "samples", "wb") as out:
            far.send(b"start")
            assert await asyncio.wait_for(recorder.record(blocks(lost), endpoint, out), 60) == (24, expected)
            assert far.recv(100).endswith(b"%s lost" % str(expected).encode())


def test_the_quick_start_prints_what_it_says():
    page = (EXAMPLES.parents[1] / "docs/python.md").read_text()
    _, rest = page.split("```python\n", 1)
    program, rest = rest.split("```\n", 1)
    expected = rest.split("```\n")[1]
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out == expected and len(expected.splitlines()) == 4


def test_the_program_of_the_readme_runs(monkeypatch):
    readme = (EXAMPLES.parents[1] / "README.md").read_text()
    program = readme.split("```python\n", 1)[1].split("```\n", 1)[0]
    sent = []

    class Core:
        """In place of a coprocessor, until it has three messages."""

        def __init__(self, path):
            assert path == "/dev/rpmsg_ctrl0"

        def endpoint(self, name):
            return self

        def send(self, message):
            sent.append(message)
            if len(sent) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(busbar, "Controller", Core)
    with pytest.raises(KeyboardInterrupt):
        exec(program, {})
    assert all(message.endswith(b" 0") for message in sent)


def test_the_notebook_runs_from_top_to_bottom():
    notebook = nbformat.read(EXAMPLES / "stream.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("cannot be given back: 1 arrays" in output.get("text", "") for output in outputs)
