// SPDX-License-Identifier: GPL-2.0
/*
 * A conversation: the blocks of one socket on one channel. It has its own
 * endpoint, so that it alone gets the remote's answers.
 */
#include <linux/errno.h>
#include <linux/jiffies.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/unaligned.h>

#include "rpnl.h"

/* Ends a request whose deadline has passed, and resets the remote */
static void conv_too_late(struct timer_list *timer)
{
	struct rpnl_conv *conv = container_of(timer, struct rpnl_conv, timer);
	struct sk_buff *note = NULL;
	unsigned long irq;

	/* The timer wheel truncates timeouts of more than some days: rearm the timer */
	spin_lock_irqsave(&conv->lock, irq);
	if (conv->note && time_before(jiffies, conv->deadline))
		mod_timer(timer, conv->deadline);
	else if (conv->note)
		note = rpnl_conv_break(conv, ETIMEDOUT);
	spin_unlock_irqrestore(&conv->lock, irq);

	if (!note)
		return;
	rpnl_note_send(conv, note);
	rpnl_remote_doubt(conv->chan);
	rpnl_chan_kick(conv->chan, conv);
}

/**
 * rpnl_conv_alloc() - allocate a conversation
 * @chan: channel; a reference is taken
 * @net: network namespace of the socket; a reference is taken, so that it stays
 *	until the last notification is sent
 * @portid: port of the socket
 *
 * Return: a conversation without an endpoint, or NULL if there is no memory.
 */
struct rpnl_conv *rpnl_conv_alloc(struct rpnl_chan *chan, struct net *net,
				  u32 portid)
{
	struct rpnl_conv *conv;

	conv = kzalloc(sizeof(*conv), GFP_KERNEL_ACCOUNT);
	if (!conv)
		return NULL;
	if (rpnl_tx_init(&conv->tx, chan->mtu)) {
		kfree(conv);
		return NULL;
	}

	kref_init(&conv->ref);
	kref_get(&chan->ref);
	conv->chan = chan;
	conv->net = get_net_track(net, &conv->net_tracker, GFP_KERNEL);
	conv->portid = portid;
	INIT_LIST_HEAD(&conv->in_client);
	INIT_LIST_HEAD(&conv->in_chan);
	INIT_LIST_HEAD(&conv->in_senders);
	mutex_init(&conv->mutex);
	spin_lock_init(&conv->lock);
	timer_setup(&conv->timer, conv_too_late, 0);

	return conv;
}

static void conv_free(struct kref *ref)
{
	struct rpnl_conv *conv = container_of(ref, struct rpnl_conv, ref);

	rpnl_tx_fini(&conv->tx);
	rpnl_rx_fini(&conv->rx);
	rpnl_chan_put(conv->chan);
	put_net_track(conv->net, &conv->net_tracker);
	kfree(conv);
}

/**
 * rpnl_conv_put() - drop a reference
 * @conv: conversation
 */
void rpnl_conv_put(struct rpnl_conv *conv)
{
	kref_put(&conv->ref, conv_free);
}

/* Called with the lock held */
static void conv_want_reset(struct rpnl_conv *conv)
{
	conv->reset_value++;
	conv->resync = true;
	conv->ignore = 0;
	conv->credit_due = 0;
	conv->due &= BIT(RPNL_DUE_OPEN) | BIT(RPNL_DUE_OPEN_2) |
		     BIT(RPNL_DUE_ABORT);
	conv->due |= BIT(RPNL_DUE_RESET);
	conv->due_change++;
	conv->rx.open = false;
	conv->tx_drop = true;
}

/**
 * rpnl_conv_stop() - end the current block
 * @conv: conversation, locked
 * @status: errno of the client
 *
 * Return: a notification for the client, if it waits for one.
 */
struct sk_buff *rpnl_conv_stop(struct rpnl_conv *conv, u32 status)
{
	bool receiving = conv->state == RPNL_RECEIVING;

	if (conv->state == RPNL_IDLE || conv->state == RPNL_BROKEN)
		return NULL;

	if (!conv->note) {
		conv->state = RPNL_BROKEN;
		conv->broken = status;
		return NULL;
	}
	conv->state = RPNL_IDLE;

	return receiving ? rpnl_note_no_data(conv, status) :
			   rpnl_note_done(conv, 0, status);
}

/**
 * rpnl_conv_break() - end the current block and reset the remote
 * @conv: conversation, locked
 * @status: errno of the client
 *
 * The caller has to make sure that rpnl_conv_pump() or rpnl_chan_kick() follows.
 *
 * Return: a notification for the client, if it waits for one.
 */
struct sk_buff *rpnl_conv_break(struct rpnl_conv *conv, u32 status)
{
	struct sk_buff *note;

	note = rpnl_conv_stop(conv, status);
	conv_want_reset(conv);

	return note;
}

/*
 * Maps the remote's status to a valid errno. Numbers from ERESTARTSYS on are
 * internal to the kernel. If a request returned EINTR, netlink_rcv_skb() would
 * not acknowledge it, and its client would wait forever.
 */
static u32 remote_status(u32 value)
{
	return value < ERESTARTSYS && value != EINTR ? value : EPROTO;
}

/* The remote has answered our block. Called with the lock held */
static struct sk_buff *conv_answered(struct rpnl_conv *conv, u32 length,
				     u32 status)
{
	if (conv->ignore) {
		conv->ignore--;
		return NULL;
	}

	/* An answer to a block that is not completely sent is a protocol error */
	if (conv->state == RPNL_SENDING || conv->tx_busy)
		return rpnl_conv_break(conv, status ?: EPROTO);
	if (!status && length != READ_ONCE(conv->tx.length))
		return rpnl_conv_break(conv, EPROTO);

	conv->state = RPNL_IDLE;

	return rpnl_note_done(conv, length, status);
}

static struct sk_buff *conv_rx_status(struct rpnl_conv *conv,
				      const struct rpnl_head *head)
{
	u32 status = remote_status(head->value);

	switch (conv->state) {
	case RPNL_SENDING:
	case RPNL_ANSWER:
		return conv_answered(conv, head->length, status);
	case RPNL_RECEIVING:
		if (conv->ignore)
			return conv_answered(conv, head->length, status);
		/* Instead of a block: the remote has none to send */
		return status ? rpnl_conv_stop(conv, status) :
				rpnl_conv_break(conv, EPROTO);
	default:
		if (conv->ignore)
			conv->ignore--;
		return NULL;
	}
}

/* Handles the two-byte answer: the length of a packet with the short header */
static struct sk_buff *conv_rx_short_answer(struct rpnl_conv *conv,
					    const void *msg)
{
	u16 length = get_unaligned_le16(msg);

	if (conv->state != RPNL_ANSWER && !conv->ignore)
		return NULL;
	if (length < RPNL_HEAD_SHORT && !conv->ignore)
		return rpnl_conv_break(conv, EPROTO);

	return conv_answered(conv, length - RPNL_HEAD_SHORT, 0);
}

/**
 * rpnl_conv_length() - handle the example firmware's answer to our packet
 * @conv: conversation, locked
 * @length: number of bytes that it received, header included
 *
 * Return: a notification for the client, or NULL.
 */
struct sk_buff *rpnl_conv_length(struct rpnl_conv *conv, u16 length)
{
	/* The block was given up, and rpnl_tx_end() has not dropped it yet */
	if (conv->tx_drop)
		return NULL;
	if (conv->state != RPNL_ANSWER || conv->tx_busy ||
	    length != READ_ONCE(conv->tx.length) + RPNL_HEAD_SHORT)
		return rpnl_conv_break(conv, EPROTO);

	conv->state = RPNL_IDLE;

	return rpnl_note_done(conv, length - RPNL_HEAD_SHORT, 0);
}

static struct sk_buff *conv_rx_packet(struct rpnl_conv *conv, const void *msg,
				      size_t len)
{
	struct rpnl_head head;

	/* Outside of a packet, a message that is too short for a header is ignored */
	if (len < RPNL_HEAD_SHORT)
		return NULL;
	if (!rpnl_head_parse(&head, msg, len))
		return rpnl_conv_break(conv, EPROTO);

	switch (head.type) {
	case RPMSG_BULK_DATA:
		return rpnl_rx_begin(conv, &head, msg, len);
	case RPMSG_BULK_STATUS:
		return conv_rx_status(conv, &head);
	case RPMSG_BULK_RESET_DONE:
		return NULL;
	default:
		return rpnl_conv_break(conv, EPROTO);
	}
}

/* Ignores all messages until the remote has answered the reset */
static void conv_rx_resync(struct rpnl_conv *conv, const void *msg, size_t len)
{
	struct rpnl_head head;

	if (rpnl_head_parse(&head, msg, len) &&
	    head.type == RPMSG_BULK_RESET_DONE &&
	    head.value == conv->reset_value)
		conv->resync = false;
}

/* Called with the lock held. Return: a notification to be sent, or NULL */
static struct sk_buff *conv_rx(struct rpnl_conv *conv, const void *msg,
			       size_t len)
{
	if (conv->resync) {
		conv_rx_resync(conv, msg, len);
		return NULL;
	}
	if (conv->rx.open)
		return rpnl_rx_go_on(conv, msg, len);
	if (len == RPNL_ANSWER_SHORT)
		return conv_rx_short_answer(conv, msg);

	return conv_rx_packet(conv, msg, len);
}

/* Called by the bus, in any context */
static int conv_rx_cb(struct rpmsg_device *rpdev, void *data, int len,
		      void *priv, u32 src)
{
	struct rpnl_conv *conv = priv;
	struct sk_buff *note;
	unsigned long irq;
	bool due;

	spin_lock_irqsave(&conv->lock, irq);
	note = conv_rx(conv, data, len);
	due = conv->due;
	spin_unlock_irqrestore(&conv->lock, irq);

	rpnl_note_send(conv, note);
	if (due)
		rpnl_chan_kick(conv->chan, conv);

	return 0;
}

static struct rpmsg_endpoint *conv_create_ept(struct rpnl_conv *conv)
{
	struct rpmsg_channel_info chinfo = {
		.src = RPMSG_ADDR_ANY,
		.dst = conv->chan->address,
	};

	strscpy_pad(chinfo.name, conv->chan->name);

	return rpmsg_create_ept(conv->chan->rpdev, conv_rx_cb, conv, chinfo);
}

static int conv_open(struct rpnl_conv *conv)
{
	if (conv->ended)
		return -ENODEV;

	/* Messages that arrive before RESET_DONE belong to an earlier user of the address */
	conv->reset_value = get_random_u32();
	conv_want_reset(conv);
	conv->due |= BIT(RPNL_DUE_OPEN) | BIT(RPNL_DUE_OPEN_2);

	/* The bus returns NULL both for lack of addresses and for lack of memory */
	conv->ept = conv_create_ept(conv);

	return conv->ept ? 0 : -ENOMEM;
}

/**
 * rpnl_conv_open() - create the endpoint
 * @conv: new conversation
 *
 * Return: 0, -ENODEV if the channel is gone, -ENOMEM.
 */
int rpnl_conv_open(struct rpnl_conv *conv)
{
	int ret;

	ret = rpnl_chan_enter(conv->chan, conv);
	if (ret)
		return ret;

	mutex_lock(&conv->mutex);
	ret = conv_open(conv);
	mutex_unlock(&conv->mutex);
	if (ret) {
		rpnl_chan_leave(conv->chan, conv);
		rpnl_chan_no_ept(conv->chan);
	}

	return ret;
}

/* Resets the remote if it may still hold part of a block, so that it can free it */
static void conv_farewell(struct rpnl_conv *conv)
{
	bool idle;

	spin_lock_irq(&conv->lock);
	idle = conv->state == RPNL_IDLE && !conv->tx_busy && !conv->ignore;
	if (!idle)
		conv_want_reset(conv);
	spin_unlock_irq(&conv->lock);

	if (!idle)
		rpnl_conv_pump(conv);
}

/**
 * rpnl_conv_end() - end a conversation permanently
 * @conv: conversation
 * @socket_gone: the socket was released: do not notify it, but reset the remote
 *
 * After this returns the bus is not used and no callback runs.
 */
void rpnl_conv_end(struct rpnl_conv *conv, bool socket_gone)
{
	struct rpmsg_endpoint *ept;
	struct sk_buff *note;

	mutex_lock(&conv->mutex);
	if (socket_gone && conv->ept)
		conv_farewell(conv);
	rpnl_remote_leave(conv);
	ept = conv->ept;
	conv->ept = NULL;
	WRITE_ONCE(conv->ended, true);
	mutex_unlock(&conv->mutex);

	timer_shutdown_sync(&conv->timer);
	if (ept) {
		rpmsg_destroy_ept(ept);
		rpnl_chan_no_ept(conv->chan);
	}

	spin_lock_irq(&conv->lock);
	note = rpnl_conv_stop(conv, EPIPE);
	spin_unlock_irq(&conv->lock);

	if (socket_gone)
		kfree_skb(note);
	else
		rpnl_note_send(conv, note);
}

/**
 * rpnl_conv_begin() - take the mutex for a request
 * @conv: conversation
 * @info: the request
 *
 * Return: 0 with the mutex held, or -ENODEV if the channel is gone.
 */
int rpnl_conv_begin(struct rpnl_conv *conv, struct genl_info *info)
{
	mutex_lock(&conv->mutex);
	if (!conv->ended)
		return 0;
	mutex_unlock(&conv->mutex);
	NL_SET_ERR_MSG_ATTR(info->extack,
			    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
			    "the channel is gone");

	return -ENODEV;
}

/**
 * rpnl_conv_expect() - accept a request: set its notification and its deadline
 * @conv: conversation, locked
 * @note: memory for the notification
 * @seq: sequence number of the request
 * @timeout: its time limit in milliseconds
 */
void rpnl_conv_expect(struct rpnl_conv *conv, struct sk_buff *note, u32 seq,
		      u32 timeout)
{
	conv->note = note;
	conv->seq = seq;
	conv->deadline = jiffies + msecs_to_jiffies(timeout);
	mod_timer(&conv->timer, conv->deadline);
}

/**
 * rpnl_conv_flush() - send the messages that are due, now or once there is room
 * @conv: conversation, its mutex held
 */
void rpnl_conv_flush(struct rpnl_conv *conv)
{
	if (rpnl_conv_pump(conv))
		rpnl_chan_wait(conv->chan, conv);
}

/**
 * rpnl_conv_reset() - end the current block at the client's request
 * @conv: conversation
 * @info: the request
 *
 * Return: 0, or -ENODEV if the channel is gone.
 */
int rpnl_conv_reset(struct rpnl_conv *conv, struct genl_info *info)
{
	struct sk_buff *note;
	int ret;

	ret = rpnl_conv_begin(conv, info);
	if (ret)
		return ret;

	spin_lock_irq(&conv->lock);
	note = rpnl_conv_break(conv, ECANCELED);
	conv->state = RPNL_IDLE;
	spin_unlock_irq(&conv->lock);

	rpnl_note_send(conv, note);
	rpnl_conv_flush(conv);
	mutex_unlock(&conv->mutex);

	return 0;
}

/**
 * rpnl_conv_told() - report the failure of a block to the client
 * @conv: conversation that is %RPNL_BROKEN, locked
 * @info: the request
 *
 * Return: the error.
 */
int rpnl_conv_told(struct rpnl_conv *conv, struct genl_info *info)
{
	conv->state = RPNL_IDLE;
	NL_SET_ERR_MSG_ATTR(info->extack,
			    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
			    "the block has failed");

	return -(int)conv->broken;
}

/**
 * rpnl_conv_message() - put a message into the ring
 * @conv: conversation, its mutex held
 * @msg: the message
 * @len: its length
 *
 * Return: 0, -EAGAIN without room, -EPIPE after the end, or an error of the bus.
 */
int rpnl_conv_message(struct rpnl_conv *conv, void *msg, size_t len)
{
	struct rpnl_chan *chan = conv->chan;
	struct rpmsg_endpoint *ept = conv->ept;
	int ret;

	if (!ept)
		return -EPIPE;
	/* The example firmware sends all answers to the channel's own endpoint */
	if (rpnl_remote_is_plain(chan))
		ept = chan->rpdev->ept;

	/* The blocking calls of the buses return neither for a signal nor at the remote's end */
	ret = rpmsg_trysendto(ept, msg, len, chan->address);
	if (ret == -ENOMEM || ret == -EBUSY)
		return -EAGAIN;
	if (!ret)
		conv->sent++;

	return ret;
}

/* Writes a short message; called with the lock held. Return: its length */
static size_t conv_put_due(struct rpnl_conv *conv, enum rpnl_due due, u8 *msg)
{
	switch (due) {
	case RPNL_DUE_OPEN:
	case RPNL_DUE_OPEN_2:
		return 1;
	case RPNL_DUE_ABORT:
		return conv->abort_len;
	case RPNL_DUE_RESET:
		rpnl_head_control(msg, RPMSG_BULK_RESET, 0, conv->reset_value);
		return RPNL_HEAD_LONG;
	case RPNL_DUE_ANSWER:
		memcpy(msg, conv->answer, conv->answer_len);
		return conv->answer_len;
	case RPNL_DUE_RECEIVE:
		rpnl_head_control(msg, RPMSG_BULK_RECEIVE, conv->rx.wanted,
				  conv->credit_due);
		return RPNL_HEAD_LONG;
	case RPNL_DUE_CREDIT:
		rpnl_head_control(msg, RPMSG_BULK_CREDIT, 0, conv->credit_due);
		return RPNL_HEAD_LONG;
	}

	return 0;
}

/* Sends one message. Called with the lock held; drops it while sending */
static int conv_send_one_due(struct rpnl_conv *conv, enum rpnl_due due)
{
	unsigned int change = conv->due_change;
	u64 credit = conv->credit_due;
	u8 msg[RPNL_HEAD_LONG] = {};
	size_t len = conv_put_due(conv, due, msg);
	int ret;

	/*
	 * The answer may arrive before the call returns, so the message is marked
	 * as sent beforehand, and marked as due again if the call fails.
	 */
	if (due == RPNL_DUE_RECEIVE || due == RPNL_DUE_CREDIT) {
		conv->credit_due = 0;
		conv->rx.credit += credit;
	}
	spin_unlock_irq(&conv->lock);
	ret = rpnl_conv_message(conv, msg, len);
	spin_lock_irq(&conv->lock);

	if (conv->due_change != change)
		return ret;
	if (!ret) {
		conv->due &= ~BIT(due);
	} else if (due == RPNL_DUE_RECEIVE || due == RPNL_DUE_CREDIT) {
		conv->credit_due += credit;
		conv->rx.credit -= credit;
	}

	return ret;
}

/* Return: 0, -EAGAIN without room, or an error of the bus */
static int conv_send_due(struct rpnl_conv *conv)
{
	int ret = 0;

	spin_lock_irq(&conv->lock);
	while (conv->due && !ret) {
		/* No message of the dropped block may follow the reset */
		if (conv->tx_drop) {
			spin_unlock_irq(&conv->lock);
			rpnl_tx_end(conv);
			spin_lock_irq(&conv->lock);
		}
		ret = conv_send_one_due(conv, __ffs(conv->due));
	}
	spin_unlock_irq(&conv->lock);

	return ret;
}

/*
 * The example firmware knows no short messages. They stay due, in case another
 * firmware answers later.
 */
static int conv_ready_plain(struct rpnl_conv *conv)
{
	struct rpnl_tx *tx = &conv->tx;
	bool drop, receiving;

	spin_lock_irq(&conv->lock);
	drop = conv->tx_drop;
	receiving = conv->state == RPNL_RECEIVING;
	spin_unlock_irq(&conv->lock);

	if (drop)
		rpnl_tx_end(conv);
	if (!tx->active && !receiving)
		return 0;
	/* Dropping a packet may have made the remote unknown: it is asked again */
	if (!rpnl_remote_is_plain(conv->chan))
		return -EAGAIN;
	if (receiving)
		return -EOPNOTSUPP;
	if (tx->begun)
		return 0;
	if (tx->length > RPMSG_NETLINK_PLAIN_MAX)
		return -EMSGSIZE;

	return rpnl_remote_claim(conv);
}

/**
 * rpnl_conv_ready() - send the messages that precede a part of a block
 * @conv: conversation, its mutex held
 *
 * Return: 0 if the part may follow, -EAGAIN without room or while the remote is
 * unknown, -EMSGSIZE, -EBUSY or -EOPNOTSUPP if the remote cannot take the block,
 * or an error of the bus.
 */
int rpnl_conv_ready(struct rpnl_conv *conv)
{
	if (!conv->ept)
		return -EPIPE;

	/* Read once, as it can change at any time */
	switch (READ_ONCE(conv->chan->remote)) {
	case RPNL_REMOTE_PACKETS:
		return conv_send_due(conv);
	case RPNL_REMOTE_PLAIN:
		return conv_ready_plain(conv);
	default:
		return -EAGAIN;
	}
}
