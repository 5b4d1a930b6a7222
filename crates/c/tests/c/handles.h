/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each function with a handle refuses NULL, a handle of another kind, and one that was freed. */
#ifndef HANDLES_H
#define HANDLES_H

#include "check.h"

/* Each function of the library, for each of its handles; tests/header.rs compares them with busbar.h. */
#define HANDLES(H) \
	H(busbar_block, block_fd(handle)) \
	H(busbar_block, block_info(handle, &block_info)) \
	H(busbar_block, block_read(handle, &data, &len)) \
	H(busbar_block, block_write(handle, &room, &len)) \
	H(busbar_block, block_end(handle)) \
	H(busbar_block, block_wait_filled(handle, 0)) \
	H(busbar_block, block_wait_unused(handle, 0)) \
	H(busbar_block, block_free(handle)) \
	H(busbar_source, source_fd(handle)) \
	H(busbar_source, source_info(handle, &info)) \
	H(busbar_source, source_channel(handle, 0, &channel)) \
	H(busbar_source, source_scale(handle, "a", &number, &number)) \
	H(busbar_source, source_next(handle, 0, &samples)) \
	H(busbar_source, source_stop(handle)) \
	H(busbar_source, source_free(handle)) \
	H(busbar_samples, samples_meta(handle, &meta)) \
	H(busbar_samples, samples_read(handle, &data, &len)) \
	H(busbar_samples, samples_values(handle, "a", 1, 0, NULL, 0)) \
	H(busbar_samples, samples_fd(handle)) \
	H(busbar_samples, samples_free(handle)) \
	H(busbar_sink, sink_fd(handle)) \
	H(busbar_sink, sink_info(handle, &info)) \
	H(busbar_sink, sink_channel(handle, 0, &channel)) \
	H(busbar_sink, sink_space(handle, 0, &space)) \
	H(busbar_sink, sink_forward(handle, NULL, 0)) \
	H(busbar_sink, sink_reap(handle)) \
	H(busbar_sink, sink_drain(handle, 0)) \
	H(busbar_sink, sink_cyclic(handle, "1234", 4)) \
	H(busbar_sink, sink_stop(handle)) \
	H(busbar_sink, sink_free(handle)) \
	H(busbar_space, space_write(handle, &room, &len)) \
	H(busbar_space, space_send(handle, 4)) \
	H(busbar_space, space_free(handle)) \
	H(busbar_devices, devices_count(handle)) \
	H(busbar_devices, devices_device(handle, 0, &device)) \
	H(busbar_devices, devices_input(handle, 0, 0, &channel)) \
	H(busbar_devices, devices_output(handle, 0, 0, &channel)) \
	H(busbar_devices, devices_free(handle)) \
	H(busbar_context, context_devices(handle, &devices)) \
	H(busbar_context, context_get(handle, "a", "a", bytes, 8)) \
	H(busbar_context, context_set(handle, "a", "a", "a")) \
	H(busbar_context, context_triggers(handle, bytes, 8)) \
	H(busbar_context, context_trigger(handle, "a", bytes, 8)) \
	H(busbar_context, context_set_trigger(handle, "a", NULL)) \
	H(busbar_context, context_free(handle)) \
	H(busbar_controller, controller_path(handle) ? 0 : -EINVAL) \
	H(busbar_controller, controller_address(handle, "a", &address)) \
	H(busbar_controller, controller_free(handle)) \
	H(busbar_controller, endpoint_create(handle, "a", NULL, &made)) \
	H(busbar_endpoint, endpoint_fd(handle)) \
	H(busbar_endpoint, endpoint_send(handle, "a", 1, 0)) \
	H(busbar_endpoint, endpoint_recv(handle, bytes, 8, 0)) \
	H(busbar_endpoint, endpoint_destroy(handle)) \
	H(busbar_endpoint, endpoint_attach(handle, NULL)) \
	H(busbar_endpoint, endpoint_detach(handle, NULL)) \
	H(busbar_endpoint, endpoint_give(handle, NULL, 0, 1, 1, &cookie)) \
	H(busbar_endpoint, endpoint_free(handle)) \
	H(busbar_block, receiver_host(handle, &receiver)) \
	H(busbar_block, receiver_open("none", handle, NULL, &receiver)) \
	H(busbar_receiver, receiver_statistics(handle, &statistics)) \
	H(busbar_receiver, receiver_listen(handle, "127.0.0.1:0", &listener)) \
	H(busbar_receiver, receiver_connect(handle, "127.0.0.1:1", 1, &connection)) \
	H(busbar_receiver, receiver_free(handle)) \
	H(busbar_listener, listener_fd(handle)) \
	H(busbar_listener, listener_port(handle)) \
	H(busbar_listener, listener_accept(handle, 0, &connection)) \
	H(busbar_listener, listener_free(handle)) \
	H(busbar_connection, connection_fd(handle)) \
	H(busbar_connection, connection_socket(handle)) \
	H(busbar_connection, connection_next(handle, 0, &view)) \
	H(busbar_connection, connection_flush(handle)) \
	H(busbar_connection, connection_free(handle)) \
	H(busbar_view, view_info(handle, &view_info)) \
	H(busbar_view, view_read(handle, &data, &len)) \
	H(busbar_view, view_free(handle)) \
	H(busbar_pipeline, pipeline_fd(handle)) \
	H(busbar_pipeline, pipeline_wake_for(handle, 0)) \
	H(busbar_pipeline, pipeline_turn(handle, 0, NULL)) \
	H(busbar_pipeline, pipeline_stop(handle)) \
	H(busbar_pipeline, pipeline_counters(handle, &counters)) \
	H(busbar_pipeline, pipeline_source(handle, 0, &source_counters)) \
	H(busbar_pipeline, pipeline_stage(handle, 0, &stage_counters)) \
	H(busbar_pipeline, pipeline_sink(handle, 0, &sink_counters)) \
	H(busbar_pipeline, pipeline_control(handle, 0, &control_counters)) \
	H(busbar_pipeline, pipeline_event(handle, &event)) \
	H(busbar_pipeline, pipeline_free(handle))

/* Those whose other handle, which is examined first, has to be valid. */
#define SECOND_HANDLES(H) \
	H(busbar_block, endpoint_attach(endpoint, handle)) \
	H(busbar_block, endpoint_detach(endpoint, handle)) \
	H(busbar_block, endpoint_give(endpoint, handle, 0, 1, 1, &cookie))

/* As those, for which a converter is needed. */
#define SINK_HANDLES(H) \
	H(busbar_samples, sink_forward(sink, handle, 0))

/* A handle of each kind. */
struct handles {
	struct busbar_block *busbar_block;
	struct busbar_source *busbar_source;
	struct busbar_samples *busbar_samples;
	struct busbar_sink *busbar_sink;
	struct busbar_space *busbar_space;
	struct busbar_devices *busbar_devices;
	struct busbar_context *busbar_context;
	struct busbar_controller *busbar_controller;
	struct busbar_endpoint *busbar_endpoint;
	struct busbar_receiver *busbar_receiver;
	struct busbar_listener *busbar_listener;
	struct busbar_connection *busbar_connection;
	struct busbar_view *busbar_view;
	struct busbar_pipeline *busbar_pipeline;
};

/*
 * freed has handles that were freed, and NULL for kinds that are not tested. block and source are valid; endpoint and
 * sink too, or NULL.
 */
static void refuse_handles(const struct handles *freed, struct busbar_block *block, struct busbar_source *source,
			   struct busbar_endpoint *endpoint, struct busbar_sink *sink)
{
	struct busbar_stream_info info = { .size = sizeof(info) };
	struct busbar_channel channel = { .size = sizeof(channel) };
	struct busbar_device device = { .size = sizeof(device) };
	struct busbar_meta meta = { .size = sizeof(meta) };
	struct busbar_block_info block_info = { .size = sizeof(block_info) };
	struct busbar_counters counters = { .size = sizeof(counters) };
	struct busbar_source_counters source_counters = { .size = sizeof(source_counters) };
	struct busbar_stage_counters stage_counters = { .size = sizeof(stage_counters) };
	struct busbar_sink_counters sink_counters = { .size = sizeof(sink_counters) };
	struct busbar_control_counters control_counters = { .size = sizeof(control_counters) };
	struct busbar_event event = { .size = sizeof(event) };
	struct busbar_statistics statistics = { .size = sizeof(statistics) };
	struct busbar_view_info view_info = { .size = sizeof(view_info) };
	struct busbar_samples *samples;
	struct busbar_space *space;
	struct busbar_devices *devices;
	struct busbar_endpoint *made;
	struct busbar_receiver *receiver;
	struct busbar_listener *listener;
	struct busbar_connection *connection;
	struct busbar_view *view;
	const void *data;
	uint64_t cookie;
	uint32_t address;
	double number;
	char bytes[8];
	size_t len;
	void *room;

#define REFUSED(kind, call) { \
		struct kind *handle = NULL; \
		REFUSES(busbar_##call, "the handle is NULL"); \
		/* One that is of another kind for this function. */ \
		handle = strcmp(#kind, "busbar_source") ? (void *)source : (void *)block; \
		REFUSES(busbar_##call, "the handle is one of another kind"); \
		CHECK(busbar_error_reason() == BUSBAR_REASON_INVALID); \
		handle = freed->kind; \
		if (handle) \
			REFUSES(busbar_##call, "the handle was freed"); \
	}
	HANDLES(REFUSED)
	if (endpoint) {
		SECOND_HANDLES(REFUSED)
	}
	if (sink) {
		SINK_HANDLES(REFUSED)
	}
#undef REFUSED
}

#endif
