/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * epoll_ctl_batch() and epoll_pwait1() for programs in C and C++ that have to run on any kernel. If the kernel
 * lacks the calls, epoll_ctl() in a loop and epoll_pwait2() replace them; before Linux 5.11, epoll_pwait() with
 * milliseconds does. See docs/wait.md and docs/man. It needs no library, and no other file of Busbar.
 */
#ifndef EPOLL_CALLS_H
#define EPOLL_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What -std=c99 leaves out of the C library's headers */
#ifndef CLOCK_MONOTONIC
#define CLOCK_MONOTONIC	1
#endif
#ifndef __cplusplus
extern long syscall(long number, ...);
#endif

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

#define EPOLL_CTL_BATCH_CONTINUE	1
#define EPOLL_PWAIT1_ABSTIME		1

#define EPOLL_SYSCALLS_MAGIC	0x3274696177737562ULL
#define EPIOCGSYSCALLS		_IOR(0x8A, 0xb0, struct epoll_syscalls)

#ifndef __NR_epoll_pwait2
#define __NR_epoll_pwait2	441
#endif

/*
 * Returns the numbers of the calls, or NULL if this kernel does not have them. The kernel is asked once.
 * Several threads may ask at the same time, and all get the same answer.
 */
static inline const struct epoll_syscalls *epoll_calls(void)
{
	enum { UNKNOWN, MISSING, THERE };
	static struct epoll_syscalls known;
	static int state;
	int before = errno, now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
	struct epoll_syscalls calls;

	if (now == UNKNOWN) {
		int epfd = epoll_create1(EPOLL_CLOEXEC);

		/* With too many open files the kernel cannot be asked: try again next time */
		now = epfd < 0 ? UNKNOWN : MISSING;
		if (epfd >= 0 && !ioctl(epfd, EPIOCGSYSCALLS, &calls) &&
		    calls.magic == EPOLL_SYSCALLS_MAGIC) {
			__atomic_store_n(&known.ctl_batch, calls.ctl_batch, __ATOMIC_RELAXED);
			__atomic_store_n(&known.pwait1, calls.pwait1, __ATOMIC_RELAXED);
			now = THERE;
		}
		if (epfd >= 0)
			close(epfd);
		if (now != UNKNOWN)
			__atomic_store_n(&state, now, __ATOMIC_RELEASE);
		errno = before;
	}

	return now == THERE ? &known : NULL;
}

static inline int epoll_ctl_one(int epfd, const struct epoll_ctl_cmd *cmd)
{
	struct epoll_event event;

	if (cmd->flags || cmd->reserved)
		return -EINVAL;

	event.events = cmd->events;
	event.data.u64 = cmd->data;
	return epoll_ctl(epfd, cmd->op, cmd->fd, &event) ? -errno : 0;
}

static inline int epoll_ctl_each(int epfd, int flags, int ncmds, struct epoll_ctl_cmd *cmds)
{
	for (int i = 0; i < ncmds; i++) {
		cmds[i].result = epoll_ctl_one(epfd, &cmds[i]);
		if (cmds[i].result && !(flags & EPOLL_CTL_BATCH_CONTINUE))
			return i;
	}

	return ncmds;
}

static inline int epoll_ctl_batch(int epfd, int flags, int ncmds, struct epoll_ctl_cmd *cmds)
{
	const struct epoll_syscalls *calls = epoll_calls();

	if (calls)
		return syscall(__atomic_load_n(&calls->ctl_batch, __ATOMIC_RELAXED), epfd, flags,
			       ncmds, cmds);

	if ((flags & ~EPOLL_CTL_BATCH_CONTINUE) || ncmds <= 0 || !cmds ||
	    ncmds > (int)(INT_MAX / sizeof(*cmds))) {
		errno = EINVAL;
		return -1;
	}
	/* An open descriptor that is not an epoll descriptor is reported by epoll_ctl() */
	if (fcntl(epfd, F_GETFD) == -1)
		return -1;

	return epoll_ctl_each(epfd, flags, ncmds, cmds);
}

/*
 * Converts the struct __kernel_timespec at @timeout to milliseconds, rounded up and at most 24 days.
 * Returns -1 and sets errno to EINVAL if it is invalid.
 */
static inline int epoll_millis(const void *timeout)
{
	int64_t time[2]; /* tv_sec, tv_nsec */

	memcpy(time, timeout, sizeof(time));
	if (time[0] < 0 || time[1] < 0 || time[1] > 999999999) {
		errno = EINVAL;
		return -1;
	}
	if (time[0] >= INT_MAX / 1000)
		return INT_MAX;

	return time[0] * 1000 + (time[1] + 999999) / 1000000;
}

/* For kernels before Linux 5.11 */
static inline int epoll_pwait_millis(int epfd, struct epoll_event *events, int maxevents,
				     const struct epoll_wait_params *params)
{
	const void *timeout = (void *)(uintptr_t)params->timeout;
	int millis = timeout ? epoll_millis(timeout) : -1;

	if (timeout && millis < 0)
		return -1;

	return syscall(__NR_epoll_pwait, epfd, events, maxevents, millis,
		       (void *)(uintptr_t)params->sigmask, (size_t)params->sigsetsize);
}

/* If the kernel lacks the call, only relative waits by CLOCK_MONOTONIC work; others fail with ENOSYS */
static inline int epoll_pwait1(int epfd, int flags, struct epoll_event *events, int maxevents,
			       const struct epoll_wait_params *params, size_t size)
{
	const struct epoll_syscalls *calls = epoll_calls();
	int ready;

	if (calls)
		return syscall(__atomic_load_n(&calls->pwait1, __ATOMIC_RELAXED), epfd, flags, events,
			       maxevents, params, size);

	if (flags || size != sizeof(*params) || params->clockid != CLOCK_MONOTONIC) {
		errno = ENOSYS;
		return -1;
	}

	ready = syscall(__NR_epoll_pwait2, epfd, events, maxevents,
			(void *)(uintptr_t)params->timeout, (void *)(uintptr_t)params->sigmask,
			(size_t)params->sigsetsize);
	if (ready == -1 && errno == ENOSYS)
		return epoll_pwait_millis(epfd, events, maxevents, params);

	return ready;
}

#endif
