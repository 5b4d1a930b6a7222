// SPDX-License-Identifier: GPL-2.0
/*
 * An endpoint for user space: read, write, poll and flow control. Device nodes
 * and anonymous file descriptors share this code.
 *
 * Offers the uAPI of drivers/rpmsg/rpmsg_char.c:
 * Copyright (C) 2022, STMicroelectronics
 * Copyright (c) 2016, Linaro Ltd.
 * Copyright (c) 2012, Michal Simek <monstr@monstr.eu>
 * Copyright (c) 2012, PetaLogix
 * Copyright (c) 2011, Texas Instruments, Inc.
 * Copyright (c) 2011, Google, Inc.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/minmax.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/rpmsg_eptfd.h>

#include <compat/hrtimer.h>

#include "eptfd.h"

/* Longest message on a bus that reports no limit */
#define EPTFD_MTU_UNKNOWN	SZ_1M

/* First pause of a blocked write before it tries again; each pause doubles */
#define EPTFD_TX_WAIT_MIN	(50 * NSEC_PER_USEC)
/* Longest pause, and the time until poll() reports a full endpoint writable */
#define EPTFD_TX_WAIT_MAX	NSEC_PER_MSEC

static enum hrtimer_restart ep_tx_timer(struct hrtimer *timer)
{
	struct eptfd_ep *ep = container_of(timer, struct eptfd_ep, tx_timer);

	clear_bit(EPTFD_TX_FULL, &ep->flags);
	clear_bit(EPTFD_TX_LIMIT, &ep->flags);
	wake_up_interruptible_poll(&ep->wait, EPOLLOUT | EPOLLWRNORM);

	return HRTIMER_NORESTART;
}

static void ep_init(struct eptfd_ep *ep)
{
	kref_init(&ep->ref);
	mutex_init(&ep->lock);
	eptfd_queue_init(&ep->queue);
	init_waitqueue_head(&ep->wait);
	hrtimer_setup(&ep->tx_timer, ep_tx_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	INIT_LIST_HEAD(&ep->link);
}

/**
 * eptfd_ep_init() - prepare an endpoint that a control device creates
 * @ep: zeroed endpoint
 * @ctrl: the control device; a reference is taken
 * @chinfo: name and addresses
 *
 * The endpoint can be opened once it is attached to the control device. The
 * caller sets its release function.
 */
void eptfd_ep_init(struct eptfd_ep *ep, struct eptfd_ctrl *ctrl,
		   const struct rpmsg_channel_info *chinfo)
{
	ep_init(ep);
	ep->chinfo = *chinfo;
	ep->ctrl = ctrl;
	get_device(&ctrl->cdev.dev);
}

/**
 * eptfd_ep_init_default() - prepare the default endpoint of a channel
 * @ep: zeroed endpoint
 * @rpdev: the channel
 */
void eptfd_ep_init_default(struct eptfd_ep *ep, struct rpmsg_device *rpdev)
{
	static struct lock_class_key default_lock;

	ep_init(ep);
	/*
	 * The name service's callback removes channels with its endpoint's
	 * cb_lock held, and thus takes the lock of a default endpoint inside a
	 * cb_lock. Other endpoints hold their lock when rpmsg_destroy_ept()
	 * takes a cb_lock. A default endpoint never does, so the order is
	 * safe: a class of its own tells lockdep.
	 */
	lockdep_set_class(&ep->lock, &default_lock);
	strscpy_pad(ep->chinfo.name, rpdev->id.name);
	ep->chinfo.src = rpdev->src;
	ep->chinfo.dst = rpdev->dst;
	ep->rpdev = rpdev;
	ep->default_ept = rpdev->ept;
}

static void ep_free(struct kref *ref)
{
	struct eptfd_ep *ep = container_of(ref, struct eptfd_ep, ref);
	struct eptfd_ctrl *ctrl = ep->ctrl;

	eptfd_queue_purge(&ep->queue);
	eptfd_share_free(ep->share);
	ep->release(ep);
	if (ctrl)
		put_device(&ctrl->cdev.dev);
}

/**
 * eptfd_ep_get() - take a reference
 * @ep: endpoint
 */
void eptfd_ep_get(struct eptfd_ep *ep)
{
	kref_get(&ep->ref);
}

/**
 * eptfd_ep_put() - drop a reference
 * @ep: endpoint; before the last reference goes it is closed and detached
 */
void eptfd_ep_put(struct eptfd_ep *ep)
{
	kref_put(&ep->ref, ep_free);
}

/**
 * eptfd_ep_rx() - receive a message, called by the bus
 * @rpdev: unused
 * @data: the message
 * @len: its length
 * @priv: the endpoint, NULL before a channel's driver has been probed
 * @addr: unused
 *
 * Context: any.
 * Return: 0. Buses disagree about the meaning of an error, and the reader is
 * told about a lost message.
 */
int eptfd_ep_rx(struct rpmsg_device *rpdev, void *data, int len, void *priv,
		u32 addr)
{
	struct eptfd_ep *ep = priv;
	struct eptfd_share *share;

	if (!ep)
		return 0;

	share = eptfd_ep_share(ep);
	if (share && eptfd_share_rx(share, data, len))
		return 0;

	eptfd_queue_push(&ep->queue, data, len);
	wake_up_interruptible_poll(&ep->wait, EPOLLIN | EPOLLRDNORM);

	return 0;
}

/**
 * eptfd_ep_flow() - the remote asks to pause or to resume, called by the bus
 * @rpdev: unused
 * @priv: the endpoint, NULL before a channel's driver has been probed
 * @stop: pause, otherwise resume
 *
 * Context: any.
 * Return: 0.
 */
int eptfd_ep_flow(struct rpmsg_device *rpdev, void *priv, bool stop)
{
	struct eptfd_ep *ep = priv;

	if (!ep)
		return 0;

	assign_bit(EPTFD_FLOW_STOPPED, &ep->flags, stop);
	set_bit(EPTFD_FLOW_NEWS, &ep->flags);
	wake_up_interruptible_poll(&ep->wait, EPOLLPRI);

	return 0;
}

static struct rpmsg_endpoint *ep_create(struct eptfd_ep *ep)
{
	struct rpmsg_endpoint *ept;

	if (ep->default_ept)
		return ep->default_ept;

	clear_bit(EPTFD_FLOW_STOPPED, &ep->flags);
	ept = rpmsg_create_ept(ep->rpdev, eptfd_ep_rx, ep, ep->chinfo);
	if (ept)
		ept->flow_cb = eptfd_ep_flow;

	return ept;
}

static int ep_open(struct eptfd_ep *ep)
{
	struct rpmsg_endpoint *ept;
	ssize_t mtu;

	if (ep->ept)
		return -EBUSY;
	if (!ep->rpdev)
		return -ENODEV;

	/* The bus returns NULL both for an address in use and for lack of memory */
	ept = ep_create(ep);
	if (!ept)
		return -EINVAL;

	mtu = rpmsg_get_mtu(ept);
	ep->mtu = mtu > 0 ? mtu : EPTFD_MTU_UNKNOWN;
	ep->addr = ept->addr;
	ep->ept = ept;

	return 0;
}

/**
 * eptfd_ep_open() - create the endpoint of the bus
 * @ep: endpoint
 *
 * Return: 0, -EBUSY if it is open, -ENODEV if the rpmsg device is gone,
 * -EINVAL if the bus refuses.
 */
int eptfd_ep_open(struct eptfd_ep *ep)
{
	int ret;

	mutex_lock(&ep->lock);
	ret = ep_open(ep);
	mutex_unlock(&ep->lock);

	return ret;
}

/* After this returns no message arrives, except at a default endpoint */
static void ep_destroy(struct eptfd_ep *ep)
{
	struct rpmsg_endpoint *ept = ep->ept;

	ep->ept = NULL;
	if (ept && !ep->default_ept)
		rpmsg_destroy_ept(ept);
}

/**
 * eptfd_ep_close() - destroy the endpoint of the bus, discard all messages
 * @ep: endpoint that no file uses any longer
 */
void eptfd_ep_close(struct eptfd_ep *ep)
{
	mutex_lock(&ep->lock);
	ep_destroy(ep);
	hrtimer_cancel(&ep->tx_timer);
	clear_bit(EPTFD_TX_FULL, &ep->flags);
	clear_bit(EPTFD_TX_LIMIT, &ep->flags);
	clear_bit(EPTFD_FLOW_NEWS, &ep->flags);
	eptfd_queue_purge(&ep->queue);
	mutex_unlock(&ep->lock);
}

/**
 * eptfd_ep_leave() - handle the last close of the endpoint's file
 * @ep: endpoint
 * @closed: finishes the endpoint: now, or once the remote has returned all parts
 *	of buffers
 */
void eptfd_ep_leave(struct eptfd_ep *ep, void (*closed)(struct eptfd_ep *ep))
{
	struct eptfd_share *share = eptfd_ep_share(ep);

	eptfd_queue_close(&ep->queue);
	if (!share || !eptfd_share_close(share, closed))
		closed(ep);
}

/**
 * eptfd_ep_break() - the first half of eptfd_ep_end(), which does not wait
 * @ep: endpoint
 *
 * After this returns the bus's endpoint is not used.
 */
void eptfd_ep_break(struct eptfd_ep *ep)
{
	struct eptfd_share *share;

	mutex_lock(&ep->lock);
	ep_destroy(ep);
	ep->rpdev = NULL;
	mutex_unlock(&ep->lock);

	/* A share that is created later finds no device */
	share = eptfd_ep_share(ep);
	if (share)
		eptfd_share_break(share);
}

/**
 * eptfd_ep_end() - end the endpoint permanently, even with open files
 * @ep: endpoint
 *
 * After this returns neither the bus's endpoint nor its device is used.
 *
 * Context: waits for work items, which may wait for the end of other endpoints
 * with the same buffers. A caller that ends several endpoints first calls
 * eptfd_ep_break() for each of them.
 */
void eptfd_ep_end(struct eptfd_ep *ep)
{
	struct eptfd_share *share;

	eptfd_ep_break(ep);
	share = eptfd_ep_share(ep);
	if (share)
		eptfd_share_end(share);

	eptfd_queue_end(&ep->queue);
	wake_up_interruptible_all(&ep->wait);
}

/**
 * eptfd_ep_setup_file() - connect a file to an endpoint
 * @ep: endpoint
 * @file: new file
 */
void eptfd_ep_setup_file(struct eptfd_ep *ep, struct file *file)
{
	file->private_data = ep;
	file->f_mode |= FMODE_NOWAIT;
	stream_open(file_inode(file), file);
}

static bool iocb_blocks(const struct kiocb *iocb)
{
	return !(iocb->ki_flags & IOCB_NOWAIT) &&
	       !(iocb->ki_filp->f_flags & O_NONBLOCK);
}

/**
 * eptfd_ep_take() - take the oldest messages
 * @ep: endpoint
 * @msgs: where to put them
 * @rooms: see eptfd_queue_pop()
 * @count: how many at most
 * @more: the caller has taken some before
 * @block: wait for the first one
 *
 * Return: see eptfd_queue_pop(), and -ERESTARTSYS.
 */
int eptfd_ep_take(struct eptfd_ep *ep, struct eptfd_msg **msgs, const u32 *rooms,
		  int count, bool more, bool block)
{
	struct eptfd_queue *q = &ep->queue;
	int ret;

	for (;;) {
		ret = eptfd_queue_pop(q, msgs, rooms, count, more);
		if (ret != -EAGAIN || !block)
			return ret;

		ret = wait_event_interruptible(ep->wait, eptfd_queue_ready(q) ||
					       eptfd_queue_ended(q));
		if (ret)
			return ret;
	}
}

/**
 * eptfd_ep_untake() - put messages back in front
 * @ep: endpoint
 * @msgs: messages from eptfd_ep_take(), oldest first
 * @count: how many
 */
void eptfd_ep_untake(struct eptfd_ep *ep, struct eptfd_msg **msgs, int count)
{
	eptfd_queue_unpop(&ep->queue, msgs, count);
	wake_up_interruptible_poll(&ep->wait, EPOLLIN | EPOLLRDNORM);
}

/**
 * eptfd_ep_read_iter() - read one message
 * @iocb: file and flags
 * @to: destination; the rest of a longer message is lost
 *
 * Return: bytes read, 0 for an empty message or an empty @to, -EAGAIN, -EFAULT
 * with the message left in the queue, -ENOBUFS once after messages were lost,
 * -EPIPE after the end, -ERESTARTSYS.
 */
ssize_t eptfd_ep_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	struct eptfd_ep *ep = iocb->ki_filp->private_data;
	struct eptfd_msg *msg;
	size_t len;
	int ret;

	if (!iov_iter_count(to))
		return 0;

	ret = eptfd_ep_take(ep, &msg, NULL, 1, false, iocb_blocks(iocb));
	if (ret < 0)
		return ret;

	len = min_t(size_t, iov_iter_count(to), msg->len);
	if (copy_to_iter(msg->data, len, to) != len) {
		eptfd_ep_untake(ep, &msg, 1);
		return -EFAULT;
	}
	kfree(msg);

	return len;
}

/**
 * eptfd_ep_mark_full() - let poll() report no room for a short time
 * @ep: endpoint that has just refused to send
 * @why: %EPTFD_TX_FULL or %EPTFD_TX_LIMIT
 *
 * A timer ends this time, because buses do not report when there is room again.
 */
void eptfd_ep_mark_full(struct eptfd_ep *ep, enum eptfd_ep_flag why)
{
	if (!test_and_set_bit(why, &ep->flags))
		hrtimer_start(&ep->tx_timer, ns_to_ktime(EPTFD_TX_WAIT_MAX),
			      HRTIMER_MODE_REL_SOFT);
}

/*
 * A bus with addresses logs an error for each message without a destination.
 * Try it once and remember the result.
 */
static int ep_trysend_nowhere(struct eptfd_ep *ep, void *data, size_t len)
{
	int ret;

	if (test_bit(EPTFD_NO_DST, &ep->flags))
		return -EINVAL;

	ret = rpmsg_trysendto(ep->ept, data, len, RPMSG_ADDR_ANY);
	if (ret == -EINVAL)
		set_bit(EPTFD_NO_DST, &ep->flags);

	return ret;
}

static int ep_trysend(struct eptfd_ep *ep, void *data, size_t len)
{
	if (ep->chinfo.dst == RPMSG_ADDR_ANY)
		return ep_trysend_nowhere(ep, data, len);

	return rpmsg_trysendto(ep->ept, data, len, ep->chinfo.dst);
}

/* Called with ep->lock held. Return: -EAGAIN if there is no room */
static int ep_send_locked(struct eptfd_ep *ep, void *data, size_t len,
			  bool block)
{
	int ret;

	if (!ep->ept)
		return -EPIPE;

	ret = ep_trysend(ep, data, len);
	if (ret == -ENOMEM || ret == -EAGAIN) {
		if (!block)
			eptfd_ep_mark_full(ep, EPTFD_TX_FULL);
		return -EAGAIN;
	}

	/* On glink only the blocking call asks the remote for a buffer */
	if (ret == -EBUSY && block)
		return rpmsg_sendto(ep->ept, data, len, ep->chinfo.dst);

	return ret;
}

/**
 * eptfd_ep_send_group() - send messages until there is no room
 * @ep: endpoint
 * @group: the messages, none longer than eptfd_ep.mtu
 * @count: how many, at least 1
 * @nowait: do not even wait for a lock
 * @block: ask the remote for a buffer for the first one, where the bus can do that
 * @sent: returned: how many were sent
 *
 * Return: 0 if all were sent, or why the next one was not: see eptfd_ep_send().
 */
int eptfd_ep_send_group(struct eptfd_ep *ep, const struct kvec *group, int count,
			bool nowait, bool block, int *sent)
{
	int ret = 0;

	*sent = 0;
	if (nowait && !mutex_trylock(&ep->lock)) {
		/* Nobody wakes a poller when the lock is free */
		eptfd_ep_mark_full(ep, EPTFD_TX_FULL);
		return -EAGAIN;
	}
	if (!nowait && mutex_lock_interruptible(&ep->lock))
		return -ERESTARTSYS;

	/* To ask for a buffer takes long on glink: once for each hold of the lock */
	for (; *sent < count; ++*sent) {
		ret = ep_send_locked(ep, group[*sent].iov_base, group[*sent].iov_len,
				     block && !*sent);
		if (ret)
			break;
	}
	mutex_unlock(&ep->lock);

	return ret;
}

/**
 * eptfd_ep_send_once() - send one message if there is room
 * @ep: endpoint
 * @data: the message
 * @len: its length
 * @nowait: do not even wait for a lock
 * @block: ask the remote for a buffer, where the bus can do that
 *
 * Return: see eptfd_ep_send().
 */
int eptfd_ep_send_once(struct eptfd_ep *ep, void *data, size_t len, bool nowait,
		       bool block)
{
	struct kvec message = { .iov_base = data, .iov_len = len };
	int sent;

	if (len > ep->mtu)
		return -EMSGSIZE;

	return eptfd_ep_send_group(ep, &message, 1, nowait, block, &sent);
}

/**
 * eptfd_ep_wait_room() - pause after there was no room
 * @ep: endpoint
 * @pause: length of the last pause in nanoseconds, 0 before the first one
 *
 * Return: 0 to try again, -ERESTARTSYS.
 */
int eptfd_ep_wait_room(struct eptfd_ep *ep, u64 *pause)
{
	int ret;

	*pause = clamp_t(u64, 2 * *pause, EPTFD_TX_WAIT_MIN, EPTFD_TX_WAIT_MAX);
	ret = wait_event_interruptible_hrtimeout(ep->wait, eptfd_queue_ended(&ep->queue),
						 ns_to_ktime(*pause));

	return ret == -ERESTARTSYS ? ret : 0;
}

/**
 * eptfd_ep_send() - send one message
 * @ep: endpoint
 * @data: the message
 * @len: its length
 * @nowait: do not even wait for a lock
 * @block: wait for room
 *
 * The blocking calls of the buses cannot be used: virtio's sleeps on a queue of
 * the bus, neither the end of the endpoint nor a signal wakes it, and ep->lock
 * would have to be held meanwhile.
 *
 * Return: 0, -EAGAIN, -EINVAL without a destination, -EMSGSIZE, -EPIPE after
 * the end, -ERESTARTSYS, or an error of the bus.
 */
int eptfd_ep_send(struct eptfd_ep *ep, void *data, size_t len, bool nowait,
		  bool block)
{
	u64 pause = 0;
	int ret;

	for (;;) {
		ret = eptfd_ep_send_once(ep, data, len, nowait, block);
		if (ret != -EAGAIN || !block)
			return ret;

		ret = eptfd_ep_wait_room(ep, &pause);
		if (ret)
			return ret;
	}
}

/**
 * eptfd_ep_write_iter() - send one message
 * @iocb: file and flags
 * @from: the message
 *
 * Return: its length, -EAGAIN, -EFAULT, -EINVAL without a destination,
 * -EMSGSIZE, -ENOMEM, -EPIPE after the end, -ERESTARTSYS, or an error of the
 * bus.
 */
ssize_t eptfd_ep_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct eptfd_ep *ep = iocb->ki_filp->private_data;
	size_t len = iov_iter_count(from);
	void *data;
	int ret;

	if (len > ep->mtu)
		return -EMSGSIZE;

	data = kmalloc(len, GFP_KERNEL);
	if (!data)
		return -ENOMEM;

	if (copy_from_iter_full(data, len, from))
		ret = eptfd_ep_send(ep, data, len, iocb->ki_flags & IOCB_NOWAIT,
				    iocb_blocks(iocb));
	else
		ret = -EFAULT;
	kfree(data);

	return ret ?: len;
}

/*
 * rpmsg_poll() does not get the poll table: it would add the file to a wait
 * queue of the bus, which can be freed before the file. The timer wakes the
 * file instead.
 */
static __poll_t ep_poll_tx(struct eptfd_ep *ep, struct file *file)
{
	__poll_t mask = 0;

	if (test_bit(EPTFD_TX_LIMIT, &ep->flags))
		return 0;
	if (!test_bit(EPTFD_TX_FULL, &ep->flags))
		return EPOLLOUT | EPOLLWRNORM;

	mutex_lock(&ep->lock);
	if (ep->ept)
		mask = rpmsg_poll(ep->ept, file, NULL);
	mutex_unlock(&ep->lock);

	return mask;
}

/**
 * eptfd_ep_poll() - report what can be done without blocking
 * @file: file
 * @wait: poll table
 *
 * Return: EPOLLIN if there is a message to read or a loss to report, EPOLLOUT
 * unless there was no room a short time ago, EPOLLPRI if the flow control has
 * changed, EPOLLERR and EPOLLHUP after the end.
 */
__poll_t eptfd_ep_poll(struct file *file, poll_table *wait)
{
	struct eptfd_ep *ep = file->private_data;
	__poll_t mask;

	poll_wait(file, &ep->wait, wait);

	if (eptfd_queue_ended(&ep->queue))
		mask = EPOLLERR | EPOLLHUP;
	else
		mask = ep_poll_tx(ep, file);

	if (eptfd_queue_ready(&ep->queue))
		mask |= EPOLLIN | EPOLLRDNORM;
	if (test_bit(EPTFD_FLOW_NEWS, &ep->flags))
		mask |= EPOLLPRI;

	return mask;
}

static int ep_get_flow(struct eptfd_ep *ep, int __user *arg)
{
	bool news = test_and_clear_bit(EPTFD_FLOW_NEWS, &ep->flags);

	if (!put_user(test_bit(EPTFD_FLOW_STOPPED, &ep->flags), arg))
		return 0;

	if (news)
		set_bit(EPTFD_FLOW_NEWS, &ep->flags);

	return -EFAULT;
}

static int ep_set_flow(struct eptfd_ep *ep, unsigned long arg)
{
	int ret = -EPIPE;

	if (arg > 1)
		return -EINVAL;

	mutex_lock(&ep->lock);
	if (ep->ept)
		ret = rpmsg_set_flow_control(ep->ept, arg, ep->chinfo.dst);
	mutex_unlock(&ep->lock);

	return ret;
}

/**
 * eptfd_ep_ioctl() - the calls that nodes and descriptors share
 * @file: file of an endpoint
 * @cmd: call
 * @arg: its argument
 *
 * Return: the call's own result, -ENOTTY for any other call.
 */
long eptfd_ep_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct eptfd_ep *ep = file->private_data;

	switch (cmd) {
	case RPMSG_GET_OUTGOING_FLOWCONTROL:
		return ep_get_flow(ep, (int __user *)arg);
	case RPMSG_SET_INCOMING_FLOWCONTROL:
		return ep_set_flow(ep, arg);
	case RPMSG_SEND_MANY_IOCTL:
		return eptfd_many_send(file, (void __user *)arg);
	case RPMSG_RECV_MANY_IOCTL:
		return eptfd_many_recv(file, (void __user *)arg);
	default:
		return eptfd_dmabuf_ioctl(ep, file, cmd, arg);
	}
}

/**
 * eptfd_ep_show_fdinfo() - print to /proc/PID/fdinfo
 * @m: output
 * @file: file
 */
void eptfd_ep_show_fdinfo(struct seq_file *m, struct file *file)
{
	struct eptfd_ep *ep = file->private_data;
	struct eptfd_share *share;
	unsigned int count;
	u64 dropped;

	spin_lock_irq(&ep->queue.lock);
	count = ep->queue.count;
	dropped = ep->queue.dropped;
	spin_unlock_irq(&ep->queue.lock);

	seq_puts(m, "rpmsg-name:\t");
	seq_escape(m, ep->chinfo.name, "\n\\");
	seq_printf(m, "\nrpmsg-src:\t0x%x\nrpmsg-dst:\t0x%x\n"
		   "rpmsg-queued:\t%u\nrpmsg-dropped:\t%llu\n",
		   ep->addr, ep->chinfo.dst, count, dropped);
	share = eptfd_ep_share(ep);
	if (share)
		eptfd_share_show_fdinfo(share, m);
}
