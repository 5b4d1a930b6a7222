/*
 * ZeroMQ PUSH and PULL over TCP, in one process: the program that `bench stream --native` compares with.
 *
 * Usage: zmq BLOCK BYTES PORT    prints seconds and processor seconds, of both ends together
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <zmq.h>

static size_t block, blocks;
static char address[64];

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
	exit(1);
}

static double seconds(struct timeval time)
{
	return time.tv_sec + time.tv_usec * 1e-6;
}

/* The limit of messages that wait, at each end: a megabyte, at least four. */
static void limit(void *socket, int option)
{
	int most = (1 << 20) / block;

	if (most < 4)
		most = 4;
	if (zmq_setsockopt(socket, option, &most, sizeof(most)))
		fail("set a limit");
}

/* Sends blocks of the counter pattern: each sample is its number, in 8 bytes. */
static void *push(void *unused)
{
	void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_PUSH);
	uint64_t number = 0;

	limit(socket, ZMQ_SNDHWM);
	if (zmq_connect(socket, address))
		fail("connect");
	for (size_t at = 0; at < blocks; at++) {
		zmq_msg_t message;
		uint64_t *samples;

		if (zmq_msg_init_size(&message, block))
			fail("make a message");
		samples = zmq_msg_data(&message);
		for (size_t sample = 0; sample < block / 8; sample++)
			samples[sample] = number++;
		if (zmq_msg_send(&message, socket, 0) < 0)
			fail("send");
	}
	zmq_close(socket);
	zmq_ctx_term(context);
	return NULL;
}

int main(int argc, char **argv)
{
	struct rusage before, after;
	struct timespec start, end;
	void *context, *socket;
	pthread_t sender;
	uint64_t next = 0;

	if (argc != 4)
		return 2;
	block = strtoull(argv[1], NULL, 10);
	blocks = strtoull(argv[2], NULL, 10) / block;
	snprintf(address, sizeof(address), "tcp://127.0.0.1:%s", argv[3]);
	context = zmq_ctx_new();
	socket = zmq_socket(context, ZMQ_PULL);
	limit(socket, ZMQ_RCVHWM);
	if (zmq_bind(socket, address))
		fail("bind");
	getrusage(RUSAGE_SELF, &before);
	clock_gettime(CLOCK_MONOTONIC, &start);
	if (pthread_create(&sender, NULL, push, NULL))
		return 1;
	for (size_t at = 0; at < blocks; at++) {
		zmq_msg_t message;
		uint64_t last;

		zmq_msg_init(&message);
		if (zmq_msg_recv(&message, socket, 0) < 0)
			fail("receive");
		if (zmq_msg_size(&message) != block)
			return 1;
		next += block / 8;
		memcpy(&last, (char *)zmq_msg_data(&message) + block - 8, 8);
		if (last != next - 1) {
			fprintf(stderr, "sample %llu is wrong\n", (unsigned long long)next - 1);
			return 1;
		}
		zmq_msg_close(&message);
	}
	pthread_join(sender, NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	getrusage(RUSAGE_SELF, &after);
	printf("%.6f %.6f\n", end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) * 1e-9,
	       seconds(after.ru_utime) - seconds(before.ru_utime) +
	       seconds(after.ru_stime) - seconds(before.ru_stime));
	zmq_close(socket);
	zmq_ctx_term(context);
	return 0;
}
