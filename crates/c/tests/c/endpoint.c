/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints over a socket that keeps messages apart, in place of a coprocessor: lengths, limits, the end. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "check.h"

/* Whether SIGPIPE is pending. */
static int is_pending(void)
{
	sigset_t set;

	CHECK(!sigpending(&set));
	return sigismember(&set, SIGPIPE);
}

/* An end of a stream that nobody reads is an error, and kills nobody. */
static void no_sigpipe(void)
{
	struct busbar_endpoint *endpoint;
	sigset_t pipe, before, now;
	int pair[2], number;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	OK(busbar_endpoint_from_fd(pair[0], &endpoint));
	close(pair[1]);
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &before));
	CHECK(busbar_endpoint_send(endpoint, "x", 1, BUSBAR_FOREVER) == -EPIPE);
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &now));
	CHECK(!sigismember(&now, SIGPIPE) && !is_pending());

	/* Also where the program blocks it; one that was pending before stays. */
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	CHECK(!pthread_sigmask(SIG_BLOCK, &pipe, NULL));
	CHECK(busbar_endpoint_send(endpoint, "x", 1, PATIENCE) == -EPIPE && !is_pending());
	CHECK(!pthread_kill(pthread_self(), SIGPIPE) && is_pending());
	CHECK(busbar_endpoint_send(endpoint, "x", 1, 0) == -EPIPE && is_pending());
	CHECK(!sigwait(&pipe, &number) && number == SIGPIPE);
	CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL));
	close(pair[0]);
	OK(busbar_endpoint_free(endpoint));
}

static void *cancelled(void *endpoint)
{
	char message[8];

	pthread_cancel(pthread_self());
	CHECK(busbar_endpoint_recv(endpoint, message, sizeof(message), PATIENCE) == 3);
	pthread_testcancel();
	return NULL;
}

/* A call ends before its thread is cancelled. */
static void cancels(void)
{
	struct busbar_endpoint *endpoint;
	pthread_t thread;
	void *result;
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	OK(busbar_endpoint_from_fd(pair[0], &endpoint));
	CHECK(write(pair[1], "one", 3) == 3);
	CHECK(!pthread_create(&thread, NULL, cancelled, endpoint));
	CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	OK(busbar_endpoint_free(endpoint));
	close(pair[0]);
	close(pair[1]);
}

static volatile sig_atomic_t signals;

static void count(int number)
{
	(void)number;
	signals++;
}

/* A wait goes on after a signal. */
static void signalled(void)
{
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { 0 };
	struct sigaction action = { .sa_handler = count };
	struct busbar_endpoint *endpoint;
	char message[8];
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	OK(busbar_endpoint_from_fd(pair[0], &endpoint));
	CHECK(!sigaction(SIGALRM, &action, NULL));
	CHECK(!setitimer(ITIMER_REAL, &often, NULL));
	CHECK(busbar_endpoint_recv(endpoint, message, sizeof(message), SECOND / 10) == -EAGAIN);
	CHECK(!setitimer(ITIMER_REAL, &never, NULL) && signals > 0);
	OK(busbar_endpoint_free(endpoint));
	close(pair[0]);
	close(pair[1]);
}

int main(void)
{
	struct busbar_answer answer = { .size = sizeof(answer) };
	struct busbar_endpoint *endpoint;
	struct busbar_block *block;
	char message[BUSBAR_MAX_MESSAGE];
	struct pollfd ready = { .events = POLLIN };
	uint64_t cookie;
	int pair[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair));
	OK(busbar_endpoint_from_fd(pair[0], &endpoint));
	close(pair[0]);
	FAILS(busbar_endpoint_recv(endpoint, message, sizeof(message), 0), EAGAIN, "nothing came");
	FAILS(busbar_endpoint_recv(endpoint, message, sizeof(message), 1000000), EAGAIN, "nothing came");
	OK(busbar_endpoint_send(endpoint, "hello", 5, BUSBAR_FOREVER));
	CHECK(read(pair[1], message, sizeof(message)) == 5 && !memcmp(message, "hello", 5));
	OK(busbar_endpoint_send(endpoint, "now", 3, 0));
	CHECK(read(pair[1], message, sizeof(message)) == 3);

	ready.fd = busbar_endpoint_fd(endpoint);
	CHECK(ready.fd >= 0 && poll(&ready, 1, 0) == 0);
	CHECK(write(pair[1], "answer", 6) == 6 && poll(&ready, 1, 60000) == 1);
	CHECK(busbar_endpoint_recv(endpoint, message, sizeof(message), 0) == 6);
	CHECK(!memcmp(message, "answer", 6));
	/* One that does not fit is lost, and nothing is written behind the room. */
	memset(message, '.', sizeof(message));
	CHECK(write(pair[1], "too long", 8) == 8);
	FAILS(busbar_endpoint_recv(endpoint, message, 7, PATIENCE), EMSGSIZE, "");
	CHECK(busbar_error_reason() == BUSBAR_REASON_TOO_LONG && message[7] == '.');
	REFUSES(busbar_endpoint_recv(endpoint, message, 0, 0), "1 byte or more");
	REFUSES(busbar_endpoint_recv(endpoint, NULL, 8, 0), "NULL");
	REFUSES(busbar_endpoint_send(endpoint, NULL, 8, 0), "NULL");
	FAILS(busbar_endpoint_send(endpoint, message, 70000, 0), EMSGSIZE, "496");
	REFUSES(busbar_endpoint_send(endpoint, message, SIZE_MAX, 0), "address space");

	/* A file that is no endpoint of rpmsg_eptfd is not ended, and takes no blocks. */
	CHECK(busbar_endpoint_destroy(endpoint) == -ENOTTY);
	OK(busbar_block_new(4096, "memfd", &block));
	CHECK(busbar_endpoint_attach(endpoint, block) < 0);
	CHECK(busbar_endpoint_give(endpoint, block, 0, 16, BUSBAR_TO_REMOTE, &cookie) < 0);
	REFUSES(busbar_endpoint_give(endpoint, block, 0, 16, 3, &cookie), "BUSBAR_TO_REMOTE, BUSBAR_FROM_REMOTE");
	REFUSES(busbar_endpoint_give(endpoint, block, SIZE_MAX, 16, 1, &cookie), "too large");
	REFUSES(busbar_endpoint_give(endpoint, block, 4090, 16, 1, &cookie), "within 0..4096");
	REFUSES(busbar_endpoint_give(endpoint, block, 0, 0, 1, &cookie), "within 0..4096");
	OK(busbar_block_free(block));
	CHECK(busbar_answer_read("short", 5, &answer) == 0);
	memset(message, 0xff, sizeof(message));
	CHECK(busbar_answer_read(message, sizeof(message), &answer) == 0);

	close(pair[1]);
	CHECK(busbar_endpoint_send(endpoint, "x", 1, PATIENCE) == -EPIPE);
	CHECK(busbar_error_reason() == BUSBAR_REASON_ENDED && strstr(busbar_error(), "coprocessor"));
	OK(busbar_endpoint_free(endpoint));
	REFUSES(busbar_endpoint_free(endpoint), "an endpoint is needed, the handle was freed");
	no_sigpipe();
	cancels();
	signalled();
	puts("done");
	return 0;
}
