// SPDX-License-Identifier: GPL-2.0
/*
 * Detects which protocol the remote of a channel speaks, and serializes access to
 * the example firmware.
 *
 * Upon the first request the channel's own endpoint sends a probe: it starts a
 * conversation as <linux/rpmsg_bulk.h> describes. A remote that implements that
 * header answers with RESET_DONE. The firmware of the example for the STM32MP1
 * answers each message that is not a block with two bytes. If such answers arrive
 * and no RESET_DONE, the remote is that firmware. A remote that does not answer
 * stays unknown. Requests that wait for it have a deadline; when one passes, the
 * probe is sent again. RESET_DONE is accepted at any time.
 *
 * While it runs, the example firmware sends all its answers to the first address
 * that it received a message from. So no other endpoint may send to a channel
 * before the probe, and all messages to that firmware are sent from the channel's
 * own endpoint. The firmware has one buffer and one length, so a packet must not
 * begin before the previous one is answered. After a packet is given up, the
 * firmware gets the bytes that it still expects, and is probed again.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/random.h>
#include <linux/unaligned.h>

#include "rpnl.h"

/* How long to wait for RESET_DONE, or another answer, after an answer of two bytes */
#define QUIET	msecs_to_jiffies(500)

/* Number of messages of the probe: two of one byte each, and RESET */
#define HELLO	3

/* Completes a packet that was given up */
static const u8 filling[496];

/**
 * rpnl_remote_is_known() - has the remote's protocol been detected?
 * @chan: channel
 *
 * Return: true if it has.
 */
bool rpnl_remote_is_known(const struct rpnl_chan *chan)
{
	enum rpnl_remote remote = READ_ONCE(chan->remote);

	return remote == RPNL_REMOTE_PACKETS || remote == RPNL_REMOTE_PLAIN;
}

/**
 * rpnl_remote_is_plain() - is the remote the example firmware?
 * @chan: channel
 *
 * Return: true if it is.
 */
bool rpnl_remote_is_plain(const struct rpnl_chan *chan)
{
	return READ_ONCE(chan->remote) == RPNL_REMOTE_PLAIN;
}

static void remote_set(struct rpnl_chan *chan, enum rpnl_remote remote)
{
	WRITE_ONCE(chan->remote, remote);
}

/* No RESET_DONE has followed the two-byte answers in time */
static void remote_quiet(struct timer_list *timer)
{
	struct rpnl_chan *chan = container_of(timer, struct rpnl_chan, quiet);
	unsigned long irq;
	bool found;

	spin_lock_irqsave(&chan->remote_lock, irq);
	found = chan->remote == RPNL_REMOTE_ASKED && !chan->hello;
	if (found)
		remote_set(chan, RPNL_REMOTE_PLAIN);
	spin_unlock_irqrestore(&chan->remote_lock, irq);

	if (!found)
		return;
	dev_dbg(&chan->rpdev->dev, "the remote supports the short header only\n");
	rpnl_chan_poke(chan);
}

/**
 * rpnl_remote_init() - prepare to probe the remote
 * @chan: zeroed channel
 */
void rpnl_remote_init(struct rpnl_chan *chan)
{
	spin_lock_init(&chan->remote_lock);
	chan->hello_value = get_random_u32();
	timer_setup(&chan->quiet, remote_quiet, 0);
}

/**
 * rpnl_remote_fini() - stop the timer before the channel is removed
 * @chan: channel
 *
 * Messages may still arrive.
 */
void rpnl_remote_fini(struct rpnl_chan *chan)
{
	timer_shutdown_sync(&chan->quiet);
}

static bool is_reset_done(const struct rpnl_chan *chan, const void *msg,
			  size_t len)
{
	struct rpnl_head head;

	return rpnl_head_parse(&head, msg, len) &&
	       head.type == RPMSG_BULK_RESET_DONE &&
	       head.value == chan->hello_value;
}

/*
 * The remote has answered this probe or an earlier one. Return: true if the
 * protocol was not known before
 */
static bool remote_knows_packets(struct rpnl_chan *chan)
{
	/* A block that was begun for the example firmware is not changed half way */
	if (chan->remote == RPNL_REMOTE_PACKETS || chan->owner)
		return false;
	remote_set(chan, RPNL_REMOTE_PACKETS);

	return true;
}

/* Called with the lock held. Sets *@poke if senders can continue */
static bool remote_hears(struct rpnl_chan *chan, const void *msg, size_t len,
			 bool *poke)
{
	bool is_length = len == RPNL_ANSWER_SHORT;

	if (is_reset_done(chan, msg, len)) {
		*poke = remote_knows_packets(chan);
		return true;
	}

	switch (chan->remote) {
	case RPNL_REMOTE_ASKED:
		if (is_length)
			mod_timer(&chan->quiet, jiffies + QUIET);
		return is_length;
	case RPNL_REMOTE_PLAIN:
		/* 0 answers a message that was not a block, such as the probe */
		if (is_length && chan->owner && get_unaligned_le16(msg)) {
			chan->answer = get_unaligned_le16(msg);
			chan->answered = true;
			*poke = true;
		}
		return is_length;
	default:
		return false;
	}
}

/**
 * rpnl_remote_hears() - handle a message to the channel's own endpoint
 * @chan: channel
 * @msg: the message
 * @len: its length
 *
 * Context: any.
 * Return: true if it was an answer and must not be passed on.
 */
bool rpnl_remote_hears(struct rpnl_chan *chan, const void *msg, size_t len)
{
	bool taken, poke = false;
	unsigned long irq;

	spin_lock_irqsave(&chan->remote_lock, irq);
	taken = remote_hears(chan, msg, len, &poke);
	spin_unlock_irqrestore(&chan->remote_lock, irq);
	if (poke)
		rpnl_chan_poke(chan);

	return taken;
}

/* Sends from the channel's own endpoint. Return: see rpnl_conv_message() */
static int remote_message(struct rpnl_chan *chan, const void *msg, size_t len)
{
	int ret;

	ret = rpmsg_trysendto(chan->rpdev->ept, (void *)msg, len, chan->address);

	return ret == -ENOMEM || ret == -EBUSY ? -EAGAIN : ret;
}

/* Sends the rest of a packet that was given up, if there is one */
static int remote_fill(struct rpnl_chan *chan)
{
	int ret = 0;

	while (!ret && chan->fill) {
		u32 len = min3(chan->fill, chan->mtu, (u32)sizeof(filling));

		ret = remote_message(chan, filling, len);
		if (!ret)
			chan->fill -= len;
	}

	return ret;
}

static int remote_hello(struct rpnl_chan *chan)
{
	int ret = 0;

	while (!ret && chan->hello) {
		u8 msg[RPNL_HEAD_LONG] = {};
		size_t len = 1;

		if (chan->hello == 1) {
			rpnl_head_control(msg, RPMSG_BULK_RESET, 0,
					  chan->hello_value);
			len = RPNL_HEAD_LONG;
		}
		ret = remote_message(chan, msg, len);
		if (!ret)
			WRITE_ONCE(chan->hello, chan->hello - 1);
	}

	return ret;
}

/* Return: true if the probe has to be sent or its answer is awaited */
static bool remote_begin(struct rpnl_chan *chan)
{
	bool asked;

	spin_lock_irq(&chan->remote_lock);
	if (chan->remote == RPNL_REMOTE_UNKNOWN) {
		chan->hello = HELLO;
		remote_set(chan, RPNL_REMOTE_ASKED);
	}
	asked = chan->remote == RPNL_REMOTE_ASKED;
	spin_unlock_irq(&chan->remote_lock);

	return asked;
}

/**
 * rpnl_remote_ask() - probe the remote if its protocol is not known
 * @chan: channel; calls for one channel are serialized
 *
 * Return: 0 if the protocol is known, -EINPROGRESS while the answer is awaited,
 * -EAGAIN without room to send, or an error of the bus.
 */
int rpnl_remote_ask(struct rpnl_chan *chan)
{
	int ret;

	if (rpnl_remote_is_known(chan) || !remote_begin(chan))
		return 0;
	ret = remote_fill(chan) ?: remote_hello(chan);
	if (ret)
		return ret;

	return rpnl_remote_is_known(chan) ? 0 : -EINPROGRESS;
}

/**
 * rpnl_remote_doubt() - the deadline of a request has passed
 * @chan: channel
 *
 * If the probe was sent and no answer has arrived, the probe or the answer may be
 * lost: the next turn of the pump sends it again.
 *
 * Context: any.
 */
void rpnl_remote_doubt(struct rpnl_chan *chan)
{
	unsigned long irq;

	spin_lock_irqsave(&chan->remote_lock, irq);
	if (chan->remote == RPNL_REMOTE_ASKED && !READ_ONCE(chan->hello) &&
	    !timer_pending(&chan->quiet))
		remote_set(chan, RPNL_REMOTE_UNKNOWN);
	spin_unlock_irqrestore(&chan->remote_lock, irq);
}

/* Return: the conversation whose packet was answered, with a reference, or NULL */
static struct rpnl_conv *remote_take_answer(struct rpnl_chan *chan, u16 *length)
{
	struct rpnl_conv *conv = NULL;

	spin_lock_irq(&chan->remote_lock);
	if (chan->answered && chan->owner) {
		conv = chan->owner;
		kref_get(&conv->ref);
	}
	chan->answered = false;
	*length = chan->answer;
	spin_unlock_irq(&chan->remote_lock);

	return conv;
}

/* Return: true if @conv was the owner; the caller then has to drop the owner's reference */
static bool remote_release(struct rpnl_conv *conv, bool lost, u32 unsent)
{
	struct rpnl_chan *chan = conv->chan;
	unsigned long irq;
	bool owner;

	spin_lock_irqsave(&chan->remote_lock, irq);
	owner = chan->owner == conv;
	if (owner) {
		WRITE_ONCE(chan->owner, NULL);
		chan->answered = false;
	}
	if (owner && lost) {
		chan->fill = unsent;
		remote_set(chan, RPNL_REMOTE_UNKNOWN);
	}
	spin_unlock_irqrestore(&chan->remote_lock, irq);

	return owner;
}

/**
 * rpnl_remote_answered() - pass an answer on to the owner of the packet
 * @chan: channel
 *
 * Context: may sleep.
 */
void rpnl_remote_answered(struct rpnl_chan *chan)
{
	bool broken = false, released = false;
	struct sk_buff *note = NULL;
	struct rpnl_conv *conv;
	u16 length;

	conv = rpnl_remote_is_plain(chan) ? remote_take_answer(chan, &length) :
					    NULL;
	if (!conv)
		return;

	/*
	 * The firmware is released before the client is notified, so that the
	 * client's next packet can follow. If the conversation has given up the
	 * packet meanwhile, it may have begun another one, which the answer does
	 * not belong to.
	 */
	spin_lock_irq(&conv->lock);
	if (READ_ONCE(chan->owner) == conv) {
		note = rpnl_conv_length(conv, length);
		broken = conv->tx_drop;
		released = !broken && remote_release(conv, false, 0);
	}
	spin_unlock_irq(&conv->lock);

	if (broken)
		rpnl_chan_kick(chan, conv);
	if (released)
		rpnl_conv_put(conv);
	rpnl_note_send(conv, note);
	rpnl_conv_put(conv);
}

/**
 * rpnl_remote_check() - can the example firmware take a block now?
 * @conv: conversation that is to send it
 * @length: number of bytes of the block
 * @info: the request
 *
 * If the remote is not known yet, rpnl_conv_ready() checks this later.
 *
 * Return: 0, -EMSGSIZE, -EBUSY.
 */
int rpnl_remote_check(struct rpnl_conv *conv, u32 length,
		      struct genl_info *info)
{
	struct rpnl_conv *owner = READ_ONCE(conv->chan->owner);

	if (!rpnl_remote_is_plain(conv->chan))
		return 0;

	if (length > RPMSG_NETLINK_PLAIN_MAX) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_LENGTH],
				    "the block is too long for the firmware");
		return -EMSGSIZE;
	}
	if (owner && owner != conv) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
				    "the firmware is receiving another client's block");
		return -EBUSY;
	}

	return 0;
}

/**
 * rpnl_remote_claim() - reserve the example firmware for a packet
 * @conv: conversation, its mutex held
 *
 * While it is reserved, the remote stays %RPNL_REMOTE_PLAIN.
 *
 * Return: 0, -EBUSY if another conversation has reserved it, -EAGAIN if the remote
 * is not, or no longer, known to be that firmware.
 */
int rpnl_remote_claim(struct rpnl_conv *conv)
{
	struct rpnl_chan *chan = conv->chan;
	int ret;

	spin_lock_irq(&chan->remote_lock);
	if (chan->remote != RPNL_REMOTE_PLAIN) {
		ret = -EAGAIN;
	} else if (!chan->owner) {
		kref_get(&conv->ref);
		WRITE_ONCE(chan->owner, conv);
		ret = 0;
	} else {
		ret = chan->owner == conv ? 0 : -EBUSY;
	}
	spin_unlock_irq(&chan->remote_lock);

	return ret;
}

/**
 * rpnl_remote_leave() - undo rpnl_remote_claim()
 * @conv: conversation, its mutex held; the caller has a reference
 *
 * If the firmware has received a part of the packet, or has not answered it, the
 * firmware has to be probed again.
 */
void rpnl_remote_leave(struct rpnl_conv *conv)
{
	const struct rpnl_tx *tx = &conv->tx;
	bool untouched = tx->active && !tx->begun;

	if (remote_release(conv, !untouched, tx->begun ? tx->unsent : 0))
		rpnl_conv_put(conv);
}
