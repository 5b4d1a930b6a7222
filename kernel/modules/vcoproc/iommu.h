/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The IOMMU of a virtual coprocessor: controls which of Linux's buffers its
 * process can access.
 */
#ifndef VCOPROC_IOMMU_H
#define VCOPROC_IOMMU_H

#include <linux/dma-direction.h>
#include <linux/mm_types.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/types.h>

struct address_space;
struct scatterlist;

/**
 * struct vcoproc_iommu - the IOMMU of a coprocessor
 * @lock: protects all members below. Held for reading while pages are inserted
 *	into the process, for writing while they are removed, so that a fault
 *	that has seen a grant ends before the grant is removed. Nests in the
 *	reservation lock of a DMABUF and in mmap_lock. Its holder must not
 *	allocate memory, since fences wait for it.
 * @mappings: struct vcoproc_mapping, by address
 * @next: start of the search for the address of the next mapping. An address is
 *	used again only after the end of the address range was reached
 * @space: address space of the file that the process maps, NULL without a process
 */
struct vcoproc_iommu {
	struct rw_semaphore lock; /* see above */
	struct rb_root mappings;
	u64 next;
	struct address_space *space;
};

void vcoproc_iommu_init(struct vcoproc_iommu *iommu);
int vcoproc_iommu_map(struct vcoproc_iommu *iommu, struct scatterlist *sg, int nents);
void vcoproc_iommu_unmap(struct vcoproc_iommu *iommu, dma_addr_t addr);
void vcoproc_iommu_grant(struct vcoproc_iommu *iommu, dma_addr_t addr, size_t size,
			 enum dma_data_direction dir);
void vcoproc_iommu_revoke(struct vcoproc_iommu *iommu, dma_addr_t addr, size_t size);
void vcoproc_iommu_zap(struct vcoproc_iommu *iommu, pgoff_t first, pgoff_t count);
vm_fault_t vcoproc_iommu_prepare(struct vm_fault *vmf);
vm_fault_t vcoproc_iommu_fault(struct vcoproc_iommu *iommu, struct vm_fault *vmf);
vm_fault_t vcoproc_iommu_mkwrite(struct vcoproc_iommu *iommu, struct vm_fault *vmf);

#endif
