/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Packets of <linux/rpmsg_bulk.h>: checksum and headers. No I/O, no locks.
 */
#ifndef RPNL_PACKET_H
#define RPNL_PACKET_H

#include <linux/types.h>

#include <linux/rpmsg_bulk.h>

#define RPNL_HEAD_SHORT	sizeof(struct rpmsg_bulk_header)
#define RPNL_HEAD_LONG	sizeof(struct rpmsg_bulk_long_header)
/* Length of the answer to a valid block with a short header */
#define RPNL_ANSWER_SHORT	sizeof(__le16)

/**
 * struct rpnl_head - a parsed header
 * @size: number of bytes of the header
 * @type: RPMSG_BULK_*
 * @length: length of the block, or another meaning that the type defines
 * @value: value, with the meaning that the type defines
 * @crc: checksum that the header announces
 * @sum: checksum of the fields of the header that the checksum covers
 */
struct rpnl_head {
	size_t size;
	u16 type;
	u32 length;
	u32 value;
	u16 crc;
	u16 sum;
};

void rpnl_crc_init(void);
u16 rpnl_crc(u16 crc, const void *data, size_t len);
u16 rpnl_crc_join(u16 first, u16 second, u32 len);

bool rpnl_head_parse(struct rpnl_head *head, const void *msg, size_t len);
size_t rpnl_head_block(void *buf, u32 length, u16 crc);
void rpnl_head_control(void *buf, u16 type, u32 length, u32 value);
bool rpnl_is_short(u32 length);

#endif
