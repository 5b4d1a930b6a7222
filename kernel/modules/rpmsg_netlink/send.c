// SPDX-License-Identifier: GPL-2.0
/*
 * Sends blocks to the remote: cuts the client's parts into messages.
 */
#include <linux/minmax.h>
#include <linux/slab.h>

#include "rpnl.h"

/* Number of messages that a conversation sends per turn */
#define RPNL_TURN	32

/**
 * rpnl_tx_init() - allocate the message buffer
 * @tx: zeroed sending side of a conversation
 * @mtu: longest message
 *
 * Return: 0 or -ENOMEM.
 */
int rpnl_tx_init(struct rpnl_tx *tx, u32 mtu)
{
	tx->message = kmalloc(mtu, GFP_KERNEL_ACCOUNT);

	return tx->message ? 0 : -ENOMEM;
}

/**
 * rpnl_tx_fini() - undo rpnl_tx_init() and drop the block
 * @tx: sending side of a conversation, after rpnl_tx_init()
 */
void rpnl_tx_fini(struct rpnl_tx *tx)
{
	kvfree(tx->rest);
	kfree(tx->message);
}

static void tx_forget(struct rpnl_tx *tx)
{
	kvfree(tx->rest);
	tx->rest = NULL;
	tx->rest_at = 0;
	tx->rest_len = 0;
	tx->fill = 0;
	tx->unsent = 0;
	tx->active = false;
	tx->begun = false;
	tx->deferred = false;
}

/**
 * rpnl_tx_end() - drop the block to the remote, complete or not
 * @conv: conversation, its mutex held
 *
 * The remote will answer an incomplete packet. If a reset follows, all messages
 * before its answer are ignored anyway; otherwise this answer is counted in
 * rpnl_conv.ignore.
 */
void rpnl_tx_end(struct rpnl_conv *conv)
{
	struct rpnl_tx *tx = &conv->tx;

	rpnl_remote_leave(conv);
	spin_lock_irq(&conv->lock);
	if (tx->begun && tx->unsent) {
		/* A message of the wrong length ends the packet */
		conv->abort_len = tx->unsent == 1 ? 2 : 1;
		conv->due |= BIT(RPNL_DUE_ABORT);
		conv->ignore += !conv->tx_drop;
	}
	conv->tx_drop = false;
	conv->tx_busy = false;
	spin_unlock_irq(&conv->lock);

	tx_forget(tx);
}

static void tx_set_busy(struct rpnl_conv *conv, bool busy)
{
	spin_lock_irq(&conv->lock);
	conv->tx_busy = busy;
	spin_unlock_irq(&conv->lock);
}

/* Return: 0, -EAGAIN without room, -EINPROGRESS at the end of the turn, another errno */
static int tx_message(struct rpnl_conv *conv, const void *msg, size_t len)
{
	struct rpnl_tx *tx = &conv->tx;
	bool last = len == tx->unsent;
	int ret;

	if (!tx->budget)
		return -EINPROGRESS;

	/* The answer may arrive before the call returns */
	if (last)
		tx_set_busy(conv, false);
	ret = rpnl_conv_message(conv, (void *)msg, len);
	if (ret) {
		if (last)
			tx_set_busy(conv, true);
		return ret;
	}

	tx->budget--;
	tx->begun = true;
	tx->unsent -= len;

	return 0;
}

static bool tx_is_full(const struct rpnl_tx *tx, size_t mtu)
{
	return tx->fill && (tx->fill == mtu || tx->fill == tx->unsent);
}

/* One step of tx_push(). Return: 0, or an errno that ends tx_push() */
static int tx_step(struct rpnl_conv *conv, const u8 *data, size_t len,
		   size_t *done)
{
	struct rpnl_tx *tx = &conv->tx;
	size_t mtu = conv->chan->mtu, n = min_t(u64, mtu, tx->unsent);
	int ret;

	if (tx_is_full(tx, mtu)) {
		ret = tx_message(conv, tx->message, tx->fill);
		if (!ret)
			tx->fill = 0;
		return ret;
	}

	/* A whole message is sent from @data, without a copy to tx->message */
	if (!tx->fill && len - *done >= n) {
		ret = tx_message(conv, data + *done, n);
		if (!ret)
			*done += n;
		return ret;
	}

	n = min(mtu - tx->fill, len - *done);
	memcpy(tx->message + tx->fill, data + *done, n);
	tx->fill += n;
	*done += n;

	return 0;
}

/* Cuts bytes into messages. Sets *@done to the number of bytes taken, also on failure */
static int tx_push(struct rpnl_conv *conv, const u8 *data, size_t len,
		   size_t *done)
{
	struct rpnl_tx *tx = &conv->tx;
	int ret = 0;

	*done = 0;
	while (!ret && tx->unsent &&
	       (*done < len || tx_is_full(tx, conv->chan->mtu)))
		ret = tx_step(conv, data, len, done);

	return ret;
}

/* The part is in the ring. Notifies the client, unless the remote's answer will do so */
static void tx_part_done(struct rpnl_conv *conv)
{
	struct rpnl_tx *tx = &conv->tx;
	struct sk_buff *note = NULL;

	tx->deferred = false;
	if (!tx->unsent)
		tx_forget(tx);

	spin_lock_irq(&conv->lock);
	if (conv->state == RPNL_SENDING && conv->note)
		note = rpnl_note_next(conv, tx->length, tx->taken);
	spin_unlock_irq(&conv->lock);
	rpnl_note_send(conv, note);
}

static int tx_push_rest(struct rpnl_conv *conv)
{
	struct rpnl_tx *tx = &conv->tx;
	size_t done;
	int ret;

	ret = tx_push(conv, tx->rest + tx->rest_at, tx->rest_len - tx->rest_at,
		      &done);
	tx->rest_at += done;
	if (ret)
		return ret;

	tx->rest_at = 0;
	tx->rest_len = 0;
	tx_part_done(conv);

	return 0;
}

/* Ends the block after a permanent error of the bus */
static void tx_fail(struct rpnl_conv *conv, u32 status)
{
	struct sk_buff *note;

	spin_lock_irq(&conv->lock);
	note = rpnl_conv_break(conv, status);
	spin_unlock_irq(&conv->lock);
	rpnl_tx_end(conv);
	rpnl_note_send(conv, note);
}

static bool is_for_later(int ret)
{
	return ret == -EAGAIN || ret == -EINPROGRESS;
}

/**
 * rpnl_conv_pump() - send pending messages as far as there is room
 * @conv: conversation, its mutex held
 *
 * Return: 0, -EAGAIN without room, -EINPROGRESS at the end of its turn, or another
 * errno for a permanent failure.
 */
int rpnl_conv_pump(struct rpnl_conv *conv)
{
	int ret;

	conv->tx.budget = RPNL_TURN;
	ret = rpnl_conv_ready(conv);
	if (!ret && conv->tx.deferred)
		ret = tx_push_rest(conv);
	if (ret && !is_for_later(ret) && ret != -EPIPE)
		tx_fail(conv, -ret);

	return ret;
}

/* Keeps the bytes of a part that found no room */
static int tx_keep(struct rpnl_conv *conv, const u8 *data, size_t len)
{
	struct rpnl_tx *tx = &conv->tx;

	tx->deferred = true;
	if (!len)
		return 0;

	/* Freed at the end of the block */
	if (!tx->rest)
		tx->rest = kvmalloc(RPMSG_NETLINK_PART_MAX, GFP_KERNEL_ACCOUNT);
	if (!tx->rest)
		return -ENOMEM;
	memcpy(tx->rest, data, len);
	tx->rest_len = len;

	return 0;
}

/* Does not verify the client's checksum: the remote does */
static void tx_begin(struct rpnl_tx *tx, const struct rpnl_part *part)
{
	size_t head;

	tx_forget(tx);
	tx->crc = part->has_crc ? part->crc : rpnl_crc(0, part->data, part->len);
	head = rpnl_head_block(tx->message, part->length, tx->crc);
	WRITE_ONCE(tx->length, part->length);
	tx->active = true;
	tx->taken = 0;
	tx->fill = head;
	tx->unsent = (u64)head + part->length;
}

/* The first part of several must have the checksum, which the header needs */
static int part_check_first(const struct rpnl_part *part,
			    struct genl_info *info)
{
	bool whole = part->len == part->length;

	if (whole || part->has_crc)
		return 0;

	GENL_REQ_ATTR_CHECK(info, RPMSG_NETLINK_A_BLOCK_CRC);
	NL_SET_ERR_MSG(info->extack,
		       "the first part of several needs the block's checksum");

	return -EINVAL;
}

/* A later part must continue the block, with the same length and checksum */
static int part_check_next(const struct rpnl_tx *tx,
			   const struct rpnl_part *part, struct genl_info *info)
{
	if (part->offset != tx->taken) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_OFFSET],
				    "the part does not follow the previous one");
		return -EINVAL;
	}
	if (part->length != tx->length) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_LENGTH],
				    "the length differs from that of the first part");
		return -EINVAL;
	}
	if (part->has_crc && part->crc != tx->crc) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CRC],
				    "the checksum differs from that of the first part");
		return -EINVAL;
	}

	return 0;
}

/* May a block begin? Called with the lock held */
static int state_check_first(struct rpnl_conv *conv, struct genl_info *info)
{
	if (conv->state == RPNL_IDLE || conv->state == RPNL_BROKEN)
		return 0;

	NL_SET_ERR_MSG_ATTR(info->extack,
			    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
			    "another block is in progress");

	return -EBUSY;
}

/* May another part follow? Called with the lock held */
static int state_check_next(struct rpnl_conv *conv, struct genl_info *info)
{
	if (conv->state == RPNL_BROKEN)
		return rpnl_conv_told(conv, info);
	if (conv->state == RPNL_SENDING && !conv->note)
		return 0;

	if (conv->state == RPNL_IDLE) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_OFFSET],
				    "no block is being sent");
		return -EINVAL;
	}
	NL_SET_ERR_MSG_ATTR(info->extack,
			    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
			    "another block, or the previous part, is in progress");

	return -EBUSY;
}

static int send_check(struct rpnl_conv *conv, const struct rpnl_part *part,
		      struct genl_info *info)
{
	int ret;

	spin_lock_irq(&conv->lock);
	ret = part->offset ? state_check_next(conv, info) :
			     state_check_first(conv, info);
	spin_unlock_irq(&conv->lock);
	if (ret)
		return ret;

	return part->offset ? part_check_next(&conv->tx, part, info) :
			      part_check_first(part, info);
}

/*
 * Accepts a part. After this the remote may answer. Return: 0, or an errno if an
 * answer has ended the block meanwhile
 */
static int send_claim(struct rpnl_conv *conv, const struct rpnl_part *part,
		      struct genl_info *info, struct sk_buff *note)
{
	int ret = 0;

	spin_lock_irq(&conv->lock);
	if (part->offset)
		ret = state_check_next(conv, info);
	if (!ret) {
		rpnl_conv_expect(conv, note, info->snd_seq, part->timeout);
		conv->tx_busy = true;
		/* A pending drop was for an earlier block, not for a first part */
		conv->tx_drop &= !!part->offset;
		conv->state = part->offset + part->len == part->length ?
			      RPNL_ANSWER : RPNL_SENDING;
	}
	spin_unlock_irq(&conv->lock);

	return ret;
}

/* Undoes send_claim(), unless the remote's answer has used the note */
static int send_unclaim(struct rpnl_conv *conv, u32 offset)
{
	struct sk_buff *note;

	spin_lock_irq(&conv->lock);
	note = conv->note;
	conv->note = NULL;
	if (note)
		conv->state = offset ? RPNL_SENDING : RPNL_IDLE;
	spin_unlock_irq(&conv->lock);

	if (!note)
		return 0;
	nlmsg_free(note);
	if (!offset) {
		rpnl_remote_leave(conv);
		tx_forget(&conv->tx);
	}

	return -EAGAIN;
}

static void send_say_why_not(const struct rpnl_conv *conv,
			     struct genl_info *info)
{
	struct nlattr *nowait = info->attrs[RPMSG_NETLINK_A_BLOCK_NOWAIT];

	if (rpnl_remote_is_known(conv->chan))
		NL_SET_ERR_MSG_ATTR(info->extack, nowait,
				    "the ring of the bus is full");
	else
		NL_SET_ERR_MSG_ATTR(info->extack, nowait,
				    "the coprocessor has not answered yet");
}

/* The ring is full: notifies the client of the bytes taken, if there are any */
static int send_partly(struct rpnl_conv *conv, const struct rpnl_part *part,
		       struct genl_info *info, size_t done)
{
	struct rpnl_tx *tx = &conv->tx;
	struct sk_buff *note = NULL;

	if (!done) {
		send_say_why_not(conv, info);
		rpnl_chan_poke(conv->chan);
		return send_unclaim(conv, part->offset);
	}

	/* tx->message may be full without being in the ring */
	tx->deferred = true;
	if (done == part->len)
		return 0;

	spin_lock_irq(&conv->lock);
	if (conv->note) {
		conv->state = RPNL_SENDING;
		note = rpnl_note_next(conv, tx->length, tx->taken);
	}
	spin_unlock_irq(&conv->lock);
	rpnl_note_send(conv, note);

	return 0;
}

/* Return: 0, or -EAGAIN if nothing was taken */
static int send_push(struct rpnl_conv *conv, const struct rpnl_part *part,
		     struct genl_info *info)
{
	struct rpnl_tx *tx = &conv->tx;
	size_t done = 0;
	int ret;

	tx->budget = UINT_MAX;
	/* Conversations that wait already come first */
	ret = rpnl_chan_is_full(conv->chan) ? -EAGAIN : rpnl_conv_ready(conv);
	if (!ret)
		ret = tx_push(conv, part->data, part->len, &done);
	if (!ret) {
		tx->taken += done;
		tx_part_done(conv);
		return 0;
	}

	if (ret == -EAGAIN && part->nowait) {
		tx->taken += done;
		ret = send_partly(conv, part, info, done);
		if (ret)
			return ret;
	} else if (ret == -EAGAIN) {
		tx->taken += part->len;
		ret = tx_keep(conv, part->data + done, part->len - done);
	}
	if (ret)
		tx_fail(conv, -ret);
	rpnl_chan_wait(conv->chan, conv);

	return 0;
}

/* Called with the mutex held */
static int conv_send(struct rpnl_conv *conv, const struct rpnl_part *part,
		     struct genl_info *info)
{
	struct sk_buff *note;
	int ret;

	ret = send_check(conv, part, info);
	if (ret)
		return ret;
	if (!part->offset) {
		rpnl_tx_end(conv);
		ret = rpnl_remote_check(conv, part->length, info);
		if (ret)
			return ret;
	}

	note = rpnl_note_alloc();
	if (!note)
		return -ENOMEM;

	if (!part->offset)
		tx_begin(&conv->tx, part);
	ret = send_claim(conv, part, info, note);
	if (ret) {
		nlmsg_free(note);
		return ret;
	}

	return send_push(conv, part, info);
}

/**
 * rpnl_conv_send() - take a part of a block and send as much as there is room for
 * @conv: conversation
 * @part: the part
 * @info: the request
 *
 * After an error nothing was taken. The block has ended if the error is from
 * rpnl_conv_told(), and can be continued after any other. A first part may have
 * cleared the rest of an earlier block, and a failure that the client has not
 * been told about, even if it is refused.
 *
 * Return: 0, and the client gets a notification later; -EAGAIN, -EBUSY, -EINVAL,
 * -EMSGSIZE, -ENODEV, -ENOMEM, or the error of rpnl_conv_told().
 */
int rpnl_conv_send(struct rpnl_conv *conv, const struct rpnl_part *part,
		   struct genl_info *info)
{
	int ret;

	ret = rpnl_conv_begin(conv, info);
	if (ret)
		return ret;
	ret = conv_send(conv, part, info);
	mutex_unlock(&conv->mutex);

	return ret;
}
