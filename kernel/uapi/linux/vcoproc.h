/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * vcoproc: a coprocessor whose core is a user process.
 *
 * The process opens /dev/vcoprocN, which one process can do at a time. It reads
 * events, maps the memory that it shares with Linux, and kicks Linux by an ioctl.
 * The descriptor supports poll(): EPOLLIN while an event is pending, EPOLLHUP
 * once the coprocessor is gone.
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
 * struct vcoproc_event - result of read(), one whole structure per call
 * @events: VCOPROC_EVENT_* bits. STOP is reported alone. START and KICK can be
 *	reported together; START then happened first.
 * @vrings: with KICK, bit N stands for the vring with notify id N
 * @boot: number of starts of this core by Linux, including the start that the
 *	event belongs to
 *
 * Events are not queued: an event that happened several times between two reads
 * is reported once.
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
 * @memory_size: number of bytes of shared memory; mmap() at offset 0, MAP_SHARED,
 *	readable and writable. Writing to pages of descriptors and available
 *	rings raises SIGBUS.
 * @table_offset: mmap() offset of the process's copy of the resource table,
 *	MAP_SHARED. The copy is updated at each start, at each kick by Linux and
 *	when the driver frees rings or buffers, the status last. The process may
 *	write to it; Linux does not read it.
 * @table_size: number of bytes of the mapping of the resource table
 */
struct vcoproc_info {
	__u64 device_address;
	__u64 memory_size;
	__u64 table_offset;
	__u64 table_size;
};

/*
 * Lowest device address of buffers that Linux shares with the coprocessor. The
 * mmap() offset of a buffer, or of any page in it, is the device address that the
 * driver sends to the coprocessor. MAP_SHARED; any range can be mapped at any
 * time. An access raises SIGBUS unless Linux has granted this kind of access to
 * the page and not revoked it.
 */
#define VCOPROC_BUFFERS		0x10000000000ULL

#define VCOPROC_IOC_MAGIC	0xbb

/* Returns addresses and sizes of the memory. Errors: EFAULT, ENODEV. */
#define VCOPROC_GET_INFO	_IOR(VCOPROC_IOC_MAGIC, 0x1, struct vcoproc_info)

/*
 * Kicks Linux: bit N of the mask stands for the vring with notify id N.
 * Errors: EFAULT, EINVAL for an empty mask or an id that no vring has,
 * ENOTCONN while the core is not started, ENODEV.
 */
#define VCOPROC_KICK		_IOW(VCOPROC_IOC_MAGIC, 0x2, __u32)

/*
 * Acknowledges a STOP that was read: the process does not access the shared
 * memory any more. Errors: EINVAL without such a STOP, ENODEV.
 */
#define VCOPROC_STOPPED		_IO(VCOPROC_IOC_MAGIC, 0x3)

/*
 * Reports a crash of the firmware while the process continues to run. The process
 * must not access the shared memory until the next START. Errors: ENOTCONN while
 * the core is not started, ENODEV.
 */
#define VCOPROC_CRASH		_IO(VCOPROC_IOC_MAGIC, 0x4)

#endif /* _UAPI_LINUX_VCOPROC_H */
