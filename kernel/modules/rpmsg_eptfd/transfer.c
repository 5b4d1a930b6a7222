// SPDX-License-Identifier: GPL-2.0
/*
 * Parts of buffers that the remote holds: fences, sending and return.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "eptfd.h"
#include "share.h"

/* Fences must be signalled in bounded time, whatever the remote does */
#define EPTFD_TIMEOUT_MAX_MS	(3600 * MSEC_PER_SEC)

static unsigned int give_timeout_ms = 10 * MSEC_PER_SEC;

static int give_timeout_set(const char *value, const struct kernel_param *param)
{
	return param_set_uint_minmax(value, param, 1, EPTFD_TIMEOUT_MAX_MS);
}

static const struct kernel_param_ops give_timeout_ops = {
	.set = give_timeout_set,
	.get = param_get_uint,
};

module_param_cb(give_timeout_ms, &give_timeout_ops, &give_timeout_ms, 0644);
MODULE_PARM_DESC(give_timeout_ms,
		 "milliseconds after which the fence of a part that the remote keeps is signalled with ETIMEDOUT, 1 to 3600000 (default: 10000)");

/**
 * eptfd_share_cookie() - generate the cookie of a part
 *
 * Return: a number that the remote cannot guess. The remote therefore cannot
 * answer before it gets the message, unless a process that knows the cookie
 * passes it on, and late answers do not match parts of the next endpoint at the
 * same address.
 */
u64 eptfd_share_cookie(void)
{
	return get_random_u64();
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
	/* Unloading waits for the code that follows, see eptfd_dmabuf_exit() */
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
 * eptfd_fence_forget() - remove signalled fences of this module from a reservation
 * @resv: reservation, locked
 *
 * A reservation keeps signalled fences until it needs their slots. It can live
 * much longer than the endpoint and must not keep the module loaded.
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

/* Called with the lock of the share held. On success the caller lists the transfer. */
static int share_check(struct eptfd_share *share, const struct eptfd_transfer *t)
{
	struct eptfd_transfer *other;

	if (share->ended)
		return -EPIPE;

	list_for_each_entry(other, &share->transfers, link)
		if (transfer_overlaps(t, other))
			return -EBUSY;

	if (share->count >= EPTFD_TRANSFERS_MAX)
		return -EXFULL;
	if (!share->count && !eptfd_owner_charge(share->owner))
		return -EDQUOT;

	return 0;
}

/* After this the transfer has to be undone or finished */
static int transfer_list(struct eptfd_transfer *t)
{
	struct eptfd_share *share = t->share;
	int ret;

	spin_lock_irq(&share->lock);
	ret = share_check(share, t);
	if (!ret) {
		dma_fence_get(&t->fence);
		kref_get(&t->buffer->ref);
		list_add_tail(&t->link, &share->transfers);
		share->count++;
		share->users++;
	}
	spin_unlock_irq(&share->lock);

	return ret;
}

/* After this the remote can return the part, and the end of the endpoint revokes it */
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

/* Called with the lock of the share held. The caller has to finish the transfer. */
static void transfer_take(struct eptfd_transfer *t)
{
	list_del_init(&t->link);
	t->armed = false;
	if (!--t->share->count)
		eptfd_owner_uncharge(t->share->owner);
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

/* Called with the lock of the share held, after transfer_take() */
static void transfer_queue(struct eptfd_transfer *t)
{
	if (!t->busy)
		queue_work(eptfd_share_wq, &t->work);
}

/*
 * Returns the part to the CPU. Memory reclaim may wait for the fence, so nothing
 * before the signal may allocate, wait for an allocation, or wait for a lock of
 * the buffer.
 */
static void transfer_signal(struct eptfd_transfer *t, int error)
{
	bool cookie = dma_fence_begin_signalling();

	eptfd_buffer_sync_for_cpu(t);
	if (error)
		dma_fence_set_error(&t->fence, error);
	dma_fence_signal(&t->fence);
	dma_fence_end_signalling(cookie);
}

/* Drops the references that transfer_list() took */
static void transfer_put(struct eptfd_transfer *t)
{
	eptfd_buffer_put_later(t->buffer);
	eptfd_share_put(t->share);
	dma_fence_put(&t->fence);
}

static void transfer_work(struct work_struct *work)
{
	struct eptfd_transfer *t = container_of(work, struct eptfd_transfer, work);
	struct eptfd_ep *ep = t->share->ep;

	if (!t->expired)
		transfer_signal(t, t->error);
	if (t->answered)
		eptfd_queue_push(&ep->queue, &t->message, sizeof(t->message));
	wake_up_interruptible_poll(&ep->wait, EPOLLIN | EPOLLRDNORM);
	transfer_put(t);
}

/* -- Deadlines -- */

/* After this the fence has a deadline. The remote may have returned the part already. */
static void transfer_start_clock(struct eptfd_transfer *t)
{
	unsigned long patience = msecs_to_jiffies(READ_ONCE(give_timeout_ms));
	struct eptfd_share *share = t->share;

	spin_lock_irq(&share->lock);
	t->deadline = jiffies + patience;
	t->timed = true;
	if (!delayed_work_pending(&share->late) ||
	    time_before(t->deadline, share->late.timer.expires))
		mod_delayed_work(eptfd_share_wq, &share->late, patience);
	spin_unlock_irq(&share->lock);
}

/* Returns an expired transfer, or NULL after scheduling the work for the next deadline */
static struct eptfd_transfer *share_next_late(struct eptfd_share *share)
{
	struct eptfd_transfer *each, *late = NULL;
	unsigned long left = MAX_JIFFY_OFFSET;
	unsigned long now = jiffies;

	spin_lock_irq(&share->lock);
	list_for_each_entry(each, &share->transfers, link) {
		if (!each->timed || each->expired)
			continue;
		if (time_after_eq(now, each->deadline)) {
			late = each;
			late->expired = true;
			late->busy = true;
			break;
		}
		left = min(left, each->deadline - now);
	}
	/* A send may have scheduled the work meanwhile, for a later time */
	if (!late && left != MAX_JIFFY_OFFSET)
		mod_delayed_work(eptfd_share_wq, &share->late, left);
	spin_unlock_irq(&share->lock);

	return late;
}

/* The remote still holds the part, but its fence is signalled */
static void transfer_expire(struct eptfd_transfer *t)
{
	struct eptfd_share *share = t->share;

	transfer_signal(t, -ETIMEDOUT);

	spin_lock_irq(&share->lock);
	t->busy = false;
	if (list_empty(&t->link))
		transfer_queue(t);
	spin_unlock_irq(&share->lock);
}

/**
 * eptfd_share_late() - signal the fences of parts that the remote keeps too long
 * @work: eptfd_share.late
 */
void eptfd_share_late(struct work_struct *work)
{
	struct eptfd_share *share = container_of(to_delayed_work(work), struct eptfd_share, late);
	struct eptfd_transfer *t;

	while ((t = share_next_late(share)))
		transfer_expire(t);
}

/* -- Sending -- */

/* Called with the reservation locked. Return: a fence to wait for, or NULL */
static struct dma_fence *transfer_obstacle(struct eptfd_transfer *t)
{
	bool write = t->dir == DMA_FROM_DEVICE;
	struct dma_resv_iter cursor;
	struct dma_fence *fence;

	/* Parts of this endpoint conflict only where they overlap, see share_check() */
	dma_resv_for_each_fence(&cursor, t->buffer->dmabuf->resv, dma_resv_usage_rw(write), fence)
		if (!fence_is_of(fence, t->share) && !dma_fence_is_signaled(fence))
			return dma_fence_get(fence);

	return NULL;
}

/* Reverts a grant. The fence is not published yet, so the transfer can be tried again. */
static void transfer_undo(struct eptfd_transfer *t)
{
	if (!t->granted)
		return;

	t->granted = false;
	/* Before it is unlisted, so that no overlapping part is granted at the same time */
	eptfd_buffer_sync_for_cpu(t);
	/* Otherwise the end of the endpoint has taken it and finishes it */
	if (transfer_take_unless_taken(t))
		transfer_put(t);
}

/* Retries for lack of room keep the grant, because syncing a long part takes long */
static int transfer_grant(struct eptfd_transfer *t)
{
	int ret;

	if (t->granted)
		return 0;

	ret = transfer_list(t);
	if (ret)
		return ret;

	t->granted = true;
	eptfd_buffer_sync_for_device(t);

	return transfer_arm(t);
}

/*
 * Does not wait, because the reservation is locked. glink returns -EBUSY when the
 * remote has not provided a buffer for the message.
 */
static int transfer_tell(struct eptfd_transfer *t)
{
	struct rpmsg_dmabuf_message message = t->message;
	int ret;

	ret = eptfd_ep_send_once(t->share->ep, &message, sizeof(message), true, false);

	return ret == -EBUSY ? -EAGAIN : ret;
}

/*
 * Called with the reservation locked. All steps that allocate, fail or wait come
 * before the fence is added: from then on it depends only on the remote and on
 * its deadline. No one can rely on the fence before the call returns.
 */
static int transfer_publish(struct eptfd_transfer *t)
{
	struct dma_resv *resv = t->buffer->dmabuf->resv;
	int ret;

	ret = dma_resv_reserve_fences(resv, 1);
	if (ret)
		return ret;
	ret = transfer_grant(t);
	if (ret)
		return ret;
	ret = transfer_tell(t);
	if (ret)
		return ret;

	/* The remote owns the part from here on */
	t->granted = false;
	transfer_start_clock(t);
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

/* dma_fence_wait() would not return when the endpoint ends */
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

/* Return: 0 to try again, @why if waiting does not help, or a negative errno */
static int share_wait(struct eptfd_share *share, int why, struct dma_fence *obstacle, u64 *pause)
{
	int ret = why;

	if (obstacle)
		ret = share_wait_fence(share, obstacle);
	else if (why == -EXFULL)
		ret = share_wait_room(share);
	else if (why == -EAGAIN)
		ret = eptfd_ep_wait_room(share->ep, pause);
	if (!ret && READ_ONCE(share->ended))
		ret = -EPIPE;

	return ret;
}

/*
 * Return: 0, -EBUSY if another part overlaps or @obstacle has to be signalled
 * first, -EXFULL if the remote holds too many parts, -EAGAIN without room to send,
 * or another negative errno. After -EAGAIN alone the transfer stays granted.
 */
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
	/* The obstacle may be newer than a grant that was kept for lack of room */
	if (ret && ret != -EAGAIN)
		transfer_undo(t);
	dma_resv_unlock(resv);

	return ret;
}

static int transfer_start(struct eptfd_transfer *t, bool block)
{
	struct dma_fence *obstacle;
	u64 pause = 0;
	int ret;

	for (;;) {
		ret = transfer_try_start(t, block, &obstacle);
		if (ret && block)
			ret = share_wait(t->share, ret, obstacle, &pause) ?: -ERESTART;
		dma_fence_put(obstacle);
		if (ret != -ERESTART)
			break;
	}
	if (ret)
		transfer_undo(t);
	if (ret != -EXFULL && ret != -EAGAIN)
		return ret;

	eptfd_ep_mark_full(t->share->ep, ret == -EXFULL ? EPTFD_TX_LIMIT : EPTFD_TX_FULL);

	return -EAGAIN;
}

static int share_send_part(struct eptfd_share *share, struct eptfd_buffer *buffer,
			   const struct rpmsg_dmabuf *part, bool block)
{
	struct eptfd_transfer *t;
	int ret;

	t = transfer_create(share, buffer, part);
	if (!t)
		return -ENOMEM;

	ret = transfer_start(t, block);
	dma_fence_put(&t->fence);

	return ret;
}

/**
 * eptfd_share_send() - send a part of an attached DMABUF
 * @share: the share; the caller is one of its users
 * @dmabuf: the DMABUF
 * @part: the part, with a cookie from eptfd_share_cookie()
 * @block: wait for other fences and for room
 *
 * Return: 0 or a negative errno, see README.
 */
int eptfd_share_send(struct eptfd_share *share, struct dma_buf *dmabuf,
		     const struct rpmsg_dmabuf *part, bool block)
{
	struct eptfd_buffer *buffer;
	int ret;

	mutex_lock(&share->setup);
	buffer = eptfd_share_find(share, dmabuf);
	if (buffer)
		kref_get(&buffer->ref);
	mutex_unlock(&share->setup);
	if (!buffer)
		return -EPERM;

	ret = share_send_part(share, buffer, part, block);
	eptfd_buffer_put(buffer);

	return ret;
}

/* -- Return -- */

/* Takes only length and status from the answer; the rest stays as it was sent */
static void transfer_answer(struct eptfd_transfer *t, const struct rpmsg_dmabuf_message *done)
{
	u64 length = le64_to_cpu(done->length);
	u32 status = le32_to_cpu(done->status);

	if (length > t->length || status > MAX_ERRNO) {
		length = min(length, t->length);
		status = EPROTO;
	}
	if (t->expired)
		status = ETIMEDOUT;
	t->answered = true;
	t->error = -(int)status;
	t->message.type = cpu_to_le16(RPMSG_DMABUF_DONE);
	/* Not for user space: without an IOMMU it is a physical address */
	t->message.address = 0;
	t->message.length = cpu_to_le64(length);
	t->message.status = cpu_to_le32(status);
}

static void share_answer(struct eptfd_share *share, const struct rpmsg_dmabuf_message *done)
{
	u64 cookie = le64_to_cpu(done->cookie);
	struct eptfd_transfer *t;
	unsigned long irq;
	bool found = false;

	spin_lock_irqsave(&share->lock, irq);
	list_for_each_entry(t, &share->transfers, link) {
		if (t->cookie != cookie || !t->armed)
			continue;
		transfer_take(t);
		transfer_answer(t, done);
		transfer_queue(t);
		found = true;
		break;
	}
	if (!found)
		share->strays++;
	spin_unlock_irqrestore(&share->lock, irq);
}

/**
 * eptfd_share_rx() - handle a message that returns a part
 * @share: share of the endpoint that received it
 * @data: the message
 * @len: its length
 *
 * A message that returns a part which the remote does not hold is counted and
 * discarded, so that readers can trust what they read. Any other such message is
 * queued for the reader once the remote's access is revoked.
 *
 * Context: any.
 * Return: true if the message returns a part.
 */
bool eptfd_share_rx(struct eptfd_share *share, const void *data, size_t len)
{
	struct rpmsg_dmabuf_message done;
	bool signalling;

	if (len != sizeof(done))
		return false;

	memcpy(&done, data, sizeof(done));
	if (done.magic != cpu_to_le32(RPMSG_DMABUF_MAGIC) ||
	    done.type != cpu_to_le16(RPMSG_DMABUF_DONE))
		return false;

	signalling = dma_fence_begin_signalling();
	share_answer(share, &done);
	dma_fence_end_signalling(signalling);

	return true;
}

/**
 * eptfd_share_break() - revoke all parts that the remote holds, without waiting
 * @share: the share
 *
 * After this returns no new part is shared. A call that has not armed its transfer
 * yet finds the end and finishes the transfer itself.
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
		transfer_queue(t);
	}
	spin_unlock_irq(&share->lock);
	wake_up_interruptible_all(&share->ep->wait);
}
