/* SPDX-License-Identifier: GPL-2.0 */
/* Kernel functions that the codec uses, for a program in user space */
#ifndef PACKET_LINUX_UNALIGNED_H
#define PACKET_LINUX_UNALIGNED_H

#include <endian.h>
#include <string.h>

#include <linux/types.h>

#define cpu_to_le16(x) htole16(x)
#define cpu_to_le32(x) htole32(x)
#define le16_to_cpu(x) le16toh(x)
#define le32_to_cpu(x) le32toh(x)

static inline u64 get_unaligned_le64(const void *p)
{
	u64 value;

	memcpy(&value, p, sizeof(value));

	return le64toh(value);
}

#endif
