// SPDX-License-Identifier: GPL-2.0
/*
 * Packets of <linux/rpmsg_bulk.h>: check sum and headers.
 *
 * The polynomial is 0x8006, that of the example. The kernel's own crc16() has the
 * usual one, 0x8005, and takes a byte at a time.
 */
#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#include "packet.h"

/* x^16 + x^15 + x^2 + x, as it lies in a reflected register: bit 15 is 1, bit 0 x^15 */
#define CRC_POLY	0x6001
#define CRC_ONE		0x8000
/* x^8: the register after another byte of zeros */
#define CRC_BYTE	0x0080

/* Bytes of which each step makes a sum, with a table for each */
#define CRC_STEP	8

static u16 crc_table[CRC_STEP][256];

/**
 * rpnl_crc_init() - make the tables
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
 * rpnl_crc() - go on with a check sum
 * @crc: check sum of what comes before, 0 for nothing
 * @data: what follows
 * @len: its length
 *
 * Return: the check sum of both.
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

/* Product of two polynomials, modulo that of the check sum */
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
 * rpnl_crc_join() - the check sum of two things in a row
 * @first: check sum of the first
 * @second: check sum of the second
 * @len: length of the second
 *
 * Return: the check sum of both.
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
 * Return: whether it does.
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

/* Everything behind the check sum is covered by it */
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
 * rpnl_head_parse() - read the header of a packet's first message
 * @head: what it says
 * @msg: the message
 * @len: its length
 *
 * Return: whether it is a header. That of anything but a block has been
 * checked.
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
 * @buf: where to, room for the long one
 * @length: bytes of the block
 * @crc: check sum of the block
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
 * rpnl_head_control() - write a packet that is only a header
 * @buf: where to, room for the long one
 * @type: its type, anything but a block
 * @length: as the type has it
 * @value: as the type has it
 */
void rpnl_head_control(void *buf, u16 type, u32 length, u32 value)
{
	put_long(buf, type, length, value, NULL);
}
