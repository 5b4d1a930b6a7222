/* SPDX-License-Identifier: GPL-2.0 */
/* Kernel functions that the codec uses, for a program in user space */
#ifndef PACKET_LINUX_MINMAX_H
#define PACKET_LINUX_MINMAX_H

#include <stddef.h>

static inline size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

#endif
