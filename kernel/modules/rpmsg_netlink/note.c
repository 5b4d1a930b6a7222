// SPDX-License-Identifier: GPL-2.0
/*
 * Notifications to clients.
 *
 * The memory for one is there before the request that it belongs to is taken.
 * So none can fail later for want of memory, and callbacks allocate nothing.
 */
#include <net/sock.h>

#include "rpnl.h"

/* Channel, length, offset, status, and the head of the data */
#define NOTE_SIZE	(GENL_HDRLEN + 4 * nla_total_size(sizeof(u32)) + NLA_HDRLEN)

/**
 * rpnl_note_alloc() - memory for a notification
 *
 * Return: it, or NULL.
 */
struct sk_buff *rpnl_note_alloc(void)
{
	return nlmsg_new(NOTE_SIZE, GFP_KERNEL_ACCOUNT);
}

/**
 * rpnl_note_take() - begin the notification that the client waits for
 * @conv: conversation with a note, locked
 * @cmd: which
 * @length: of the block
 *
 * Return: the notification, with channel and length.
 */
struct sk_buff *rpnl_note_take(struct rpnl_conv *conv, u8 cmd, u32 length)
{
	struct sk_buff *skb = conv->note;

	conv->note = NULL;
	/* There is room for all of it */
	genlmsg_put(skb, conv->portid, conv->seq, &rpmsg_netlink_nl_family, 0,
		    cmd);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_CHANNEL, conv->chan->id);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_LENGTH, length);

	return skb;
}

/**
 * rpnl_note_next() - a send-next-ntf
 * @conv: conversation with a note, locked
 * @length: of the block
 * @offset: where the next part begins
 *
 * Return: the notification.
 */
struct sk_buff *rpnl_note_next(struct rpnl_conv *conv, u32 length, u32 offset)
{
	struct sk_buff *skb;

	skb = rpnl_note_take(conv, RPMSG_NETLINK_CMD_SEND_NEXT_NTF, length);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_OFFSET, offset);

	return skb;
}

/**
 * rpnl_note_done() - a send-done-ntf
 * @conv: conversation with a note, locked
 * @length: what the remote has received
 * @status: 0 or errno
 *
 * Return: the notification.
 */
struct sk_buff *rpnl_note_done(struct rpnl_conv *conv, u32 length, u32 status)
{
	struct sk_buff *skb;

	skb = rpnl_note_take(conv, RPMSG_NETLINK_CMD_SEND_DONE_NTF, length);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_STATUS, status);

	return skb;
}

/**
 * rpnl_note_no_data() - a data-ntf that ends a block badly
 * @conv: conversation with a note, locked
 * @status: errno
 *
 * Return: the notification.
 */
struct sk_buff *rpnl_note_no_data(struct rpnl_conv *conv, u32 status)
{
	struct rpnl_rx *rx = &conv->rx;
	struct sk_buff *skb;

	skb = rpnl_note_take(conv, RPMSG_NETLINK_CMD_DATA_NTF,
			     rx->open ? rx->head.length : rx->wanted);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_OFFSET, rx->given);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_STATUS, status);

	return skb;
}

/* The pages themselves, not their bytes. What pads the last is written. */
static void note_add_pages(struct sk_buff *skb, struct rpnl_rx *rx, u32 len)
{
	u32 at = rx->given, end = rx->given + len;
	int frag = 0;

	while (at < end) {
		struct page *page = rx->pages[at / PAGE_SIZE % RPNL_PAGES];
		u32 from = offset_in_page(at);
		u32 n = min_t(u32, end - at, PAGE_SIZE - from);
		u32 pad = at + n == end ? NLA_ALIGN(len) - len : 0;

		memset(page_address(page) + from + n, 0, pad);
		get_page(page);
		skb_add_rx_frag(skb, frag++, page, from, n + pad, PAGE_SIZE);
		at += n;
	}
}

/**
 * rpnl_note_data() - a data-ntf
 * @conv: conversation with a note, locked
 * @len: bytes from rpnl_rx.given on; they have come
 *
 * Return: the notification.
 */
struct sk_buff *rpnl_note_data(struct rpnl_conv *conv, u32 len)
{
	struct rpnl_rx *rx = &conv->rx;
	struct sk_buff *skb;
	struct nlattr *nla;

	skb = rpnl_note_take(conv, RPMSG_NETLINK_CMD_DATA_NTF, rx->head.length);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_OFFSET, rx->given);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_STATUS, 0);
	nla = __nla_reserve(skb, RPMSG_NETLINK_A_BLOCK_DATA, 0);
	nla->nla_len = nla_attr_size(len);
	note_add_pages(skb, rx, len);

	return skb;
}

/**
 * rpnl_note_send() - send a notification to the client
 * @conv: conversation, not locked
 * @skb: the notification, or NULL for nothing to do
 *
 * A client whose socket is full hears of it from the socket, as ENOBUFS. Bytes
 * of a block that are lost by that end the block.
 */
void rpnl_note_send(struct rpnl_conv *conv, struct sk_buff *skb)
{
	struct genlmsghdr *genl;
	bool data;

	if (!skb)
		return;

	genl = nlmsg_data(nlmsg_hdr(skb));
	data = genl->cmd == RPMSG_NETLINK_CMD_DATA_NTF;
	nlmsg_hdr(skb)->nlmsg_len = skb->len;
	if (genlmsg_unicast(conv->net, skb, conv->portid) == -EAGAIN && data)
		rpnl_rx_lost(conv);
}
