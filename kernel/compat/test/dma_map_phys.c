// SPDX-License-Identifier: GPL-2.0
#include <linux/dma-map-ops.h>

static dma_addr_t compat_test(struct device *dev, phys_addr_t phys, size_t size,
			      enum dma_data_direction dir, unsigned long attrs)
{
	return 0;
}

const struct dma_map_ops compat_test_ops = {
	.map_phys = compat_test,
};
