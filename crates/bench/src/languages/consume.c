/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The consumer in C of `busbar bench languages`: as consume() in languages.rs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <busbar.h>

#define PATIENCE 60000000000LL

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void fail(void)
{
	fprintf(stderr, "%s\n", busbar_error());
	exit(1);
}

static uint64_t first(struct busbar_source *source)
{
	struct busbar_samples *samples;
	const void *data;
	uint64_t sample;
	size_t len;

	if (busbar_source_next(source, PATIENCE, &samples) || busbar_samples_read(samples, &data, &len))
		fail();
	memcpy(&sample, data, sizeof(sample));
	busbar_samples_free(samples);
	return sample;
}

int main(int argc, char **argv)
{
	struct busbar_stream_setup setup = {
		.size = sizeof(setup), .channels = "voltage0_i,voltage0_q,voltage1_i,voltage1_q",
	};
	struct busbar_source *source;
	double micros, cpu_micros;
	uint64_t sum = 0;
	long blocks;

	if (argc != 5)
		return 2;
	setup.block_len = strtoul(argv[2], NULL, 10);
	setup.blocks = strtoul(argv[3], NULL, 10);
	blocks = strtol(argv[4], NULL, 10);
	if (busbar_source_open(argv[1], &setup, &source))
		fail();
	first(source);
	micros = now(CLOCK_MONOTONIC);
	cpu_micros = now(CLOCK_PROCESS_CPUTIME_ID);
	for (long block = 0; block < blocks; block++)
		sum += first(source);
	micros = now(CLOCK_MONOTONIC) - micros;
	cpu_micros = now(CLOCK_PROCESS_CPUTIME_ID) - cpu_micros;
	printf("{\"micros\":%.3f,\"cpu_micros\":%.3f,\"sum\":%" PRIu64 "}\n", micros, cpu_micros, sum);
	return busbar_source_free(source) ? 1 : 0;
}
