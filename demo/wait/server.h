/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Code that both servers share: everything except waiting. */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS		64

struct client {
	int fd;
	long long deadline;
};

/* Nanoseconds of silence after which a client is disconnected */
static long long silence = 2500000;
static struct client clients[CLIENTS];
static int nclients;

static long long server_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);

	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int server_open(int argc, char **argv)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (argc == 3)
		silence = atoll(argv[2]) * 1000;
	if (argc < 2 || argc > 3 || silence <= 0 || strlen(argv[1]) >= sizeof(address.sun_path))
		errx(2, "usage: %s SOCKET [MICROSECONDS]", argv[0]);
	strcpy(address.sun_path, argv[1]);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, CLIENTS))
		err(1, "%s", argv[1]);

	return fd;
}

static int server_is_idle(void)
{
	return !nclients;
}

/* Returns the time until the first client has to be disconnected */
static struct timespec server_left(void)
{
	long long left = silence, now = server_now();

	for (int i = 0; i < nclients; i++)
		if (clients[i].deadline - now < left)
			left = clients[i].deadline - now;
	if (left < 0)
		left = 0;

	return (struct timespec){ .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
}

static void server_accept(int listener, void (*watch)(int fd))
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0 && errno != EAGAIN)
		err(1, "accept");
	if (fd < 0)
		return;
	if (nclients == CLIENTS) {
		close(fd);
		return;
	}
	clients[nclients++] = (struct client){ .fd = fd, .deadline = server_now() + silence };
	watch(fd);
}

static void server_drop(struct client *client, void (*forget)(int fd))
{
	forget(client->fd);
	close(client->fd);
	*client = clients[--nclients];
}

static void server_echo(int fd, void (*forget)(int fd))
{
	char text[4096];
	ssize_t length = read(fd, text, sizeof(text));

	for (int i = 0; i < nclients; i++) {
		if (clients[i].fd != fd)
			continue;
		if (length > 0 && write(fd, text, length) == length)
			clients[i].deadline = server_now() + silence;
		else
			server_drop(&clients[i], forget);
	}
}

static void server_expire(void (*forget)(int fd))
{
	long long now = server_now();

	for (int i = nclients - 1; i >= 0; i--)
		if (clients[i].deadline <= now)
			server_drop(&clients[i], forget);
}
