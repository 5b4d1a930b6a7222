/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A receiver that calls: what comes back goes into its block. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "check.h"

static void *answer(void *listening)
{
	int fd = accept((intptr_t)listening, NULL, NULL);

	CHECK(write(fd, "hello", 5) == 5);
	close(fd);
	return NULL;
}

int main(void)
{
	struct sockaddr_in own = { .sin_family = AF_INET };
	struct busbar_connection *connection;
	struct busbar_receiver *receiver;
	struct busbar_block *block;
	struct busbar_view *view;
	socklen_t size = sizeof(own);
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	char address[32], text[8] = "";
	pthread_t server;
	const void *data;
	size_t len, got = 0;
	int result;

	own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!bind(listening, (struct sockaddr *)&own, sizeof(own)) && !listen(listening, 1));
	CHECK(!getsockname(listening, (struct sockaddr *)&own, &size));
	snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(own.sin_port));
	CHECK(!pthread_create(&server, NULL, answer, (void *)(intptr_t)listening));

	OK(busbar_block_new(65536, "memfd", &block));
	OK(busbar_receiver_host(block, &receiver));
	OK(busbar_block_free(block));
	OK(busbar_receiver_connect(receiver, address, PATIENCE, &connection));
	while (!(result = busbar_connection_next(connection, PATIENCE, &view))) {
		OK(busbar_view_read(view, &data, &len));
		CHECK(got + len <= 5);
		memcpy(text + got, data, len);
		got += len;
		OK(busbar_view_free(view));
	}
	OK(busbar_connection_free(connection));
	CHECK(result == -ENODATA && !strcmp(text, "hello"));
	pthread_join(server, NULL);
	close(listening);
	/* Nobody listens now. */
	FAILS(busbar_receiver_connect(receiver, address, PATIENCE, &connection), ECONNREFUSED, address);
	CHECK(!connection);
	OK(busbar_receiver_free(receiver));
	puts("done");
	return 0;
}
