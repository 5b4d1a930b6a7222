/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The server with libuv of `busbar bench wait`: as serve() in server.rs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <uv.h>

/* What libuv suggests: a read that does not fill it was all. */
static char buffer[65536];
static int rearms;
static unsigned long long warm, requests, answered;
static double start;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void check(int error)
{
	if (error < 0) {
		fprintf(stderr, "%s\n", uv_strerror(error));
		exit(1);
	}
}

static void room(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
	(void)handle;
	(void)wanted;
	*buf = uv_buf_init(buffer, sizeof(buffer));
}

static void closed(uv_handle_t *handle)
{
	free(handle);
}

static void answer(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
	uv_buf_t reply;

	if (len == 0)
		return;
	if (len < 0) {
		uv_close((uv_handle_t *)stream, closed);
		return;
	}
	if (rearms)
		check(uv_read_stop(stream));
	reply = uv_buf_init(buf->base, len);
	if (uv_try_write(stream, &reply, 1) != len)
		exit(1);
	if (rearms)
		check(uv_read_start(stream, room, answer));
	if (++answered == warm)
		start = now();
	if (answered == warm + requests)
		uv_stop(stream->loop);
}

static void accepted(uv_stream_t *listener, int status)
{
	uv_pipe_t *connection = malloc(sizeof(*connection));

	check(status);
	if (!connection)
		exit(1);
	check(uv_pipe_init(listener->loop, connection, 0));
	check(uv_accept(listener, (uv_stream_t *)connection));
	check(uv_read_start((uv_stream_t *)connection, room, answer));
}

int main(int argc, char **argv)
{
	uv_loop_t *loop = uv_default_loop();
	uv_pipe_t listener;

	if (argc != 5)
		return 2;
	rearms = !strcmp(argv[1], "rearm");
	warm = strtoull(argv[3], NULL, 10);
	requests = strtoull(argv[4], NULL, 10);
	check(uv_pipe_init(loop, &listener, 0));
	check(uv_pipe_bind(&listener, argv[2]));
	check(uv_listen((uv_stream_t *)&listener, 4096, accepted));
	uv_run(loop, UV_RUN_DEFAULT);
	printf("{\"cpu_micros\":%.3f}\n", now() - start);
	return 0;
}
