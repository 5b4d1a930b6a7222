/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_DEVICE_H
#define COMPAT_DEVICE_H

#include <linux/device.h>

#ifndef HAVE_dev_set_dma_coherent
static inline void dev_set_dma_coherent(struct device *dev)
{
#if defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_DEVICE) || \
	defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU) || \
	defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU_ALL)
	dev->dma_coherent = true;
#endif
}
#endif

#endif
