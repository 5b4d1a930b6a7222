// SPDX-License-Identifier: GPL-2.0
/*
 * Packets of <linux/rpmsg_bulk.h>: checksum and headers.
 *
 * The polynomial is that of the example firmware, 0x8006. The kernel's crc16()
 * uses 0x8005, and processes one byte at a time.
 */
#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include "packet.h"

/* x^16 + x^15 + x^2 + x in a reflected register: bit 15 is x^0, bit 0 is x^15 */
#define CRC_POLY	0x6001
#define CRC_ONE		0x8000
/* x^8: multiplying by it appends a byte of zeros */
#define CRC_BYTE	0x0080

/* Number of bytes that each step processes, with one table per byte */
#define CRC_STEP	8

static u16 crc_table[CRC_STEP][256];

/**
 * rpnl_crc_init() - compute the tables
 */
void rpnl_crc_init(void)
{
	unsigned int byte, bit, step;

	for (byte = 0; byte < 256; byte++) {
		u16 crc = byte;

		for (bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? CRC_POLY : 0);
		crc_table[0][byte] = crc;
	}

	for (step = 1; step < CRC_STEP; step++) {
		for (byte = 0; byte < 256; byte++) {
			u16 crc = crc_table[step - 1][byte];

			crc_table[step][byte] = (crc >> 8) ^ crc_table[0][crc & 0xff];
		}
	}
}

/**
 * rpnl_crc() - extend a checksum
 * @crc: checksum of the bytes before, 0 for none
 * @data: the bytes that follow
 * @len: their number
 *
 * Return: the checksum of both.
 */
u16 rpnl_crc(u16 crc, const void *data, size_t len)
{
	const u8 *byte = data;

	for (; len >= CRC_STEP; len -= CRC_STEP, byte += CRC_STEP) {
		u64 word = get_unaligned_le64(byte) ^ crc;

		crc = crc_table[7][word & 0xff] ^
		      crc_table[6][(word >> 8) & 0xff] ^
		      crc_table[5][(word >> 16) & 0xff] ^
		      crc_table[4][(word >> 24) & 0xff] ^
		      crc_table[3][(word >> 32) & 0xff] ^
		      crc_table[2][(word >> 40) & 0xff] ^
		      crc_table[1][(word >> 48) & 0xff] ^
		      crc_table[0][word >> 56];
	}
	for (; len; len--, byte++)
		crc = (crc >> 8) ^ crc_table[0][(crc ^ *byte) & 0xff];

	return crc;
}

/* Returns the product of two polynomials modulo that of the checksum */
static u16 crc_multiply(u16 a, u16 b)
{
	u16 product = 0;
	u32 bit;

	for (bit = CRC_ONE; bit; bit >>= 1) {
		if (a & bit)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? CRC_POLY : 0);
	}

	return product;
}

/**
 * rpnl_crc_join() - compute the checksum of two concatenated byte strings
 * @first: checksum of the first
 * @second: checksum of the second
 * @len: length of the second
 *
 * Return: the checksum of both.
 */
u16 rpnl_crc_join(u16 first, u16 second, u32 len)
{
	u16 power = CRC_BYTE;

	for (; len; len >>= 1) {
		if (len & 1)
			first = crc_multiply(first, power);
		power = crc_multiply(power, power);
	}

	return first ^ second;
}

/**
 * rpnl_is_short() - does a block have the short header?
 * @length: bytes of the block
 *
 * Return: true if it does.
 */
bool rpnl_is_short(u32 length)
{
	return length <= RPMSG_BULK_SHORT_MAX &&
	       length + RPNL_HEAD_SHORT != RPMSG_BULK_PREAMBLE;
}

static bool parse_short(struct rpnl_head *head,
			const struct rpmsg_bulk_header *raw)
{
	u16 length = le16_to_cpu(raw->length);

	if (length < RPNL_HEAD_SHORT || length == RPMSG_BULK_PREAMBLE)
		return false;

	head->size = RPNL_HEAD_SHORT;
	head->type = RPMSG_BULK_DATA;
	head->length = length - RPNL_HEAD_SHORT;
	head->value = 0;
	head->sum = 0;

	return true;
}

/* Returns the checksum of the header's fields that follow the checksum */
static u16 long_sum(const struct rpmsg_bulk_long_header *raw)
{
	return rpnl_crc(0, &raw->type, sizeof(*raw) - sizeof(raw->header));
}

static bool parse_long(struct rpnl_head *head,
		       const struct rpmsg_bulk_long_header *raw, size_t len)
{
	head->size = RPNL_HEAD_LONG;
	head->type = le16_to_cpu(raw->type);
	head->length = le32_to_cpu(raw->length);
	head->value = le32_to_cpu(raw->value);
	head->sum = long_sum(raw);

	if (head->type == RPMSG_BULK_DATA)
		return true;

	return len == RPNL_HEAD_LONG && head->sum == head->crc;
}

/**
 * rpnl_head_parse() - parse the header of a packet's first message
 * @head: the parsed header
 * @msg: the message
 * @len: its length
 *
 * Return: true if @msg begins with a valid header. The checksum of every packet
 * but a block is verified.
 */
bool rpnl_head_parse(struct rpnl_head *head, const void *msg, size_t len)
{
	struct rpmsg_bulk_long_header raw = {};

	if (len < RPNL_HEAD_SHORT)
		return false;

	memcpy(&raw, msg, min(len, sizeof(raw)));
	if (le16_to_cpu(raw.header.preamble) != RPMSG_BULK_PREAMBLE)
		return false;

	head->crc = le16_to_cpu(raw.header.crc);
	if (raw.header.length)
		return parse_short(head, &raw.header);

	return len >= RPNL_HEAD_LONG && parse_long(head, &raw, len);
}

static void put_long(void *buf, u16 type, u32 length, u32 value,
		     const u16 *block)
{
	struct rpmsg_bulk_long_header raw = {
		.header.preamble = cpu_to_le16(RPMSG_BULK_PREAMBLE),
		.type = cpu_to_le16(type),
		.length = cpu_to_le32(length),
		.value = cpu_to_le32(value),
	};
	u16 sum = long_sum(&raw);

	if (block)
		sum = rpnl_crc_join(sum, *block, length);
	raw.header.crc = cpu_to_le16(sum);
	memcpy(buf, &raw, sizeof(raw));
}

/**
 * rpnl_head_block() - write the header of a block
 * @buf: destination, with room for the long header
 * @length: number of bytes of the block
 * @crc: checksum of the block
 *
 * Return: length of the header.
 */
size_t rpnl_head_block(void *buf, u32 length, u16 crc)
{
	struct rpmsg_bulk_header raw = {
		.preamble = cpu_to_le16(RPMSG_BULK_PREAMBLE),
		.length = cpu_to_le16(length + RPNL_HEAD_SHORT),
		.crc = cpu_to_le16(crc),
	};

	if (!rpnl_is_short(length)) {
		put_long(buf, RPMSG_BULK_DATA, length, 0, &crc);
		return RPNL_HEAD_LONG;
	}
	memcpy(buf, &raw, sizeof(raw));

	return RPNL_HEAD_SHORT;
}

/**
 * rpnl_head_control() - write a packet that consists of a header only
 * @buf: destination, with room for the long header
 * @type: type of the packet, not RPMSG_BULK_DATA
 * @length: length, with the meaning that the type defines
 * @value: value, with the meaning that the type defines
 */
void rpnl_head_control(void *buf, u16 type, u32 length, u32 value)
{
	put_long(buf, type, length, value, NULL);
}
