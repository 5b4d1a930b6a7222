// SPDX-License-Identifier: GPL-2.0
/*
 * A queue of received messages.
 *
 * The remote decides how many messages arrive. Messages beyond the limit are
 * lost. The reader gets one error per loss, ahead of the messages that were
 * kept, as with netlink.
 */
#include <linux/err.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "eptfd.h"

static size_t msg_bytes(const struct eptfd_msg *msg)
{
	return kmalloc_size_roundup(struct_size(msg, data, msg->len));
}

/* Buses may call from atomic context */
static struct eptfd_msg *msg_alloc(const void *data, size_t len)
{
	struct eptfd_msg *msg;

	msg = kmalloc(struct_size(msg, data, len), GFP_ATOMIC | __GFP_NOWARN);
	if (!msg)
		return NULL;

	msg->next = NULL;
	msg->len = len;
	memcpy(msg->data, data, len);

	return msg;
}

/* An empty queue takes any message, even one that alone exceeds the limit */
static bool queue_has_room(const struct eptfd_queue *q, size_t bytes)
{
	return !q->bytes || q->bytes + bytes <= READ_ONCE(eptfd_rx_limit);
}

static void queue_append(struct eptfd_queue *q, struct eptfd_msg *msg)
{
	WRITE_ONCE(*q->tail, msg);
	q->tail = &msg->next;
	q->bytes += msg_bytes(msg);
	q->count++;
}

static void queue_lose(struct eptfd_queue *q)
{
	q->dropped++;
	WRITE_ONCE(q->lossy, true);
}

/* Called with the queue's lock held. Return: true if the queue took the message */
static bool queue_accept(struct eptfd_queue *q, struct eptfd_msg *msg)
{
	if (q->ended || q->closed)
		return false;
	if (!msg || !queue_has_room(q, msg_bytes(msg))) {
		queue_lose(q);
		return false;
	}
	queue_append(q, msg);

	return true;
}

/**
 * eptfd_queue_init() - make a queue ready for use
 * @q: the queue
 */
void eptfd_queue_init(struct eptfd_queue *q)
{
	spin_lock_init(&q->lock);
	q->tail = &q->head;
}

/**
 * eptfd_queue_push() - append a message, or record that it is lost
 * @q: the queue
 * @data: the message, copied
 * @len: its length
 *
 * Context: any.
 */
void eptfd_queue_push(struct eptfd_queue *q, const void *data, size_t len)
{
	struct eptfd_msg *msg;
	unsigned long irq;
	bool accepted;

	/* Allocate nothing: the remote decides how long a closed endpoint stays */
	if (READ_ONCE(q->closed))
		return;

	msg = msg_alloc(data, len);
	spin_lock_irqsave(&q->lock, irq);
	accepted = queue_accept(q, msg);
	spin_unlock_irqrestore(&q->lock, irq);

	if (!accepted)
		kfree(msg);
}

/* Called with the queue's lock held */
static int queue_take(struct eptfd_queue *q, struct eptfd_msg **msgs, const u32 *rooms,
		      int count, bool more)
{
	struct eptfd_msg *msg;
	int taken;

	if (q->lossy && more)
		return -EAGAIN;
	if (q->lossy) {
		WRITE_ONCE(q->lossy, false);
		return -ENOBUFS;
	}
	if (!q->head)
		return q->ended ? -EPIPE : -EAGAIN;

	for (taken = 0, msg = q->head; taken < count && msg; msg = msg->next) {
		if (rooms && msg->len > rooms[taken] && (taken || more))
			break;
		q->bytes -= msg_bytes(msg);
		msgs[taken++] = msg;
	}
	WRITE_ONCE(q->head, msg);
	if (!msg)
		q->tail = &q->head;
	q->count -= taken;

	return taken ?: -EAGAIN;
}

/**
 * eptfd_queue_pop() - take the oldest messages
 * @q: the queue
 * @msgs: where to put them, oldest first; the caller gives each one to kfree() or
 *	eptfd_queue_unpop()
 * @rooms: how long they may be; a longer one is taken alone. NULL: of any length
 * @count: how many at most
 * @more: the caller has some already, so a loss and a message that is too long are
 *	left for the next call to tell
 *
 * Return: how many were taken, at least 1, -ENOBUFS once after a loss, -EPIPE if
 * the queue is empty and has ended, -EAGAIN if it is just empty, and for what is left.
 */
int eptfd_queue_pop(struct eptfd_queue *q, struct eptfd_msg **msgs, const u32 *rooms,
		    int count, bool more)
{
	int taken;

	spin_lock_irq(&q->lock);
	taken = queue_take(q, msgs, rooms, count, more);
	spin_unlock_irq(&q->lock);

	return taken;
}

/**
 * eptfd_queue_unpop() - put messages back in front
 * @q: the queue
 * @msgs: messages from eptfd_queue_pop(), oldest first
 * @count: how many
 */
void eptfd_queue_unpop(struct eptfd_queue *q, struct eptfd_msg **msgs, int count)
{
	spin_lock_irq(&q->lock);
	while (count > 0) {
		struct eptfd_msg *msg = msgs[--count];

		msg->next = q->head;
		if (!q->head)
			q->tail = &msg->next;
		WRITE_ONCE(q->head, msg);
		q->bytes += msg_bytes(msg);
		q->count++;
	}
	spin_unlock_irq(&q->lock);
}

static void queue_empty(struct eptfd_queue *q, bool closed)
{
	struct eptfd_msg *msg, *next;

	spin_lock_irq(&q->lock);
	msg = q->head;
	WRITE_ONCE(q->head, NULL);
	q->tail = &q->head;
	q->bytes = 0;
	q->count = 0;
	q->dropped = 0;
	WRITE_ONCE(q->lossy, false);
	WRITE_ONCE(q->closed, closed);
	spin_unlock_irq(&q->lock);

	for (; msg; msg = next) {
		next = msg->next;
		kfree(msg);
	}
}

/**
 * eptfd_queue_purge() - free all messages, clear losses, accept messages
 * @q: the queue; nobody reads from it
 */
void eptfd_queue_purge(struct eptfd_queue *q)
{
	queue_empty(q, false);
}

/**
 * eptfd_queue_close() - free all messages, accept none until it is purged
 * @q: the queue; nobody reads from it
 */
void eptfd_queue_close(struct eptfd_queue *q)
{
	queue_empty(q, true);
}

/**
 * eptfd_queue_end() - mark that no message will follow
 * @q: the queue
 */
void eptfd_queue_end(struct eptfd_queue *q)
{
	spin_lock_irq(&q->lock);
	WRITE_ONCE(q->ended, true);
	spin_unlock_irq(&q->lock);
}
