"""Records a stream while a coprocessor wants it: it sends `start` and `stop`, and is told what was recorded.

python recorder.py CONTROLLER SERVICE SOURCE FILE
    such as: python recorder.py /dev/rpmsg_ctrl0 recorder iio:vconv0 samples.bin
"""

import asyncio
import sys

import busbar


async def record(source, endpoint, out):
    """Writes the blocks between `start` and `stop` to `out`. Returns how many samples are in them, and how many lost."""
    recording, samples, lost = asyncio.Event(), 0, 0

    async def obey():
        while (message := await endpoint.recv_async()) != b"stop":
            if message == b"start":
                recording.set()

    obeying = asyncio.create_task(obey())
    async for block in source:
        if obeying.done():
            break
        if recording.is_set():
            # From the converter's memory: blocks longer than the file's buffer are not copied in this process.
            out.write(block.data)
            # What is missing before the first block that is recorded is not missing in the recording.
            if samples and lost is not None:
                lost = None if block.lost is None else lost + block.lost
            samples += len(block)
    await obeying
    lost = "unknown" if lost is None else lost
    await endpoint.send_async(f"{samples} samples, {lost} lost".encode())
    return samples, lost


async def main(controller, service, name, file):
    with (
        busbar.Controller(controller) as control,
        control.endpoint(service) as endpoint,
        busbar.Source(name, block_len="64K") as source,
        open(file, "xb") as out,
    ):
        await endpoint.send_async(b"ready")
        samples, lost = await record(source, endpoint, out)
        print(f"{file}: {samples} samples, {lost} lost, {source.dtype}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
