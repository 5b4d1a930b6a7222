// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: checksums and headers of packets, as the driver reads and writes them
 */

#include <kunit/test.h>
#include <linux/module.h>

/* Includes the codec, as the driver exports nothing; its tables are a copy. */
#include "packet.c"

static int packet_init(struct kunit_suite *suite)
{
	rpnl_crc_init();
	return 0;
}

/* Computes the checksum bit by bit, as it is defined */
static u16 crc_by_bits(u16 crc, const u8 *data, size_t len)
{
	unsigned int bit;

	for (; len; len--, data++) {
		crc ^= *data;
		for (bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? CRC_POLY : 0);
	}

	return crc;
}

static void packet_fill(u8 *data, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++)
		data[i] = i * i * 31 + i * 7 + 5;
}

static void packet_crc_of_any_length(struct kunit *test)
{
	u8 data[64];
	size_t len;

	packet_fill(data, sizeof(data));
	for (len = 0; len <= sizeof(data); len++)
		KUNIT_EXPECT_EQ(test, rpnl_crc(0x1234, data, len), crc_by_bits(0x1234, data, len));
}

static void packet_crc_in_pieces(struct kunit *test)
{
	u16 all, first, second;
	u8 data[64];
	size_t cut;

	packet_fill(data, sizeof(data));
	all = rpnl_crc(0, data, sizeof(data));
	for (cut = 0; cut <= sizeof(data); cut++) {
		first = rpnl_crc(0, data, cut);
		second = rpnl_crc(0, data + cut, sizeof(data) - cut);
		KUNIT_EXPECT_EQ(test, rpnl_crc_join(first, second, sizeof(data) - cut), all);
		KUNIT_EXPECT_EQ(test, rpnl_crc(first, data + cut, sizeof(data) - cut), all);
	}
}

static void packet_block(struct kunit *test, u32 length)
{
	struct rpnl_head head;
	u8 msg[RPNL_HEAD_LONG];
	size_t len, less;

	len = rpnl_head_block(msg, length, 0x1234);
	KUNIT_EXPECT_EQ(test, len, rpnl_is_short(length) ? RPNL_HEAD_SHORT : RPNL_HEAD_LONG);
	KUNIT_ASSERT_TRUE(test, rpnl_head_parse(&head, msg, len));
	KUNIT_EXPECT_EQ(test, head.size, len);
	KUNIT_EXPECT_EQ(test, head.type, RPMSG_BULK_DATA);
	KUNIT_EXPECT_EQ(test, head.length, length);
	KUNIT_EXPECT_EQ(test, head.crc, rpnl_crc_join(head.sum, 0x1234, length));
	for (less = 0; less < len; less++)
		KUNIT_EXPECT_FALSE(test, rpnl_head_parse(&head, msg, less));
}

static void packet_blocks(struct kunit *test)
{
	static const u32 lengths[] = {
		0, 1, RPMSG_BULK_SHORT_MAX - 1, RPMSG_BULK_SHORT_MAX, RPMSG_BULK_SHORT_MAX + 1,
		/* The length whose short header has the preamble as length, and its neighbours */
		RPMSG_BULK_PREAMBLE - RPNL_HEAD_SHORT - 1,
		RPMSG_BULK_PREAMBLE - RPNL_HEAD_SHORT,
		RPMSG_BULK_PREAMBLE - RPNL_HEAD_SHORT + 1,
		0x10000, 0x7fffffff, U32_MAX,
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(lengths); i++)
		packet_block(test, lengths[i]);
}

/* A header of any type but a block is refused if any single bit of it is wrong. */
static void packet_control(struct kunit *test)
{
	u8 msg[RPNL_HEAD_LONG + 1] = {};
	struct rpnl_head head;
	size_t bit;

	rpnl_head_control(msg, 3, 0x12345678, 0x9abcdef0);
	KUNIT_ASSERT_TRUE(test, rpnl_head_parse(&head, msg, RPNL_HEAD_LONG));
	KUNIT_EXPECT_EQ(test, head.type, 3);
	KUNIT_EXPECT_EQ(test, head.length, 0x12345678);
	KUNIT_EXPECT_EQ(test, head.value, 0x9abcdef0);
	KUNIT_EXPECT_FALSE(test, rpnl_head_parse(&head, msg, RPNL_HEAD_LONG + 1));
	for (bit = 0; bit < 8 * RPNL_HEAD_LONG; bit++) {
		msg[bit / 8] ^= 1 << bit % 8;
		/* The checksum of a block is verified with the block, not with its header. */
		if (rpnl_head_parse(&head, msg, RPNL_HEAD_LONG))
			KUNIT_EXPECT_EQ(test, head.type, RPMSG_BULK_DATA);
		msg[bit / 8] ^= 1 << bit % 8;
	}
}

static struct kunit_case packet_cases[] = {
	KUNIT_CASE(packet_crc_of_any_length),
	KUNIT_CASE(packet_crc_in_pieces),
	KUNIT_CASE(packet_blocks),
	KUNIT_CASE(packet_control),
	{}
};

static struct kunit_suite packet_suite = {
	.name		= "rpmsg_netlink_packet",
	.suite_init	= packet_init,
	.test_cases	= packet_cases,
};

kunit_test_suite(packet_suite);

MODULE_DESCRIPTION("KUnit tests of rpmsg_netlink");
MODULE_LICENSE("GPL");
