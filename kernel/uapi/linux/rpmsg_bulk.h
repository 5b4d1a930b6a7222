/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Protocol for blocks of bytes in rpmsg messages, between Linux and a
 * coprocessor. All numbers are little-endian.
 *
 * A packet is a header and a block. It is cut into messages: all but the last
 * have the maximum length of the channel, 496 bytes on virtio. The receiver takes
 * the length of a packet's first message for that maximum.
 *
 * A block of up to RPMSG_BULK_SHORT_MAX bytes has the short header and the answer
 * of the "rpmsg-netlink" example for the STM32MP1 (2020). The answer is the length
 * that was received, header included, as two bytes. All other packets have the
 * long header. So has a block whose short header would have the length 0xabcd, as
 * its answer would look like a header.
 *
 * The checksum is a CRC-16: polynomial 0x8006, reflected in and out, initial value
 * 0, no final XOR; that of "123456789" is 0x3d56. The polynomial is that of the
 * example. CRC-16/ARC, which most libraries and lib/crc16.c implement, has 0x8005
 * and would give 0xbb3d. The checksum covers the fields that follow it in the
 * packet: the block, and in a long header also type, length and value.
 *
 * A conversation starts with two messages of one zero byte and RESET. The former
 * end a packet that an earlier user of the address has left incomplete. Messages
 * that arrive before the RESET_DONE with the same value belong to that user.
 *
 * The firmware of the example implements the short header only. It answers any
 * other message with two bytes of zero, and never with RESET_DONE. It has 32 KiB
 * for a packet, takes one packet at a time, does not verify the checksum, and
 * sends all its answers to the first address that it received a message from. To
 * detect it, the driver rpmsg_netlink starts a conversation from the channel's own
 * address before any other address is used.
 *
 * The receiver answers each block: a valid block with the short header as above,
 * all others with STATUS. A message of a length that the packet does not allow
 * ends the packet with the status EPROTO and is then parsed as the start of
 * another one. Outside of a packet, a message that is too short for a header is
 * ignored.
 */
#ifndef _UAPI_LINUX_RPMSG_BULK_H
#define _UAPI_LINUX_RPMSG_BULK_H

#include <linux/types.h>

#define RPMSG_BULK_PREAMBLE	0xabcd

/**
 * struct rpmsg_bulk_header - start of each packet
 * @preamble: RPMSG_BULK_PREAMBLE
 * @length: number of bytes of header and block; 0 if the rest of a long header follows
 * @crc: checksum of all fields that follow
 */
struct rpmsg_bulk_header {
	__le16 preamble;
	__le16 length;
	__le16 crc;
};

/**
 * struct rpmsg_bulk_long_header - header with a type and a length of 32 bits
 * @header: its length is 0
 * @type: RPMSG_BULK_*
 * @length: its meaning depends on the type
 * @value: its meaning depends on the type
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
 * @value is 0, or an error as a number of errno.h: EBADMSG (74) for a wrong
 * checksum, EPROTO (71) for a malformed packet, EMSGSIZE (90) for a block that is
 * too long, ENODATA (61) for a RECEIVE if there is no block.
 */
#define RPMSG_BULK_STATUS	2
/*
 * Linux asks for a block and grants @value bytes of credit. If @length is not 0,
 * the block has that many bytes, and byte i is i & 0xff. If it is 0, the block is
 * the last valid one from this address, or if there is none, the last valid one
 * from any address.
 */
#define RPMSG_BULK_RECEIVE	3
/*
 * Linux grants @value more bytes of credit. The coprocessor must not send more
 * bytes of a block, its header included, than it has credit for.
 */
#define RPMSG_BULK_CREDIT	4
/* Discard all state of this address. */
#define RPMSG_BULK_RESET	5
/* The answer to RESET: the state is discarded. @value is that of the RESET. */
#define RPMSG_BULK_RESET_DONE	6

/*
 * DMABUFs passed by reference: on any endpoint this message replaces the bytes.
 */
#define RPMSG_DMABUF_MAGIC	0x46554244	/* "DBUF" */

/**
 * struct rpmsg_dmabuf_message - ownership of a part of a buffer changes
 * @magic: RPMSG_DMABUF_MAGIC
 * @type: RPMSG_DMABUF_GIVEN or RPMSG_DMABUF_DONE
 * @direction: RPMSG_DMABUF_TO_REMOTE or RPMSG_DMABUF_FROM_REMOTE
 * @cookie: any number that identifies this transfer; the same in the answer
 * @address: start of the buffer in the coprocessor's address space. In the answer
 *	that user space reads it is 0
 * @offset: offset of the part in the buffer
 * @length: number of bytes of the part. In the answer: number of bytes used, from
 *	@offset on
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
/* The coprocessor returns the part and does not access it any more. */
#define RPMSG_DMABUF_DONE	2

/* The coprocessor reads the part. */
#define RPMSG_DMABUF_TO_REMOTE		1
/* The coprocessor writes the part. */
#define RPMSG_DMABUF_FROM_REMOTE	2

#endif /* _UAPI_LINUX_RPMSG_BULK_H */
