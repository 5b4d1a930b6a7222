/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A receiver that closes its connection again and again, in order, does not end the program by SIGPIPE. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "check.h"

#define BLOCK (1 << 20)
#define CLOSES 20

static int port, listening;
static volatile int closes;
static struct busbar_source *_Atomic receiver;

/* Listens on a port that the kernel chooses. */
static int listen_somewhere(int *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(address);

	CHECK(!bind(fd, (struct sockaddr *)&address, len) && !listen(fd, 8));
	CHECK(!getsockname(fd, (struct sockaddr *)&address, &len));
	*port = ntohs(address.sin_port);
	return fd;
}

/* The real receiver, behind the one that closes. It takes whatever comes until it is freed. */
static void *receive(void *name)
{
	struct busbar_source *source;
	struct busbar_samples *samples;
	int result;

	OK(busbar_source_open(name, NULL, &source));
	receiver = source;
	while (!(result = busbar_source_next(source, BUSBAR_FOREVER, &samples)))
		OK(busbar_samples_free(samples));
	/* The latter if it was freed between two calls. */
	CHECK(result == -EPIPE || result == -EINVAL);
	return NULL;
}

static int connect_to(int port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port),
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	while (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		close(fd);
		usleep(1000);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	return fd;
}

/* Writes all of it; 0 if the other end has gone. */
static int pass(int to, const char *data, ssize_t len)
{
	while (len > 0) {
		ssize_t sent = send(to, data, len, MSG_NOSIGNAL);

		if (sent <= 0)
			return 0;
		data += sent;
		len -= sent;
	}
	return 1;
}

/* Passes on what a sender sends, up to some bytes; then reads the rest and closes. */
static void serve(int near, long bytes)
{
	static char data[1 << 16];
	int far = connect_to(port);
	struct pollfd both[2] = { { .fd = near, .events = POLLIN }, { .fd = far, .events = POLLIN } };

	while (bytes > 0) {
		CHECK(poll(both, 2, -1) > 0);
		for (int i = 0; i < 2; i++) {
			ssize_t got;

			if (!both[i].revents)
				continue;
			got = recv(both[i].fd, data, sizeof(data), 0);
			if (got <= 0 || !pass(both[1 - i].fd, data, got))
				bytes = 0;
			if (!i)
				bytes -= got;
		}
	}
	while (recv(near, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	close(near);
	close(far);
}

static void *close_again_and_again(void *unused)
{
	for (; closes < CLOSES; closes++)
		serve(accept(listening, NULL, NULL), 200000 + 123457L * closes);
	/* Whoever connects now is refused. */
	close(listening);
	return unused;
}

int main(void)
{
	struct busbar_stream_setup setup = {
		.size = sizeof(setup), .block_len = BLOCK, .blocks = 4, .memory = "memfd",
	};
	struct busbar_space *space;
	struct busbar_sink *sink;
	pthread_t closing, receiving;
	char from[40], to[40];
	sigset_t pending;
	int near, free_port;

	signal(SIGPIPE, SIG_DFL);
	/* The port of a listener that is closed again. */
	near = listen_somewhere(&free_port);
	close(near);
	port = free_port;
	listening = listen_somewhere(&near);
	snprintf(from, sizeof(from), "tcp-listen:127.0.0.1:%d", port);
	snprintf(to, sizeof(to), "tcp:127.0.0.1:%d", near);
	CHECK(!pthread_create(&receiving, NULL, receive, from));
	CHECK(!pthread_create(&closing, NULL, close_again_and_again, NULL));
	OK(busbar_sink_open(to, &setup, &sink));
	while (closes < CLOSES) {
		int result = busbar_sink_space(sink, SECOND / 100, &space);

		if (result == -EAGAIN)
			continue;
		OK(result);
		OK(busbar_space_send(space, BLOCK));
	}
	OK(busbar_sink_free(sink));
	CHECK(!pthread_join(closing, NULL));
	CHECK(!sigpending(&pending) && !sigismember(&pending, SIGPIPE));
	OK(busbar_source_free(receiver));
	CHECK(!pthread_join(receiving, NULL));
	puts("done");
	return 0;
}
