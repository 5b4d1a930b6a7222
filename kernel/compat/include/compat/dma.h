/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_DMA_H
#define COMPAT_DMA_H

#include <linux/dma-map-ops.h>

/* The operation of struct dma_map_ops for memory outside of a scatterlist, which is refused */
#ifdef HAVE_dma_map_phys
static inline dma_addr_t compat_dma_refuse(struct device *dev, phys_addr_t phys, size_t size,
					   enum dma_data_direction dir, unsigned long attrs)
{
	return DMA_MAPPING_ERROR;
}

#define COMPAT_DMA_REFUSE	.map_phys = compat_dma_refuse
#else
static inline dma_addr_t compat_dma_refuse(struct device *dev, struct page *page,
					   unsigned long offset, size_t size,
					   enum dma_data_direction dir, unsigned long attrs)
{
	return DMA_MAPPING_ERROR;
}

#define COMPAT_DMA_REFUSE	.map_page = compat_dma_refuse
#endif

#endif
