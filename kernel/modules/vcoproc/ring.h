/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Places of the rings in the memory of a coprocessor
 *
 * The rings are at the start of the memory. Each ends at the end of its own slot, so
 * that for any number of entries the used ring is the last page of the slot. The
 * process cannot write to the pages before it, which hold descriptors and available
 * ring: virtio_ring reads the flags of its descriptors back and trusts them. The set
 * of writable pages never changes, so none has to be revoked that the process might
 * have found a way to keep.
 */
#ifndef VCOPROC_RING_H
#define VCOPROC_RING_H

#include <linux/bitops.h>
#include <linux/limits.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/virtio_ring.h>

#define VCOPROC_VRINGS		2
#define VCOPROC_MAX_RING	256
#define VCOPROC_DRIVER_PART	(VCOPROC_MAX_RING * sizeof(struct vring_desc) + \
				 (3 + VCOPROC_MAX_RING) * sizeof(__virtio16))
#define VCOPROC_SLOT_PAGES	(DIV_ROUND_UP(VCOPROC_DRIVER_PART, PAGE_SIZE) + 1)
#define VCOPROC_RING_PAGES	(VCOPROC_VRINGS * VCOPROC_SLOT_PAGES)

static_assert(3 * sizeof(__virtio16) + VCOPROC_MAX_RING * sizeof(struct vring_used_elem) <=
	      PAGE_SIZE);

/**
 * vcoproc_find_ring() - find a place for a ring
 * @used: bitmap of the allocated pages
 * @pages: number of pages of the ring
 *
 * Return: number of the first page of a ring that ends at the end of a free slot,
 * ULONG_MAX if there is none.
 */
static inline unsigned long vcoproc_find_ring(const unsigned long *used, unsigned long pages)
{
	unsigned long end;

	if (pages > VCOPROC_SLOT_PAGES)
		return ULONG_MAX;

	for (end = VCOPROC_SLOT_PAGES; end <= VCOPROC_RING_PAGES; end += VCOPROC_SLOT_PAGES)
		if (!test_bit(end - 1, used))
			return end - pages;

	return ULONG_MAX;
}

/**
 * vcoproc_page_writable() - can the process write to a page of the memory?
 * @pgoff: number of the page
 *
 * Return: true for the page of a used ring and for pages after the rings.
 */
static inline bool vcoproc_page_writable(pgoff_t pgoff)
{
	return pgoff >= VCOPROC_RING_PAGES || (pgoff + 1) % VCOPROC_SLOT_PAGES == 0;
}

#endif /* VCOPROC_RING_H */
