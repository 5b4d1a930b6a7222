// SPDX-License-Identifier: GPL-2.0
/*
 * Receives blocks from the remote: assembles messages in pages and keeps them
 * until the client fetches them. Credit limits the remote to the pages that are
 * available.
 */
#include <linux/gfp.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include "rpnl.h"

/**
 * rpnl_rx_fini() - free the pages
 * @rx: receiving side of a conversation without an endpoint
 */
void rpnl_rx_fini(struct rpnl_rx *rx)
{
	unsigned int i;

	for (i = 0; i < RPNL_PAGES; i++)
		if (rx->pages[i])
			put_page(rx->pages[i]);
}

/* Provides a page that no queued notification refers to */
static int rx_fill_page(struct page **page)
{
	if (*page && page_count(*page) == 1)
		return 0;

	if (*page)
		put_page(*page);
	*page = alloc_page(GFP_KERNEL_ACCOUNT);

	return *page ? 0 : -ENOMEM;
}

/*
 * Provides pages for all bytes up to @end, which is at most a window after the
 * first byte that is still needed. They replace pages that are no longer needed.
 */
static int rx_fill(struct rpnl_rx *rx, u64 end)
{
	int ret = 0;

	while (!ret && (u64)rx->ready * PAGE_SIZE < end) {
		ret = rx_fill_page(&rx->pages[rx->ready % RPNL_PAGES]);
		if (!ret)
			rx->ready++;
	}

	return ret;
}

/* Returns the end of the window as an offset in the block; @length 0: not known yet */
static u64 rx_window(u32 given, u32 length)
{
	u64 end = (u64)given + RPMSG_NETLINK_WINDOW;

	return length ? min_t(u64, end, length) : end;
}

/* Called with the lock held */
static void rx_grant(struct rpnl_conv *conv, u64 total)
{
	struct rpnl_rx *rx = &conv->rx;

	if (total > rx->granted) {
		conv->credit_due += total - rx->granted;
		rx->granted = total;
	}
}

/*
 * Return: a notification if the client waits and a part is complete, which has
 * RPMSG_NETLINK_PART_MAX bytes or ends the block
 */
static struct sk_buff *rx_deliver(struct rpnl_conv *conv)
{
	struct rpnl_rx *rx = &conv->rx;
	struct sk_buff *note;
	u32 len;

	if (!conv->note || conv->state != RPNL_RECEIVING || !rx->head.size)
		return NULL;

	len = min_t(u32, rx->head.length - rx->given, RPMSG_NETLINK_PART_MAX);
	if (rx->got - rx->given < len)
		return NULL;

	note = rpnl_note_data(conv, len);
	rx->given += len;
	if (rx->given == rx->head.length)
		conv->state = RPNL_IDLE;

	return note;
}

static void rx_answer(struct rpnl_conv *conv, u32 status)
{
	const struct rpnl_head *head = &conv->rx.head;

	if (!status && rpnl_is_short(head->length)) {
		put_unaligned_le16(head->length + RPNL_HEAD_SHORT, conv->answer);
		conv->answer_len = RPNL_ANSWER_SHORT;
	} else {
		rpnl_head_control(conv->answer, RPMSG_BULK_STATUS, head->length,
				  status);
		conv->answer_len = RPNL_HEAD_LONG;
	}
	conv->due |= BIT(RPNL_DUE_ANSWER);
}

/* All bytes have been received */
static struct sk_buff *rx_complete(struct rpnl_conv *conv)
{
	struct rpnl_rx *rx = &conv->rx;
	u32 status = rx->sum == rx->head.crc ? 0 : EBADMSG;
	struct sk_buff *note;

	rx_answer(conv, status);
	conv->due &= ~BIT(RPNL_DUE_CREDIT);
	conv->credit_due = 0;
	note = status ? rpnl_conv_stop(conv, status) : rx_deliver(conv);
	rx->open = false;

	return note;
}

static void rx_store(struct rpnl_rx *rx, const u8 *data, size_t len)
{
	rx->sum = rpnl_crc(rx->sum, data, len);

	while (len) {
		struct page *page = rx->pages[rx->got / PAGE_SIZE % RPNL_PAGES];
		size_t from = offset_in_page(rx->got);
		size_t n = min(len, PAGE_SIZE - from);

		memcpy(page_address(page) + from, data, n);
		rx->got += n;
		data += n;
		len -= n;
	}
}

static struct sk_buff *rx_bytes(struct rpnl_conv *conv, const void *data,
				size_t len)
{
	struct rpnl_rx *rx = &conv->rx;

	rx_store(rx, data, len);
	if (rx->got == rx->head.length)
		return rx_complete(conv);

	return rx_deliver(conv);
}

/**
 * rpnl_rx_begin() - handle the first message of a block
 * @conv: conversation, locked
 * @head: its header
 * @msg: the message
 * @len: its length
 *
 * Return: a notification for the client, or NULL.
 */
struct sk_buff *rpnl_rx_begin(struct rpnl_conv *conv,
			      const struct rpnl_head *head,
			      const void *msg, size_t len)
{
	struct rpnl_rx *rx = &conv->rx;
	size_t bytes = len - head->size;

	if (conv->state != RPNL_RECEIVING || rx->head.size)
		return rpnl_conv_break(conv, EPROTO);
	if (rx->wanted && head->length != rx->wanted)
		return rpnl_conv_break(conv, EPROTO);
	if (bytes > head->length || len > rx->credit)
		return rpnl_conv_break(conv, EPROTO);

	rx->head = *head;
	rx->open = true;
	rx->mtu = len;
	rx->sum = head->sum;
	rx->credit -= len;

	return rx_bytes(conv, msg + head->size, bytes);
}

/**
 * rpnl_rx_go_on() - handle a further message of a block
 * @conv: conversation with an open block, locked
 * @msg: the message
 * @len: its length
 *
 * Return: a notification for the client, or NULL.
 */
struct sk_buff *rpnl_rx_go_on(struct rpnl_conv *conv, const void *msg,
			      size_t len)
{
	struct rpnl_rx *rx = &conv->rx;

	if (len != min(rx->head.length - rx->got, rx->mtu) || len > rx->credit)
		return rpnl_conv_break(conv, EPROTO);
	rx->credit -= len;

	return rx_bytes(conv, msg, len);
}

/**
 * rpnl_rx_lost() - handle a part that was lost because the client's socket is full
 * @conv: conversation, not locked
 *
 * The client is not notified: the socket reports ENOBUFS, and so does the next
 * fetch.
 */
void rpnl_rx_lost(struct rpnl_conv *conv)
{
	struct sk_buff *note;
	unsigned long irq;

	spin_lock_irqsave(&conv->lock, irq);
	note = rpnl_conv_break(conv, ENOBUFS);
	if (conv->state == RPNL_IDLE) {
		conv->state = RPNL_BROKEN;
		conv->broken = ENOBUFS;
	}
	spin_unlock_irqrestore(&conv->lock, irq);

	kfree_skb(note);
	rpnl_chan_kick(conv->chan, conv);
}

/* Called with the lock held */
static int receive_check(struct rpnl_conv *conv, struct genl_info *info)
{
	if (rpnl_remote_is_plain(conv->chan)) {
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
				    "the firmware cannot send blocks");
		return -EOPNOTSUPP;
	}
	if (conv->state == RPNL_IDLE || conv->state == RPNL_BROKEN)
		return 0;

	NL_SET_ERR_MSG_ATTR(info->extack,
			    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
			    "another block is in progress");

	return -EBUSY;
}

/* Called once there are pages for the window */
static void receive_begin(struct rpnl_conv *conv, u32 length, u32 seq,
			  u32 timeout, struct sk_buff *note)
{
	struct rpnl_rx *rx = &conv->rx;

	spin_lock_irq(&conv->lock);
	conv->state = RPNL_RECEIVING;
	rpnl_conv_expect(conv, note, seq, timeout);
	rx->wanted = length;
	rx->head = (struct rpnl_head) {};
	rx->got = 0;
	rx->given = 0;
	rx->credit = 0;
	rx->granted = 0;
	conv->credit_due = 0;
	rx_grant(conv, RPMSG_NETLINK_WINDOW);
	conv->due |= BIT(RPNL_DUE_RECEIVE);
	spin_unlock_irq(&conv->lock);
}

/**
 * rpnl_conv_receive() - ask the remote for a block
 * @conv: conversation
 * @length: its length, or 0 for the last block that was sent
 * @timeout: milliseconds until the first part
 * @info: the request
 *
 * Return: 0, and the client gets a notification later; or without any change
 * -EBUSY, -ENODEV, -ENOMEM or -EOPNOTSUPP.
 */
int rpnl_conv_receive(struct rpnl_conv *conv, u32 length, u32 timeout,
		      struct genl_info *info)
{
	struct sk_buff *note;
	int ret;

	note = rpnl_note_alloc();
	if (!note)
		return -ENOMEM;

	ret = rpnl_conv_begin(conv, info);
	if (ret)
		goto free_note;

	spin_lock_irq(&conv->lock);
	ret = receive_check(conv, info);
	spin_unlock_irq(&conv->lock);
	if (!ret) {
		/* The pages hold no bytes of an earlier block that are still needed */
		conv->rx.ready = 0;
		ret = rx_fill(&conv->rx, rx_window(0, length));
	}
	if (!ret) {
		receive_begin(conv, length, info->snd_seq, timeout, note);
		note = NULL;
		rpnl_conv_flush(conv);
	}
	mutex_unlock(&conv->mutex);
free_note:
	nlmsg_free(note);

	return ret;
}

/* Called with the lock held */
static int fetch_check(struct rpnl_conv *conv, struct genl_info *info)
{
	if (conv->state == RPNL_RECEIVING && !conv->note)
		return 0;

	switch (conv->state) {
	case RPNL_BROKEN:
		return rpnl_conv_told(conv, info);
	case RPNL_IDLE:
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
				    "no block is being received");
		return -EINVAL;
	default:
		NL_SET_ERR_MSG_ATTR(info->extack,
				    info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL],
				    "another block, or the previous part, is in progress");
		return -EBUSY;
	}
}

/* Called with the lock held. Return: a notification to be sent at once, or NULL */
static struct sk_buff *fetch_begin(struct rpnl_conv *conv, u32 seq, u32 timeout,
				   struct sk_buff *note)
{
	struct rpnl_rx *rx = &conv->rx;
	u64 packet = (u64)rx->head.size + rx->head.length;

	rpnl_conv_expect(conv, note, seq, timeout);
	rx_grant(conv, min_t(u64, (u64)rx->given + RPMSG_NETLINK_WINDOW, packet));
	if (rx->open && conv->credit_due)
		conv->due |= BIT(RPNL_DUE_CREDIT);

	return rx_deliver(conv);
}

/* Called with the mutex held */
static int conv_fetch(struct rpnl_conv *conv, u32 timeout,
		      struct genl_info *info, struct sk_buff *note)
{
	struct sk_buff *ready;
	int ret;

	/* The length is known, as a fetch follows the notification of a part */
	spin_lock_irq(&conv->lock);
	ret = fetch_check(conv, info);
	spin_unlock_irq(&conv->lock);
	if (!ret)
		ret = rx_fill(&conv->rx, rx_window(conv->rx.given,
						   conv->rx.head.length));
	if (ret)
		return ret;

	spin_lock_irq(&conv->lock);
	ret = fetch_check(conv, info);
	ready = ret ? NULL : fetch_begin(conv, info->snd_seq, timeout, note);
	spin_unlock_irq(&conv->lock);
	if (ret)
		return ret;

	rpnl_note_send(conv, ready);
	rpnl_conv_flush(conv);

	return 0;
}

/**
 * rpnl_conv_fetch() - ask for the next part of the block that is being received
 * @conv: conversation
 * @timeout: milliseconds until that part
 * @info: the request
 *
 * Return: 0, and the client gets a notification later; without any change -EBUSY,
 * -EINVAL, -ENODEV or -ENOMEM; or an error of rpnl_conv_told(), after which the
 * block has ended.
 */
int rpnl_conv_fetch(struct rpnl_conv *conv, u32 timeout,
		    struct genl_info *info)
{
	struct sk_buff *note;
	int ret;

	note = rpnl_note_alloc();
	if (!note)
		return -ENOMEM;

	ret = rpnl_conv_begin(conv, info);
	if (!ret) {
		ret = conv_fetch(conv, timeout, info, note);
		mutex_unlock(&conv->mutex);
	}
	if (ret)
		nlmsg_free(note);

	return ret;
}
