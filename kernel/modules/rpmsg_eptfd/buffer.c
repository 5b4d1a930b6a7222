// SPDX-License-Identifier: GPL-2.0
/*
 * DMABUFs that are mapped for the remote.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/err.h>
#include <linux/iommu-dma.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "eptfd.h"
#include "share.h"

/**
 * eptfd_resv_lock() - lock the reservation of a DMABUF
 * @resv: reservation
 * @block: wait for the lock
 *
 * Return: 0, -EBUSY if it is locked and @block is false, -ERESTARTSYS.
 */
int eptfd_resv_lock(struct dma_resv *resv, bool block)
{
	int ret;

	if (!block)
		return dma_resv_trylock(resv) ? 0 : -EBUSY;

	ret = dma_resv_lock_interruptible(resv, NULL);

	return ret == -EINTR ? -ERESTARTSYS : ret;
}

typedef void sync_fn(struct device *dev, dma_addr_t addr, size_t size,
		     enum dma_data_direction dir);

/*
 * An entry that the system's IOMMU has merged is contiguous only in the device's
 * address space, so it is synced by IOMMU page. Those pages can be smaller than
 * PAGE_SIZE.
 */
static size_t sync_step(struct device *dev, dma_addr_t addr, size_t size)
{
	const size_t page = min(PAGE_SIZE, SZ_4K);

	if (!use_dma_iommu(dev))
		return size;

	return min_t(size_t, size, page - (addr & (page - 1)));
}

static void sync_entry(struct device *dev, dma_addr_t addr, size_t size,
		       enum dma_data_direction dir, sync_fn *sync)
{
	size_t step;

	for (; size; size -= step, addr += step) {
		step = sync_step(dev, addr, size);
		sync(dev, addr, step, dir);
	}
}

/*
 * Syncs entry by entry, as the entries were mapped: adjacent DMA addresses can
 * belong to memory that is not adjacent, such as slots of swiotlb.
 */
static void transfer_sync(struct eptfd_transfer *t, sync_fn *sync)
{
	struct eptfd_buffer *buffer = t->buffer;
	u64 first = buffer->addr + t->offset;
	u64 end = first + t->length;
	struct scatterlist *sg;
	u64 from, to;
	int i;

	if (!dma_dev_need_sync(buffer->attach->dev))
		return;

	for_each_sgtable_dma_sg(buffer->sgt, sg, i) {
		from = max_t(u64, first, sg_dma_address(sg));
		to = min_t(u64, end, (u64)sg_dma_address(sg) + sg_dma_len(sg));
		if (from < to)
			sync_entry(buffer->attach->dev, from, to - from, t->dir, sync);
	}
}

/**
 * eptfd_buffer_sync_for_device() - give the remote access to a part
 * @t: the part
 */
void eptfd_buffer_sync_for_device(struct eptfd_transfer *t)
{
	transfer_sync(t, dma_sync_single_for_device);
}

/**
 * eptfd_buffer_sync_for_cpu() - give the CPU access to a part
 * @t: the part
 */
void eptfd_buffer_sync_for_cpu(struct eptfd_transfer *t)
{
	transfer_sync(t, dma_sync_single_for_cpu);
}

/*
 * The remote gets one address and one length, so segments have no maximum. The
 * DMA API defaults to 64 KiB unless a driver says otherwise, and no driver does
 * for the device of an rpmsg bus.
 */
static void allow_long_pieces(struct device *dev)
{
	if (dev->dma_parms && !dev->dma_parms->max_segment_size)
		dma_set_max_seg_size(dev, UINT_MAX);
}

/* The remote gets a single address, so the mapping has to be contiguous */
static int buffer_check(struct eptfd_buffer *buffer)
{
	dma_addr_t end = sg_dma_address(buffer->sgt->sgl);
	struct scatterlist *sg;
	int i;

	buffer->addr = end;
	for_each_sgtable_dma_sg(buffer->sgt, sg, i) {
		if (sg_dma_address(sg) != end)
			return -EOPNOTSUPP;
		end += sg_dma_len(sg);
	}

	return end - buffer->addr < buffer->dmabuf->size ? -EOPNOTSUPP : 0;
}

static int buffer_map(struct eptfd_buffer *buffer, bool block)
{
	struct dma_resv *resv = buffer->dmabuf->resv;
	int ret;

	ret = eptfd_resv_lock(resv, block);
	if (ret)
		return ret;

	buffer->sgt = dma_buf_map_attachment(buffer->attach, DMA_BIDIRECTIONAL);
	if (IS_ERR(buffer->sgt)) {
		ret = PTR_ERR(buffer->sgt);
		goto unlock;
	}

	ret = buffer_check(buffer);
	if (ret)
		dma_buf_unmap_attachment(buffer->attach, buffer->sgt, DMA_BIDIRECTIONAL);

unlock:
	dma_resv_unlock(resv);

	return ret;
}

static void buffer_free(struct eptfd_buffer *buffer)
{
	struct dma_buf *dmabuf = buffer->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	eptfd_fence_forget(dmabuf->resv);
	dma_buf_unmap_attachment(buffer->attach, buffer->sgt, DMA_BIDIRECTIONAL);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, buffer->attach);
	dma_buf_put(dmabuf);
	eptfd_share_put(buffer->share);
	kfree(buffer);
}

static void buffer_work(struct work_struct *work)
{
	buffer_free(container_of(work, struct eptfd_buffer, work));
}

/**
 * eptfd_buffer_create() - attach and map a DMABUF
 * @share: owner of the new buffer; the caller is one of its users
 * @dmabuf: the DMABUF
 * @dev: the DMA device
 * @block: wait for the lock of the reservation
 *
 * Return: a buffer that is not on the share's list, or an ERR_PTR().
 */
struct eptfd_buffer *eptfd_buffer_create(struct eptfd_share *share, struct dma_buf *dmabuf,
					 struct device *dev, bool block)
{
	struct eptfd_buffer *buffer;
	int ret;

	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return ERR_PTR(-ENOMEM);

	kref_init(&buffer->ref);
	INIT_LIST_HEAD(&buffer->link);
	INIT_WORK(&buffer->work, buffer_work);
	buffer->share = share;
	buffer->dmabuf = dmabuf;
	allow_long_pieces(dev);
	buffer->attach = dma_buf_attach(dmabuf, dev);
	if (IS_ERR(buffer->attach)) {
		ret = PTR_ERR(buffer->attach);
		goto free;
	}

	ret = buffer_map(buffer, block);
	if (ret)
		goto detach;

	get_dma_buf(dmabuf);
	eptfd_share_get_another(share);

	return buffer;

detach:
	dma_buf_detach(dmabuf, buffer->attach);
free:
	kfree(buffer);

	return ERR_PTR(ret);
}

static void buffer_release(struct kref *ref)
{
	buffer_free(container_of(ref, struct eptfd_buffer, ref));
}

static void buffer_release_later(struct kref *ref)
{
	struct eptfd_buffer *buffer = container_of(ref, struct eptfd_buffer, ref);

	queue_work(eptfd_close_wq, &buffer->work);
}

/**
 * eptfd_buffer_put() - drop a reference; the last one unmaps the buffer
 * @buffer: the buffer
 */
void eptfd_buffer_put(struct eptfd_buffer *buffer)
{
	kref_put(&buffer->ref, buffer_release);
}

/**
 * eptfd_buffer_put_later() - drop a reference without waiting
 * @buffer: the buffer; a work item unmaps it if this was the last reference
 *
 * Unmapping takes the lock of the reservation. The holder of that lock may be
 * waiting for a fence that the caller has yet to signal.
 */
void eptfd_buffer_put_later(struct eptfd_buffer *buffer)
{
	kref_put(&buffer->ref, buffer_release_later);
}

/**
 * eptfd_share_find() - find an attached buffer
 * @share: the share, its setup lock held
 * @dmabuf: the DMABUF
 *
 * Return: the buffer or NULL.
 */
struct eptfd_buffer *eptfd_share_find(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	list_for_each_entry(buffer, &share->buffers, link)
		if (buffer->dmabuf == dmabuf)
			return buffer;

	return NULL;
}

/**
 * eptfd_share_add() - list an attached buffer
 * @share: the share
 * @buffer: the buffer; on success the list takes over the caller's reference
 *
 * Return: 0, -EBUSY if the DMABUF is on the list already, -EPIPE after the end.
 */
int eptfd_share_add(struct eptfd_share *share, struct eptfd_buffer *buffer)
{
	int ret = 0;

	mutex_lock(&share->setup);
	if (READ_ONCE(share->ended))
		ret = -EPIPE;
	else if (eptfd_share_find(share, buffer->dmabuf))
		ret = -EBUSY;
	else
		list_add(&buffer->link, &share->buffers);
	mutex_unlock(&share->setup);

	return ret;
}

/**
 * eptfd_share_remove() - take a buffer off the list
 * @share: the share
 * @dmabuf: the DMABUF
 *
 * Return: the buffer, with the list's reference, or NULL.
 */
struct eptfd_buffer *eptfd_share_remove(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	mutex_lock(&share->setup);
	buffer = eptfd_share_find(share, dmabuf);
	if (buffer)
		list_del_init(&buffer->link);
	mutex_unlock(&share->setup);

	return buffer;
}

/**
 * eptfd_share_remove_all() - detach all buffers
 * @share: the share
 * @put: eptfd_buffer_put() or eptfd_buffer_put_later()
 */
void eptfd_share_remove_all(struct eptfd_share *share, void (*put)(struct eptfd_buffer *buffer))
{
	struct eptfd_buffer *buffer, *next;
	LIST_HEAD(buffers);

	mutex_lock(&share->setup);
	list_splice_init(&share->buffers, &buffers);
	mutex_unlock(&share->setup);

	list_for_each_entry_safe(buffer, next, &buffers, link) {
		list_del_init(&buffer->link);
		put(buffer);
	}
}

MODULE_INFO(import_ns, "DMA_BUF");
