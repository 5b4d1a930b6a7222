// SPDX-License-Identifier: GPL-2.0
/*
 * The buffers that an endpoint shares with the remote: users and end.
 */
#include <linux/err.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include <compat/workqueue.h>

#include "eptfd.h"
#include "share.h"

struct workqueue_struct *eptfd_share_wq;
struct workqueue_struct *eptfd_close_wq;

/**
 * eptfd_share_get() - become a user
 * @share: the share
 *
 * Return: false after the end.
 */
bool eptfd_share_get(struct eptfd_share *share)
{
	bool alive;

	spin_lock_irq(&share->lock);
	alive = !share->ended;
	if (alive)
		share->users++;
	spin_unlock_irq(&share->lock);

	return alive;
}

/**
 * eptfd_share_get_another() - add a user
 * @share: the share, which has a user already
 */
void eptfd_share_get_another(struct eptfd_share *share)
{
	spin_lock_irq(&share->lock);
	share->users++;
	spin_unlock_irq(&share->lock);
}

/**
 * eptfd_share_put() - stop being a user
 * @share: the share, which may be freed when this returns
 */
void eptfd_share_put(struct eptfd_share *share)
{
	spin_lock_irq(&share->lock);
	if (!--share->users) {
		if (share->closed)
			queue_work(eptfd_close_wq, &share->closing);
		wake_up_all(&share->idle);
	}
	spin_unlock_irq(&share->lock);
}

static void share_closing(struct work_struct *work)
{
	struct eptfd_share *share = container_of(work, struct eptfd_share, closing);
	void (*closed)(struct eptfd_ep *ep);

	/* The last user may still hold the lock: do not free it before that is over */
	spin_lock_irq(&share->lock);
	closed = share->closed;
	share->closed = NULL;
	spin_unlock_irq(&share->lock);

	closed(share->ep);
	/* Unloading flushes the workqueue, so this function returns before */
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
	INIT_DELAYED_WORK(&share->late, eptfd_share_late);
	init_waitqueue_head(&share->idle);
	mutex_init(&share->setup);
	INIT_LIST_HEAD(&share->buffers);

	return share;
}

/**
 * eptfd_share_of() - get the share of an endpoint, created by the first call
 * @ep: the endpoint
 *
 * Return: the share, NULL if there is no memory.
 */
struct eptfd_share *eptfd_share_of(struct eptfd_ep *ep)
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

/**
 * eptfd_share_enter() - become a user of an endpoint's share
 * @ep: the endpoint
 *
 * Return: the share, -EPERM if no buffer has ever been attached, -EPIPE after
 * the end.
 */
struct eptfd_share *eptfd_share_enter(struct eptfd_ep *ep)
{
	struct eptfd_share *share = eptfd_ep_share(ep);

	/* A share that was created after the end of the endpoint is not marked as ended */
	if (eptfd_queue_ended(&ep->queue))
		return ERR_PTR(-EPIPE);
	if (!share)
		return ERR_PTR(-EPERM);

	return eptfd_share_get(share) ? share : ERR_PTR(-EPIPE);
}

/**
 * eptfd_share_set_owner() - set the user that the endpoint is charged to
 * @share: the share; the caller is one of its users
 * @file: its file. The remote holds no part that another file has sent.
 *
 * Return: 0 or -ENOMEM.
 */
int eptfd_share_set_owner(struct eptfd_share *share, const struct file *file)
{
	struct eptfd_owner *owner;

	owner = eptfd_owner_get(file);
	if (IS_ERR(owner))
		return PTR_ERR(owner);

	spin_lock_irq(&share->lock);
	swap(share->owner, owner);
	spin_unlock_irq(&share->lock);
	eptfd_owner_put(owner);

	return 0;
}

/**
 * eptfd_share_end() - wait until nothing is shared
 * @share: share of an endpoint that the bus has destroyed, after
 *	eptfd_share_break()
 *
 * After this returns neither the DMA device nor a buffer is used.
 */
void eptfd_share_end(struct eptfd_share *share)
{
	/* This may run inside the name service's callback, with a lock of the bus held */
	eptfd_share_remove_all(share, eptfd_buffer_put_later);

	spin_lock_irq(&share->lock);
	wait_event_lock_irq(share->idle, !share->users, share->lock);
	spin_unlock_irq(&share->lock);
}

/**
 * eptfd_share_close() - detach all buffers when the file is closed
 * @share: share of an endpoint that no file uses any longer
 * @closed: finishes the endpoint
 *
 * Return: true if the remote still holds parts. The endpoint then has to stay as
 * it is until @closed is called, and the module stays loaded.
 */
bool eptfd_share_close(struct eptfd_share *share, void (*closed)(struct eptfd_ep *ep))
{
	bool lingers;

	eptfd_share_remove_all(share, eptfd_buffer_put);

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
 * eptfd_share_free() - free a share
 * @share: share without users, or NULL
 */
void eptfd_share_free(struct eptfd_share *share)
{
	if (!share)
		return;

	cancel_delayed_work_sync(&share->late);
	eptfd_owner_put(share->owner);
	kfree(share);
}

/**
 * eptfd_share_show_fdinfo() - print the state of buffers to /proc/PID/fdinfo
 * @share: the share
 * @m: output
 */
void eptfd_share_show_fdinfo(struct eptfd_share *share, struct seq_file *m)
{
	size_t buffers;
	u64 strays;

	mutex_lock(&share->setup);
	buffers = list_count_nodes(&share->buffers);
	mutex_unlock(&share->setup);

	spin_lock_irq(&share->lock);
	strays = share->strays;
	spin_unlock_irq(&share->lock);

	seq_printf(m, "rpmsg-buffers:\t%zu\nrpmsg-given:\t%u\nrpmsg-strays:\t%llu\n",
		   buffers, READ_ONCE(share->count), strays);
}

/**
 * eptfd_dmabuf_init() - create the workqueues for endpoints that share buffers
 *
 * Return: 0 or -ENOMEM.
 */
int eptfd_dmabuf_init(void)
{
	eptfd_share_wq = alloc_workqueue(KBUILD_MODNAME,
					 WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_PERCPU, 0);
	if (!eptfd_share_wq)
		return -ENOMEM;

	eptfd_close_wq = alloc_workqueue(KBUILD_MODNAME "_close", WQ_UNBOUND, 0);
	if (!eptfd_close_wq) {
		destroy_workqueue(eptfd_share_wq);
		return -ENOMEM;
	}

	return 0;
}

/**
 * eptfd_dmabuf_exit() - undo eptfd_dmabuf_init()
 *
 * After this returns no code of the module runs: no work item, and no
 * fence_release() that was preempted after its module_put().
 */
void eptfd_dmabuf_exit(void)
{
	destroy_workqueue(eptfd_share_wq);
	destroy_workqueue(eptfd_close_wq);
	synchronize_rcu_tasks();
}
