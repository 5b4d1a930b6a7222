// SPDX-License-Identifier: GPL-2.0
/*
 * Many messages in one call, in the manner of sendmmsg() and recvmmsg().
 *
 * Messages go in groups, with one allocation and one lock for each. Memory of the
 * caller is not touched with a lock held: a page fault lasts as long as the
 * caller likes.
 */
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/minmax.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/rpmsg_eptfd.h>

#include "eptfd.h"

/* Most messages of a group, and most bytes of one to send, unless it is one message */
#define MANY_GROUP	16
#define MANY_BYTES	SZ_8K

/**
 * struct many - a call in progress
 * @ep: endpoint
 * @messages: the messages of the caller
 * @count: how many
 * @done: how many were sent or received
 * @nowait: do not even wait for a lock
 * @block: wait for room, or for the first message
 */
struct many {
	struct eptfd_ep *ep;
	struct rpmsg_message __user *messages;
	int count;
	int done;
	bool nowait;
	bool block;
};

static int many_start(struct many *many, struct file *file,
		      const struct rpmsg_messages __user *arg)
{
	struct rpmsg_messages call;

	if (copy_from_user(&call, arg, sizeof(call)))
		return -EFAULT;
	if (call.flags & ~RPMSG_MESSAGES_DONTWAIT)
		return -EINVAL;

	many->ep = file->private_data;
	many->messages = u64_to_user_ptr(call.messages);
	many->count = min(call.count, RPMSG_MESSAGES_MAX);
	many->done = 0;
	many->nowait = call.flags & RPMSG_MESSAGES_DONTWAIT;
	many->block = !many->nowait && !(file->f_flags & O_NONBLOCK);

	return 0;
}

/* Reads the next elements of the caller's array. Return: how many, at least 1 */
static int many_group(const struct many *many, struct rpmsg_message *group)
{
	int count = min(many->count - many->done, MANY_GROUP);

	if (copy_from_user(group, many->messages + many->done, count * sizeof(*group)))
		return -EFAULT;

	return count;
}

/* How many messages one copy takes. Return: at least 1, or -EMSGSIZE */
static int many_fit(const struct many *many, const struct rpmsg_message *group,
		    int count, size_t *bytes)
{
	int i;

	*bytes = 0;
	for (i = 0; i < count; i++) {
		if (group[i].length > many->ep->mtu)
			return i ?: -EMSGSIZE;
		if (i && *bytes + group[i].length > MANY_BYTES)
			break;
		*bytes += group[i].length;
	}

	return i;
}

/* Return: how many messages were copied, at least 1, or -EFAULT */
static int many_copy(struct kvec *copies, void *data, const struct rpmsg_message *group,
		     int count)
{
	int i;

	for (i = 0; i < count; i++) {
		if (copy_from_user(data, u64_to_user_ptr(group[i].data), group[i].length))
			return i ?: -EFAULT;
		copies[i].iov_base = data;
		copies[i].iov_len = group[i].length;
		data += group[i].length;
	}

	return count;
}

/* Return: 0 after all copies were sent, or why the next one was not */
static int many_send_copies(struct many *many, const struct kvec *copies, int count)
{
	u64 pause = 0;
	int ret, sent;

	do {
		ret = eptfd_ep_send_group(many->ep, copies, count, many->nowait,
					  many->block, &sent);
		copies += sent;
		count -= sent;
		many->done += sent;
		if (sent)
			pause = 0;
		if (ret == -EAGAIN && many->block)
			ret = eptfd_ep_wait_room(many->ep, &pause);
		else if (ret == -EBUSY && many->block && sent)
			ret = 0;	/* As the first of a group, it waits for a buffer */
	} while (!ret && count);

	return ret;
}

static int many_send(struct many *many)
{
	struct rpmsg_message group[MANY_GROUP];
	struct kvec copies[MANY_GROUP];
	size_t bytes;
	void *data;
	int ret;

	ret = many_group(many, group);
	if (ret < 0)
		return ret;
	ret = many_fit(many, group, ret, &bytes);
	if (ret < 0)
		return ret;

	data = kmalloc(bytes, GFP_KERNEL);
	if (!data)
		return -ENOMEM;

	ret = many_copy(copies, data, group, ret);
	if (ret > 0)
		ret = many_send_copies(many, copies, ret);
	kfree(data);

	return ret;
}

/* Return: 0, or -EFAULT or -EMSGSIZE, after which the message is still the caller's */
static int many_deliver(struct rpmsg_message __user *to, const struct rpmsg_message *room,
			const struct eptfd_msg *msg)
{
	if (put_user(msg->len, &to->received))
		return -EFAULT;
	if (msg->len > room->length)
		return -EMSGSIZE;
	if (copy_to_user(u64_to_user_ptr(room->data), msg->data, msg->len))
		return -EFAULT;

	return 0;
}

static int many_recv(struct many *many)
{
	struct rpmsg_message group[MANY_GROUP];
	struct eptfd_msg *msgs[MANY_GROUP];
	u32 rooms[MANY_GROUP];
	int i, count, ret = 0;

	count = many_group(many, group);
	if (count < 0)
		return count;
	for (i = 0; i < count; i++)
		rooms[i] = group[i].length;
	count = eptfd_ep_take(many->ep, msgs, rooms, count, many->done,
			      many->block && !many->done);
	if (count < 0)
		return count;

	for (i = 0; i < count; i++) {
		ret = many_deliver(many->messages + many->done, &group[i], msgs[i]);
		if (ret)
			break;
		kfree(msgs[i]);
		many->done++;
	}
	/* It is the first message of the call, and could never be passed */
	if (ret == -EMSGSIZE)
		kfree(msgs[i++]);
	if (i < count)
		eptfd_ep_untake(many->ep, msgs + i, count - i);

	return ret;
}

/* Takes @step for group after group until one is not done in full */
static long many_run(struct file *file, fmode_t mode, const struct rpmsg_messages __user *arg,
		     int (*step)(struct many *many))
{
	struct many many;
	int ret;

	if (!(file->f_mode & mode))
		return -EBADF;

	ret = many_start(&many, file, arg);
	if (ret)
		return ret;

	while (!ret && many.done < many.count) {
		ret = step(&many);
		cond_resched();
	}

	return many.done ?: ret;
}

/**
 * eptfd_many_send() - send many messages
 * @file: file of an endpoint
 * @arg: the messages
 *
 * Return: how many were sent; if none was, why: -EBADF without write access,
 * -EINVAL for a flag, or see eptfd_ep_write_iter().
 */
long eptfd_many_send(struct file *file, const struct rpmsg_messages __user *arg)
{
	return many_run(file, FMODE_WRITE, arg, many_send);
}

/**
 * eptfd_many_recv() - receive what is there, at least one message
 * @file: file of an endpoint
 * @arg: room for messages
 *
 * Return: how many were received; if none was, why: -EBADF without read access,
 * -EINVAL for a flag, -EMSGSIZE if the first message was longer than its room,
 * and is lost, or see eptfd_ep_read_iter().
 */
long eptfd_many_recv(struct file *file, const struct rpmsg_messages __user *arg)
{
	return many_run(file, FMODE_READ, arg, many_recv);
}
