/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A source: what it tells, blocks in place, an event loop, threads that wait, and what outlives what. */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "check.h"

static struct busbar_source *open_source(const char *name, size_t blocks, size_t block_len)
{
	struct busbar_stream_setup setup = { .size = sizeof(setup), .blocks = blocks, .block_len = block_len };
	struct busbar_source *source;

	OK(busbar_source_open(name, &setup, &source));
	return source;
}

static void tells(void)
{
	struct busbar_source *source = open_source("synth:counter?rate=1M&channels=1", 8, 4096);
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_channel channel = { .size = sizeof(channel) };
	double scale, offset;

	OK(busbar_source_info(source, &info));
	CHECK(info.size == sizeof(info) && info.blocks == 8 && info.block_len == 4096);
	CHECK(info.sample_len == 4 && info.channels == 2 && info.rate == 1e6);
	CHECK(!strcmp(info.interface, "synth") && strlen(info.memory) > 0 && info.queued == 0);
	OK(busbar_source_channel(source, 1, &channel));
	CHECK(!strcmp(channel.name, "voltage0_q") && channel.offset == 2 && channel.bits == 16);
	CHECK(channel.storage_bits == 16 && channel.repeat == 1 && channel.is_signed && !channel.big_endian);
	REFUSES(busbar_source_channel(source, 2, &channel), "less than 2");
	OK(busbar_source_scale(source, "voltage0_i", &scale, &offset));
	CHECK(scale == 1.0 && offset == 0.0);
	REFUSES(busbar_source_scale(source, "voltage9", &scale, &offset), "voltage0_i, voltage0_q");
	OK(busbar_source_free(source));

	/* All defaults. */
	OK(busbar_source_open("synth:sine", NULL, &source));
	OK(busbar_source_info(source, &info));
	CHECK(info.blocks == 16 && info.block_len == 65536 && info.rate == 0.0);
	OK(busbar_source_free(source));

	struct busbar_stream_setup setup = {
		.size = sizeof(setup), .memory = "memfd", .channels = "count0,voltage0_q",
	};
	OK(busbar_source_open("synth:counter", &setup, &source));
	OK(busbar_source_info(source, &info));
	CHECK(info.channels == 2 && !strcmp(info.memory, "memfd"));
	OK(busbar_source_free(source));
}

static void in_place(void)
{
	struct busbar_source *source = open_source("synth:counter?channels=2", 4, 8192);
	uint64_t number = 0;

	for (uint64_t block = 0; block < 10; block++) {
		struct busbar_meta meta = { .size = sizeof(meta) };
		struct busbar_samples *samples;
		const void *data, *again;
		size_t len, length;
		int fd;

		OK(busbar_source_next(source, BUSBAR_FOREVER, &samples));
		OK(busbar_samples_meta(samples, &meta));
		CHECK(meta.sequence == block && meta.lost == 0 && meta.len == 8192);
		CHECK(meta.time > 1700000000LL * SECOND);
		OK(busbar_samples_read(samples, &data, &len));
		OK(busbar_samples_read(samples, &again, &length));
		CHECK(data == again && len == 8192 && length == 8192);
		for (size_t at = 0; at < len / 8; at++)
			CHECK(((const uint64_t *)data)[at] == number++);
		/* The descriptor is of the same memory. */
		fd = busbar_samples_fd(samples);
		CHECK(fd >= 0);
		again = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(again != MAP_FAILED && again != data && !memcmp(data, again, len));
		munmap((void *)again, len);
		OK(busbar_samples_free(samples));
	}

	/* Only as many blocks as there are; then one comes back. */
	struct busbar_samples *held[4], *more;

	for (int i = 0; i < 4; i++)
		OK(busbar_source_next(source, PATIENCE, &held[i]));
	FAILS(busbar_source_next(source, 0, &more), EAGAIN, "nothing came");
	CHECK(!more && busbar_error_reason() == BUSBAR_REASON_TIMED_OUT);
	FAILS(busbar_source_next(source, 1000, &more), EAGAIN, "nothing came");
	OK(busbar_samples_free(held[2]));
	OK(busbar_source_next(source, PATIENCE, &more));
	OK(busbar_samples_free(more));
	/* Blocks outlive their source. */
	OK(busbar_source_free(source));
	for (int i = 0; i < 4; i++) {
		const void *data;
		size_t len;

		if (i == 2)
			continue;
		OK(busbar_samples_read(held[i], &data, &len));
		CHECK(((const uint64_t *)data)[0] == 10240 + 1024 * (uint64_t)i);
		OK(busbar_samples_free(held[i]));
	}
}

static void values(void)
{
	struct busbar_source *source = open_source("synth:sine?amplitude=0.5&frequency=0.01", 4, 32768);
	struct busbar_samples *samples;
	float i[4096], q[10];
	double power = 0;
	int count;

	OK(busbar_source_next(source, PATIENCE, &samples));
	count = busbar_samples_values(samples, "voltage0_i", 1, 0, i, 4096);
	CHECK(count == 4096);
	for (int at = 0; at < count; at++)
		power += (double)i[at] * i[at];
	power /= count;
	/* Half of 32767, and a sine has half the power of its amplitude. */
	CHECK(power > 16384.0 * 16384 / 2 * 0.98 && power < 16384.0 * 16384 / 2 * 1.02);
	CHECK(busbar_samples_values(samples, "voltage0_q", 1, 0, q, 10) == 10);
	CHECK(busbar_samples_values(samples, "voltage0_q", 1, 0, NULL, 0) == 0);
	REFUSES(busbar_samples_values(samples, "voltage0_q", 1, 0, NULL, 1), "NULL");
	REFUSES(busbar_samples_values(samples, "none", 1, 0, q, 10), "voltage0_i");
	/* Without its source, and as (value + offset) * scale. */
	OK(busbar_source_free(source));
	CHECK(busbar_samples_values(samples, "voltage0_q", 1, 0, i, 10) == 10);
	CHECK(busbar_samples_values(samples, "voltage0_q", 0.5, 8, q, 10) == 10);
	for (int at = 0; at < 10; at++)
		CHECK(q[at] == (i[at] + 8) / 2);
	OK(busbar_samples_free(samples));
}

static void in_a_loop(void)
{
	struct busbar_source *sources[2] = {
		open_source("synth:counter?rate=1M", 4, 8000), open_source("synth:noise?rate=2M", 4, 8000),
	};
	int epfd = epoll_create1(EPOLL_CLOEXEC), blocks[2] = { 0 };

	for (int i = 0; i < 2; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };
		int fd = busbar_source_fd(sources[i]);

		CHECK(fd >= 0 && fd == busbar_source_fd(sources[i]));
		CHECK(!epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
	}
	while (blocks[0] < 5 || blocks[1] < 5) {
		struct epoll_event event;
		struct busbar_samples *samples;
		int result;

		CHECK(epoll_wait(epfd, &event, 1, 60000) == 1);
		result = busbar_source_next(sources[event.data.u32], 0, &samples);
		if (result == -EAGAIN)
			continue;
		OK(result);
		blocks[event.data.u32]++;
		OK(busbar_samples_free(samples));
	}
	close(epfd);
	for (int i = 0; i < 2; i++)
		OK(busbar_source_free(sources[i]));
}

static void *wait_for_ever(void *source)
{
	struct busbar_samples *samples;
	int result;

	while (!(result = busbar_source_next(source, BUSBAR_FOREVER, &samples)))
		OK(busbar_samples_free(samples));
	CHECK(strlen(busbar_error()) > 0);
	return (void *)(intptr_t)result;
}

static void *wait_long(void *source)
{
	struct busbar_samples *samples;

	return (void *)(intptr_t)busbar_source_next(source, PATIENCE, &samples);
}

/* To free a source wakes those that wait for it. */
static void freed_while_waiting(void)
{
	struct busbar_source *source = open_source("synth:counter?rate=1", 4, 8000);
	pthread_t waiting[2];
	void *result;

	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&waiting[i], NULL, wait_long, source));
	usleep(50000);
	OK(busbar_source_free(source));
	for (int i = 0; i < 2; i++) {
		pthread_join(waiting[i], &result);
		/* One that came late finds that it was freed. */
		CHECK((intptr_t)result == -EPIPE || (intptr_t)result == -EINVAL);
	}
}

static void threads(void)
{
	/* A block takes a quarter of an hour. */
	struct busbar_source *source = open_source("synth:counter?rate=1", 4, 8000);
	pthread_t waiting[4];
	void *result;

	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&waiting[i], NULL, wait_for_ever, source));
	usleep(20000);
	/* Freed while they wait: the handle is not valid from now on, and the source lives until they end. */
	OK(busbar_source_stop(source));
	OK(busbar_source_free(source));
	for (int i = 0; i < 4; i++) {
		pthread_join(waiting[i], &result);
		/* One that came late finds that it was freed. */
		CHECK((intptr_t)result == -EPIPE || (intptr_t)result == -EINVAL);
	}

	/* Many take blocks at the same time, and each block goes to one of them. */
	source = open_source("synth:counter?rate=5M", 8, 4096);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&waiting[i], NULL, wait_for_ever, source));
	usleep(100000);
	OK(busbar_source_stop(source));
	for (int i = 0; i < 4; i++) {
		pthread_join(waiting[i], &result);
		CHECK((intptr_t)result == -EPIPE);
	}
	FAILS(busbar_source_next(source, 0, &(struct busbar_samples *){ 0 }), EPIPE, "");
	CHECK(busbar_error_reason() == BUSBAR_REASON_ENDED);
	OK(busbar_source_free(source));
}

/* Descriptors and memory do not grow. */
static void again_and_again(void)
{
	int before = 0, after;

	for (int i = 0; i < 200; i++) {
		struct busbar_source *source = open_source("synth:counter", 2, 4096);
		struct busbar_samples *samples;

		if (i == 0) {
			before = dup(0);
			close(before);
		}
		OK(busbar_source_next(source, PATIENCE, &samples));
		OK(i % 2 ? busbar_samples_free(samples) : busbar_source_free(source));
		OK(i % 2 ? busbar_source_free(source) : busbar_samples_free(samples));
	}
	after = dup(0);
	close(after);
	CHECK(after <= before);
}

int main(void)
{
	CHECK(!strcmp(busbar_error(), "") && busbar_error_reason() == BUSBAR_REASON_NONE);
	CHECK(strchr(busbar_version(), '.'));
	tells();
	in_place();
	values();
	in_a_loop();
	threads();
	freed_while_waiting();
	again_and_again();
	puts("done");
	return 0;
}
