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
 * struct rpmsg_endpoint_fd_info - endpoint and the file that it shall be
 * @name: name of the service, ended by a NUL byte
 * @src: local address, or RPMSG_ADDR_ANY for one of the bus's choice
 * @dst: destination address of what is written
 * @flags: file flags, a subset of O_ACCMODE | O_NONBLOCK | O_CLOEXEC
 * @fd: returned: the descriptor that is the endpoint
 */
struct rpmsg_endpoint_fd_info {
	char name[32];
	__u32 src;
	__u32 dst;
	__u32 flags;
	__s32 fd;
};

/*
 * Instantiates an endpoint that is a file descriptor. The descriptor takes
 * RPMSG_DESTROY_EPT_IOCTL and the flow-control calls like an endpoint device.
 */
#define RPMSG_CREATE_EPT_FD_IOCTL _IOWR(0xb5, 0x7, struct rpmsg_endpoint_fd_info)
#endif

/**
 * struct rpmsg_dmabuf_attach - a DMABUF that is attached or detached
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
 * struct rpmsg_dmabuf - a part of a DMABUF that changes hands
 * @fd: descriptor of the DMABUF, attached to the endpoint
 * @flags: RPMSG_DMABUF_TO_REMOTE or RPMSG_DMABUF_FROM_REMOTE
 *	(<linux/rpmsg_bulk.h>)
 * @offset: first byte
 * @length: bytes, at least 1
 * @cookie: returned: names this use in the answer. Written once the arguments
 *	are checked and before anything is done, also by a call that then fails.
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

/*
 * Shares buffers with the remote, in the manner of IIO's DMABUF interface:
 * attach once, send often, detach. All are calls of an endpoint. What they do
 * and return is in kernel/modules/rpmsg_eptfd/README.md.
 *
 * Numbers: 0x00 to 0x0f of 0xb5 are those of <linux/rpmsg.h>
 * (Documentation/userspace-api/ioctl/ioctl-number.rst), which takes them from
 * below and has used up to 0x06, and 0x07 is taken above. These are counted from
 * above. 0x0f is left for one more.
 *
 * Growth: what is 0 today must be 0, or the call fails with EINVAL. A call that
 * needs more than that gets another structure, and so another number, because
 * the size is a part of it.
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
