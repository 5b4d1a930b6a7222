// SPDX-License-Identifier: GPL-2.0
/*
 * Notifications to clients.
 *
 * The memory of a notification is allocated before its request is accepted. A
 * notification therefore cannot fail later for lack of memory, and callbacks need
 * not allocate.
 */
#include <net/sock.h>

#include "rpnl.h"

/* Channel, length, offset, status, and the head of the data */
#define NOTE_SIZE	(GENL_HDRLEN + 4 * nla_total_size(sizeof(u32)) + NLA_HDRLEN)

/**
 * rpnl_note_alloc() - allocate memory for a notification
 *
 * Return: the memory, or NULL.
 */
struct sk_buff *rpnl_note_alloc(void)
{
	return nlmsg_new(NOTE_SIZE, GFP_KERNEL_ACCOUNT);
}

/**
 * rpnl_note_take() - begin the notification that the client waits for
 * @conv: conversation with a note, locked
 * @cmd: its command
 * @length: length of the block
 *
 * Return: the notification, with channel and length.
 */
struct sk_buff *rpnl_note_take(struct rpnl_conv *conv, u8 cmd, u32 length)
{
	struct sk_buff *skb = conv->note;

	conv->note = NULL;
	/* NOTE_SIZE has room for the header and all attributes */
	genlmsg_put(skb, conv->portid, conv->seq, &rpmsg_netlink_nl_family, 0,
		    cmd);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_CHANNEL, conv->chan->id);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_LENGTH, length);

	return skb;
}

/**
 * rpnl_note_next() - make a send-next-ntf
 * @conv: conversation with a note, locked
 * @length: length of the block
 * @offset: offset of the next part
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
 * rpnl_note_done() - make a send-done-ntf
 * @conv: conversation with a note, locked
 * @length: number of bytes that the remote has received
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
 * rpnl_note_no_data() - make a data-ntf that reports the failure of a block
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

/* Adds pages by reference, and zeroes the padding after the last byte */
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
 * rpnl_note_data() - make a data-ntf
 * @conv: conversation with a note, locked
 * @len: number of bytes from rpnl_rx.given on; they have been received
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
 * If the client's socket is full, the socket reports ENOBUFS. A block of which
 * bytes are lost in this way has failed.
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
