/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What C programs do by mistake is answered with -EINVAL and a text that says which mistake it is. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "check.h"
#include "handles.h"

static void *one_source(void)
{
	struct busbar_source *source;

	OK(busbar_source_open("synth:counter", NULL, &source));
	return source;
}

/* Makes an object of each kind, and frees it. */
static struct handles freed_handles(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct handles all = { 0 };

	OK(busbar_block_new(1, "memfd", &all.busbar_block));
	all.busbar_source = one_source();
	OK(busbar_source_next(all.busbar_source, PATIENCE, &all.busbar_samples));
	OK(busbar_sink_open("null:", NULL, &all.busbar_sink));
	OK(busbar_sink_space(all.busbar_sink, 0, &all.busbar_space));
	OK(busbar_devices_open(NULL, &all.busbar_devices));
	OK(busbar_context_open(NULL, PATIENCE, &all.busbar_context));
	OK(busbar_controller_open("/dev/null", &all.busbar_controller));
	OK(busbar_endpoint_from_fd(fd, &all.busbar_endpoint));
	OK(busbar_receiver_host(all.busbar_block, &all.busbar_receiver));
	OK(busbar_receiver_listen(all.busbar_receiver, "127.0.0.1:0", &all.busbar_listener));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons(busbar_listener_port(all.busbar_listener));
	CHECK(!connect(fd, (struct sockaddr *)&to, sizeof(to)) && write(fd, "x", 1) == 1);
	OK(busbar_listener_accept(all.busbar_listener, PATIENCE, &all.busbar_connection));
	OK(busbar_connection_next(all.busbar_connection, PATIENCE, &all.busbar_view));
	OK(busbar_pipeline_open("a", "[source.a]\nfrom = \"synth:counter\"\n[sink.b]\nto = \"verify:counter\"\ninput = \"a\"\n",
				&all.busbar_pipeline));

	OK(busbar_pipeline_free(all.busbar_pipeline));
	OK(busbar_view_free(all.busbar_view));
	OK(busbar_connection_free(all.busbar_connection));
	OK(busbar_listener_free(all.busbar_listener));
	OK(busbar_receiver_free(all.busbar_receiver));
	OK(busbar_endpoint_free(all.busbar_endpoint));
	OK(busbar_controller_free(all.busbar_controller));
	OK(busbar_devices_free(all.busbar_devices));
	OK(busbar_context_free(all.busbar_context));
	OK(busbar_space_free(all.busbar_space));
	OK(busbar_sink_free(all.busbar_sink));
	OK(busbar_samples_free(all.busbar_samples));
	OK(busbar_source_free(all.busbar_source));
	OK(busbar_block_free(all.busbar_block));
	close(fd);
	return all;
}

static void handles(void)
{
	struct handles freed = freed_handles();
	struct busbar_endpoint *endpoint;
	struct busbar_source *source;
	struct busbar_block *block;
	struct busbar_sink *sink;

	OK(busbar_block_new(1, "memfd", &block));
	OK(busbar_sink_open("null:", NULL, &sink));
	OK(busbar_endpoint_from_fd(0, &endpoint));
	source = one_source();
	for (int i = 0; i < 3; i++)
		refuse_handles(&freed, block, source, endpoint, sink);
	/* An address that is none. */
	REFUSES(busbar_block_fd((void *)(intptr_t)1), "the handle is NULL");
	OK(busbar_source_free(source));
	OK(busbar_sink_free(sink));
	OK(busbar_endpoint_free(endpoint));
	OK(busbar_block_free(block));
}

/* A handle that was freed does not come back with the next objects. */
static void old_handles(void)
{
	struct busbar_block *old, *blocks[100];

	OK(busbar_block_new(1, "memfd", &old));
	OK(busbar_block_free(old));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 100; i++) {
			OK(busbar_block_new(1, "memfd", &blocks[i]));
			CHECK(blocks[i] != old);
		}
		REFUSES(busbar_block_fd(old), "the handle was freed");
		for (int i = 0; i < 100; i++)
			OK(busbar_block_free(blocks[i]));
	}
	REFUSES(busbar_block_free(old), "the handle was freed");
}

static void structures(void)
{
	struct busbar_stream_setup setup = { 0 };
	struct busbar_source *source = NULL;
	struct busbar_meta meta = { 0 };
	struct busbar_samples *samples;
	struct {
		struct busbar_stream_setup setup;
		uint64_t newer;
	} larger = { .setup.size = sizeof(larger), .newer = 1 };
	struct {
		struct busbar_meta meta;
		uint64_t newer;
	} large = { .meta.size = sizeof(large), .newer = 1 };

	/* A structure without its size, or with another one. */
	for (size_t size = 0; size < offsetof(struct busbar_stream_setup, rate); size += 4) {
		setup.size = size;
		REFUSES(busbar_source_open("synth:counter", &setup, &source), "`size` of struct busbar_stream_setup");
	}
	for (size_t size = sizeof(setup) + 136; size; size *= 2) {
		setup.size = size;
		REFUSES(busbar_source_open("synth:counter", &setup, &source), "sizeof(struct busbar_stream_setup)");
	}
	setup.size = offsetof(struct busbar_stream_setup, rate);
	OK(busbar_source_open("synth:counter", &setup, &source));
	OK(busbar_source_free(source));
	setup.size = SIZE_MAX;
	REFUSES(busbar_source_open("synth:counter", &setup, &source), "sizeof(struct busbar_stream_setup)");
	setup.size = sizeof(setup) + 2;
	REFUSES(busbar_source_open("synth:counter", &setup, &source), "sizeof(struct busbar_stream_setup)");
	CHECK(!source);
	/* A field of a newer version must be 0. */
	REFUSES(busbar_source_open("synth:counter", &larger.setup, &source), "does not know");
	larger.newer = 0;
	OK(busbar_source_open("synth:counter", &larger.setup, &source));
	OK(busbar_source_next(source, PATIENCE, &samples));
	REFUSES(busbar_samples_meta(samples, NULL), "struct busbar_meta is NULL");
	REFUSES(busbar_samples_meta(samples, &meta), "`size` of struct busbar_meta is 0");
	/* What a newer program wants to know, and this library does not, is 0. */
	OK(busbar_samples_meta(samples, &large.meta));
	CHECK(large.newer == 0 && large.meta.len == 65536 && large.meta.size == sizeof(large));
	OK(busbar_samples_free(samples));
	OK(busbar_source_free(source));
}

static void arguments(void)
{
	static const char *const no_channels[] = { "nothing", "", ",", "voltage0_i,", ",voltage0_i" };
	struct busbar_stream_setup setup = { .size = sizeof(setup) };
	struct busbar_source *source;
	struct busbar_controller *controller;
	struct busbar_pipeline *pipeline;
	struct busbar_sink *sink;
	struct busbar_devices *devices;
	char value[8];
	const void *data = "";
	size_t len = 1;

	REFUSES(busbar_source_open(NULL, NULL, &source), "the name of the source is NULL");
	CHECK(!source);
	REFUSES(busbar_source_open("synth:counter", NULL, NULL), "the address for the handle is NULL");
	REFUSES(busbar_source_open("synth:\xc3\x28", NULL, &source), "not UTF-8");
	REFUSES(busbar_source_open("cheese", NULL, &source), "iio:NAME@ip:HOST, synth:PATTERN, file:NAME, tcp-listen:");
	REFUSES(busbar_source_open("synth:cheese", NULL, &source), "cheese");
	CHECK(busbar_source_open("iio:none-such", NULL, &source) == -ENOENT);
	CHECK(busbar_error_reason() == BUSBAR_REASON_NOT_FOUND && strlen(busbar_error()));
	setup.blocks = 1025;
	REFUSES(busbar_source_open("synth:counter", &setup, &source), "1 to 1024");
	setup.blocks = 0;
	setup.interface = "telepathy";
	REFUSES(busbar_source_open("synth:counter", &setup, &source), "dmabuf, fileio");
	setup.interface = NULL;
	for (size_t i = 0; i < sizeof(no_channels) / sizeof(no_channels[0]); i++) {
		setup.channels = no_channels[i];
		REFUSES(busbar_source_open("synth:counter", &setup, &source), "allowed: voltage0_i");
	}
	REFUSES(busbar_sink_open("synth:counter", NULL, &sink), "iio:NAME");
	CHECK(busbar_device_set("none-such", "a", "1") == -ENOENT);
	CHECK(busbar_source_open("iio:a@ip:127.0.0.1:1", NULL, &source) == -ECONNREFUSED);
	CHECK(busbar_device_set("a@ip:127.0.0.1:1", "a", "1") == -ECONNREFUSED);
	CHECK(busbar_device_get("none-such", "a", value, sizeof(value)) == -ENOENT);
	REFUSES(busbar_device_get("none-such", "a", value, 0), "no room");
	CHECK(busbar_devices_open("127.0.0.1:1", &devices) == -ECONNREFUSED && !devices);

	source = one_source();
	struct busbar_samples *samples;

	REFUSES(busbar_source_next(source, 0, NULL), "the address for the handle is NULL");
	OK(busbar_source_next(source, PATIENCE, &samples));
	REFUSES(busbar_samples_read(samples, NULL, &len), "the address for the data is NULL");
	REFUSES(busbar_samples_read(samples, &data, NULL), "the address for the length is NULL");
	REFUSES(busbar_samples_read(samples, (const void **)((char *)&data + 1), &len), "not aligned");
	/* A handle that has another type for the compiler. */
	REFUSES(busbar_source_stop((void *)samples), "a source is needed, the handle is one of another kind");
	OK(busbar_samples_free(samples));
	OK(busbar_source_free(source));

	CHECK(busbar_controller_open("/dev/rpmsg_ctrl_none", &controller) == -ENOENT);
	REFUSES(busbar_controller_open("/etc/passwd", &controller), "rpmsg control device");
	CHECK(busbar_controller_find("no-such-service", &controller) == -ENOENT && !controller);
	REFUSES(busbar_pipeline_open("x", "[source.a]\nfrom = \"cheese:\"\n", &pipeline), "x");
	REFUSES(busbar_pipeline_open("x", NULL, &pipeline), "the text is NULL");
	CHECK(!pipeline);
}

static void *its_own_error(void *unused)
{
	CHECK(!strcmp(busbar_error(), "") && busbar_error_reason() == BUSBAR_REASON_NONE);
	REFUSES(busbar_block_free(NULL), "a block");
	return unused;
}

static void *free_it(void *block)
{
	return (void *)(intptr_t)busbar_block_free(block);
}

static void threads(void)
{
	pthread_t other;

	REFUSES(busbar_view_free(NULL), "a view");
	CHECK(!pthread_create(&other, NULL, its_own_error, NULL));
	pthread_join(other, NULL);
	CHECK(strstr(busbar_error(), "a view"));

	/* Many free the same handle, and one of them succeeds. */
	for (int round = 0; round < 100; round++) {
		struct busbar_block *block;
		pthread_t threads[4];
		int freed = 0;

		OK(busbar_block_new(1, "memfd", &block));
		for (int i = 0; i < 4; i++)
			CHECK(!pthread_create(&threads[i], NULL, free_it, block));
		for (int i = 0; i < 4; i++) {
			void *result;

			pthread_join(threads[i], &result);
			CHECK((intptr_t)result == 0 || (intptr_t)result == -EINVAL);
			freed += !result;
		}
		CHECK(freed == 1);
	}
}

int main(void)
{
	char version[32];

	snprintf(version, sizeof(version), "%d.%d.%d", BUSBAR_VERSION_MAJOR, BUSBAR_VERSION_MINOR,
		 BUSBAR_VERSION_PATCH);
	CHECK(!strcmp(busbar_version(), version));
	handles();
	old_handles();
	structures();
	arguments();
	threads();
	puts("done");
	return 0;
}
