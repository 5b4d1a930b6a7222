// SPDX-License-Identifier: GPL-2.0
/*
 * Parts of buffers that the remote has: fences, sending, and coming back.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "eptfd.h"
#include "share.h"

/* One count for all endpoints: the next one at an address gets no answers to the last one */
static atomic64_t share_cookie = ATOMIC64_INIT(0);

/**
 * eptfd_share_cookie() - name a part
 *
 * Return: a name that no other part has or had.
 */
u64 eptfd_share_cookie(void)
{
	return atomic64_inc_return(&share_cookie);
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

/**
 * eptfd_fence_forget() - remove what is over from a reservation
 * @resv: reservation, locked
 *
 * A buffer keeps signalled fences until it needs their room. It can live much
 * longer than the endpoint, and shall not keep the module.
 */
void eptfd_fence_forget(struct dma_resv *resv)
{
	struct dma_fence *fence, *stub = dma_fence_get_stub();
	struct dma_resv_iter cursor;

	dma_resv_for_each_fence(&cursor, resv, DMA_RESV_USAGE_BOOKKEEP, fence)
		if (fence->ops == &fence_ops && dma_fence_is_signaled(fence))
			dma_resv_replace_fences(resv, fence->context, stub,
						DMA_RESV_USAGE_BOOKKEEP);
	dma_fence_put(stub);
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

	eptfd_buffer_sync_for_cpu(t);
	if (t->error)
		dma_fence_set_error(&t->fence, t->error);
	dma_fence_signal(&t->fence);

	if (t->answered)
		eptfd_queue_push(&ep->queue, &t->message, sizeof(t->message));
	wake_up_interruptible_poll(&ep->wait, EPOLLIN | EPOLLRDNORM);

	eptfd_buffer_put_later(t->buffer);
	eptfd_share_put(t->share);
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
	ret = eptfd_resv_lock(resv, block);
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

	eptfd_buffer_sync_for_device(t);
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
		eptfd_buffer_put(buffer);
		return -ENOMEM;
	}

	ret = transfer_start(t, block);
	if (ret)
		eptfd_buffer_put(buffer);
	else
		ret = transfer_send(t, block);
	dma_fence_put(&t->fence);

	return ret;
}

/**
 * eptfd_share_send() - send a part of an attached DMABUF
 * @share: the share, with the caller as a user
 * @dmabuf: the DMABUF
 * @part: what of it, with a cookie of eptfd_share_cookie()
 * @block: wait for whoever is in the way, and for room
 *
 * Return: 0 or a negative errno, see README.
 */
int eptfd_share_send(struct eptfd_share *share, struct dma_buf *dmabuf,
		     const struct rpmsg_dmabuf *part, bool block)
{
	struct eptfd_buffer *buffer;

	mutex_lock(&share->setup);
	buffer = eptfd_share_find(share, dmabuf);
	if (buffer)
		kref_get(&buffer->ref);
	mutex_unlock(&share->setup);

	return buffer ? share_send_part(share, buffer, part, block) : -EPERM;
}

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
	queue_work(eptfd_share_wq, &t->work);

	return true;
}

/**
 * eptfd_share_break() - take back all that the remote has, without waiting
 * @share: the share
 *
 * Nothing new is shared from here on.
 *
 * Calls that have not armed a transfer yet find the end and finish it
 * themselves.
 */
void eptfd_share_break(struct eptfd_share *share)
{
	struct eptfd_transfer *t, *next;

	spin_lock_irq(&share->lock);
	WRITE_ONCE(share->ended, true);
	list_for_each_entry_safe(t, next, &share->transfers, link) {
		if (!t->armed)
			continue;
		transfer_take(t);
		t->error = -EPIPE;
		queue_work(eptfd_share_wq, &t->work);
	}
	spin_unlock_irq(&share->lock);
	wake_up_interruptible_all(&share->ep->wait);
}
