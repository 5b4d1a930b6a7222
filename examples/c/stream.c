/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stream consumer in an event loop: the level of each block of a converter, until standard input has something.
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
	static float values[32768];
	double power = 0;
	int count = busbar_samples_values(samples, channel, scale, offset, values, 32768);

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
	struct epoll_event event = { .events = EPOLLIN };
	struct busbar_source *source;
	struct busbar_samples *samples;
	int epfd = epoll_create1(EPOLL_CLOEXEC), result;
	double scale, offset;

	if (argc != 3)
		return fprintf(stderr, "usage: stream SOURCE CHANNEL\n"), 2;
	if (busbar_source_open(argv[1], &setup, &source) < 0 ||
	    busbar_source_scale(source, argv[2], &scale, &offset) < 0)
		goto failed;
	epoll_ctl(epfd, EPOLL_CTL_ADD, 0, &event);
	event.data.u32 = 1;
	epoll_ctl(epfd, EPOLL_CTL_ADD, busbar_source_fd(source), &event);
	while (epoll_wait(epfd, &event, 1, -1) > 0 && event.data.u32) {
		result = busbar_source_next(source, 0, &samples); /* one, so that the input has its turn */
		if (result == -EAGAIN)
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
