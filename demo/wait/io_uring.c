/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What io_uring could do for a set of descriptors, measured on this kernel: changes of an epoll set by
 * IORING_OP_EPOLL_CTL, linked and not, and multishot polls in place of a set. Also what becomes of a connection whose
 * descriptor is closed while it is watched. docs/wait.md says what follows from it.
 *
 * gcc -O2 -o io_uring demo/wait/io_uring.c && ./io_uring
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX = 256, RUNS = 201 };

static int ring, fds[MAX];
static unsigned *sq_tail, *sq_mask, *cq_head, *cq_tail, *cq_mask, tail;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *map(size_t size, off_t offset)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);

	if (memory == MAP_FAILED)
		fail("map the ring");
	return memory;
}

/* Returns whether there is io_uring. */
static int setup(void)
{
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	};
	size_t size, completions;
	unsigned *array;
	char *rings;

	ring = syscall(__NR_io_uring_setup, 2 * MAX, &params);
	if (ring < 0)
		return 0;
	size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	completions = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	rings = map(completions > size ? completions : size, IORING_OFF_SQ_RING);
	sqes = map(params.sq_entries * sizeof(*sqes), IORING_OFF_SQES);
	sq_tail = (unsigned *)(rings + params.sq_off.tail);
	sq_mask = (unsigned *)(rings + params.sq_off.ring_mask);
	cq_head = (unsigned *)(rings + params.cq_off.head);
	cq_tail = (unsigned *)(rings + params.cq_off.tail);
	cq_mask = (unsigned *)(rings + params.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
	array = (unsigned *)(rings + params.sq_off.array);
	for (unsigned at = 0; at <= *sq_mask; at++)
		array[at] = at;
	return 1;
}

static struct io_uring_sqe *request(unsigned char opcode, int fd)
{
	struct io_uring_sqe *sqe = &sqes[tail++ & *sq_mask];

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->fd = fd;
	return sqe;
}

/* Submits `count` requests, and waits for `wanted` completions that say `result`. */
static void run(unsigned count, unsigned wanted)
{
	unsigned seen = 0;

	__atomic_store_n(sq_tail, tail, __ATOMIC_RELEASE);
	if (syscall(__NR_io_uring_enter, ring, count, wanted, IORING_ENTER_GETEVENTS, NULL, 0) != (long)count)
		fail("submit");
	for (;;) {
		unsigned head = *cq_head, end = __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE);

		for (; head != end; head++, seen++) {
			int result = cqes[head & *cq_mask].res;

			/* A poll that is removed says so. */
			if (result < 0 && result != -ECANCELED) {
				errno = -result;
				fail("a request");
			}
		}
		__atomic_store_n(cq_head, head, __ATOMIC_RELEASE);
		if (seen >= wanted)
			return;
		if (syscall(__NR_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
			fail("wait");
	}
}

static struct epoll_event events[MAX];

/* Changes `count` descriptors of an epoll set, one call for each. */
static void by_call(int set, int op, int count)
{
	for (int at = 0; at < count; at++)
		if (epoll_ctl(set, op, fds[at], &events[at]))
			fail("epoll_ctl");
}

/* The same by one submission; `flags` link each to the next. */
static void by_ring(int set, int op, int count, unsigned char flags)
{
	for (int at = 0; at < count; at++) {
		struct io_uring_sqe *sqe = request(IORING_OP_EPOLL_CTL, set);

		sqe->len = op;
		sqe->off = fds[at];
		sqe->addr = (unsigned long)&events[at];
		if (at + 1 < count)
			sqe->flags = flags;
	}
	run(count, count);
}

static void linked(int set, int op, int count)
{
	by_ring(set, op, count, IOSQE_IO_LINK);
}

static void unlinked(int set, int op, int count)
{
	by_ring(set, op, count, 0);
}

/* The same by multishot polls in place of a set. */
static void by_poll(int set, int op, int count)
{
	(void)set;
	for (int at = 0; at < count; at++) {
		struct io_uring_sqe *sqe;

		if (op == EPOLL_CTL_ADD) {
			sqe = request(IORING_OP_POLL_ADD, fds[at]);
			sqe->len = IORING_POLL_ADD_MULTI;
			sqe->poll32_events = POLLIN;
			sqe->user_data = at + 1;
			continue;
		}
		sqe = request(IORING_OP_POLL_REMOVE, -1);
		sqe->addr = at + 1;
		if (op == EPOLL_CTL_MOD) {
			sqe->len = IORING_POLL_UPDATE_EVENTS | IORING_POLL_ADD_MULTI;
			sqe->poll32_events = POLLIN | POLLRDHUP;
		}
	}
	/* A removal completes, and so does the poll that it removes. */
	run(count, op == EPOLL_CTL_ADD ? 0 : op == EPOLL_CTL_DEL ? 2 * count : count);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;

	return difference < 0 ? -1 : difference > 0;
}

static void measure(int count)
{
	static void (*const ways[])(int, int, int) = { by_call, linked, unlinked, by_poll };
	static const int ops[] = { EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL };
	static const char *const names[] = { "add", "mod", "del" };
	static double took[4][3][RUNS];
	int set = epoll_create1(EPOLL_CLOEXEC);

	if (set < 0)
		fail("epoll_create1");
	for (int run = 0; run < RUNS; run++)
		for (int way = 0; way < 4; way++)
			for (int op = 0; op < 3; op++) {
				double start;

				for (int at = 0; at < count; at++) {
					events[at].events = op ? EPOLLIN | EPOLLRDHUP : EPOLLIN;
					events[at].data.u64 = at;
				}
				start = now();
				ways[way](set, ops[op], count);
				took[way][op][run] = (now() - start) / count;
			}
	close(set);
	for (int op = 0; op < 3; op++) {
		double median[4];

		for (int way = 0; way < 4; way++) {
			qsort(took[way][op], RUNS, sizeof(double), compare);
			median[way] = took[way][op][RUNS / 2];
		}
		printf("%s %4d: epoll_ctl %5.0f ns; EPOLL_CTL linked %5.0f (%.2f), unlinked %5.0f (%.2f); "
		       "multishot poll %5.0f (%.2f)\n", names[op], count, median[0], median[1],
		       median[0] / median[1], median[2], median[0] / median[2], median[3],
		       median[0] / median[3]);
	}
}

/* Whether the peer of a watched connection sees that it was closed. */
static void closed(const char *name, int is_poll)
{
	int set = epoll_create1(EPOLL_CLOEXEC), pair[2];
	char byte;

	if (set < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair))
		fail("make a connection");
	fds[0] = pair[0];
	(is_poll ? by_poll : by_call)(set, EPOLL_CTL_ADD, 1);
	close(pair[0]);
	/* Nothing is left that could still be done later. */
	usleep(100000);
	printf("%s: once a watched connection is closed, its peer %s\n", name,
	       read(pair[1], &byte, 1) == 0 ? "reads its end" : "reads nothing: it is still open");
	if (is_poll)
		by_poll(set, EPOLL_CTL_DEL, 1);
	close(pair[1]);
	close(set);
}

int main(void)
{
	static const int counts[] = { 1, 4, 16, 64, MAX };

	if (!setup()) {
		printf("no io_uring here: %s\n", strerror(errno));
		return 0;
	}
	for (int at = 0; at < MAX; at++) {
		fds[at] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		if (fds[at] < 0)
			fail("eventfd");
	}
	for (unsigned at = 0; at < sizeof(counts) / sizeof(*counts); at++)
		measure(counts[at]);
	closed("epoll", 0);
	closed("multishot poll", 1);
	return 0;
}
