/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sources and sinks that are no converter: recordings, the network, and a sink that verifies. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>

#include "check.h"

#define SAMPLES 5000

/* Sends the numbers from first on to a sink of one pair, in blocks. Returns the result of the last call. */
static int send_numbers(struct busbar_sink *sink, uint32_t first, int count)
{
	int result = 0;

	while (count > 0 && result >= 0) {
		struct busbar_space *space;
		void *data;
		size_t len;
		int some;

		result = busbar_sink_space(sink, PATIENCE, &space);
		if (result < 0)
			return result;
		OK(busbar_space_write(space, &data, &len));
		some = len / 4 < (size_t)count ? len / 4 : (size_t)count;
		for (int i = 0; i < some; i++, first++)
			memcpy((char *)data + 4 * i, &first, 4);
		result = busbar_space_send(space, 4 * some);
		count -= some;
	}
	return result;
}

static struct busbar_sink *open_sink(const char *name)
{
	struct busbar_stream_setup setup = { .size = sizeof(setup), .block_len = 4096, .blocks = 4, .rate = 1e6 };
	struct busbar_sink *sink;

	OK(busbar_sink_open(name, &setup, &sink));
	return sink;
}

/* Takes the numbers from 0 on until the source ends. Returns how many there were. */
static uint32_t take_numbers(struct busbar_source *source)
{
	struct pollfd readable = { .fd = busbar_source_fd(source), .events = POLLIN };
	uint32_t next = 0;
	int result;

	for (;;) {
		struct busbar_samples *samples;
		const void *data;
		size_t len;

		CHECK(poll(&readable, 1, PATIENCE / 1000000) == 1);
		result = busbar_source_next(source, 0, &samples);
		if (result == -EAGAIN)
			continue;
		if (result < 0)
			break;
		OK(busbar_samples_read(samples, &data, &len));
		for (size_t at = 0; at < len; at += 4, next++)
			CHECK(!memcmp((const char *)data + at, &next, 4));
		OK(busbar_samples_free(samples));
	}
	CHECK(result == -EPIPE && busbar_error_reason() == BUSBAR_REASON_ENDED);
	return next;
}

static void verifies(void)
{
	struct busbar_sink *sink = open_sink("verify:counter");
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_channel channel = { .size = sizeof(channel) };

	OK(busbar_sink_info(sink, &info));
	CHECK(!strcmp(info.interface, "library") && info.rate == 1e6 && info.channels == 2 && info.sample_len == 4);
	OK(busbar_sink_channel(sink, 1, &channel));
	CHECK(!strcmp(channel.name, "voltage0_q") && channel.bits == 16 && channel.is_signed);
	OK(send_numbers(sink, 0, SAMPLES));
	OK(busbar_sink_drain(sink, PATIENCE));
	FAILS(send_numbers(sink, SAMPLES + 1, 1), EBADMSG, "5000");
	FAILS(send_numbers(sink, SAMPLES, 1), EPIPE, "");
	OK(busbar_sink_free(sink));

	sink = open_sink("null:");
	OK(send_numbers(sink, 7, SAMPLES));
	FAILS(busbar_sink_cyclic(sink, "1234", 4), EOPNOTSUPP, "dmabuf");
	OK(busbar_sink_free(sink));
}

static void records(const char *folder)
{
	struct busbar_stream_setup setup = { .size = sizeof(setup), .block_len = 1000 };
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_source *source;
	struct busbar_sink *sink;
	char name[300];

	snprintf(name, sizeof(name), "file:%s/recording", folder);
	CHECK(busbar_source_open(name, &setup, &source) == -ENOENT);
	sink = open_sink(name);
	OK(send_numbers(sink, 0, SAMPLES));
	OK(busbar_sink_stop(sink));
	OK(busbar_sink_info(sink, &info));
	CHECK(info.copied == 4 * SAMPLES);
	OK(busbar_sink_free(sink));
	CHECK(busbar_sink_open(name, NULL, &sink) == -EEXIST);

	OK(busbar_source_open(name, &setup, &source));
	OK(busbar_source_info(source, &info));
	CHECK(info.rate == 1e6 && info.block_len == 1000 && info.channels == 2);
	CHECK(take_numbers(source) == SAMPLES);
	OK(busbar_source_free(source));
	setup.channels = "voltage0_i";
	REFUSES(busbar_source_open(name, &setup, &source), "channels");
	setup.channels = NULL;
	setup.rate = 1e6;
	REFUSES(busbar_source_open(name, &setup, &source), "rate");
	setup.rate = -1;
	REFUSES(busbar_sink_open("null:", &setup, &sink), "above 0");
}

static void *receive(void *name)
{
	struct busbar_source *source;

	OK(busbar_source_open(name, NULL, &source));
	CHECK(take_numbers(source) == SAMPLES);
	OK(busbar_source_free(source));
	return NULL;
}

/* A port that nobody listens on. */
static int free_port(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(address);

	CHECK(!bind(fd, (struct sockaddr *)&address, len));
	CHECK(!getsockname(fd, (struct sockaddr *)&address, &len));
	close(fd);
	return ntohs(address.sin_port);
}

static void goes_over_the_network(void)
{
	struct busbar_sink *sink;
	char from[40], to[40];
	int port = free_port();
	pthread_t thread;

	snprintf(from, sizeof(from), "tcp-listen:127.0.0.1:%d", port);
	snprintf(to, sizeof(to), "tcp:127.0.0.1:%d", port);
	CHECK(!pthread_create(&thread, NULL, receive, from));
	sink = open_sink(to);
	OK(send_numbers(sink, 0, SAMPLES));
	OK(busbar_sink_drain(sink, PATIENCE));
	OK(busbar_sink_free(sink));
	CHECK(!pthread_join(thread, NULL));
	REFUSES(busbar_sink_open("tcp:nowhere", NULL, &sink), "tcp:HOST:PORT");
}

/* What is listed depends on the host; what is listed can be asked for. */
static void lists(void)
{
	struct busbar_device device = { .size = sizeof(device) };
	struct busbar_channel channel = { .size = sizeof(channel) };
	struct busbar_devices *devices;
	int count;

	OK(busbar_devices_open(NULL, &devices));
	count = busbar_devices_count(devices);
	OK(count);
	for (int i = 0; i < count; i++) {
		OK(busbar_devices_device(devices, i, &device));
		CHECK(strlen(device.id) > 0 && device.name && device.attributes);
		for (size_t j = 0; j < device.inputs; j++)
			OK(busbar_devices_input(devices, i, j, &channel));
		REFUSES(busbar_devices_output(devices, i, device.outputs, &channel), "less than");
	}
	REFUSES(busbar_devices_device(devices, count, &device), "less than");
	OK(busbar_devices_free(devices));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	verifies();
	records(argv[1]);
	goes_over_the_network();
	lists();
	puts("done");
	return 0;
}
