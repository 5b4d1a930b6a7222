/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stream consumer in an event loop: the level of each block, until standard input has something. -1: loss unknown.
 *
 *	gcc -o stream stream.c $(pkg-config --cflags --libs busbar) -lm && ./stream 'synth:sine?rate=1M' voltage0_i
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/epoll.h>

#include <busbar.h>

static int print_level(struct busbar_samples *samples, const char *channel, double scale, double offset)
{
	struct busbar_meta meta = { .size = sizeof(meta) };
	static float values[262144]; /* one for each byte of a block, and more than samples */
	double power = 0;
	int count = busbar_samples_values(samples, channel, scale, offset, values, 262144);

	if (count < 0 || busbar_samples_meta(samples, &meta) < 0)
		return -1;
	for (int at = 0; at < count; at++)
		power += (double)values[at] * values[at];
	return printf("block %llu: %d samples, rms %.0f, lost: %lld\n", (unsigned long long)meta.sequence, count,
		      sqrt(power / count), (long long)meta.lost);
}

int main(int argc, char **argv)
{
	struct busbar_stream_setup setup = { .size = sizeof(setup), .blocks = 8, .block_len = 262144 };
	struct epoll_event stop = { .events = EPOLLIN }, event = { .events = EPOLLIN, .data.u32 = 1 };
	struct busbar_source *source;
	struct busbar_samples *samples;
	int epfd = epoll_create1(EPOLL_CLOEXEC), result;
	double scale, offset;

	if (argc != 3)
		return fprintf(stderr, "usage: stream SOURCE CHANNEL\n"), 2;
	if (busbar_source_open(argv[1], &setup, &source) < 0 ||
	    busbar_source_scale(source, argv[2], &scale, &offset) < 0)
		goto failed;
	if (epoll_ctl(epfd, EPOLL_CTL_ADD, 0, &stop) < 0 ||
	    epoll_ctl(epfd, EPOLL_CTL_ADD, busbar_source_fd(source), &event) < 0)
		return perror("stream: standard input has to be a terminal, a pipe or a socket"), 1;
	while (event.data.u32) {
		/* It may have been suspended (EINTR). One block, so that the input has its turn. */
		if (epoll_wait(epfd, &event, 1, -1) < 0 || (result = busbar_source_next(source, 0, &samples)) == -EAGAIN)
			continue;
		if (result < 0 || print_level(samples, argv[2], scale, offset) < 0)
			goto failed;
		busbar_samples_free(samples); /* the converter fills it again */
	}
	if (!busbar_source_free(source))
		return 0;
failed:
	fprintf(stderr, "%s\n", busbar_error());
	return 1;
}
