/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Pipelines from text: verified samples, files, TCP from one to another, counters, events, an own event loop. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "check.h"

static struct busbar_pipeline *open_text(const char *format, const char *argument)
{
	struct busbar_pipeline *pipeline;
	char text[1024];

	snprintf(text, sizeof(text), format, argument);
	OK(busbar_pipeline_open("test.toml", text, &pipeline));
	return pipeline;
}

static struct busbar_sink_counters sink_of(struct busbar_pipeline *pipeline)
{
	struct busbar_sink_counters sink = { .size = sizeof(sink) };
	struct busbar_counters counters = { .size = sizeof(counters) };

	OK(busbar_pipeline_counters(pipeline, &counters));
	OK(busbar_pipeline_sink(pipeline, 0, &sink));
	return sink;
}

static void finish(struct busbar_pipeline *pipeline)
{
	enum busbar_state state;

	do
		OK(busbar_pipeline_turn(pipeline, PATIENCE, &state));
	while (state != BUSBAR_STATE_FINISHED);
}

static void verified(void)
{
	struct busbar_pipeline *pipeline = open_text(
		"source.adc = { from = \"synth:counter\", count = 100000 }\n"
		"stage.tenth = { input = \"adc\", do = \"decimate\", by = 10 }\n"
		"sink.check = { input = \"adc\", to = \"verify:counter\" }\n"
		"sink.some = { input = \"tenth\", to = \"null:\" }\n%s", "");
	struct busbar_counters counters = { .size = sizeof(counters) }, nothing = { 0 };
	enum busbar_state states[2];
	struct busbar_source_counters source = { .size = sizeof(source) };
	struct busbar_stage_counters stage = { .size = sizeof(stage) };
	struct busbar_sink_counters sink = { .size = sizeof(sink) };

	/* What is refused does nothing: no snapshot, no turn. */
	REFUSES(busbar_pipeline_counters(pipeline, &nothing), "`size`");
	REFUSES(busbar_pipeline_source(pipeline, 0, &source), "less than 0");
	REFUSES(busbar_pipeline_turn(pipeline, 0, (void *)((char *)states + 1)), "not aligned");
	OK(busbar_pipeline_counters(pipeline, &counters));
	OK(busbar_pipeline_source(pipeline, 0, &source));
	CHECK(source.blocks == 0);
	OK(busbar_pipeline_turn(pipeline, PATIENCE, states));
	OK(busbar_pipeline_counters(pipeline, &counters));
	OK(busbar_pipeline_source(pipeline, 0, &source));
	CHECK(source.blocks > 0);
	finish(pipeline);
	OK(busbar_pipeline_turn(pipeline, 0, NULL));
	OK(busbar_pipeline_counters(pipeline, &counters));
	CHECK(counters.sources == 1 && counters.stages == 1 && counters.sinks == 2 && !counters.controls);
	OK(busbar_pipeline_source(pipeline, 0, &source));
	CHECK(!strcmp(source.name, "adc") && !strcmp(source.state, "ended") && source.samples >= 100000);
	CHECK(!strcmp(source.interface, "synth") && source.memory && source.lost == 0);
	OK(busbar_pipeline_stage(pipeline, 0, &stage));
	CHECK(!strcmp(stage.name, "tenth") && stage.samples >= 10000 && stage.copied > 0);
	OK(busbar_pipeline_sink(pipeline, 0, &sink));
	CHECK(!strcmp(sink.name, "check") && sink.verified == source.samples);
	REFUSES(busbar_pipeline_sink(pipeline, 2, &sink), "less than 2");
	REFUSES(busbar_pipeline_control(pipeline, 0, &(struct busbar_control_counters){ .size = sizeof(struct busbar_control_counters) }),
		"less than 0");
	OK(busbar_pipeline_free(pipeline));
}

static void recorded(const char *folder)
{
	struct busbar_pipeline *pipeline = open_text(
		"source.adc = { from = \"synth:sine\", count = 50000 }\n"
		"sink.file = { input = \"adc\", to = \"file:%s/samples\" }\n", folder);
	char path[512];
	int result;

	finish(pipeline);
	OK(busbar_pipeline_free(pipeline));
	snprintf(path, sizeof(path), "%s/samples.sigmf-data", folder);
	CHECK(!access(path, R_OK));
	/* The file is there already. */
	snprintf(path, sizeof(path),
		 "source.a = { from = \"synth:sine\" }\nsink.b = { input = \"a\", to = \"file:%s/samples\" }\n", folder);
	OK(busbar_pipeline_open("again.toml", path, &pipeline));
	while (!(result = busbar_pipeline_turn(pipeline, PATIENCE, NULL)))
		;
	CHECK(result == -EEXIST && busbar_error_reason() == BUSBAR_REASON_EXISTS);
	OK(busbar_pipeline_free(pipeline));
}

static void *turns(void *pipeline)
{
	finish(pipeline);
	return NULL;
}

static void by_tcp(void)
{
	struct busbar_pipeline *to, *from;
	char address[64] = "";
	pthread_t sender;

	/* A port that is free now. */
	for (int port = 20000 + getpid() % 20000; port < 60000; port++) {
		char text[256];

		snprintf(text, sizeof(text), "source.net = { from = \"tcp-listen:127.0.0.1:%d\" }\n"
			 "sink.check = { input = \"net\", to = \"verify:counter\" }\n", port);
		snprintf(address, sizeof(address), "tcp:127.0.0.1:%d", port);
		if (!busbar_pipeline_open("to.toml", text, &to))
			break;
		CHECK(strstr(busbar_error(), "in use"));
	}
	from = open_text("source.adc = { from = \"synth:counter\", count = 200000 }\n"
			 "sink.net = { input = \"adc\", to = \"%s\" }\n", address);
	CHECK(!pthread_create(&sender, NULL, turns, from));
	finish(to);
	pthread_join(sender, NULL);
	CHECK(sink_of(to).verified >= 200000 && sink_of(to).verified == sink_of(from).samples);
	OK(busbar_pipeline_free(from));
	OK(busbar_pipeline_free(to));
}

static atomic_bool turned;

static void *wait_for_turn(void *pipeline)
{
	int result = busbar_pipeline_turn(pipeline, PATIENCE, NULL);

	turned = 1;
	/* It may be this one that comes second. */
	CHECK(!result || result == -EBUSY);
	return NULL;
}

static void own_loop(void)
{
	struct busbar_pipeline *pipeline = open_text(
		"source.adc = { from = \"synth:counter?rate=1M\" }\n"
		"sink.check = { input = \"adc\", to = \"verify:counter\" }\n%s", "");
	int stop = eventfd(0, EFD_CLOEXEC);
	struct pollfd ready[] = {
		{ .fd = busbar_pipeline_fd(pipeline), .events = POLLIN }, { .fd = stop, .events = POLLIN },
	};
	enum busbar_state state = BUSBAR_STATE_RUNNING;

	CHECK(ready[0].fd >= 0);
	while (sink_of(pipeline).verified < 100000) {
		CHECK(poll(ready, 2, 100) >= 0);
		OK(busbar_pipeline_turn(pipeline, 0, &state));
		CHECK(state == BUSBAR_STATE_RUNNING);
	}
	REFUSES(busbar_pipeline_wake_for(pipeline, -1), "the descriptor is -1");
	OK(busbar_pipeline_wake_for(pipeline, stop));
	OK(busbar_pipeline_stop(pipeline));
	OK(busbar_pipeline_stop(pipeline));
	finish(pipeline);
	OK(busbar_pipeline_free(pipeline));
	close(stop);
}

/* One thread at a time; the others are told. */
static void one_at_a_time(void)
{
	struct busbar_pipeline *pipeline = open_text(
		"source.adc = { from = \"synth:counter?rate=10\" }\n"
		"sink.null = { input = \"adc\", to = \"null:\" }\n%s", "");
	struct busbar_counters counters = { .size = sizeof(counters) };
	int refused = 0;

	for (int round = 0; round < 1000 && !refused; round++) {
		pthread_t other;

		turned = 0;
		CHECK(!pthread_create(&other, NULL, wait_for_turn, pipeline));
		/* However late the other thread begins; its turn waits, and finds the pipeline unused now and then. */
		while (!turned && !refused) {
			int result;

			usleep(1000);
			result = busbar_pipeline_counters(pipeline, &counters);
			CHECK(!result || result == -EBUSY);
			refused = result == -EBUSY && strstr(busbar_error(), "another thread uses the pipeline");
		}
		/* Its descriptor needs no turn. */
		CHECK(busbar_pipeline_fd(pipeline) >= 0);
		pthread_join(other, NULL);
	}
	CHECK(refused);
	OK(busbar_pipeline_free(pipeline));
}

static void events(void)
{
	struct busbar_pipeline *pipeline = open_text(
		"source.adc = { from = \"synth:counter?rate=1M\" }\n"
		"sink.net = { input = \"adc\", to = \"tcp:127.0.0.1:1\" }\n%s", "");
	struct busbar_event event = { .size = sizeof(event) }, nothing = { 0 };
	int result;

	do {
		OK(busbar_pipeline_turn(pipeline, SECOND, NULL));
		/* A call that is refused takes none. */
		REFUSES(busbar_pipeline_event(pipeline, &nothing), "`size`");
		result = busbar_pipeline_event(pipeline, &event);
	} while (result == -EAGAIN);
	OK(result);
	CHECK(!strcmp(event.node, "net") && !strcmp(event.what, "trouble") && strstr(event.text, "refused"));
	OK(busbar_pipeline_free(pipeline));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	verified();
	recorded(argv[1]);
	by_tcp();
	own_loop();
	one_at_a_time();
	events();
	puts("done");
	return 0;
}
