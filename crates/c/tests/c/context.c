/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The devices of another machine and their attributes by one connection, and calls that a descriptor ends. */
#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>

#include "check.h"

/* A server with one device, `adc`, that `busbar serve` would serve. */
static void serves(const char *host)
{
	struct busbar_device device = { .size = sizeof(device) };
	struct busbar_channel channel = { .size = sizeof(channel) };
	struct busbar_context *context;
	struct busbar_devices *devices;
	char value[64], few[2];

	OK(busbar_context_open(host, PATIENCE, &context));
	OK(busbar_context_devices(context, &devices));
	CHECK(busbar_devices_count(devices) == 1);
	OK(busbar_devices_device(devices, 0, &device));
	CHECK(!strcmp(device.id, "iio:device0") && !strcmp(device.name, "adc") && !strcmp(device.label, ""));
	CHECK(strstr(device.attributes, "busbar_report_loss") && device.rate == 1e6 && !device.reserved);
	CHECK(!strcmp(device.buffer_attributes, "") && !strcmp(device.debug_attributes, ""));
	OK(busbar_devices_input(devices, 0, 0, &channel));
	CHECK(!strcmp(channel.name, "voltage0_i"));

	for (int i = 0; i < 3; i++) {
		OK(busbar_context_set(context, "adc", "busbar_report_loss", i % 2 ? "0" : "1"));
		CHECK(busbar_context_get(context, device.id, "busbar_report_loss", value, sizeof(value)) == 1);
		CHECK(!strcmp(value, i % 2 ? "0" : "1"));
	}
	OK(busbar_context_set(context, "adc", "busbar_report_loss", "0"));
	FAILS(busbar_context_set(context, "adc", "busbar_report_loss", "cheese"), EINVAL, "write `cheese`");
	CHECK(busbar_context_get(context, "adc", "sampling_frequency", few, sizeof(few)) > 1 && !few[1]);
	FAILS(busbar_context_get(context, "adc", "none", value, sizeof(value)), ENOENT, "none");
	FAILS(busbar_context_get(context, "adc", "a\r\nEXIT", value, sizeof(value)), ENOENT, "EXIT");
	FAILS(busbar_context_get(context, "adc", "buffer/none", value, sizeof(value)), ENOENT, "buffer");
	FAILS(busbar_context_set(context, "adc", "debug/direct_reg_access", "0"), ENOENT, "direct_reg_access");
	FAILS(busbar_context_get(context, "dac", "none", value, sizeof(value)), ENOENT, "there are: adc");
	REFUSES(busbar_context_get(context, "adc", "sampling_frequency", value, 0), "no room");
	CHECK(busbar_context_triggers(context, value, sizeof(value)) == 0 && !*value);
	FAILS(busbar_context_trigger(context, "adc", value, sizeof(value)), ENOENT, "the trigger of");
	REFUSES(busbar_context_set_trigger(context, "adc", "clock"), "one of: ");

	OK(busbar_context_free(context));
	/* The list stays. */
	OK(busbar_devices_device(devices, 0, &device));
	OK(busbar_devices_free(devices));

	REFUSES(busbar_context_open(host, 0, &context), "more than 0");
	REFUSES(busbar_context_open(host, -2, &context), "timeout");
	CHECK(busbar_context_open("127.0.0.1:1", PATIENCE, &context) == -ECONNREFUSED && !context);
	OK(busbar_context_open(NULL, PATIENCE, &context));
	OK(busbar_context_free(context));
}

/* What is found depends on the network. */
static void finds(void)
{
	char text[4096];
	int len = busbar_servers(SECOND / 20, text, sizeof(text));

	OK(len);
	CHECK(len == 0 || strchr(text, ' '));
	REFUSES(busbar_servers(0, text, sizeof(text)), "more than 0");
	REFUSES(busbar_servers(BUSBAR_FOREVER, text, sizeof(text)), "more than 0");
	REFUSES(busbar_servers(1, text, 0), "no room");
}

/* A machine that accepts, and never answers. */
static char silent[32];
static int listening, cancel;

static int opens_context(void)
{
	struct busbar_context *context;

	return busbar_context_open(silent, BUSBAR_FOREVER, &context);
}

static int opens_devices(void)
{
	struct busbar_devices *devices;

	return busbar_devices_open(silent, &devices);
}

static int opens_source(void)
{
	struct busbar_source *source;
	char name[64];

	snprintf(name, sizeof(name), "iio:adc@ip:%s", silent);
	return busbar_source_open(name, NULL, &source);
}

static int opens_sink(void)
{
	struct busbar_sink *sink;
	char name[64];

	snprintf(name, sizeof(name), "iio:adc@ip:%s", silent);
	return busbar_sink_open(name, NULL, &sink);
}

static int gets(void)
{
	char name[64], value[8];

	snprintf(name, sizeof(name), "adc@ip:%s", silent);
	return busbar_device_get(name, "a", value, sizeof(value));
}

static int sets(void)
{
	char name[64];

	snprintf(name, sizeof(name), "adc@ip:%s", silent);
	return busbar_device_set(name, "a", "1");
}

static int searches(void)
{
	char text[8];

	return busbar_servers(1000 * SECOND, text, sizeof(text));
}

static int waits_for_sender(void)
{
	struct busbar_source *source;

	return busbar_source_open("tcp-listen:127.0.0.1:0", NULL, &source);
}

static void *call(void *function)
{
	OK(busbar_cancel_by(cancel));
	/* It fails; which error that is, the caller verifies. */
	intptr_t result = ((int (*)(void))function)();
	CHECK(result != -ECANCELED || busbar_error_reason() == BUSBAR_REASON_INTERRUPTED);
	/* While the descriptor is readable, none of them begins. */
	CHECK(((int (*)(void))function)() == -ECANCELED);
	return (void *)result;
}

/* Waits for the threads of calls that were left. */
static void alone(void)
{
	for (int threads = 2; threads > 1; usleep(1000)) {
		DIR *tasks = opendir("/proc/self/task");

		for (threads = -2; readdir(tasks); threads++)
			;
		closedir(tasks);
	}
}

static void is_ended(int (*function)(void), int connects)
{
	uint64_t one = 1;
	pthread_t thread;
	void *result;
	int peer = -1;

	CHECK(!pthread_create(&thread, NULL, call, (void *)(intptr_t)function));
	if (connects)
		peer = accept(listening, NULL, NULL);
	CHECK(write(cancel, &one, sizeof(one)) == sizeof(one));
	CHECK(!pthread_join(thread, &result) && (intptr_t)result == -ECANCELED);
	CHECK(read(cancel, &one, sizeof(one)) == sizeof(one));
	if (connects)
		close(peer);
	alone();
}

static void ends(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	struct busbar_source *source;

	listening = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!bind(listening, (struct sockaddr *)&address, len) && !listen(listening, 8));
	CHECK(!getsockname(listening, (struct sockaddr *)&address, &len));
	snprintf(silent, sizeof(silent), "127.0.0.1:%d", ntohs(address.sin_port));
	cancel = eventfd(0, EFD_CLOEXEC);

	is_ended(opens_context, 1);
	is_ended(opens_devices, 1);
	is_ended(opens_source, 1);
	is_ended(opens_sink, 1);
	is_ended(gets, 1);
	is_ended(sets, 1);
	is_ended(waits_for_sender, 0);
	is_ended(searches, 0);

	/* What is not cancelled goes its way, and so does all with no descriptor any more. */
	OK(busbar_cancel_by(cancel));
	OK(busbar_source_open("synth:counter", NULL, &source));
	OK(busbar_source_free(source));
	REFUSES(busbar_source_open("cheese", NULL, &source), "iio:NAME");
	CHECK(write(cancel, &(uint64_t){ 1 }, 8) == 8);
	FAILS(busbar_source_open("synth:counter", NULL, &source), ECANCELED, "busbar_cancel_by");
	OK(busbar_cancel_by(-1));
	OK(busbar_source_open("synth:counter", NULL, &source));
	OK(busbar_source_free(source));
	FAILS(busbar_cancel_by(-2), EINVAL, "-2");
	close(cancel);
	FAILS(busbar_cancel_by(cancel), EBADF, "cancelling");
	close(listening);
	alone();
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	serves(argv[1]);
	finds();
	ends();
	puts("done");
	return 0;
}
