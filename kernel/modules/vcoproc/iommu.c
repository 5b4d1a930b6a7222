// SPDX-License-Identifier: GPL-2.0
/*
 * The IOMMU of a virtual coprocessor: controls which of Linux's buffers its
 * process can access.
 *
 * A mapping assigns one range of device addresses to the pages of a scatterlist.
 * It does not grant access. Access follows the synchronization calls of the DMA
 * API, which say for each byte whether the device or the CPU owns it:
 * dma_sync_single_for_device() grants a part to the process, and
 * dma_sync_single_for_cpu() removes it from the process's page tables before it
 * returns. On real devices without an IOMMU a missing call often goes unnoticed;
 * here the process gets SIGBUS. The same holds for a call that crosses entries of
 * a scatterlist which were not merged: with swiotlb it would copy wrong bytes.
 *
 * The synchronization calls for whole scatterlists are ignored. Exporters of
 * DMABUFs make them for accesses of the CPU, regardless of what the device owns.
 */
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include <linux/vcoproc.h>

#include "iommu.h"

static bool merge = true;
module_param(merge, bool, 0644);
MODULE_PARM_DESC(merge,
		 "Map each buffer as one entry of a scatterlist; otherwise keep its entries, which no synchronization call may cross, unless there are more than 1024; applies to buffers mapped from now on (default Y)");

/*
 * Most entries that are not merged. Each can be granted separately, and each grant
 * is compared with all others of its mapping, which takes time.
 */
#define VCOPROC_UNMERGED	1024

/*
 * Most pages that one fault inserts. The range is aligned to this number in the
 * process, so that one page table contains it.
 */
#define VCOPROC_AROUND	256

/**
 * struct vcoproc_extent - pages of a mapping that are contiguous in memory, and
 *	belong to one entry if entries are not merged
 * @first: number of the first page in the mapping
 * @pfn: page frame number of the first page
 */
struct vcoproc_extent {
	u64 first;
	unsigned long pfn;
};

/**
 * struct vcoproc_grant - a part that the process can access
 * @link: in vcoproc_mapping.grants
 * @first: first byte, from the start of the mapping
 * @last: last byte. Parts do not overlap, but two can share a page.
 * @writable: the process can also write
 */
struct vcoproc_grant {
	struct list_head link;
	u64 first;
	u64 last;
	bool writable;
};

/**
 * struct vcoproc_mapping - pages with contiguous device addresses
 * @node: in vcoproc_iommu.mappings
 * @start: address of the first byte
 * @size: number of bytes, whole pages
 * @merged: the pages are one entry of the scatterlist
 * @grants: parts that the process can access
 * @count: number of @extents
 * @extents: the pages, in order
 *
 * The pages are copied from the scatterlist, because CONFIG_DMABUF_DEBUG scrambles
 * its page links while it is mapped.
 */
struct vcoproc_mapping {
	struct rb_node node;
	u64 start;
	u64 size;
	bool merged;
	struct list_head grants;
	unsigned int count;
	struct vcoproc_extent extents[] __counted_by(count);
};

/**
 * vcoproc_iommu_init() - prepare an IOMMU
 * @iommu: zeroed IOMMU
 */
void vcoproc_iommu_init(struct vcoproc_iommu *iommu)
{
	init_rwsem(&iommu->lock);
	iommu->mappings = RB_ROOT;
	iommu->next = VCOPROC_BUFFERS;
}

/* -- Mappings -- */

static int mapping_compare(const void *key, const struct rb_node *node)
{
	const struct vcoproc_mapping *mapping = rb_entry(node, struct vcoproc_mapping, node);
	u64 addr = *(const u64 *)key;

	if (addr < mapping->start)
		return -1;

	return addr - mapping->start >= mapping->size;
}

static bool mapping_less(struct rb_node *a, const struct rb_node *b)
{
	return rb_entry(a, struct vcoproc_mapping, node)->start <
	       rb_entry(b, struct vcoproc_mapping, node)->start;
}

static struct vcoproc_mapping *mapping_find(struct vcoproc_iommu *iommu, u64 addr)
{
	struct rb_node *node = rb_find(&addr, &iommu->mappings, mapping_compare);

	return node ? rb_entry(node, struct vcoproc_mapping, node) : NULL;
}

static const struct vcoproc_extent *mapping_extent(const struct vcoproc_mapping *mapping, u64 page)
{
	unsigned int low = 0, high = mapping->count, middle;

	while (high - low > 1) {
		middle = low + (high - low) / 2;
		if (mapping->extents[middle].first <= page)
			low = middle;
		else
			high = middle;
	}

	return &mapping->extents[low];
}

static unsigned long mapping_pfn(const struct vcoproc_mapping *mapping, u64 page)
{
	const struct vcoproc_extent *extent = mapping_extent(mapping, page);

	return extent->pfn + (page - extent->first);
}

static bool in_one_entry(const struct vcoproc_mapping *mapping, u64 first, u64 last)
{
	return mapping->merged || mapping_extent(mapping, first >> PAGE_SHIFT) ==
				  mapping_extent(mapping, last >> PAGE_SHIFT);
}

/* Finds the mapping, and in it the entry, that contains all of [@addr, @addr + @size) */
static struct vcoproc_mapping *mapping_of(struct vcoproc_iommu *iommu, u64 addr, u64 size)
{
	struct vcoproc_mapping *mapping = mapping_find(iommu, addr);
	u64 first;

	if (!mapping || !size)
		return NULL;

	first = addr - mapping->start;
	if (size > mapping->size - first || !in_one_entry(mapping, first, first + size - 1))
		return NULL;

	return mapping;
}

/* Access is granted by whole pages, and a process can map nothing but memory */
static int check_entry(struct scatterlist *sg)
{
	if (!PAGE_ALIGNED(sg->offset) || !PAGE_ALIGNED(sg->length) || !sg->length)
		return -EINVAL;

	return is_zone_device_page(sg_page(sg)) ? -EREMOTEIO : 0;
}

static unsigned long entry_pfn(struct scatterlist *sg)
{
	return page_to_pfn(sg_page(sg)) + (sg->offset >> PAGE_SHIFT);
}

/* Returns the number of extents, at most @nents, or a negative errno */
static int count_extents(struct scatterlist *sgl, int nents, bool merged)
{
	unsigned long next = 0;
	struct scatterlist *sg;
	int count = 0, i, ret;

	for_each_sg(sgl, sg, nents, i) {
		ret = check_entry(sg);
		if (ret)
			return ret;
		if (!count || !merged || entry_pfn(sg) != next)
			count++;
		next = entry_pfn(sg) + (sg->length >> PAGE_SHIFT);
	}

	return count;
}

static void fill_extents(struct vcoproc_mapping *mapping, struct scatterlist *sgl, int nents)
{
	struct vcoproc_extent *extent = mapping->extents;
	unsigned long next = 0;
	struct scatterlist *sg;
	u64 page = 0;
	int i;

	for_each_sg(sgl, sg, nents, i) {
		if (!page || !mapping->merged || entry_pfn(sg) != next) {
			extent->first = page;
			extent->pfn = entry_pfn(sg);
			extent++;
		}
		next = entry_pfn(sg) + (sg->length >> PAGE_SHIFT);
		page += sg->length >> PAGE_SHIFT;
	}
	mapping->size = page << PAGE_SHIFT;
}

static struct vcoproc_mapping *mapping_alloc(struct scatterlist *sgl, int nents)
{
	struct vcoproc_mapping *mapping;
	bool merged = READ_ONCE(merge) || nents > VCOPROC_UNMERGED;
	int count;

	count = count_extents(sgl, nents, merged);
	if (count < 0)
		return ERR_PTR(count);

	mapping = kvzalloc(struct_size(mapping, extents, count), GFP_KERNEL_ACCOUNT);
	if (!mapping)
		return ERR_PTR(-ENOMEM);

	INIT_LIST_HEAD(&mapping->grants);
	mapping->count = count;
	mapping->merged = merged;
	fill_extents(mapping, sgl, nents);

	return mapping;
}

/* Returns the end of a mapping and of the guard page after it */
static u64 mapping_end(const struct vcoproc_mapping *mapping)
{
	return mapping->start + mapping->size + PAGE_SIZE;
}

/* Returns the first mapping that ends after an address */
static struct rb_node *mapping_behind(struct vcoproc_iommu *iommu, u64 addr)
{
	struct rb_node *node = iommu->mappings.rb_node, *found = NULL;

	while (node) {
		if (mapping_end(rb_entry(node, struct vcoproc_mapping, node)) > addr) {
			found = node;
			node = node->rb_left;
		} else {
			node = node->rb_right;
		}
	}

	return found;
}

/* Finds room between mappings or after the last one. @size includes the guard page. */
static bool find_room(struct vcoproc_iommu *iommu, u64 from, u64 size, u64 *start)
{
	/* The largest offset of mmap() */
	u64 end = min_t(u64, S64_MAX, (u64)ULONG_MAX << PAGE_SHIFT);
	struct vcoproc_mapping *mapping;
	struct rb_node *node;

	for (node = mapping_behind(iommu, from); node; node = rb_next(node)) {
		mapping = rb_entry(node, struct vcoproc_mapping, node);
		if (mapping->start >= from && mapping->start - from >= size)
			break;
		from = mapping_end(mapping);
	}
	*start = from;

	return from <= end && size <= end - from;
}

/* An address is used again only once all others have been used */
static bool mapping_add(struct vcoproc_iommu *iommu, struct vcoproc_mapping *mapping)
{
	u64 size = mapping->size + PAGE_SIZE;
	bool room;

	down_write(&iommu->lock);
	room = find_room(iommu, iommu->next, size, &mapping->start) ||
	       find_room(iommu, VCOPROC_BUFFERS, size, &mapping->start);
	if (room) {
		iommu->next = mapping_end(mapping);
		rb_add(&mapping->node, &iommu->mappings, mapping_less);
	}
	up_write(&iommu->lock);

	return room;
}

/* Keeps the entries and assigns contiguous device addresses to them */
static int describe_each(struct scatterlist *sgl, int nents, u64 start)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i) {
		sg_dma_address(sg) = start;
		sg_dma_len(sg) = sg->length;
		start += sg->length;
	}

	return nents;
}

/*
 * Describes one range. Returns the number of entries used, as the length of an entry
 * has only 32 bits.
 */
static int describe(struct scatterlist *sg, u64 start, u64 size)
{
	int count = 0;
	u64 len;

	for (; size; size -= len, start += len, sg = sg_next(sg), count++) {
		len = min_t(u64, size, UINT_MAX & PAGE_MASK);
		sg_dma_address(sg) = start;
		sg_dma_len(sg) = len;
	}

	return count;
}

/**
 * vcoproc_iommu_map() - assign a range of device addresses to pages
 * @iommu: IOMMU
 * @sgl: the pages
 * @nents: number of entries of @sgl
 *
 * Return: the number of entries that describe the range, 1 for merged entries of
 * less than 4 GiB; -EINVAL for entries that are not whole pages; -EREMOTEIO for
 * memory of another device; -ENOMEM.
 */
int vcoproc_iommu_map(struct vcoproc_iommu *iommu, struct scatterlist *sgl, int nents)
{
	struct vcoproc_mapping *mapping;

	if (nents <= 0 || !IS_ENABLED(CONFIG_ARCH_DMA_ADDR_T_64BIT))
		return -EINVAL;

	mapping = mapping_alloc(sgl, nents);
	if (IS_ERR(mapping))
		return PTR_ERR(mapping);

	if (!mapping_add(iommu, mapping)) {
		kvfree(mapping);
		return -ENOMEM;
	}

	return mapping->merged ? describe(sgl, mapping->start, mapping->size) :
				 describe_each(sgl, nents, mapping->start);
}

/* -- Grants -- */

/**
 * vcoproc_iommu_zap() - remove pages from the page tables of the process
 * @iommu: IOMMU, locked
 * @first: first page of device addresses
 * @count: number of pages, 0 for all from @first on
 */
void vcoproc_iommu_zap(struct vcoproc_iommu *iommu, pgoff_t first, pgoff_t count)
{
	if (!iommu->space)
		return;

	/*
	 * Subscribers of the process's memory are told, and lockdep takes for granted that one of
	 * them waits for a fence, while this may come before a fence. Those that wait are drivers
	 * whose devices use the memory, and they refuse VM_PFNMAP.
	 */
	lockdep_off();
	/* In pages: unmap_mapping_range() truncates its end where pgoff_t has 32 bits */
	unmap_mapping_pages(iommu->space, first, count, true);
	lockdep_on();
}

/* Removes the pages with bytes @first to @last of the mapping from page tables */
static void zap(struct vcoproc_iommu *iommu, struct vcoproc_mapping *mapping, u64 first, u64 last)
{
	first >>= PAGE_SHIFT;
	last >>= PAGE_SHIFT;
	vcoproc_iommu_zap(iommu, (mapping->start >> PAGE_SHIFT) + first, last - first + 1);
}

/*
 * Removes every grant that contains one of the bytes. If such a grant shares a page
 * with another grant, the next fault inserts that page again.
 */
static void take_back(struct vcoproc_iommu *iommu, struct vcoproc_mapping *mapping, u64 first,
		      u64 last)
{
	struct vcoproc_grant *grant, *next;

	list_for_each_entry_safe(grant, next, &mapping->grants, link) {
		if (grant->first > last || grant->last < first)
			continue;
		list_del(&grant->link);
		zap(iommu, mapping, grant->first, grant->last);
		kfree(grant);
	}
}

/**
 * vcoproc_iommu_unmap() - remove a mapping and all its grants
 * @iommu: IOMMU
 * @addr: its device address
 */
void vcoproc_iommu_unmap(struct vcoproc_iommu *iommu, dma_addr_t addr)
{
	struct vcoproc_mapping *mapping;

	down_write(&iommu->lock);
	mapping = mapping_find(iommu, addr);
	if (mapping) {
		take_back(iommu, mapping, 0, mapping->size - 1);
		rb_erase(&mapping->node, &iommu->mappings);
	}
	up_write(&iommu->lock);
	kvfree(mapping);
}

/**
 * vcoproc_iommu_grant() - let the process access a part of a mapping
 * @iommu: IOMMU
 * @addr: first byte
 * @size: number of bytes; the pages that contain them become accessible
 * @dir: DMA_TO_DEVICE grants read access only
 *
 * Context: may sleep.
 */
void vcoproc_iommu_grant(struct vcoproc_iommu *iommu, dma_addr_t addr, size_t size,
			 enum dma_data_direction dir)
{
	struct vcoproc_mapping *mapping;
	struct vcoproc_grant *grant;

	/* The DMA API's synchronization calls cannot report a failure */
	grant = kmalloc(sizeof(*grant), GFP_KERNEL | __GFP_NOFAIL);

	down_write(&iommu->lock);
	mapping = mapping_of(iommu, addr, size);
	if (mapping) {
		grant->first = addr - mapping->start;
		grant->last = grant->first + size - 1;
		grant->writable = dir != DMA_TO_DEVICE;
		take_back(iommu, mapping, grant->first, grant->last);
		list_add(&grant->link, &mapping->grants);
	}
	up_write(&iommu->lock);

	if (!mapping)
		kfree(grant);
}

/**
 * vcoproc_iommu_revoke() - revoke the process's access to a part
 * @iommu: IOMMU
 * @addr: first byte
 * @size: number of bytes
 *
 * Context: may sleep. A driver may have to call this before it can signal a fence,
 * so no holder of the lock allocates memory. One dependency remains: its changes of
 * page tables are told to MMU notifiers, see vcoproc_iommu_zap().
 */
void vcoproc_iommu_revoke(struct vcoproc_iommu *iommu, dma_addr_t addr, size_t size)
{
	struct vcoproc_mapping *mapping;

	down_write(&iommu->lock);
	mapping = mapping_of(iommu, addr, size);
	if (mapping)
		take_back(iommu, mapping, addr - mapping->start,
			  addr - mapping->start + size - 1);
	up_write(&iommu->lock);
}

/* -- Faults of the process -- */

static int leave_as_it_is(pte_t *pte, unsigned long addr, void *data)
{
	return 0;
}

/**
 * vcoproc_iommu_prepare() - allocate the page table that a fault inserts into
 * @vmf: the fault
 *
 * Called before the IOMMU is locked: the allocation may reclaim memory, and that
 * may wait for a fence which needs the lock, see vcoproc_iommu_revoke().
 *
 * Return: 0 or %VM_FAULT_OOM.
 */
vm_fault_t vcoproc_iommu_prepare(struct vm_fault *vmf)
{
	unsigned long addr = vmf->address & PAGE_MASK;

	if (apply_to_page_range(vmf->vma->vm_mm, addr, PAGE_SIZE, leave_as_it_is, NULL))
		return VM_FAULT_OOM;

	return 0;
}

/* Returns the grant with the most access to a page, or NULL */
static struct vcoproc_grant *grant_of_page(struct vcoproc_mapping *mapping, u64 page)
{
	struct vcoproc_grant *grant, *readable = NULL;

	list_for_each_entry(grant, &mapping->grants, link) {
		if (page < grant->first >> PAGE_SHIFT || page > grant->last >> PAGE_SHIFT)
			continue;
		if (grant->writable)
			return grant;
		readable = grant;
	}

	return readable;
}

/*
 * Inserts a page frame number and not a struct page, so that the page cannot be
 * pinned and kept after access is revoked. Protection bits without VM_SHARED are
 * those for reading.
 */
static vm_fault_t insert(struct vm_fault *vmf, struct vcoproc_mapping *mapping, u64 page,
			 bool writable)
{
	struct vm_area_struct *vma = vmf->vma;
	u64 pgoff = (mapping->start >> PAGE_SHIFT) + page;
	unsigned long addr = vma->vm_start + ((pgoff - vma->vm_pgoff) << PAGE_SHIFT);
	unsigned long flags = writable ? vma->vm_flags : vma->vm_flags & ~VM_SHARED;

	return vmf_insert_pfn_prot(vma, addr, mapping_pfn(mapping, page), vm_get_page_prot(flags));
}

/* Inserts pages of the grant near @page. After a failure the others fault by themselves. */
static void insert_around(struct vm_fault *vmf, struct vcoproc_mapping *mapping,
			  const struct vcoproc_grant *grant, u64 page)
{
	u64 base = mapping->start >> PAGE_SHIFT;
	u64 begin = vmf->vma->vm_pgoff, end = begin + vma_pages(vmf->vma);
	u64 before = (vmf->address >> PAGE_SHIFT) % VCOPROC_AROUND;
	u64 first, last, each;

	first = max3(page > before ? page - before : 0, grant->first >> PAGE_SHIFT,
		     begin > base ? begin - base : 0);
	last = min3(page - before + VCOPROC_AROUND - 1, grant->last >> PAGE_SHIFT,
		    end - base - 1);
	for (each = first; each <= last; each++)
		if (each != page &&
		    insert(vmf, mapping, each, grant->writable) != VM_FAULT_NOPAGE)
			return;
}

/**
 * vcoproc_iommu_fault() - handle an access to a page that is not mapped yet
 * @iommu: IOMMU, locked for reading
 * @vmf: the fault, at a device address, after vcoproc_iommu_prepare()
 *
 * Return: %VM_FAULT_NOPAGE after inserting the page and granted pages around it,
 * %VM_FAULT_SIGBUS if the page is not granted, %VM_FAULT_OOM.
 */
vm_fault_t vcoproc_iommu_fault(struct vcoproc_iommu *iommu, struct vm_fault *vmf)
{
	u64 addr = (u64)vmf->pgoff << PAGE_SHIFT;
	struct vcoproc_mapping *mapping = mapping_find(iommu, addr);
	struct vcoproc_grant *grant;
	vm_fault_t ret;
	u64 page;

	if (!mapping)
		return VM_FAULT_SIGBUS;

	page = (addr - mapping->start) >> PAGE_SHIFT;
	grant = grant_of_page(mapping, page);
	if (!grant || (vmf->flags & FAULT_FLAG_WRITE && !grant->writable))
		return VM_FAULT_SIGBUS;

	ret = insert(vmf, mapping, page, grant->writable);
	if (ret == VM_FAULT_NOPAGE)
		insert_around(vmf, mapping, grant, page);

	return ret;
}

/**
 * vcoproc_iommu_mkwrite() - handle a write to a page that is mapped for reading
 * @iommu: IOMMU, locked for reading
 * @vmf: the fault, at a device address
 *
 * The core would make the page table entry writable without the lock, when it may
 * belong to another, read-only grant. So the entry is removed, and the write
 * faults again.
 *
 * Return: %VM_FAULT_NOPAGE if the page is granted for writing, otherwise
 * %VM_FAULT_SIGBUS.
 */
vm_fault_t vcoproc_iommu_mkwrite(struct vcoproc_iommu *iommu, struct vm_fault *vmf)
{
	u64 addr = (u64)vmf->pgoff << PAGE_SHIFT;
	struct vcoproc_mapping *mapping = mapping_find(iommu, addr);
	struct vcoproc_grant *grant = NULL;
	u64 page = 0;

	if (mapping) {
		page = (addr - mapping->start) >> PAGE_SHIFT;
		grant = grant_of_page(mapping, page);
	}
	if (!grant || !grant->writable)
		return VM_FAULT_SIGBUS;
	zap(iommu, mapping, page << PAGE_SHIFT, page << PAGE_SHIFT);

	return VM_FAULT_NOPAGE;
}
