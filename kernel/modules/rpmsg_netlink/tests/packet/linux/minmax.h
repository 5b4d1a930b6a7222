/* SPDX-License-Identifier: GPL-2.0 */
/* What the codec takes from the kernel, for a program. */
#ifndef PACKET_LINUX_MINMAX_H
#define PACKET_LINUX_MINMAX_H

#include <stddef.h>

static inline size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

#endif
