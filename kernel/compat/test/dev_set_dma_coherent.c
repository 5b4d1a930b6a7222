// SPDX-License-Identifier: GPL-2.0
#include <linux/device.h>

static void compat_test(struct device *dev)
{
	dev_set_dma_coherent(dev);
}
