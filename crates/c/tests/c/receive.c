/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A receiver on any host: connections, views in the block, the end of a stream, and what outlives what. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "check.h"

#define BYTES (3u << 20)

static int call_port(int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!connect(fd, (struct sockaddr *)&to, sizeof(to)));
	return fd;
}

static void *send_bytes(void *port)
{
	static unsigned char bytes[BYTES];
	int fd = call_port((intptr_t)port);

	for (size_t at = 0; at < BYTES; at++)
		bytes[at] = at * 7 + at / 256;
	for (size_t at = 0; at < BYTES;) {
		ssize_t sent = write(fd, bytes + at, BYTES - at);

		CHECK(sent > 0);
		at += sent;
	}
	close(fd);
	return NULL;
}

static void *wait_to_accept(void *listener)
{
	struct busbar_connection *connection;

	return (void *)(intptr_t)busbar_listener_accept(listener, PATIENCE, &connection);
}

static void *wait_to_receive(void *connection)
{
	struct busbar_view *view;

	return (void *)(intptr_t)busbar_connection_next(connection, PATIENCE, &view);
}

/* To free a listener or a connection wakes those that wait for it. */
static void freed_while_waiting(void)
{
	struct busbar_connection *connection;
	struct busbar_receiver *receiver;
	struct busbar_listener *listener;
	struct busbar_block *block;
	pthread_t accepts, receives;
	void *result;
	int fd;

	OK(busbar_block_new(1 << 16, "memfd", &block));
	OK(busbar_receiver_host(block, &receiver));
	OK(busbar_receiver_listen(receiver, "127.0.0.1:0", &listener));
	fd = call_port(busbar_listener_port(listener));
	OK(busbar_listener_accept(listener, PATIENCE, &connection));
	CHECK(!pthread_create(&accepts, NULL, wait_to_accept, listener));
	CHECK(!pthread_create(&receives, NULL, wait_to_receive, connection));
	usleep(50000);
	OK(busbar_listener_free(listener));
	OK(busbar_connection_free(connection));
	pthread_join(accepts, &result);
	CHECK((intptr_t)result == -EINVAL);
	pthread_join(receives, &result);
	/* One that came late finds that it was freed. */
	CHECK((intptr_t)result == -ENODATA || (intptr_t)result == -EINVAL);
	close(fd);
	OK(busbar_receiver_free(receiver));
	OK(busbar_block_free(block));
}

int main(int argc, char **argv)
{
	struct busbar_statistics statistics = { .size = sizeof(statistics) };
	struct busbar_view_info info = { .size = sizeof(info) };
	struct busbar_receive_setup setup = { .size = sizeof(setup) };
	struct busbar_connection *connection, *none;
	struct busbar_receiver *receiver;
	struct busbar_listener *listener;
	struct busbar_view *view, *kept = NULL;
	struct busbar_block *block;
	struct pollfd ready = { .events = POLLIN };
	const unsigned char *memory;
	unsigned char first = 0;
	size_t received = 0, len;
	pthread_t sender;
	const void *data;
	int result, fd;

	/* In the lab: the network device, and the address to listen on. */
	OK(busbar_block_new(1 << 20, argc > 1 ? "pages" : "memfd", &block));
	if (argc > 1) {
		setup.queues = "1";
		setup.tokens = "default";
		OK(busbar_receiver_open(argv[1], block, &setup, &receiver));
		setup.queues = "cheese";
		REFUSES(busbar_receiver_open(argv[1], block, &setup, &(struct busbar_receiver *){ 0 }), "8-15");
	} else {
		OK(busbar_receiver_host(block, &receiver));
		CHECK(busbar_receiver_open("no-such-nic", block, NULL, &(struct busbar_receiver *){ 0 }) < 0);
	}
	REFUSES(busbar_receiver_listen(receiver, "localhost", &listener), "ADDRESS:PORT");
	REFUSES(busbar_receiver_connect(receiver, "127.0.0.1:1", 0, &none), "the time to connect");
	OK(busbar_receiver_listen(receiver, argc > 2 ? argv[2] : "127.0.0.1:0", &listener));
	FAILS(busbar_listener_accept(listener, 0, &connection), EAGAIN, "nothing came");
	CHECK(!connection);
	result = busbar_listener_port(listener);
	CHECK(result > 0 && result < 65536);
	if (argc > 1) {
		printf("listening\n");
		fflush(stdout);
	} else {
		CHECK(!pthread_create(&sender, NULL, send_bytes, (void *)(intptr_t)result));
	}
	ready.fd = busbar_listener_fd(listener);
	CHECK(poll(&ready, 1, 60000) == 1);
	OK(busbar_listener_accept(listener, PATIENCE, &connection));
	fd = busbar_connection_socket(connection);
	CHECK(fd >= 0);
	OK(busbar_block_read(block, (const void **)&memory, &len));

	ready.fd = busbar_connection_fd(connection);
	while ((result = busbar_connection_next(connection, 0, &view)) != -ENODATA) {
		if (result == -EAGAIN) {
			CHECK(poll(&ready, 1, 60000) == 1);
			continue;
		}
		OK(result);
		OK(busbar_view_info(view, &info));
		OK(busbar_view_read(view, &data, &len));
		CHECK(len == info.len && len > 0);
		/* The program's own mapping shows the same bytes. */
		if (info.in_block)
			CHECK(!memcmp(memory + info.offset, data, len));
		if (argc > 1 && !received)
			first = *(const unsigned char *)data;
		for (size_t at = 0; at < len; at++, received++) {
			unsigned char wanted = argc > 1 ? first : (unsigned char)(received * 7 + received / 256);

			CHECK(((const unsigned char *)data)[at] == wanted);
		}
		if (!kept)
			kept = view;
		else
			OK(busbar_view_free(view));
	}
	CHECK(received >= BYTES || argc > 1);
	FAILS(busbar_connection_next(connection, BUSBAR_FOREVER, &view), ENODATA, "the data has ended");
	CHECK(!view && busbar_error_reason() == BUSBAR_REASON_ENDED);
	OK(busbar_receiver_statistics(receiver, &statistics));
	CHECK(statistics.bytes == received && statistics.views == 1 && statistics.memory == 1 << 20);
	CHECK(argc > 1 ? statistics.copied < statistics.bytes : statistics.copied == received);
	OK(busbar_connection_flush(connection));
	OK(busbar_connection_free(connection));
	OK(busbar_listener_free(listener));
	OK(busbar_receiver_free(receiver));
	REFUSES(busbar_receiver_free(receiver), "a receiver is needed, the handle was freed");
	OK(busbar_block_end(block));
	OK(busbar_block_free(block));
	/* A view outlives all of them. */
	OK(busbar_view_read(kept, &data, &len));
	CHECK(((const unsigned char *)data)[0] == first && len > 0);
	OK(busbar_view_free(kept));
	if (argc == 1)
		pthread_join(sender, NULL);
	printf("%zu bytes, %llu copied\n", received, (unsigned long long)statistics.copied);
	freed_while_waiting();
	puts("done");
	return 0;
}
