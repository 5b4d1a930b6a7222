// SPDX-License-Identifier: GPL-2.0
/*
 * Sends a part of a DMABUF. The argument is in memory that cannot be written to
 * as long as descriptor 0 is open: a page of a FUSE file under write-back, whose
 * server does not answer.
 *
 * Prints "held" before the call, and afterwards 0 or its errno. The server is a
 * separate process; when it ends, the tasks that wait for it continue.
 *
 * Usage: withheld FILE ENDPOINT DMABUF, the latter two as descriptors
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fuse.h>
#include <linux/rpmsg_bulk.h>
#include <linux/rpmsg_eptfd.h>

#define SIZE 4096

static void answer(int fuse, __u64 unique, int error, const void *data, size_t len)
{
	char message[sizeof(struct fuse_out_header) + SIZE];
	struct fuse_out_header *header = (void *)message;

	*header = (struct fuse_out_header){ sizeof(*header) + len, error, unique };
	memcpy(header + 1, data, len);
	/* The client of this request may have given up */
	if (write(fuse, message, header->len) < 0)
		warn("answer");
}

static void serve_one(int fuse, const struct fuse_in_header *in, int held)
{
	static const struct fuse_attr_out attr = {
		.attr_valid = 1000,
		.attr = { .ino = 1, .size = SIZE, .mode = S_IFREG | 0600, .nlink = 1 },
	};
	static const struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = SIZE, .time_gran = 1,
	};
	static const char zeros[SIZE];
	struct fuse_open_out open = {};

	switch (in->opcode) {
	case FUSE_INIT:
		return answer(fuse, in->unique, 0, &init, sizeof(init));
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		return answer(fuse, in->unique, 0, &attr, sizeof(attr));
	case FUSE_OPEN:
		return answer(fuse, in->unique, 0, &open, sizeof(open));
	case FUSE_READ:
		return answer(fuse, in->unique, 0, zeros, SIZE);
	case FUSE_WRITE:
		/* Never answered */
		if (write(held, "", 1) != 1)
			err(1, "held");
		return;
	case FUSE_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(fuse, in->unique, -EOPNOTSUPP, NULL, 0);
	}
}

/* Serves until descriptor 0 is closed at its other end */
static void serve(int fuse, int held)
{
	static char request[1 << 20];
	struct pollfd fds[] = { { .fd = fuse, .events = POLLIN }, { .fd = 0, .events = POLLIN } };

	while (poll(fds, 2, -1) > 0 && !fds[1].revents) {
		if (read(fuse, request, sizeof(request)) > 0)
			serve_one(fuse, (void *)request, held);
		else if (errno != EINTR && errno != ENOENT)
			break;
	}
	_exit(0);
}

/* Opens a file that a child serves; its mount is detached and ends with the file */
static int open_served(const char *path, int held)
{
	int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC), file;
	struct stat size;
	char options[80];

	if (fuse < 0)
		err(1, "/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=100600,user_id=0,group_id=0", fuse);
	if (mount("withheld", path, "fuse", 0, options))
		err(1, "mount");
	if (!fork())
		serve(fuse, held);
	close(fuse);
	file = open(path, O_RDWR);
	/* The size is 0 until fstat() asks for it */
	if (umount2(path, MNT_DETACH) || file < 0 || fstat(file, &size))
		err(1, "%s", path);

	return file;
}

int main(int argc, char **argv)
{
	struct rpmsg_dmabuf *part;
	int held[2], file;
	char byte;

	if (argc != 4 || pipe(held))
		err(1, "usage: withheld FILE ENDPOINT DMABUF");
	file = open_served(argv[1], held[1]);
	part = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (part == MAP_FAILED)
		err(1, "mmap");
	*part = (struct rpmsg_dmabuf){
		.fd = atoi(argv[3]), .flags = RPMSG_DMABUF_TO_REMOTE, .length = SIZE,
	};
	if (sync_file_range(file, 0, SIZE, SYNC_FILE_RANGE_WRITE) || read(held[0], &byte, 1) != 1)
		err(1, "write-back");

	puts("held");
	fflush(stdout);
	printf("%d\n", ioctl(atoi(argv[2]), RPMSG_DMABUF_SEND_IOCTL, part) ? errno : 0);
	fflush(stdout);
	_exit(0);
}
