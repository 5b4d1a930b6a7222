// SPDX-License-Identifier: GPL-2.0
/*
 * The buffer of one direction: blocks of read() and write(), and DMABUFs
 *
 * industrialio-buffer-dma manages the blocks. This file connects it to the
 * worker and works around its faults in Linux 6.12:
 *
 * - read() in DMABUF mode dereferences a NULL pointer. Here it returns -EBUSY.
 * - read() and write() copy under the queue's lock. An enqueue takes that lock
 *   under the reservation lock, which a page fault may take. Here they copy with
 *   page faults disabled, and fault pages in without the lock.
 * - After a read() that ended between the two blocks, every read() after the next
 *   enable gets the blocks in the wrong order. Here it starts with the first one.
 * - Attaching a DMABUF drops all blocks that wait for the buffer to be enabled.
 *   Here they are put on another list meanwhile.
 * - Blocks that wait for the buffer to be enabled would wait forever once the
 *   device is gone. Here their fences are signalled with -ENODEV.
 * - A transmit block that is enqueued twice uses its first fence after it is
 *   freed, or signals the wrong one: see vconv_enqueue_dmabuf().
 * - dma_buf_vmap() of a udmabuf of huge pages maps the first small page of each
 *   huge page repeatedly. Here udmabufs are mapped by this module.
 * - Neither the file of a buffer nor a DMABUF holds a reference of the driver's
 *   module. Here a DMABUF does, and the module's exit waits for the buffers, see
 *   vconv_buffers_drain().
 */

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dma-buf.h>
#include <linux/dma-direct.h>
#include <linux/dma-fence.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/pagemap.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/swiotlb.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "vconv.h"

/* Number of buffers, with or without a device, and one for the module itself */
static atomic_t vconv_buffers = ATOMIC_INIT(1);
static DECLARE_COMPLETION(vconv_last_buffer);

/* -- Slots -- */

static struct vconv_slot *vconv_find_slot(struct vconv_dir *dir, struct iio_dma_buffer_block *block)
{
	struct vconv_slot *slot;

	lockdep_assert_held(&dir->queue.list_lock);
	hash_for_each_possible(dir->slots, slot, node, (unsigned long)block)
		if (slot->block == block)
			return slot;

	return NULL;
}

/* The blocks of read() and write() are reallocated when the buffer's length changes */
static struct vconv_slot *vconv_fileio_slot(struct vconv_dir *dir,
					    struct iio_dma_buffer_block *block)
{
	unsigned int i = block == dir->queue.fileio.blocks[1];

	lockdep_assert_held(&dir->queue.lock);
	dir->fileio[i].block = block;

	return &dir->fileio[i];
}

/* -- Callbacks of industrialio-buffer-dma -- */

static int vconv_submit(struct iio_dma_buffer_queue *queue, struct iio_dma_buffer_block *block)
{
	struct vconv_dir *dir = vconv_dir_of(&queue->buffer);
	struct vconv_slot *slot;
	size_t size = block->bytes_used;

	if (dir->gone)
		return -ENODEV;

	/* bytes_used still has the number of bytes of the previous transfer */
	if (block->fileio && !dir->tx)
		size = block->size;

	spin_lock_irq(&queue->list_lock);
	slot = block->fileio ? vconv_fileio_slot(dir, block) : vconv_find_slot(dir, block);
	slot->samples = size / dir->scan.size;
	vconv_worker_submit(dir, slot);
	spin_unlock_irq(&queue->list_lock);

	return 0;
}

static void vconv_abort(struct iio_dma_buffer_queue *queue)
{
	vconv_worker_abort(vconv_dir_of(&queue->buffer));
}

static const struct iio_dma_buffer_ops vconv_queue_ops = {
	.submit = vconv_submit,
	.abort = vconv_abort,
};

/* -- Callbacks of the IIO core: enable and disable -- */

static int vconv_place(size_t *size, size_t length, bool enabled)
{
	size_t at = ALIGN(*size, length);

	if (!enabled)
		return -1;
	*size = at + length;

	return at;
}

/* The layout of the IIO core: channels in order, each aligned to its length */
static void vconv_scan_init(struct vconv_scan *scan, const struct iio_buffer *buffer)
{
	const unsigned long *mask = (const unsigned long *)buffer->scan_mask;
	size_t size = 0;
	int i;

	scan->any_voltage = false;
	for (i = 0; i < VCONV_VOLTAGES; i++) {
		scan->voltage[i] = vconv_place(&size, sizeof(__le16), test_bit(i, mask));
		scan->any_voltage |= scan->voltage[i] >= 0;
	}
	scan->plain = size == VCONV_FRAME_SIZE;
	scan->count = vconv_place(&size, sizeof(__le64), test_bit(VCONV_COUNT, mask));
	scan->timestamp = vconv_place(&size, sizeof(__le64), buffer->scan_timestamp);
	scan->plain &= size == VCONV_FRAME_SIZE;
	scan->size = buffer->bytes_per_datum;
}

/* Two blocks of whole samples */
static int vconv_set_length(struct iio_buffer *buffer, unsigned int length)
{
	return iio_dma_buffer_set_length(buffer, rounddown(length, 2));
}

static int vconv_request_update(struct iio_buffer *buffer)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);
	size_t size;

	if (check_mul_overflow(buffer->bytes_per_datum, buffer->length, &size))
		return -ENOMEM;

	guard(mutex)(&dir->io_lock);
	mutex_lock(&dir->queue.lock);
	dir->queue.fileio.next_dequeue = 0;
	mutex_unlock(&dir->queue.lock);

	return iio_dma_buffer_request_update(buffer);
}

static int vconv_enable(struct iio_buffer *buffer, struct iio_dev *indio_dev)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);
	bool listen = !dir->tx && dir->loopback;
	int ret;

	vconv_scan_init(&dir->scan, buffer);
	/* In loopback the transmitter's clock paces both directions */
	dir->clock = listen ? 0 : dir->rate;
	vconv_worker_reset(dir);
	if (listen)
		vconv_loop_open(dir->conv);

	mutex_lock(&dir->io_lock);
	ret = iio_dma_buffer_enable(buffer, indio_dev);
	mutex_unlock(&dir->io_lock);
	vconv_worker_start(dir);

	return ret;
}

static int vconv_disable(struct iio_buffer *buffer, struct iio_dev *indio_dev)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);

	if (!dir->tx)
		vconv_loop_close(dir->conv);

	guard(mutex)(&dir->io_lock);

	return iio_dma_buffer_disable(buffer, indio_dev);
}

static void vconv_lock_queue(struct iio_buffer *buffer)
{
	mutex_lock(&vconv_dir_of(buffer)->io_lock);
	iio_dma_buffer_lock_queue(buffer);
}

static void vconv_unlock_queue(struct iio_buffer *buffer)
{
	iio_dma_buffer_unlock_queue(buffer);
	mutex_unlock(&vconv_dir_of(buffer)->io_lock);
}

/* -- read() and write() -- */

/* How often faulted-in pages may vanish before fewer bytes are copied */
#define VCONV_FAULT_TRIES	16

static int vconv_io_once(struct vconv_dir *dir, size_t n, char __user *to, const char __user *from)
{
	struct iio_buffer *buffer = &dir->queue.buffer;
	int ret;

	guard(mutex)(&dir->io_lock);
	if (!dir->queue.fileio.blocks[0] || !dir->queue.fileio.blocks[1])
		return dir->gone ? -ENODEV : -EBUSY;

	pagefault_disable();
	if (to)
		ret = iio_dma_buffer_read(buffer, n, to);
	else
		ret = iio_dma_buffer_write(buffer, n, from);
	pagefault_enable();

	return ret;
}

/*
 * Faults pages in with fault_in_safe_writeable(), because fault_in_writeable()
 * writes a zero to each page and a read() may return fewer bytes. If not all pages
 * can be faulted in, fewer whole samples are copied. Memory that is present and
 * cannot be written, such as memory with another tag (MTE of arm64), is not
 * detected that way; after some tries the number of bytes is halved.
 */
static int vconv_io(struct vconv_dir *dir, size_t n, char __user *to, const char __user *from)
{
	unsigned int tries = 0;
	size_t left;
	int ret;

	for (;;) {
		ret = vconv_io_once(dir, n, to, from);
		if (ret != -EFAULT)
			return ret;
		if (fatal_signal_pending(current))
			return -EINTR;

		/* Limited, as other threads may wait for the address space */
		n = min3(n, READ_ONCE(dir->queue.fileio.block_size),
			 max_t(size_t, SZ_64K, READ_ONCE(dir->queue.buffer.bytes_per_datum)));
		left = to ? fault_in_safe_writeable(to, n) : fault_in_readable(from, n);
		if (left)
			n -= left;
		else if (++tries > VCONV_FAULT_TRIES)
			n /= 2;
		if (n < READ_ONCE(dir->queue.buffer.bytes_per_datum))
			return -EFAULT;
		cond_resched();
	}
}

static int vconv_read(struct iio_buffer *buffer, size_t n, char __user *to)
{
	return vconv_io(vconv_dir_of(buffer), n, to, NULL);
}

static int vconv_write(struct iio_buffer *buffer, size_t n, const char __user *from)
{
	return vconv_io(vconv_dir_of(buffer), n, NULL, from);
}

/* -- DMABUFs -- */

/* Gets the pages at the DMA addresses. Return: 0, or -EINVAL if there are not @count */
static int vconv_pages_of(struct device *dev, struct sg_table *sgt, struct page **pages,
			  size_t count)
{
	struct scatterlist *sg;
	phys_addr_t phys;
	size_t n = 0, at;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		for (at = 0; at < sg_dma_len(sg); at += PAGE_SIZE) {
			if (n == count)
				return -EINVAL;
			phys = dma_to_phys(dev, sg_dma_address(sg) + at);
			pages[n++] = pfn_to_page(PHYS_PFN(phys));
		}
	}

	return n == count ? 0 : -EINVAL;
}

static int vconv_vmap_udmabuf(struct vconv_dir *dir, struct dma_buf_attachment *attach,
			      struct iosys_map *map)
{
	/* The core's direction: udmabuf caches one mapping and returns it for any direction */
	enum dma_data_direction towards = dir->tx ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	size_t count = attach->dmabuf->size >> PAGE_SHIFT;
	struct sg_table *sgt;
	struct page **pages;
	int ret;

	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;

	sgt = dma_buf_map_attachment(attach, towards);
	if (IS_ERR(sgt)) {
		ret = PTR_ERR(sgt);
		goto out_free;
	}

	ret = vconv_pages_of(attach->dev, sgt, pages, count);
	dma_buf_unmap_attachment(attach, sgt, towards);
	if (ret)
		goto out_free;

	iosys_map_set_vaddr(map, vmap(pages, count, VM_MAP, PAGE_KERNEL));
	if (iosys_map_is_null(map))
		ret = -ENOMEM;

out_free:
	kvfree(pages);
	return ret;
}

/* Called with the reservation lock held */
static int vconv_map(struct vconv_dir *dir, struct vconv_slot *slot,
		     struct dma_buf_attachment *attach)
{
	struct dma_buf *dmabuf = attach->dmabuf;
	int ret;

	slot->dmabuf = dmabuf;
	slot->is_udmabuf = !strcmp(dmabuf->exp_name, "udmabuf");
	if (slot->is_udmabuf)
		return vconv_vmap_udmabuf(dir, attach, &slot->map);

	ret = dma_buf_vmap(dmabuf, &slot->map);
	if (ret)
		return ret;
	if (slot->map.is_iomem) {
		dma_buf_vunmap(dmabuf, &slot->map);
		return -EINVAL;
	}

	return 0;
}

static void vconv_unmap(struct vconv_slot *slot)
{
	if (slot->is_udmabuf)
		vunmap(slot->map.vaddr);
	else
		dma_buf_vunmap_unlocked(slot->dmabuf, &slot->map);
}

/* Moves all DMABUF blocks that wait for the buffer to be enabled to another list */
static void vconv_put_aside(struct vconv_dir *dir, struct list_head *waiting)
{
	struct iio_dma_buffer_block *block, *next;

	guard(mutex)(&dir->queue.lock);
	list_for_each_entry_safe(block, next, &dir->queue.incoming, head)
		if (!block->fileio)
			list_move_tail(&block->head, waiting);
}

static struct iio_dma_buffer_block *vconv_new_block(struct vconv_dir *dir,
						    struct dma_buf_attachment *attach)
{
	struct iio_dma_buffer_block *block;
	LIST_HEAD(waiting);

	guard(mutex)(&dir->io_lock);
	if (dir->gone)
		return ERR_PTR(-ENODEV);

	vconv_put_aside(dir, &waiting);
	block = iio_dma_buffer_attach_dmabuf(&dir->queue.buffer, attach);
	mutex_lock(&dir->queue.lock);
	list_splice(&waiting, &dir->queue.incoming);
	mutex_unlock(&dir->queue.lock);

	return block;
}

static struct iio_dma_buffer_block *vconv_attach_dmabuf(struct iio_buffer *buffer,
							struct dma_buf_attachment *attach)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);
	struct iio_dma_buffer_block *block;
	struct vconv_slot *slot;
	int ret = -ENODEV;

	/* swiotlb would copy its bounce buffer over the samples that the worker has written */
	if (is_swiotlb_force_bounce(attach->dev))
		return ERR_PTR(-EOPNOTSUPP);
	if (!try_module_get(THIS_MODULE))
		return ERR_PTR(ret);

	slot = kzalloc(sizeof(*slot), GFP_KERNEL);
	if (!slot) {
		ret = -ENOMEM;
		goto err_module_put;
	}

	ret = vconv_map(dir, slot, attach);
	if (ret)
		goto err_free;

	block = vconv_new_block(dir, attach);
	if (IS_ERR(block)) {
		ret = PTR_ERR(block);
		goto err_unmap;
	}

	block->vaddr = slot->map.vaddr;
	slot->block = block;
	spin_lock_irq(&dir->queue.list_lock);
	hash_add(dir->slots, &slot->node, (unsigned long)block);
	spin_unlock_irq(&dir->queue.list_lock);

	return block;

err_unmap:
	if (slot->is_udmabuf)
		vunmap(slot->map.vaddr);
	else
		dma_buf_vunmap(attach->dmabuf, &slot->map);
err_free:
	kfree(slot);
err_module_put:
	module_put(THIS_MODULE);
	return ERR_PTR(ret);
}

/* The core calls this once the block is not queued any more */
static void vconv_detach_dmabuf(struct iio_buffer *buffer, struct iio_dma_buffer_block *block)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);
	struct vconv_slot *slot;

	spin_lock_irq(&dir->queue.list_lock);
	slot = vconv_find_slot(dir, block);
	hash_del(&slot->node);
	spin_unlock_irq(&dir->queue.list_lock);

	vconv_unmap(slot);
	dma_fence_put(slot->fence);
	kfree(slot);
	/* The block still holds the buffer, and the module's exit waits for that */
	module_put(THIS_MODULE);
	iio_dma_buffer_detach_dmabuf(buffer, block);
}

/*
 * In the core only the reservation object holds a reference of a block's fence. It
 * drops that when the block is enqueued again, which the core does not prevent for
 * a transmitter. A block is also marked as free shortly before its fence is
 * signalled. So the slot holds a reference, and a block whose fence is not
 * signalled is refused.
 */
static int vconv_enqueue_dmabuf(struct iio_buffer *buffer, struct iio_dma_buffer_block *block,
				struct dma_fence *fence, struct sg_table *sgt, size_t size,
				bool cyclic)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);
	struct vconv_slot *slot;
	struct dma_fence *last;
	int ret;

	if (dir->gone)
		return -ENODEV;

	spin_lock_irq(&dir->queue.list_lock);
	slot = vconv_find_slot(dir, block);
	spin_unlock_irq(&dir->queue.list_lock);

	last = slot->fence;
	if (last && !dma_fence_is_signaled(last))
		return block->state == IIO_BLOCK_STATE_QUEUED ? -EPERM : -EBUSY;

	slot->fence = dma_fence_get(fence);
	ret = iio_dma_buffer_enqueue_dmabuf(buffer, block, fence, sgt, size, cyclic);
	if (ret) {
		/* The new fence is not signalled, so the slot still exists */
		slot->fence = last;
		dma_fence_put(fence);
		return ret;
	}
	dma_fence_put(last);

	return 0;
}

/* -- Lifetime -- */

/* Completes the module's exit, so the caller must not sleep afterwards */
static void vconv_put_buffer_count(void)
{
	if (atomic_dec_and_test(&vconv_buffers))
		complete(&vconv_last_buffer);
}

static void vconv_release(struct iio_buffer *buffer)
{
	struct vconv_dir *dir = vconv_dir_of(buffer);

	iio_dma_buffer_release(&dir->queue);
	put_device(dir->queue.dev);
	mutex_destroy(&dir->io_lock);
	kfree(dir);
	vconv_put_buffer_count();
}

static const struct iio_buffer_access_funcs vconv_access = {
	.read = vconv_read,
	.write = vconv_write,
	.data_available = iio_dma_buffer_usage,
	.space_available = iio_dma_buffer_usage,
	.request_update = vconv_request_update,
	.set_bytes_per_datum = iio_dma_buffer_set_bytes_per_datum,
	.set_length = vconv_set_length,
	.enable = vconv_enable,
	.disable = vconv_disable,
	.release = vconv_release,
	.attach_dmabuf = vconv_attach_dmabuf,
	.detach_dmabuf = vconv_detach_dmabuf,
	.enqueue_dmabuf = vconv_enqueue_dmabuf,
	.get_dma_dev = iio_dma_buffer_get_dma_dev,
	.lock_queue = vconv_lock_queue,
	.unlock_queue = vconv_unlock_queue,
	.modes = INDIO_BUFFER_HARDWARE,
	.flags = INDIO_BUFFER_FLAG_FIXED_WATERMARK,
};

/**
 * vconv_buffer_create() - create a direction with its buffer
 * @dev: the device that blocks are mapped for
 * @tx: the direction is the transmitter
 *
 * Return: the direction, with a reference that iio_buffer_put() drops, or NULL.
 */
struct vconv_dir *vconv_buffer_create(struct device *dev, bool tx)
{
	struct vconv_dir *dir;

	dir = kzalloc(sizeof(*dir), GFP_KERNEL);
	if (!dir)
		return NULL;

	dir->tx = tx;
	mutex_init(&dir->io_lock);
	hash_init(dir->slots);
	/* With a reference, as DMABUFs can stay mapped after the converter is gone */
	iio_dma_buffer_init(&dir->queue, get_device(dev), &vconv_queue_ops);
	dir->queue.buffer.access = &vconv_access;
	dir->queue.buffer.direction = tx ? IIO_BUFFER_DIRECTION_OUT : IIO_BUFFER_DIRECTION_IN;
	atomic_inc(&vconv_buffers);

	return dir;
}

/**
 * vconv_buffer_cut_off() - end all queued blocks and refuse new ones
 * @dir: the direction; its device is unregistered
 */
void vconv_buffer_cut_off(struct vconv_dir *dir)
{
	struct iio_buffer *buffer = &dir->queue.buffer;

	guard(mutex)(&dir->io_lock);
	mutex_lock(&dir->queue.lock);
	dir->gone = true;
	mutex_unlock(&dir->queue.lock);

	/* Submits the blocks that wait for this; vconv_submit() returns -ENODEV for each */
	iio_dma_buffer_enable(buffer, dir->indio_dev);
	iio_dma_buffer_disable(buffer, dir->indio_dev);
	iio_dma_buffer_exit(&dir->queue);
}

/**
 * vconv_buffers_drain() - wait until no file uses this module
 *
 * The IIO core calls functions of this module to release a buffer and to detach a
 * DMABUF, without a reference of the module until they return. Therefore this
 * function also waits for tasks that were preempted at the end of such a function.
 * None sleeps there.
 */
void vconv_buffers_drain(void)
{
	int left = atomic_read(&vconv_buffers) - 1;

	if (left)
		pr_info("vconv: waiting until the files of %d buffers are closed\n", left);
	vconv_put_buffer_count();
	wait_for_completion(&vconv_last_buffer);
	synchronize_rcu_tasks();
}
