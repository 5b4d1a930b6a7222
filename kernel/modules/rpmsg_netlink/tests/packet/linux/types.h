/* SPDX-License-Identifier: GPL-2.0 */
/* Kernel types that the codec uses, for a program in user space */
#ifndef PACKET_LINUX_TYPES_H
#define PACKET_LINUX_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include_next <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#endif
