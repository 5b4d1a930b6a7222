/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Blocks of bytes in rpmsg messages: what Linux and a coprocessor send to each
 * other for bulk data. All numbers are little-endian.
 *
 * A packet is a header and a block. It is cut into messages: all but the last
 * are as long as the channel takes, 496 bytes on virtio. The receiver takes the
 * length of a packet's first message for that limit.
 *
 * Up to RPMSG_BULK_SHORT_MAX bytes a block has the short header, which is that of
 * the "rpmsg-netlink" example for the STM32MP1 (2020), and the same answer: the
 * length that was received, header included, as two bytes. Everything else has
 * the long header. A block whose short header would have the length 0xabcd has
 * the long one too, so that its answer does not look like a header.
 *
 * The check sum is a CRC-16: polynomial 0x8006, reflected in and out, initial
 * value 0, nothing added at the end; that of "123456789" is 0x3d56. The polynomial
 * is that of the example, and not the 0x8005 of CRC-16/ARC, which most libraries
 * and lib/crc16.c have: that of "123456789" would be 0xbb3d. It covers what follows
 * it in the packet: the block, and of a long header also type, length and value.
 *
 * A conversation starts with two messages of one zero byte, which end whatever
 * an earlier user of the address has left unfinished, and RESET. What arrives
 * before the RESET_DONE with the same value is of that earlier user.
 *
 * The firmware of the example knows none of this but the short header: it answers
 * whatever else it gets with two bytes of zero, never with RESET_DONE. It has 32 KiB
 * for a packet, takes one at a time, compares no check sum, and sends all its
 * answers to the address that it has heard of first. The driver rpmsg_netlink
 * starts a conversation from the channel's own address to find it out, before any
 * other address is used.
 *
 * Each block is answered by whoever receives it: a good one that came with the
 * short header as above, all others by STATUS. A message that is not as long as
 * the packet demands ends the packet with the status EPROTO, and is then taken as
 * the start of another. Without a packet, what is too short for a header is
 * ignored.
 */
#ifndef _UAPI_LINUX_RPMSG_BULK_H
#define _UAPI_LINUX_RPMSG_BULK_H

#include <linux/types.h>

#define RPMSG_BULK_PREAMBLE	0xabcd

/**
 * struct rpmsg_bulk_header - what a packet begins with
 * @preamble: RPMSG_BULK_PREAMBLE
 * @length: bytes of header and block; 0 where the rest of a long header follows
 * @crc: check sum of all that follows
 */
struct rpmsg_bulk_header {
	__le16 preamble;
	__le16 length;
	__le16 crc;
};

/**
 * struct rpmsg_bulk_long_header - header with a type and 32 bits of length
 * @header: with length 0
 * @type: RPMSG_BULK_*
 * @length: see the types
 * @value: see the types
 */
struct rpmsg_bulk_long_header {
	struct rpmsg_bulk_header header;
	__le16 type;
	__le32 length;
	__le32 value;
};

/* Longest block with the short header */
#define RPMSG_BULK_SHORT_MAX	(0xffff - 6)

/* A block of @length bytes follows. @value is 0. */
#define RPMSG_BULK_DATA		1
/*
 * The answer to a block: @length bytes of it were received, header not included.
 * @value is 0 or why it was not taken, as a number of errno.h: EBADMSG (74) for
 * the check sum, EPROTO (71) for a packet that was not as it should be, EMSGSIZE
 * (90) for a block that is too long, ENODATA (61) for a RECEIVE without a block.
 */
#define RPMSG_BULK_STATUS	2
/*
 * Linux asks for a block, and grants @value bytes of credit. With a @length other
 * than 0 the block has that many bytes, byte i being i & 0xff. With 0 it is the
 * last one that this address has sent and that was good, or, if it has sent none,
 * the last one that anybody has.
 */
#define RPMSG_BULK_RECEIVE	3
/*
 * Linux grants @value more bytes of credit. The coprocessor sends no more bytes
 * of a block, its header included, than there is credit.
 */
#define RPMSG_BULK_CREDIT	4
/* Forget all that came from this address. */
#define RPMSG_BULK_RESET	5
/* It is forgotten; @value is that of the RESET. */
#define RPMSG_BULK_RESET_DONE	6

/*
 * Shared buffers: a message of its own, on any endpoint, in place of the bytes.
 */
#define RPMSG_DMABUF_MAGIC	0x46554244	/* "DBUF" */

/**
 * struct rpmsg_dmabuf_message - a buffer changes hands
 * @magic: RPMSG_DMABUF_MAGIC
 * @type: RPMSG_DMABUF_GIVEN or RPMSG_DMABUF_DONE
 * @direction: RPMSG_DMABUF_TO_REMOTE or RPMSG_DMABUF_FROM_REMOTE
 * @cookie: names this use of the buffer, any number; the same in the answer
 * @address: where the buffer begins for the coprocessor. Who reads the answer on
 *	Linux's side gets 0
 * @offset: first byte of the part that is given, from @address
 * @length: its bytes. In the answer: how many were used, counted from @offset
 * @status: in the answer, 0 or a number of errno.h; otherwise 0
 * @reserved: 0
 */
struct rpmsg_dmabuf_message {
	__le32 magic;
	__le16 type;
	__le16 direction;
	__le64 cookie;
	__le64 address;
	__le64 offset;
	__le64 length;
	__le32 status;
	__le32 reserved;
};

/* Linux gives the part to the coprocessor. */
#define RPMSG_DMABUF_GIVEN	1
/* The coprocessor gives it back, and does not touch it any more. */
#define RPMSG_DMABUF_DONE	2

/* The coprocessor reads it. */
#define RPMSG_DMABUF_TO_REMOTE		1
/* The coprocessor fills it. */
#define RPMSG_DMABUF_FROM_REMOTE	2

#endif /* _UAPI_LINUX_RPMSG_BULK_H */
