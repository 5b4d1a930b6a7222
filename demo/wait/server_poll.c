/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Echoes what clients send, and disconnects clients that are silent for 2.5 ms, or for the given time. Waits
 * with ppoll().
 *
 * Usage: server_poll SOCKET [MICROSECONDS]
 */
#define _GNU_SOURCE
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "server.h"

static struct pollfd fds[1 + CLIENTS];
static int nfds;

static void watch(int fd)
{
	fds[nfds++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

static void forget(int fd)
{
	for (int i = 1; i < nfds; i++)
		if (fds[i].fd == fd)
			fds[i] = fds[--nfds];
}

int main(int argc, char **argv)
{
	int listener = server_open(argc, argv);

	watch(listener);
	for (;;) {
		struct timespec left = server_left();

		if (ppoll(fds, nfds, server_is_idle() ? NULL : &left, NULL) < 0)
			err(1, "ppoll");
		for (int i = nfds - 1; i >= 0; i--) {
			if (!fds[i].revents)
				continue;
			if (fds[i].fd == listener)
				server_accept(listener, watch);
			else
				server_echo(fds[i].fd, forget);
		}
		server_expire(forget);
	}
}
