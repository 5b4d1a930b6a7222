/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VNIC_TOEPLITZ_H
#define VNIC_TOEPLITZ_H

#include <linux/bits.h>
#include <linux/unaligned.h>

static inline u32 vnic_toeplitz(const u8 *key, const u8 *data, unsigned int len)
{
	u32 hash = 0, window = get_unaligned_be32(key);
	unsigned int i;
	int bit;

	for (i = 0; i < len; i++) {
		for (bit = 7; bit >= 0; bit--) {
			if (data[i] & BIT(bit))
				hash ^= window;
			window = window << 1 | (key[i + sizeof(hash)] >> bit & 1);
		}
	}

	return hash;
}

#endif
