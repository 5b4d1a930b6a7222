/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A coprocessor with the services echo and bulk: messages, and blocks that are given and taken back.
 *
 * Arguments: its control device, and "fd" or "node".
 */
#include <poll.h>

#include "check.h"

static void echoes(struct busbar_controller *controller, const struct busbar_endpoint_setup *setup)
{
	struct busbar_endpoint_setup wanted = *setup, wrong = *setup;
	struct busbar_endpoint *endpoint, *other;
	char message[BUSBAR_MAX_MESSAGE], answer[BUSBAR_MAX_MESSAGE];
	struct pollfd ready = { .events = POLLIN };
	uint32_t address;

	OK(busbar_controller_address(controller, "echo", &address));
	CHECK(busbar_controller_address(controller, "nobody", &address) == -ENOENT && address == BUSBAR_ADDR_ANY);
	CHECK(strstr(busbar_error(), "echo"));
	CHECK(busbar_endpoint_create(controller, "nobody", setup, &endpoint) == -ENOENT && !endpoint);
	wrong.flags = 32;
	REFUSES(busbar_endpoint_create(controller, "echo", &wrong, &endpoint), "BUSBAR_ENDPOINT_");
	wrong.flags = BUSBAR_ENDPOINT_FD | BUSBAR_ENDPOINT_NODE;
	REFUSES(busbar_endpoint_create(controller, "echo", &wrong, &endpoint), "FD and NODE not together");
	wrong = *setup;
	wrong.timeout = BUSBAR_FOREVER;
	REFUSES(busbar_endpoint_create(controller, "echo", &wrong, &endpoint), "`timeout`");

	wanted.flags |= BUSBAR_ENDPOINT_SOURCE;
	wanted.source = 2000;
	OK(busbar_endpoint_create(controller, "echo", &wanted, &endpoint));
	CHECK(busbar_endpoint_create(controller, "echo", &wanted, &other) == -EADDRINUSE);
	ready.fd = busbar_endpoint_fd(endpoint);
	for (int i = 0; i < 200; i++) {
		size_t len = (size_t)i * 37 % (BUSBAR_MAX_MESSAGE + 1);
		int got;

		memset(message, i, sizeof(message));
		OK(busbar_endpoint_send(endpoint, message, len, PATIENCE));
		if (i % 2)
			CHECK(poll(&ready, 1, 60000) == 1);
		got = busbar_endpoint_recv(endpoint, answer, sizeof(answer), i % 2 ? 0 : PATIENCE);
		CHECK(got == (int)len && !memcmp(message, answer, len));
	}
	OK(busbar_endpoint_destroy(endpoint));
	CHECK(busbar_endpoint_send(endpoint, "x", 1, 0) == -EPIPE);
	OK(busbar_endpoint_free(endpoint));
}

static void wait_for(struct busbar_endpoint *endpoint, uint64_t cookie, size_t len)
{
	struct busbar_answer answer = { .size = sizeof(answer) };
	char message[BUSBAR_MAX_MESSAGE];
	int got = busbar_endpoint_recv(endpoint, message, sizeof(message), PATIENCE);

	OK(got);
	CHECK(busbar_answer_read(message, got, &answer) == 1);
	CHECK(answer.cookie == cookie && answer.status == 0 && answer.len == len);
}

static void takes_blocks(struct busbar_controller *controller, const struct busbar_endpoint_setup *setup)
{
	struct busbar_endpoint *endpoint;
	struct busbar_block *block;
	const size_t len = 100000;
	unsigned char *bytes;
	uint64_t cookie;
	size_t room;

	OK(busbar_endpoint_create(controller, "bulk", setup, &endpoint));
	OK(busbar_block_new(len, "heap:system", &block));
	CHECK(busbar_endpoint_give(endpoint, block, 0, len, BUSBAR_TO_REMOTE, &cookie) == -EPERM);
	OK(busbar_endpoint_attach(endpoint, block));
	CHECK(busbar_endpoint_attach(endpoint, block) == -EBUSY);
	OK(busbar_block_write(block, (void **)&bytes, &room));
	for (size_t at = 0; at < len; at++)
		bytes[at] = at * 7;
	FAILS(busbar_endpoint_give(endpoint, block, 0, len, BUSBAR_TO_REMOTE, &cookie), EBUSY, "busbar_block_end");
	OK(busbar_block_end(block));
	OK(busbar_endpoint_give(endpoint, block, 0, len, BUSBAR_TO_REMOTE, &cookie));
	wait_for(endpoint, cookie, len);
	OK(busbar_block_wait_unused(block, PATIENCE));
	OK(busbar_block_write(block, (void **)&bytes, &room));
	memset(bytes, 0, room);
	OK(busbar_block_end(block));
	/* The service sends back the last block. */
	OK(busbar_endpoint_give(endpoint, block, 0, len, BUSBAR_FROM_REMOTE, &cookie));
	wait_for(endpoint, cookie, len);
	OK(busbar_block_wait_filled(block, PATIENCE));
	OK(busbar_block_read(block, (const void **)&bytes, &room));
	for (size_t at = 0; at < len; at++)
		CHECK(bytes[at] == (unsigned char)(at * 7));
	OK(busbar_block_end(block));
	OK(busbar_endpoint_detach(endpoint, block));
	CHECK(busbar_endpoint_detach(endpoint, block) == -EPERM);
	OK(busbar_block_free(block));
	OK(busbar_endpoint_free(endpoint));
}

int main(int argc, char **argv)
{
	struct busbar_endpoint_setup setup = { .size = sizeof(setup) };
	struct busbar_controller *controller;

	CHECK(argc == 3);
	setup.flags = strcmp(argv[2], "fd") ? BUSBAR_ENDPOINT_NODE : BUSBAR_ENDPOINT_FD;
	setup.timeout = PATIENCE;
	OK(busbar_controller_find("echo", &controller));
	CHECK(!strncmp(busbar_controller_path(controller), "/dev/rpmsg_ctrl", 15));
	OK(busbar_controller_free(controller));
	OK(busbar_controller_open(argv[1], &controller));
	CHECK(!strcmp(busbar_controller_path(controller), argv[1]));
	echoes(controller, &setup);
	if (setup.flags == BUSBAR_ENDPOINT_FD)
		takes_blocks(controller, &setup);
	OK(busbar_controller_free(controller));
	puts("done");
	return 0;
}
