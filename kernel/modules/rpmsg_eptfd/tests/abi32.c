// SPDX-License-Identifier: GPL-2.0
/*
 * A 32-bit program that makes every call of an endpoint. Descriptor 0 is a
 * control device with an echo service at address 0x400.
 *
 * It uses no C library, as a 64-bit system rarely has a 32-bit one. Its exit
 * status is 0, or the number of the line that failed.
 */
#include <asm/unistd_32.h>
#include <linux/errno.h>
#include <linux/dma-heap.h>
#include <linux/fcntl.h>

#include <linux/rpmsg_bulk.h>
#include <linux/rpmsg_eptfd.h>

static long call(long number, long a, long b, long c)
{
	long ret;

	asm volatile("int $0x80"
		     : "=a" (ret)
		     : "a" (number), "b" (a), "c" (b), "d" (c)
		     : "memory");
	return ret;
}

static long ioctl(int fd, unsigned long cmd, void *arg)
{
	return call(__NR_ioctl, fd, cmd, (long)arg);
}

static void expect(int good, int line)
{
	if (!good)
		call(__NR_exit, line, 0, 0);
}

#define EXPECT(condition) expect(condition, __LINE__)

static void many(int fd)
{
	struct rpmsg_message message[2] = {
		{ .data = (unsigned long)"one", .length = 3 },
		{ .data = (unsigned long)"three", .length = 5 },
	};
	struct rpmsg_messages many = { .messages = (unsigned long)message, .count = 2 };
	char got[2][5];
	int left;

	EXPECT(sizeof(message) == 32 && sizeof(many) == 16);
	EXPECT(ioctl(fd, RPMSG_SEND_MANY_IOCTL, &many) == 2);
	for (left = 2; left > 0; left -= many.count) {
		message[0].data = (unsigned long)got[2 - left];
		message[0].length = 5;
		many.count = 1;
		EXPECT(ioctl(fd, RPMSG_RECV_MANY_IOCTL, &many) == 1);
		EXPECT(message[0].received == (left == 2 ? 3 : 5) && message[0].length == 5);
	}
	EXPECT(got[0][2] == 'e' && got[1][0] == 't' && got[1][4] == 'e');
}

/* The service echoes the message GIVEN, which does not return the part */
static void share(int fd)
{
	struct dma_heap_allocation_data heap = {
		.len = 4096, .fd_flags = O_RDWR | O_CLOEXEC,
	};
	struct rpmsg_dmabuf_message message;
	struct rpmsg_dmabuf_attach named = {};
	struct rpmsg_dmabuf part = {
		.flags = RPMSG_DMABUF_TO_REMOTE, .offset = 4095, .length = 1,
	};
	int device;

	EXPECT(sizeof(named) == 32 && sizeof(part) == 64 && sizeof(message) == 48);
	device = call(__NR_open, (long)"/dev/dma_heap/system", O_RDWR, 0);
	EXPECT(device > 0);
	EXPECT(ioctl(device, DMA_HEAP_IOCTL_ALLOC, &heap) == 0);
	named.fd = heap.fd;
	part.fd = heap.fd;
	EXPECT(ioctl(fd, RPMSG_DMABUF_SEND_IOCTL, &part) == -EPERM);
	EXPECT(ioctl(fd, RPMSG_DMABUF_ATTACH_IOCTL, &named) == 0);
	EXPECT(ioctl(fd, RPMSG_DMABUF_ATTACH_IOCTL, &named) == -EBUSY);
	EXPECT(ioctl(fd, RPMSG_DMABUF_SEND_IOCTL, &part) == 0);
	EXPECT(call(__NR_read, fd, (long)&message, sizeof(message)) == sizeof(message));
	EXPECT(message.magic == RPMSG_DMABUF_MAGIC);
	EXPECT(message.type == RPMSG_DMABUF_GIVEN);
	EXPECT(message.direction == RPMSG_DMABUF_TO_REMOTE);
	EXPECT(message.cookie == part.cookie);
	EXPECT(message.offset == 4095 && message.length == 1);
	part.offset = 1ULL << 32;
	EXPECT(ioctl(fd, RPMSG_DMABUF_SEND_IOCTL, &part) == -EINVAL);
	EXPECT(ioctl(fd, RPMSG_DMABUF_DETACH_IOCTL, &named) == 0);
	EXPECT(ioctl(fd, RPMSG_DMABUF_DETACH_IOCTL, &named) == -EPERM);
	EXPECT(call(__NR_close, heap.fd, 0, 0) == 0);
	EXPECT(call(__NR_close, device, 0, 0) == 0);
}

void _start(void)
{
	struct rpmsg_endpoint_fd_info info = {
		.name = "abi32", .src = RPMSG_ADDR_ANY, .dst = 0x400,
		.flags = O_RDWR | O_CLOEXEC, .fd = -1,
	};
	struct rpmsg_endpoint_info channel = {
		.name = "abi32", .src = 0x500, .dst = 0x501,
	};
	char sent[] = "32 bit", got[16] = "";
	int paused = 7, fd;

	EXPECT(sizeof(void *) == 4);
	EXPECT(ioctl(0, RPMSG_CREATE_EPT_FD_IOCTL, (void *)8) == -EFAULT);
	EXPECT(ioctl(0, RPMSG_CREATE_EPT_FD_IOCTL, &info) == 0);
	fd = info.fd;
	EXPECT(fd > 0);
	EXPECT(info.src == RPMSG_ADDR_ANY && info.dst == 0x400);
	EXPECT(info.flags == (O_RDWR | O_CLOEXEC));
	EXPECT(call(__NR_write, fd, (long)sent, sizeof(sent)) == sizeof(sent));
	EXPECT(call(__NR_read, fd, (long)got, sizeof(got)) == sizeof(sent));
	for (unsigned int i = 0; i < sizeof(sent); i++)
		EXPECT(got[i] == sent[i]);
	EXPECT(ioctl(fd, RPMSG_GET_OUTGOING_FLOWCONTROL, &paused) == 0);
	EXPECT(paused == 0);
	EXPECT(ioctl(fd, RPMSG_SET_INCOMING_FLOWCONTROL, (void *)2) == -EINVAL);
	EXPECT(ioctl(fd, RPMSG_SET_INCOMING_FLOWCONTROL, (void *)1) == -EOPNOTSUPP);
	many(fd);
	share(fd);
	EXPECT(ioctl(fd, RPMSG_DESTROY_EPT_IOCTL, 0) == 0);
	EXPECT(call(__NR_write, fd, (long)sent, sizeof(sent)) == -EPIPE);
	EXPECT(call(__NR_close, fd, 0, 0) == 0);

	EXPECT(ioctl(0, RPMSG_CREATE_DEV_IOCTL, &channel) == 0);
	EXPECT(ioctl(0, RPMSG_CREATE_DEV_IOCTL, &channel) == -ENXIO);
	EXPECT(ioctl(0, RPMSG_RELEASE_DEV_IOCTL, &channel) == 0);
	channel.src = 0x80000000;
	EXPECT(ioctl(0, RPMSG_CREATE_EPT_IOCTL, &channel) == -EINVAL);
	EXPECT(ioctl(0, _IO(0xb5, 0x42), 0) == -ENOTTY);

	call(__NR_exit, 0, 0, 0);
}
