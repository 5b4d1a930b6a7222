/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * vcoproc: a coprocessor whose core is a user process.
 *
 * The process opens /dev/vcoprocN, one process at a time. It reads events,
 * maps the memory that it shares with Linux, and kicks through ioctls. The
 * descriptor is pollable: EPOLLIN while an event waits, EPOLLHUP once the
 * coprocessor is gone.
 */
#ifndef _UAPI_LINUX_VCOPROC_H
#define _UAPI_LINUX_VCOPROC_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Bits of vcoproc_event.events */
#define VCOPROC_EVENT_START	0x1	/* Linux has started the core */
#define VCOPROC_EVENT_STOP	0x2	/* Linux stops the core: acknowledge */
#define VCOPROC_EVENT_KICK	0x4	/* Linux has kicked vrings */

/**
 * struct vcoproc_event - what read() returns, one whole structure per call
 * @events: VCOPROC_EVENT_* bits. STOP comes alone. START and KICK can come
 *	together, START is then the first of the two.
 * @vrings: with KICK, bit N stands for the vring with notify id N
 * @boot: how often Linux has started this core, the start that the event
 *	belongs to included
 *
 * Events are levels, not a queue: what happened several times between two
 * reads is reported once.
 */
struct vcoproc_event {
	__u32 events;
	__u32 vrings;
	__u64 boot;
};

/**
 * struct vcoproc_info - the memory of the coprocessor
 * @device_address: address of the first byte of the shared memory in resource
 *	table and vring descriptors
 * @memory_size: bytes of shared memory; mmap() at offset 0, MAP_SHARED,
 *	readable and writable. To write to pages that hold descriptors and
 *	available rings is SIGBUS.
 * @table_offset: mmap() offset of the process's copy of the resource table,
 *	MAP_SHARED. It is brought up to date with each start, with each kick by
 *	Linux, and when the driver lets go of the rings, the status last. The
 *	process may write to it; Linux does not see that.
 * @table_size: bytes of the mapping of the resource table
 */
struct vcoproc_info {
	__u64 device_address;
	__u64 memory_size;
	__u64 table_offset;
	__u64 table_size;
};

/*
 * Where buffers that Linux shares with the coprocessor begin. The mmap() offset
 * of a buffer, and of any part of it that begins a page, is the device address
 * that Linux tells. MAP_SHARED; any range can be mapped at any time. An access
 * is SIGBUS unless Linux has given that page to the coprocessor, for writing if
 * it is one, and has not got it back yet.
 */
#define VCOPROC_BUFFERS		0x10000000000ULL

#define VCOPROC_IOC_MAGIC	0xbb

/* Tells where the memory is. Errors: EFAULT, ENODEV. */
#define VCOPROC_GET_INFO	_IOR(VCOPROC_IOC_MAGIC, 0x1, struct vcoproc_info)

/*
 * Kicks Linux: bit N of the mask stands for the vring with notify id N.
 * Errors: EFAULT, EINVAL for an empty mask or an id that no vring has,
 * ENOTCONN while the core is not started, ENODEV.
 */
#define VCOPROC_KICK		_IOW(VCOPROC_IOC_MAGIC, 0x2, __u32)

/*
 * Acknowledges a STOP that was read: the process no longer touches the
 * shared memory. Errors: EINVAL without such a STOP, ENODEV.
 */
#define VCOPROC_STOPPED		_IO(VCOPROC_IOC_MAGIC, 0x3)

/*
 * Reports that the firmware has crashed, while the process lives on. It no
 * longer touches the shared memory until the next START. Errors: ENOTCONN
 * while the core is not started, ENODEV.
 */
#define VCOPROC_CRASH		_IO(VCOPROC_IOC_MAGIC, 0x4)

#endif /* _UAPI_LINUX_VCOPROC_H */
