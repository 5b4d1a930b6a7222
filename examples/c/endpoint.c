/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An endpoint client: sends each line of standard input to a service of a coprocessor, and prints the answers.
 *
 *	gcc -o endpoint endpoint.c $(pkg-config --cflags --libs busbar) && ./endpoint echo
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <busbar.h>

/* How long to wait until the coprocessor takes a message, and for its answer. */
#define PATIENCE 5000000000LL

static int fail(void)
{
	fprintf(stderr, "%s\n", busbar_error());
	return 1;
}

int main(int argc, char **argv)
{
	struct busbar_controller *controller;
	struct busbar_endpoint *endpoint;
	char line[BUSBAR_MAX_MESSAGE + 1], answer[BUSBAR_MAX_MESSAGE];
	int len = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: endpoint SERVICE\n");
		return 2;
	}
	if (busbar_controller_find(argv[1], &controller) < 0)
		return fail();
	if (busbar_endpoint_create(controller, argv[1], NULL, &endpoint) < 0)
		return fail();
	/* The endpoint stays. */
	busbar_controller_free(controller);

	while (fgets(line, sizeof(line), stdin)) {
		size_t count = strcspn(line, "\n");

		if (busbar_endpoint_send(endpoint, line, count, PATIENCE) < 0)
			break;
		/* -ENOBUFS says once that answers were lost; this line's may still come. */
		do
			len = busbar_endpoint_recv(endpoint, answer, sizeof(answer), PATIENCE);
		while (len == -ENOBUFS);
		if (len < 0)
			break;
		printf("%.*s\n", len, answer);
	}
	if (ferror(stdin) || !feof(stdin))
		return fail();
	return busbar_endpoint_free(endpoint) < 0 ? fail() : 0;
}
