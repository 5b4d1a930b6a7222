/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Echoes what clients send, and disconnects clients that are silent for 2.5 ms, or for the given time. Waits
 * with epoll_pwait1() and makes the changes of each turn with one epoll_ctl_batch().
 *
 * Usage: server_epoll SOCKET [MICROSECONDS]
 */
#define _GNU_SOURCE
#include <busbar/epoll_calls.h>
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server.h"

static struct epoll_ctl_cmd cmds[2 * CLIENTS];
static int ncmds;

static void watch(int fd)
{
	cmds[ncmds++] = (struct epoll_ctl_cmd){
		.op = EPOLL_CTL_ADD, .fd = fd, .events = EPOLLIN, .data = fd
	};
}

/* The descriptor is closed next, which removes it from the set. Removes a pending command to add it. */
static void forget(int fd)
{
	for (int i = 0; i < ncmds; i++)
		if (cmds[i].fd == fd)
			cmds[i] = cmds[--ncmds];
}

static void flush(int epfd)
{
	for (int at = 0; at < ncmds;) {
		int done = epoll_ctl_batch(epfd, 0, ncmds - at, cmds + at);

		if (done < 0)
			err(1, "epoll_ctl_batch");
		at += done;
		/* After a signal, continue with the remaining commands */
		if (at < ncmds && cmds[at].result != -EINTR)
			errx(1, "epoll_ctl_batch: %s", strerror(-cmds[at].result));
	}
	ncmds = 0;
}

int main(int argc, char **argv)
{
	int listener = server_open(argc, argv);
	int epfd = epoll_create1(EPOLL_CLOEXEC);

	watch(listener);
	for (;;) {
		struct timespec left = server_left();
		struct epoll_wait_params params = {
			.clockid = CLOCK_MONOTONIC,
			.timeout = server_is_idle() ? 0 : (uintptr_t)&left,
		};
		struct epoll_event events[CLIENTS];
		int n;

		flush(epfd);
		n = epoll_pwait1(epfd, 0, events, CLIENTS, &params, sizeof(params));
		if (n < 0)
			err(1, "epoll_pwait1");
		for (int i = 0; i < n; i++) {
			if ((int)events[i].data.u64 == listener)
				server_accept(listener, watch);
			else
				server_echo(events[i].data.u64, forget);
		}
		server_expire(forget);
	}
}
