// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers that change hands: DMABUFs of which an endpoint sends parts without
 * sending their bytes.
 *
 * The calls and their rules are those of IIO's DMABUF interface
 * (drivers/iio/industrialio-buffer.c): a buffer is attached once, parts of it
 * are sent often, each send is a fence on the buffer.
 *
 * A part is the remote's from the message GIVEN until the message DONE with the
 * same cookie. What keeps what alive meanwhile:
 *
 *	struct eptfd_transfer	from the send until the part is back. It is the
 *				fence too, and as such stays as long as somebody
 *				looks at that, holding a reference of the module.
 *	struct eptfd_buffer	from the attach until the detach and the end of
 *				all its transfers.
 *	struct eptfd_share	as long as the endpoint. It counts its users, which
 *				are transfers, buffers, and calls that are under
 *				way. The end of an endpoint waits until there is
 *				none. A file that is closed while there are some
 *				leaves the endpoint to the last of them.
 */
#include <linux/dma-buf.h>
#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/iommu-dma.h>
#include <linux/kref.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include <linux/rpmsg_bulk.h>
#include <linux/rpmsg_eptfd.h>

#include "eptfd.h"

/* Parts of one endpoint that the remote can have at a time */
#define EPTFD_TRANSFERS_MAX	1024

/**
 * struct eptfd_share - what an endpoint shares with the remote
 * @ep: the endpoint
 * @lock: protects the members up to @idle; taken in callbacks
 * @transfers: parts that the remote has, or will have in a moment
 * @count: number of @transfers
 * @users: see above
 * @ended: nothing is shared any more
 * @closed: finishes an endpoint whose file was closed while there were users
 * @closing: calls @closed; the last user may hold a lock that it takes
 * @idle: where the end waits for @users
 * @setup: protects @buffers
 * @buffers: attached buffers
 */
struct eptfd_share {
	struct eptfd_ep *ep;
	spinlock_t lock;	/* see above */
	struct list_head transfers;
	unsigned int count;
	unsigned int users;
	bool ended;
	void (*closed)(struct eptfd_ep *ep);
	struct work_struct closing;
	wait_queue_head_t idle;
	struct mutex setup;	/* buffers */
	struct list_head buffers;
};

/**
 * struct eptfd_buffer - a DMABUF that is mapped for the remote
 * @ref: of the list and of each transfer
 * @share: whose buffer it is
 * @link: in eptfd_share.buffers; empty once detached
 * @dmabuf: the buffer
 * @attach: that it is attached
 * @sgt: how it is mapped
 * @addr: where it begins for the remote
 */
struct eptfd_buffer {
	struct kref ref;
	struct eptfd_share *share;
	struct list_head link;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	dma_addr_t addr;
};

/**
 * struct eptfd_transfer - a part of a buffer that the remote has
 * @fence: signalled when it is back; first, because it is freed as one. Of a
 *	context of its own, because the remote gives back in any order.
 * @lock: of @fence
 * @share: whose part it is
 * @buffer: a reference
 * @link: in eptfd_share.transfers; empty once somebody finishes the transfer
 * @work: finishes it
 * @cookie: its name
 * @offset: first byte
 * @length: bytes
 * @dir: who writes
 * @armed: the message may be on its way
 * @answered: the remote has given it back
 * @error: what the fence will say
 * @message: what the remote is told, and afterwards the reader
 * @name: of the endpoint, which the fence can outlive
 */
struct eptfd_transfer {
	struct dma_fence fence;
	spinlock_t lock;	/* of fence */
	struct eptfd_share *share;
	struct eptfd_buffer *buffer;
	struct list_head link;
	struct work_struct work;
	u64 cookie;
	u64 offset;
	u64 length;
	enum dma_data_direction dir;
	bool armed;
	bool answered;
	int error;
	struct rpmsg_dmabuf_message message;
	char name[RPMSG_NAME_SIZE];
};

/* Finishes transfers. Callbacks may not sleep; to take access away may. */
static struct workqueue_struct *share_wq;

/* One count for all endpoints: the next one at an address gets no answers to the last one */
static atomic64_t share_cookie = ATOMIC64_INIT(0);

/* -- Users of a share -- */

static bool share_get(struct eptfd_share *share)
{
	bool alive;

	spin_lock_irq(&share->lock);
	alive = !share->ended;
	if (alive)
		share->users++;
	spin_unlock_irq(&share->lock);

	return alive;
}

/* With a user already there */
static void share_get_another(struct eptfd_share *share)
{
	spin_lock_irq(&share->lock);
	share->users++;
	spin_unlock_irq(&share->lock);
}

/* The share may be gone afterwards */
static void share_put(struct eptfd_share *share)
{
	spin_lock_irq(&share->lock);
	if (!--share->users) {
		if (share->closed)
			queue_work(share_wq, &share->closing);
		wake_up_all(&share->idle);
	}
	spin_unlock_irq(&share->lock);
}

static void share_closing(struct work_struct *work)
{
	struct eptfd_share *share = container_of(work, struct eptfd_share, closing);
	void (*closed)(struct eptfd_ep *ep) = share->closed;

	share->closed = NULL;
	closed(share->ep);
	/* The module waits for works */
	module_put(THIS_MODULE);
}

static struct eptfd_share *share_alloc(struct eptfd_ep *ep)
{
	struct eptfd_share *share;

	share = kzalloc(sizeof(*share), GFP_KERNEL_ACCOUNT);
	if (!share)
		return NULL;

	share->ep = ep;
	spin_lock_init(&share->lock);
	INIT_LIST_HEAD(&share->transfers);
	INIT_WORK(&share->closing, share_closing);
	init_waitqueue_head(&share->idle);
	mutex_init(&share->setup);
	INIT_LIST_HEAD(&share->buffers);

	return share;
}

/* The share of an endpoint, made when it is first wanted */
static struct eptfd_share *share_of(struct eptfd_ep *ep)
{
	struct eptfd_share *share = eptfd_ep_share(ep), *other;

	if (share)
		return share;

	share = share_alloc(ep);
	if (!share)
		return NULL;

	other = cmpxchg(&ep->share, NULL, share);
	if (!other)
		return share;

	kfree(share);

	return other;
}

/* The share, which an endpoint without any buffer does not have */
static struct eptfd_share *share_enter(struct eptfd_ep *ep)
{
	struct eptfd_share *share = eptfd_ep_share(ep);

	if (!share)
		return ERR_PTR(eptfd_queue_ended(&ep->queue) ? -EPIPE : -EPERM);

	return share_get(share) ? share : ERR_PTR(-EPIPE);
}

/* -- Fences -- */

static const char *fence_driver_name(struct dma_fence *fence)
{
	return KBUILD_MODNAME;
}

static const char *fence_timeline_name(struct dma_fence *fence)
{
	return container_of(fence, struct eptfd_transfer, fence)->name;
}

static void fence_release(struct dma_fence *fence)
{
	dma_fence_free(fence);
	/* Unloading waits until nobody runs what follows, see eptfd_dmabuf_exit() */
	module_put(THIS_MODULE);
}

static const struct dma_fence_ops fence_ops = {
	.get_driver_name = fence_driver_name,
	.get_timeline_name = fence_timeline_name,
	.release = fence_release,
};

static bool fence_is_of(struct dma_fence *fence, struct eptfd_share *share)
{
	return fence->ops == &fence_ops &&
	       container_of(fence, struct eptfd_transfer, fence)->share == share;
}

/*
 * A buffer keeps signalled fences until it needs their room. It can live much
 * longer than the endpoint, and shall not keep the module.
 */
static void fence_forget(struct dma_resv *resv)
{
	struct dma_fence *fence, *stub = dma_fence_get_stub();
	struct dma_resv_iter cursor;

	dma_resv_for_each_fence(&cursor, resv, DMA_RESV_USAGE_BOOKKEEP, fence)
		if (fence->ops == &fence_ops && dma_fence_is_signaled(fence))
			dma_resv_replace_fences(resv, fence->context, stub,
						DMA_RESV_USAGE_BOOKKEEP);
	dma_fence_put(stub);
}

static int resv_lock(struct dma_resv *resv, bool block)
{
	int ret;

	if (!block)
		return dma_resv_trylock(resv) ? 0 : -EBUSY;

	ret = dma_resv_lock_interruptible(resv, NULL);

	return ret == -EINTR ? -ERESTARTSYS : ret;
}

/* -- Buffers -- */

/*
 * The DMA API synchronizes what is contiguous in memory. Behind an IOMMU of the
 * system's that is no more than a page.
 */
static size_t sync_step(struct device *dev, dma_addr_t addr, size_t size)
{
	if (!use_dma_iommu(dev))
		return size;

	return min_t(size_t, size, PAGE_SIZE - offset_in_page(addr));
}

static void buffer_sync_for_device(struct eptfd_transfer *t)
{
	struct device *dev = t->buffer->attach->dev;
	dma_addr_t addr = t->buffer->addr + t->offset;
	size_t left = t->length, step;

	for (; left && dma_dev_need_sync(dev); left -= step, addr += step) {
		step = sync_step(dev, addr, left);
		dma_sync_single_for_device(dev, addr, step, t->dir);
	}
}

static void buffer_sync_for_cpu(struct eptfd_transfer *t)
{
	struct device *dev = t->buffer->attach->dev;
	dma_addr_t addr = t->buffer->addr + t->offset;
	size_t left = t->length, step;

	for (; left && dma_dev_need_sync(dev); left -= step, addr += step) {
		step = sync_step(dev, addr, left);
		dma_sync_single_for_cpu(dev, addr, step, t->dir);
	}
}

/* The remote is told one address */
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

	ret = resv_lock(resv, block);
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

static struct eptfd_buffer *buffer_create(struct eptfd_share *share, struct dma_buf *dmabuf,
					  struct device *dev, bool block)
{
	struct eptfd_buffer *buffer;
	int ret;

	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return ERR_PTR(-ENOMEM);

	kref_init(&buffer->ref);
	INIT_LIST_HEAD(&buffer->link);
	buffer->share = share;
	buffer->dmabuf = dmabuf;
	buffer->attach = dma_buf_attach(dmabuf, dev);
	if (IS_ERR(buffer->attach)) {
		ret = PTR_ERR(buffer->attach);
		goto free;
	}

	ret = buffer_map(buffer, block);
	if (ret)
		goto detach;

	get_dma_buf(dmabuf);
	share_get_another(share);

	return buffer;

detach:
	dma_buf_detach(dmabuf, buffer->attach);
free:
	kfree(buffer);

	return ERR_PTR(ret);
}

static void buffer_release(struct kref *ref)
{
	struct eptfd_buffer *buffer = container_of(ref, struct eptfd_buffer, ref);
	struct dma_buf *dmabuf = buffer->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	fence_forget(dmabuf->resv);
	dma_buf_unmap_attachment(buffer->attach, buffer->sgt, DMA_BIDIRECTIONAL);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, buffer->attach);
	dma_buf_put(dmabuf);
	share_put(buffer->share);
	kfree(buffer);
}

static void buffer_put(struct eptfd_buffer *buffer)
{
	kref_put(&buffer->ref, buffer_release);
}

/* With the setup lock held */
static struct eptfd_buffer *share_find(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	list_for_each_entry(buffer, &share->buffers, link)
		if (buffer->dmabuf == dmabuf)
			return buffer;

	return NULL;
}

/* The list takes over the reference if it succeeds */
static int share_add(struct eptfd_share *share, struct eptfd_buffer *buffer)
{
	int ret = 0;

	mutex_lock(&share->setup);
	if (READ_ONCE(share->ended))
		ret = -EPIPE;
	else if (share_find(share, buffer->dmabuf))
		ret = -EBUSY;
	else
		list_add(&buffer->link, &share->buffers);
	mutex_unlock(&share->setup);

	return ret;
}

/* The buffer with the list's reference, or NULL */
static struct eptfd_buffer *share_remove(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	mutex_lock(&share->setup);
	buffer = share_find(share, dmabuf);
	if (buffer)
		list_del_init(&buffer->link);
	mutex_unlock(&share->setup);

	return buffer;
}

static void share_remove_all(struct eptfd_share *share)
{
	struct eptfd_buffer *buffer, *next;
	LIST_HEAD(buffers);

	mutex_lock(&share->setup);
	list_splice_init(&share->buffers, &buffers);
	mutex_unlock(&share->setup);

	list_for_each_entry_safe(buffer, next, &buffers, link) {
		list_del_init(&buffer->link);
		buffer_put(buffer);
	}
}

/* -- Transfers -- */

static void transfer_work(struct work_struct *work);

/* Takes over the reference of @buffer if it succeeds */
static struct eptfd_transfer *transfer_create(struct eptfd_share *share,
					      struct eptfd_buffer *buffer,
					      const struct rpmsg_dmabuf *part)
{
	struct eptfd_transfer *t;

	t = kzalloc(sizeof(*t), GFP_KERNEL_ACCOUNT);
	if (!t)
		return NULL;

	t->share = share;
	t->buffer = buffer;
	INIT_LIST_HEAD(&t->link);
	INIT_WORK(&t->work, transfer_work);
	t->cookie = part->cookie;
	t->offset = part->offset;
	t->length = part->length;
	t->dir = part->flags == RPMSG_DMABUF_TO_REMOTE ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	t->message.magic = cpu_to_le32(RPMSG_DMABUF_MAGIC);
	t->message.type = cpu_to_le16(RPMSG_DMABUF_GIVEN);
	t->message.direction = cpu_to_le16(part->flags);
	t->message.cookie = cpu_to_le64(part->cookie);
	t->message.address = cpu_to_le64(buffer->addr);
	t->message.offset = cpu_to_le64(part->offset);
	t->message.length = cpu_to_le64(part->length);
	strscpy(t->name, share->ep->chinfo.name);

	/* The caller has a file of the module open */
	__module_get(THIS_MODULE);
	spin_lock_init(&t->lock);
	dma_fence_init(&t->fence, &fence_ops, &t->lock, dma_fence_context_alloc(1), 1);

	return t;
}

static bool transfer_overlaps(const struct eptfd_transfer *a, const struct eptfd_transfer *b)
{
	return a->buffer->dmabuf == b->buffer->dmabuf &&
	       a->offset < b->offset + b->length && b->offset < a->offset + a->length;
}

/* With the lock of the share held */
static int share_check(struct eptfd_share *share, const struct eptfd_transfer *t)
{
	struct eptfd_transfer *other;

	if (share->ended)
		return -EPIPE;

	list_for_each_entry(other, &share->transfers, link)
		if (transfer_overlaps(t, other))
			return -EBUSY;

	return share->count < EPTFD_TRANSFERS_MAX ? 0 : -EAGAIN;
}

/* From here on the transfer has to be finished */
static int transfer_list(struct eptfd_transfer *t)
{
	struct eptfd_share *share = t->share;
	int ret;

	spin_lock_irq(&share->lock);
	ret = share_check(share, t);
	if (!ret) {
		dma_fence_get(&t->fence);
		list_add_tail(&t->link, &share->transfers);
		share->count++;
		share->users++;
	}
	spin_unlock_irq(&share->lock);

	return ret;
}

/* From here on the remote can give it back, and the end of the endpoint does */
static int transfer_arm(struct eptfd_transfer *t)
{
	struct eptfd_share *share = t->share;
	int ret;

	spin_lock_irq(&share->lock);
	ret = share->ended ? -EPIPE : 0;
	t->armed = !ret;
	spin_unlock_irq(&share->lock);

	return ret;
}

/* With the lock of the share held. Whoever takes a transfer finishes it. */
static void transfer_take(struct eptfd_transfer *t)
{
	list_del_init(&t->link);
	t->share->count--;
}

static bool transfer_take_unless_taken(struct eptfd_transfer *t)
{
	struct eptfd_share *share = t->share;
	bool taken;

	spin_lock_irq(&share->lock);
	taken = !list_empty(&t->link);
	if (taken)
		transfer_take(t);
	spin_unlock_irq(&share->lock);

	return taken;
}

/*
 * The part is the CPU's again. Nothing before the signal waits for a lock of
 * the buffer: somebody may hold that and wait for the signal.
 */
static void transfer_finish(struct eptfd_transfer *t)
{
	struct eptfd_ep *ep = t->share->ep;

	buffer_sync_for_cpu(t);
	if (t->error)
		dma_fence_set_error(&t->fence, t->error);
	dma_fence_signal(&t->fence);

	if (t->answered)
		eptfd_queue_push(&ep->queue, &t->message, sizeof(t->message));
	wake_up_interruptible_poll(&ep->wait, EPOLLIN | EPOLLRDNORM);

	buffer_put(t->buffer);
	share_put(t->share);
	dma_fence_put(&t->fence);
}

static void transfer_work(struct work_struct *work)
{
	transfer_finish(container_of(work, struct eptfd_transfer, work));
}

/* -- Sending -- */

/* With the reservation locked. A fence that the part has to wait for, or NULL */
static struct dma_fence *transfer_obstacle(struct eptfd_transfer *t)
{
	bool write = t->dir == DMA_FROM_DEVICE;
	struct dma_resv_iter cursor;
	struct dma_fence *fence;

	/* Parts of this endpoint are compared byte by byte instead */
	dma_resv_for_each_fence(&cursor, t->buffer->dmabuf->resv, dma_resv_usage_rw(write), fence)
		if (!fence_is_of(fence, t->share) && !dma_fence_is_signaled(fence))
			return dma_fence_get(fence);

	return NULL;
}

/* With the reservation locked */
static int transfer_publish(struct eptfd_transfer *t)
{
	struct dma_resv *resv = t->buffer->dmabuf->resv;
	int ret;

	ret = dma_resv_reserve_fences(resv, 1);
	if (ret)
		return ret;

	ret = transfer_list(t);
	if (ret)
		return ret;

	dma_resv_add_fence(resv, &t->fence, t->dir == DMA_FROM_DEVICE ?
			   DMA_RESV_USAGE_WRITE : DMA_RESV_USAGE_READ);

	return 0;
}

struct obstacle_cb {
	struct dma_fence_cb base;
	wait_queue_head_t *wait;
};

static void obstacle_gone(struct dma_fence *fence, struct dma_fence_cb *base)
{
	wake_up_interruptible_all(container_of(base, struct obstacle_cb, base)->wait);
}

/* The waiting calls for fences do not end with the endpoint */
static int share_wait_fence(struct eptfd_share *share, struct dma_fence *fence)
{
	struct obstacle_cb cb = { .wait = &share->ep->wait };
	int ret;

	ret = dma_fence_add_callback(fence, &cb.base, obstacle_gone);
	if (ret)
		return ret == -ENOENT ? 0 : ret;

	ret = wait_event_interruptible(share->ep->wait, dma_fence_is_signaled(fence) ||
				       READ_ONCE(share->ended));
	dma_fence_remove_callback(fence, &cb.base);

	return ret;
}

static int share_wait_room(struct eptfd_share *share)
{
	return wait_event_interruptible(share->ep->wait,
					READ_ONCE(share->count) < EPTFD_TRANSFERS_MAX ||
					READ_ONCE(share->ended));
}

static int share_wait(struct eptfd_share *share, struct dma_fence *obstacle)
{
	int ret;

	ret = obstacle ? share_wait_fence(share, obstacle) : share_wait_room(share);
	if (!ret && READ_ONCE(share->ended))
		ret = -EPIPE;

	return ret;
}

/* Return: -EBUSY if @obstacle is in the way, -EAGAIN if there are too many parts */
static int transfer_try_start(struct eptfd_transfer *t, bool block, struct dma_fence **obstacle)
{
	struct dma_resv *resv = t->buffer->dmabuf->resv;
	int ret;

	*obstacle = NULL;
	ret = resv_lock(resv, block);
	if (ret)
		return ret;

	*obstacle = transfer_obstacle(t);
	ret = *obstacle ? -EBUSY : transfer_publish(t);
	dma_resv_unlock(resv);

	return ret;
}

static int transfer_start(struct eptfd_transfer *t, bool block)
{
	struct dma_fence *obstacle;
	int ret;

	for (;;) {
		ret = transfer_try_start(t, block, &obstacle);
		if (block && (obstacle || ret == -EAGAIN))
			ret = share_wait(t->share, obstacle) ?: -EAGAIN;
		else if (ret == -EAGAIN)
			eptfd_ep_mark_full(t->share->ep);
		dma_fence_put(obstacle);
		if (!block || ret != -EAGAIN)
			return ret;
	}
}

/* The transfer is the remote's, or finished if this fails */
static int transfer_send(struct eptfd_transfer *t, bool block)
{
	struct rpmsg_dmabuf_message message = t->message;
	int ret;

	buffer_sync_for_device(t);
	ret = transfer_arm(t);
	if (!ret)
		ret = eptfd_ep_send(t->share->ep, &message, sizeof(message), false, block);
	if (ret && transfer_take_unless_taken(t)) {
		t->error = -ECANCELED;
		transfer_finish(t);
	}

	return ret;
}

/* Takes over the reference of @buffer */
static int share_send_part(struct eptfd_share *share, struct eptfd_buffer *buffer,
			   const struct rpmsg_dmabuf *part, bool block)
{
	struct eptfd_transfer *t;
	int ret;

	t = transfer_create(share, buffer, part);
	if (!t) {
		buffer_put(buffer);
		return -ENOMEM;
	}

	ret = transfer_start(t, block);
	if (ret)
		buffer_put(buffer);
	else
		ret = transfer_send(t, block);
	dma_fence_put(&t->fence);

	return ret;
}

static int share_send(struct eptfd_share *share, struct dma_buf *dmabuf,
		      struct rpmsg_dmabuf *part, u64 __user *ucookie, bool block)
{
	struct eptfd_buffer *buffer;

	part->cookie = atomic64_inc_return(&share_cookie);
	/* While nothing has to be undone if it fails */
	if (put_user(part->cookie, ucookie))
		return -EFAULT;

	mutex_lock(&share->setup);
	buffer = share_find(share, dmabuf);
	if (buffer)
		kref_get(&buffer->ref);
	mutex_unlock(&share->setup);

	return buffer ? share_send_part(share, buffer, part, block) : -EPERM;
}

static int send_check(const struct rpmsg_dmabuf *part, const struct dma_buf *dmabuf)
{
	if (!part->length || part->offset >= dmabuf->size ||
	    part->length > dmabuf->size - part->offset)
		return -EINVAL;

	return 0;
}

/* -- Calls -- */

static bool file_blocks(const struct file *file)
{
	return !(file->f_flags & O_NONBLOCK);
}

/*
 * Where the memory of messages is mapped, buffers are too: at the device of the
 * bus, or what that is a part of. It stays while the share has a user.
 */
static struct device *ep_dma_device(struct eptfd_ep *ep)
{
	struct device *dev;

	mutex_lock(&ep->lock);
	dev = ep->rpdev ? &ep->rpdev->dev : ERR_PTR(-EPIPE);
	mutex_unlock(&ep->lock);
	if (IS_ERR(dev))
		return dev;

	while (dev && !dev->dma_mask)
		dev = dev->parent;

	return dev ?: ERR_PTR(-EOPNOTSUPP);
}

static int share_attach(struct eptfd_share *share, struct dma_buf *dmabuf, bool block)
{
	struct eptfd_buffer *buffer;
	struct device *dev;
	int ret;

	dev = ep_dma_device(share->ep);
	if (IS_ERR(dev))
		return PTR_ERR(dev);

	buffer = buffer_create(share, dmabuf, dev, block);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);

	ret = share_add(share, buffer);
	if (ret)
		buffer_put(buffer);

	return ret;
}

static int ep_attach_dmabuf(struct eptfd_ep *ep, struct dma_buf *dmabuf, bool block)
{
	struct eptfd_share *share;
	int ret;

	share = share_of(ep);
	if (!share)
		return -ENOMEM;
	if (!share_get(share))
		return -EPIPE;

	ret = share_attach(share, dmabuf, block);
	share_put(share);

	return ret;
}

static int ep_attach(struct eptfd_ep *ep, struct file *file, const s32 __user *arg)
{
	struct dma_buf *dmabuf;
	int fd, ret;

	if (get_user(fd, arg))
		return -EFAULT;

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = ep_attach_dmabuf(ep, dmabuf, file_blocks(file));
	dma_buf_put(dmabuf);

	return ret;
}

static int share_detach(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	buffer = share_remove(share, dmabuf);
	if (!buffer)
		return -EPERM;

	buffer_put(buffer);

	return 0;
}

static int ep_detach(struct eptfd_ep *ep, const s32 __user *arg)
{
	struct eptfd_share *share;
	struct dma_buf *dmabuf;
	int fd, ret;

	if (get_user(fd, arg))
		return -EFAULT;

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	share = share_enter(ep);
	if (IS_ERR(share)) {
		ret = PTR_ERR(share);
		goto put_dmabuf;
	}

	ret = share_detach(share, dmabuf);
	share_put(share);
put_dmabuf:
	dma_buf_put(dmabuf);

	return ret;
}

static int ep_send(struct eptfd_ep *ep, struct file *file, struct rpmsg_dmabuf __user *arg)
{
	struct eptfd_share *share;
	struct rpmsg_dmabuf part;
	struct dma_buf *dmabuf;
	int ret;

	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	if (copy_from_user(&part, arg, sizeof(part)))
		return -EFAULT;
	if (part.flags != RPMSG_DMABUF_TO_REMOTE && part.flags != RPMSG_DMABUF_FROM_REMOTE)
		return -EINVAL;

	dmabuf = dma_buf_get(part.fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = send_check(&part, dmabuf);
	if (ret)
		goto put_dmabuf;

	share = share_enter(ep);
	if (IS_ERR(share)) {
		ret = PTR_ERR(share);
		goto put_dmabuf;
	}

	ret = share_send(share, dmabuf, &part, &arg->cookie, file_blocks(file));
	share_put(share);
put_dmabuf:
	dma_buf_put(dmabuf);

	return ret;
}

/**
 * eptfd_dmabuf_ioctl() - the calls for buffers
 * @ep: endpoint
 * @file: its file
 * @cmd: call
 * @arg: its argument
 *
 * Return: 0, -ENOTTY for any other call, or the call's own error.
 */
long eptfd_dmabuf_ioctl(struct eptfd_ep *ep, struct file *file, unsigned int cmd,
			unsigned long arg)
{
	void __user *argp = (void __user *)arg;

	switch (cmd) {
	case RPMSG_DMABUF_ATTACH_IOCTL:
		return ep_attach(ep, file, argp);
	case RPMSG_DMABUF_DETACH_IOCTL:
		return ep_detach(ep, argp);
	case RPMSG_DMABUF_SEND_IOCTL:
		return ep_send(ep, file, argp);
	default:
		return -ENOTTY;
	}
}

/* -- What happens to an endpoint -- */

static struct eptfd_transfer *share_take(struct eptfd_share *share, u64 cookie)
{
	struct eptfd_transfer *each, *t = NULL;
	unsigned long irq;

	spin_lock_irqsave(&share->lock, irq);
	list_for_each_entry(each, &share->transfers, link) {
		if (each->cookie != cookie || !each->armed)
			continue;
		t = each;
		transfer_take(t);
		break;
	}
	spin_unlock_irqrestore(&share->lock, irq);

	return t;
}

/* The rest of the message is what the remote was told, whatever it says */
static void transfer_answer(struct eptfd_transfer *t, const struct rpmsg_dmabuf_message *done)
{
	u64 length = le64_to_cpu(done->length);
	u32 status = le32_to_cpu(done->status);

	if (length > t->length || status > MAX_ERRNO) {
		length = min(length, t->length);
		status = EPROTO;
	}
	t->answered = true;
	t->error = -(int)status;
	t->message.type = cpu_to_le16(RPMSG_DMABUF_DONE);
	t->message.length = cpu_to_le64(length);
	t->message.status = cpu_to_le32(status);
}

/**
 * eptfd_share_rx() - see whether a message gives a part back
 * @share: of the endpoint that has received it
 * @data: the message
 * @len: its length
 *
 * Context: any.
 * Return: whether it does. It is then queued when the remote has no access any
 * more.
 */
bool eptfd_share_rx(struct eptfd_share *share, const void *data, size_t len)
{
	struct rpmsg_dmabuf_message done;
	struct eptfd_transfer *t;

	if (len != sizeof(done))
		return false;

	memcpy(&done, data, sizeof(done));
	if (done.magic != cpu_to_le32(RPMSG_DMABUF_MAGIC) ||
	    done.type != cpu_to_le16(RPMSG_DMABUF_DONE))
		return false;

	t = share_take(share, le64_to_cpu(done.cookie));
	if (!t)
		return false;

	transfer_answer(t, &done);
	queue_work(share_wq, &t->work);

	return true;
}

/* Calls that have not armed a transfer yet find the end and finish it themselves */
static void share_break(struct eptfd_share *share)
{
	struct eptfd_transfer *t, *next;

	spin_lock_irq(&share->lock);
	WRITE_ONCE(share->ended, true);
	list_for_each_entry_safe(t, next, &share->transfers, link) {
		if (!t->armed)
			continue;
		transfer_take(t);
		t->error = -EPIPE;
		queue_work(share_wq, &t->work);
	}
	spin_unlock_irq(&share->lock);
}

/**
 * eptfd_share_end() - share nothing any more, whatever the remote still has
 * @share: of an endpoint that the bus does not know any longer
 *
 * Neither the DMA device nor a buffer is used after this returns.
 */
void eptfd_share_end(struct eptfd_share *share)
{
	share_break(share);
	wake_up_interruptible_all(&share->ep->wait);
	share_remove_all(share);

	spin_lock_irq(&share->lock);
	wait_event_lock_irq(share->idle, !share->users, share->lock);
	spin_unlock_irq(&share->lock);
}

/**
 * eptfd_share_close() - detach all buffers, as the file is closed
 * @share: of an endpoint that no file uses any longer
 * @closed: finishes the endpoint
 *
 * Return: whether the remote still has parts. The endpoint then has to stay as
 * it is until @closed is called, and so does the module.
 */
bool eptfd_share_close(struct eptfd_share *share, void (*closed)(struct eptfd_ep *ep))
{
	bool lingers;

	share_remove_all(share);

	spin_lock_irq(&share->lock);
	lingers = share->users;
	if (lingers) {
		share->closed = closed;
		__module_get(THIS_MODULE);
	}
	spin_unlock_irq(&share->lock);

	return lingers;
}

/**
 * eptfd_share_free() - free what eptfd_dmabuf_ioctl() has made
 * @share: without users, or NULL
 */
void eptfd_share_free(struct eptfd_share *share)
{
	kfree(share);
}

/**
 * eptfd_share_show_fdinfo() - what /proc/PID/fdinfo says of buffers
 * @share: the share
 * @m: output
 */
void eptfd_share_show_fdinfo(struct eptfd_share *share, struct seq_file *m)
{
	size_t buffers;

	mutex_lock(&share->setup);
	buffers = list_count_nodes(&share->buffers);
	mutex_unlock(&share->setup);

	seq_printf(m, "rpmsg-buffers:\t%zu\nrpmsg-given:\t%u\n", buffers,
		   READ_ONCE(share->count));
}

/**
 * eptfd_dmabuf_init() - prepare for endpoints that share buffers
 *
 * Return: 0 or -ENOMEM.
 */
int eptfd_dmabuf_init(void)
{
	share_wq = alloc_workqueue(KBUILD_MODNAME, WQ_MEM_RECLAIM | WQ_HIGHPRI, 0);

	return share_wq ? 0 : -ENOMEM;
}

/**
 * eptfd_dmabuf_exit() - undo eptfd_dmabuf_init()
 *
 * Nothing of the module runs after this: no work, and no fence_release() that
 * was interrupted behind its module_put().
 */
void eptfd_dmabuf_exit(void)
{
	destroy_workqueue(share_wq);
	synchronize_rcu_tasks();
}

MODULE_IMPORT_NS(DMA_BUF);
