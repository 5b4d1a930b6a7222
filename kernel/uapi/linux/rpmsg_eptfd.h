/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * rpmsg_eptfd: rpmsg endpoints as file descriptors.
 *
 * Adds RPMSG_CREATE_EPT_FD_IOCTL to <linux/rpmsg.h>, as in the fifth version
 * of "rpmsg: Introduce RPMSG_CREATE_EPT_FD_IOCTL uAPI" (October 2025).
 */
#ifndef _UAPI_LINUX_RPMSG_EPTFD_H
#define _UAPI_LINUX_RPMSG_EPTFD_H

#include <linux/ioctl.h>
#include <linux/rpmsg.h>
#include <linux/types.h>

#ifndef RPMSG_CREATE_EPT_FD_IOCTL
/**
 * struct rpmsg_endpoint_fd_info - an endpoint and its file descriptor
 * @name: name of the service, terminated by a NUL byte
 * @src: local address, or RPMSG_ADDR_ANY to let the bus choose one
 * @dst: destination address of messages
 * @flags: file flags, a subset of O_ACCMODE | O_NONBLOCK | O_CLOEXEC
 * @fd: returned: the descriptor of the endpoint
 */
struct rpmsg_endpoint_fd_info {
	char name[32];
	__u32 src;
	__u32 dst;
	__u32 flags;
	__s32 fd;
};

/*
 * Creates an endpoint and a file descriptor for it. The descriptor supports
 * RPMSG_DESTROY_EPT_IOCTL and the flow-control calls of endpoint devices.
 */
#define RPMSG_CREATE_EPT_FD_IOCTL _IOWR(0xb5, 0x7, struct rpmsg_endpoint_fd_info)
#endif

/**
 * struct rpmsg_dmabuf_attach - a DMABUF to attach or to detach
 * @fd: descriptor of the DMABUF
 * @flags: 0
 * @reserved: 0
 */
struct rpmsg_dmabuf_attach {
	__s32 fd;
	__u32 flags;
	__u64 reserved[3];
};

/**
 * struct rpmsg_dmabuf - a part of a DMABUF to send
 * @fd: descriptor of the DMABUF, attached to the endpoint
 * @flags: RPMSG_DMABUF_TO_REMOTE or RPMSG_DMABUF_FROM_REMOTE
 *	(<linux/rpmsg_bulk.h>)
 * @offset: first byte
 * @length: number of bytes, at least 1
 * @cookie: returned: identifies this transfer in the answer. It is written after
 *	the arguments are checked and before the part is sent, so also by a call
 *	that fails later.
 * @reserved: 0
 */
struct rpmsg_dmabuf {
	__s32 fd;
	__u32 flags;
	__u64 offset;
	__u64 length;
	__u64 cookie;
	__u64 reserved[4];
};

/**
 * struct rpmsg_message - one of many messages
 * @data: address of the message, or of room for one
 * @length: bytes of the message, or of the room
 * @received: returned by RPMSG_RECV_MANY_IOCTL: bytes of the message
 *
 * A message that needs more fields gets a flag of struct rpmsg_messages.
 */
struct rpmsg_message {
	__u64 data;
	__u32 length;
	__u32 received;
};

/**
 * struct rpmsg_messages - many messages
 * @messages: address of an array of struct rpmsg_message
 * @count: its elements. A call takes RPMSG_MESSAGES_MAX of them at most
 * @flags: 0, or RPMSG_MESSAGES_DONTWAIT
 */
struct rpmsg_messages {
	__u64 messages;
	__u32 count;
	__u32 flags;
};

#define RPMSG_MESSAGES_MAX	1024

/* Do not wait, in any mode of the file */
#define RPMSG_MESSAGES_DONTWAIT	1

/*
 * Calls of an endpoint that send and receive many messages, in order. They return
 * how many were sent or received; an error only if it was none, so an error of a later
 * message is returned by the next call. Sending waits for room for each message.
 * Receiving waits for the first one, and then takes what is there. A message longer than
 * its room is not cut: it ends the call, or, as the first one, is lost with EMSGSIZE, and
 * its length is returned. A call that has sent less than it could is followed by one that
 * fails, with EAGAIN where there is no room: wait for EPOLLOUT after that.
 */
#define RPMSG_SEND_MANY_IOCTL	_IOW(0xb5, 0xa, struct rpmsg_messages)
#define RPMSG_RECV_MANY_IOCTL	_IOW(0xb5, 0xb, struct rpmsg_messages)

/*
 * Calls of an endpoint that pass DMABUFs to the remote by reference. They follow
 * IIO's DMABUF interface: attach once, send often, detach. For their semantics and
 * errors see kernel/modules/rpmsg_eptfd/README.md.
 *
 * Numbers: 0x00 to 0x0f of 0xb5 belong to <linux/rpmsg.h>
 * (Documentation/userspace-api/ioctl/ioctl-number.rst). It uses 0x00 to 0x06, and
 * RPMSG_CREATE_EPT_FD_IOCTL uses 0x07. To avoid conflicts, all others here use the last
 * numbers of the range, and 0x0f is reserved for one more.
 *
 * Extensions: flags and reserved fields must be 0, or the call fails with EINVAL. A
 * call that needs more than these fields gets another structure, and thus another
 * number, because the number contains the size.
 */
#define RPMSG_DMABUF_ATTACH_IOCTL _IOW(0xb5, 0xc, struct rpmsg_dmabuf_attach)
#define RPMSG_DMABUF_DETACH_IOCTL _IOW(0xb5, 0xd, struct rpmsg_dmabuf_attach)
#define RPMSG_DMABUF_SEND_IOCTL	_IOWR(0xb5, 0xe, struct rpmsg_dmabuf)

/* Calls that the headers of an older distribution lack */
#ifndef RPMSG_CREATE_DEV_IOCTL
#define RPMSG_CREATE_DEV_IOCTL	_IOW(0xb5, 0x3, struct rpmsg_endpoint_info)
#define RPMSG_RELEASE_DEV_IOCTL	_IOW(0xb5, 0x4, struct rpmsg_endpoint_info)
#endif
#ifndef RPMSG_GET_OUTGOING_FLOWCONTROL
#define RPMSG_GET_OUTGOING_FLOWCONTROL _IOR(0xb5, 0x5, int)
#define RPMSG_SET_INCOMING_FLOWCONTROL _IOR(0xb5, 0x6, int)
#endif

#endif /* _UAPI_LINUX_RPMSG_EPTFD_H */
