/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The converter vconv0: blocks that it has filled in place, attributes, loss, and its transmitter in loopback. */
#include <poll.h>
#include <signal.h>
#include <sys/time.h>

#include "check.h"
#include "handles.h"

#define CHANNELS "voltage0_i,voltage0_q,voltage1_i,voltage1_q"

static const struct busbar_stream_setup setup = {
	.size = sizeof(setup), .blocks = 8, .block_len = 65536, .interface = "dmabuf", .channels = CHANNELS,
};

static void in_place(void)
{
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_meta meta = { .size = sizeof(meta) };
	struct busbar_source *source;
	struct busbar_samples *samples;
	uint64_t number = 0;
	const void *data;
	size_t len;

	OK(busbar_source_open("iio:vconv0", &setup, &source));
	FAILS(busbar_device_set("vconv0", "pattern", "sine"), EBUSY, "pattern");
	for (int block = 0; block < 40; block++) {
		struct pollfd ready = { .fd = busbar_source_fd(source), .events = POLLIN };

		while (busbar_source_next(source, 0, &samples) == -EAGAIN)
			CHECK(poll(&ready, 1, 60000) == 1);
		CHECK(samples);
		OK(busbar_samples_meta(samples, &meta));
		CHECK(meta.lost == 0 && meta.len == 65536);
		OK(busbar_samples_read(samples, &data, &len));
		for (size_t at = 0; at < len / 8; at++)
			CHECK(((const uint64_t *)data)[at] == number++);
		OK(busbar_samples_free(samples));
	}
	OK(busbar_source_info(source, &info));
	CHECK(!strcmp(info.interface, "dmabuf") && info.copied == 0);
	OK(busbar_source_free(source));
}

static void nothing(int signal)
{
	(void)signal;
}

/* A block that the converter fills can be taken by its descriptor, whatever signals come meanwhile. */
static void by_descriptor(void)
{
	static const struct busbar_stream_setup slow = { .size = sizeof(slow), .blocks = 2, .interface = "dmabuf" };
	const struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = nothing };
	struct busbar_samples *samples;
	struct busbar_source *source;
	struct busbar_block *block;
	int fd;

	OK(busbar_device_set("vconv0", "sampling_frequency", "10000"));
	OK(busbar_source_open("iio:vconv0", &slow, &source));
	OK(busbar_source_next(source, PATIENCE, &samples));
	fd = dup(busbar_samples_fd(samples));
	/* The converter needs 0.8 s for a block. */
	OK(busbar_samples_free(samples));
	CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
	OK(busbar_block_from_fd(fd, &block));
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	close(fd);
	OK(busbar_block_free(block));
	OK(busbar_source_free(source));
	OK(busbar_device_set("vconv0", "sampling_frequency", "0"));
}

static void transmits(void)
{
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_source *source;
	struct busbar_sink *sink;
	struct busbar_space *space;
	struct busbar_samples *samples;
	uint64_t sent = 1, received = 1;
	const void *data;
	void *room;
	size_t len;

	OK(busbar_device_set("vconv0", "loopback", "1"));
	OK(busbar_source_open("iio:vconv0", &setup, &source));
	OK(busbar_sink_open("iio:vconv0-tx", &setup, &sink));
	OK(busbar_sink_info(sink, &info));
	CHECK(info.blocks == 8 && info.sample_len == 8 && info.channels == 4 && info.queued == 0);
	OK(busbar_sink_space(sink, PATIENCE, &space));
	REFUSES(busbar_space_send(space, 7), "multiples of 8 up to 65536");
	REFUSES(busbar_space_send(space, 8), "the handle was freed");
	while (received < 100000) {
		int result = busbar_sink_space(sink, 0, &space);

		if (!result) {
			OK(busbar_space_write(space, &room, &len));
			CHECK(len == 65536);
			for (size_t at = 0; at < len / 8; at++)
				((uint64_t *)room)[at] = sent++;
			OK(busbar_space_send(space, len));
		} else {
			CHECK(result == -EAGAIN);
		}
		result = busbar_source_next(source, result ? SECOND / 100 : 0, &samples);
		if (result == -EAGAIN)
			continue;
		OK(result);
		OK(busbar_samples_read(samples, &data, &len));
		for (size_t at = 0; at < len / 8; at++)
			CHECK(((const uint64_t *)data)[at] == received++);
		OK(busbar_samples_free(samples));
	}
	OK(busbar_source_free(source));
	OK(busbar_sink_drain(sink, PATIENCE));
	OK(busbar_sink_cyclic(sink, "sample 1sample 2", 16));
	REFUSES(busbar_sink_cyclic(sink, "7 bytes", 7), "multiples of 8");
	FAILS(busbar_sink_space(sink, 0, &space), EBUSY, "");
	OK(busbar_sink_stop(sink));
	FAILS(busbar_sink_space(sink, 0, &space), EPIPE, "");
	OK(busbar_sink_free(sink));
	OK(busbar_device_set("vconv0", "loopback", "0"));
}

static void forwards(void)
{
	struct busbar_source *source;
	struct busbar_samples *samples;
	struct busbar_sink *sink;
	const void *data;
	size_t len;

	OK(busbar_source_open("iio:vconv0", &setup, &source));
	OK(busbar_sink_open("iio:vconv0-tx", &setup, &sink));
	for (int i = 0; i < 20; i++) {
		OK(busbar_source_next(source, PATIENCE, &samples));
		OK(busbar_samples_read(samples, &data, &len));
		/* Access ends with this. */
		OK(busbar_sink_forward(sink, samples, i % 2 ? PATIENCE : BUSBAR_FOREVER));
		OK(busbar_samples_free(samples));
	}
	OK(busbar_sink_drain(sink, PATIENCE));
	OK(busbar_sink_reap(sink));
	OK(busbar_sink_free(sink));
	/* The same block again, before the converter has begun with it. */
	OK(busbar_device_set("vconv0-tx", "sampling_frequency", "20000"));
	OK(busbar_sink_open("iio:vconv0-tx", &setup, &sink));
	OK(busbar_source_next(source, PATIENCE, &samples));
	OK(busbar_sink_forward(sink, samples, PATIENCE));
	OK(busbar_samples_free(samples));
	OK(busbar_source_next(source, PATIENCE, &samples));
	for (int i = 0; i < 3; i++)
		OK(busbar_sink_forward(sink, samples, PATIENCE));
	OK(busbar_samples_free(samples));
	OK(busbar_sink_drain(sink, PATIENCE));
	OK(busbar_source_free(source));
	OK(busbar_sink_free(sink));
	OK(busbar_device_set("vconv0-tx", "sampling_frequency", "0"));
}

/* What errors.c tries with the other kinds of handles. */
static void handles(void)
{
	struct handles freed = { 0 };
	struct busbar_source *source;
	struct busbar_block *block;
	struct busbar_sink *sink;

	OK(busbar_block_new(1, "memfd", &block));
	OK(busbar_source_open("iio:vconv0", &setup, &source));
	OK(busbar_source_next(source, PATIENCE, &freed.busbar_samples));
	OK(busbar_samples_free(freed.busbar_samples));
	OK(busbar_sink_open("iio:vconv0-tx", &setup, &freed.busbar_sink));
	OK(busbar_sink_space(freed.busbar_sink, PATIENCE, &freed.busbar_space));
	OK(busbar_space_free(freed.busbar_space));
	OK(busbar_sink_free(freed.busbar_sink));
	OK(busbar_sink_open("iio:vconv0-tx", &setup, &sink));
	refuse_handles(&freed, block, source, NULL, sink);
	OK(busbar_sink_free(sink));
	OK(busbar_source_free(source));
	OK(busbar_block_free(block));
}

int main(void)
{
	OK(busbar_device_set("vconv0", "sampling_frequency", "0"));
	OK(busbar_device_set("vconv0-tx", "sampling_frequency", "0"));
	OK(busbar_device_set("vconv0", "pattern", "counter"));
	in_place();
	by_descriptor();
	transmits();
	forwards();
	handles();
	puts("done");
	return 0;
}
