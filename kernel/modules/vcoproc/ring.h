/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where the rings of a coprocessor lie in its block
 *
 * They lie at the start, each at the end of a slot of its own. So the used
 * ring is the last page of its slot, whatever the number of entries, and what
 * is before it, descriptors and available ring, is Linux's: virtio_ring follows
 * the flags of descriptors that it reads back. Which pages the process can
 * write to never changes, so that none has to be taken back that it has found
 * a way to keep.
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
 * vcoproc_find_ring() - find the place of a ring
 * @used: the block's pages that are taken
 * @pages: of the ring
 *
 * Return: the first of @pages that end a free slot, ULONG_MAX if there is none.
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
 * vcoproc_page_writable() - can the process write to a page of the block?
 * @pgoff: number of the page
 *
 * Return: whether it is a used ring, or behind the rings.
 */
static inline bool vcoproc_page_writable(pgoff_t pgoff)
{
	return pgoff >= VCOPROC_RING_PAGES || (pgoff + 1) % VCOPROC_SLOT_PAGES == 0;
}

#endif /* VCOPROC_RING_H */
