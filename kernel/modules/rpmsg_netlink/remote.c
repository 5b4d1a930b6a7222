// SPDX-License-Identifier: GPL-2.0
/*
 * What is at the other end of a channel, and how to speak with it.
 *
 * The first request has the channel's own endpoint ask: it opens a conversation
 * as <linux/rpmsg_bulk.h> says. RESET_DONE is the answer of all that know this
 * header. The firmware of the example for the STM32MP1 answers each message that
 * is not a block with two bytes. When they have come, and no RESET_DONE, that
 * firmware it is. What says nothing stays unknown; the requests that wait for it
 * have their deadline, and with each that has passed the question is sent again.
 * RESET_DONE counts whenever it comes.
 *
 * That firmware sends all its answers to the address that it has heard of first,
 * for as long as it runs. So nothing must be sent to a channel from another
 * endpoint before the question, and all that it gets is sent from this one. It
 * has one buffer and one length: the next packet must not begin before it has
 * answered the last. After a packet that was given up it gets the bytes that it
 * still expects, and is asked again.
 */
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/random.h>
#include <linux/unaligned.h>

#include "rpnl.h"

/* How long after an answer of two bytes there may be a RESET_DONE, or another */
#define QUIET	msecs_to_jiffies(500)

/* The question: two messages of a byte, and RESET */
#define HELLO	3

/* What a packet that was given up is filled with */
static const u8 filling[496];

/**
 * rpnl_remote_is_known() - was it found out what is at the other end?
 * @chan: channel
 *
 * Return: whether it was.
 */
bool rpnl_remote_is_known(const struct rpnl_chan *chan)
{
	enum rpnl_remote remote = READ_ONCE(chan->remote);

	return remote == RPNL_REMOTE_PACKETS || remote == RPNL_REMOTE_PLAIN;
}

/**
 * rpnl_remote_is_plain() - is it the firmware of the example?
 * @chan: channel
 *
 * Return: whether it is.
 */
bool rpnl_remote_is_plain(const struct rpnl_chan *chan)
{
	return READ_ONCE(chan->remote) == RPNL_REMOTE_PLAIN;
}

static void remote_set(struct rpnl_chan *chan, enum rpnl_remote remote)
{
	WRITE_ONCE(chan->remote, remote);
}

/* Nothing has come for a while */
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
	dev_dbg(&chan->rpdev->dev, "the remote only answers lengths\n");
	rpnl_chan_poke(chan);
}

/**
 * rpnl_remote_init() - make ready to ask
 * @chan: zeroed
 */
void rpnl_remote_init(struct rpnl_chan *chan)
{
	spin_lock_init(&chan->remote_lock);
	chan->hello_value = get_random_u32();
	timer_setup(&chan->quiet, remote_quiet, 0);
}

/**
 * rpnl_remote_fini() - the channel goes
 * @chan: channel
 *
 * Messages may still come.
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

/* It has answered the question, or one before. Return: whether that is news */
static bool remote_knows_packets(struct rpnl_chan *chan)
{
	/* A block that a client has begun ends as it began */
	if (chan->remote == RPNL_REMOTE_PACKETS || chan->owner)
		return false;
	remote_set(chan, RPNL_REMOTE_PACKETS);

	return true;
}

/* With the lock held. @poke says whether there is something to be done now */
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
		/* 0 is for what was no block, as the question was none */
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
 * rpnl_remote_hears() - a message has come to the channel's own endpoint
 * @chan: channel
 * @msg: the message
 * @len: its length
 *
 * Context: any.
 * Return: whether it was an answer, and is nothing for others.
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

/* Sends from the channel's own endpoint. Return: as rpnl_conv_message() */
static int remote_message(struct rpnl_chan *chan, const void *msg, size_t len)
{
	int ret;

	ret = rpmsg_trysendto(chan->rpdev->ept, (void *)msg, len, chan->address);

	return ret == -ENOMEM || ret == -EBUSY ? -EAGAIN : ret;
}

/* The rest of a packet that was given up, if there is one */
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

/* Return: whether there is something to be asked */
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
 * rpnl_remote_ask() - ask what is at the other end, if that is not known
 * @chan: channel; nobody else calls this for it at the same time
 *
 * Return: 0 if it is known, -EINPROGRESS if an answer will tell it, -EAGAIN
 * without room to ask, what the bus returns.
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
 * rpnl_remote_doubt() - a request has found no end in time
 * @chan: channel
 *
 * If the question was sent and nothing has come, it or its answer may be lost:
 * it is asked again.
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

/* Return: whose packet was answered, with a reference, or NULL */
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

/* Return: whether it was the owner, of whose reference the caller has to care */
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
 * rpnl_remote_answered() - give an answer to whom it is for
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
	 * Nobody hears of the end before the next packet may come. If the
	 * conversation has given up its packet meanwhile, it may have another
	 * one, which is not what was answered.
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
 * rpnl_remote_check() - does the firmware take such a block now?
 * @conv: conversation that is to send it
 * @length: its bytes
 * @info: the request
 *
 * What can only be found out later ends the block later.
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
				    "more than the firmware has room for");
		return -EMSGSIZE;
	}
	if (owner && owner != conv) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
				    "the firmware has the block of another client");
		return -EBUSY;
	}

	return 0;
}

/**
 * rpnl_remote_claim() - have the firmware for a packet
 * @conv: conversation, its mutex held
 *
 * For as long as it has it, the remote stays %RPNL_REMOTE_PLAIN.
 *
 * Return: 0, -EBUSY if another one has it, -EAGAIN if the remote is not, or no
 * longer, known to be that firmware.
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
 * rpnl_remote_leave() - have no packet with the firmware any more
 * @conv: conversation, its mutex held. The caller has a reference
 *
 * If the firmware has some of one, or owes its answer, it has to be asked again.
 */
void rpnl_remote_leave(struct rpnl_conv *conv)
{
	const struct rpnl_tx *tx = &conv->tx;
	bool untouched = tx->active && !tx->begun;

	if (remote_release(conv, !untouched, tx->begun ? tx->unsent : 0))
		rpnl_conv_put(conv);
}
