/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * epoll_ctl_batch() and epoll_pwait1() for C programs that are to run on every kernel: where the calls
 * are missing, epoll_ctl() in a loop and epoll_pwait2() do the same. See docs/man.
 */
#ifndef EPOLL_CALLS_H
#define EPOLL_CALLS_H

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct epoll_ctl_cmd {
	int32_t flags;
	int32_t op;
	int32_t fd;
	uint32_t events;
	uint64_t data __attribute__((aligned(8)));
	int32_t result;
	uint32_t reserved;
};

struct epoll_wait_params {
	int32_t clockid;
	uint32_t reserved;
	uint64_t timeout __attribute__((aligned(8)));
	uint64_t sigmask;
	uint64_t sigsetsize;
};

struct epoll_syscalls {
	uint64_t magic __attribute__((aligned(8)));
	uint32_t ctl_batch;
	uint32_t pwait1;
};

#define EPOLL_SYSCALLS_MAGIC	0x3174696177737562ULL
#define EPIOCGSYSCALLS		_IOR(0x8A, 0xb0, struct epoll_syscalls)

#ifndef __NR_epoll_pwait2
#define __NR_epoll_pwait2	441
#endif

/* Whether this kernel has the calls, and under which numbers */
static inline int epoll_calls(int epfd, struct epoll_syscalls *calls)
{
	return !ioctl(epfd, EPIOCGSYSCALLS, calls) && calls->magic == EPOLL_SYSCALLS_MAGIC;
}

static inline int epoll_ctl_each(int epfd, int ncmds, struct epoll_ctl_cmd *cmds)
{
	for (int i = 0; i < ncmds; i++) {
		struct epoll_event event = { .events = cmds[i].events, .data.u64 = cmds[i].data };

		cmds[i].result = epoll_ctl(epfd, cmds[i].op, cmds[i].fd, &event) ? -errno : 0;
		if (cmds[i].result)
			return i;
	}

	return ncmds;
}

static inline int epoll_ctl_batch(int epfd, int flags, int ncmds, struct epoll_ctl_cmd *cmds)
{
	struct epoll_syscalls calls;

	if (epoll_calls(epfd, &calls))
		return syscall(calls.ctl_batch, epfd, flags, ncmds, cmds);

	if (flags || ncmds <= 0 || !cmds) {
		errno = EINVAL;
		return -1;
	}

	return epoll_ctl_each(epfd, ncmds, cmds);
}

/* Without the call: relative waits by CLOCK_MONOTONIC only */
static inline int epoll_pwait1(int epfd, int flags, struct epoll_event *events, int maxevents,
			       struct epoll_wait_params *params)
{
	struct epoll_syscalls calls;

	if (epoll_calls(epfd, &calls))
		return syscall(calls.pwait1, epfd, flags, events, maxevents, params);

	if (flags || params->clockid != CLOCK_MONOTONIC) {
		errno = ENOSYS;
		return -1;
	}

	return syscall(__NR_epoll_pwait2, epfd, events, maxevents, (void *)(uintptr_t)params->timeout,
		       (void *)(uintptr_t)params->sigmask, (size_t)params->sigsetsize);
}

#endif
