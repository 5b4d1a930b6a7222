// SPDX-License-Identifier: GPL-2.0
/*
 * The driver's codec as a program:
 *	sum FILE		print the checksum of a file
 *	join FIRST SECOND LEN	print the checksum of two concatenated byte strings
 *	headers			check headers written and parsed, and random ones
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packet.h"

static int sum(const char *name)
{
	FILE *file = fopen(name, "rb");
	u8 bytes[61];
	u16 crc = 0;
	size_t len;

	assert(file);
	/* In pieces whose length is not a multiple of the table's step */
	while ((len = fread(bytes, 1, sizeof(bytes), file)))
		crc = rpnl_crc(crc, bytes, len);
	printf("%u\n", crc);

	return 0;
}

static void check_block(u32 length)
{
	struct rpnl_head head;
	u8 msg[RPNL_HEAD_LONG];
	size_t len;

	len = rpnl_head_block(msg, length, 0x1234);
	assert(len == (rpnl_is_short(length) ? RPNL_HEAD_SHORT : RPNL_HEAD_LONG));
	assert(rpnl_head_parse(&head, msg, len));
	assert(head.size == len && head.type == RPMSG_BULK_DATA);
	assert(head.length == length && head.value == 0);
	/* The checksum of the header and of a block whose own checksum is 0x1234 */
	assert(head.crc == rpnl_crc_join(head.sum, 0x1234, length));
	for (size_t less = 0; less < len; less++)
		assert(!rpnl_head_parse(&head, msg, less));
}

static void check_control(u16 type, u32 length, u32 value)
{
	struct rpnl_head head;
	u8 msg[RPNL_HEAD_LONG + 1] = {};

	rpnl_head_control(msg, type, length, value);
	assert(rpnl_head_parse(&head, msg, RPNL_HEAD_LONG));
	assert(head.type == type && head.length == length && head.value == value);
	assert(!rpnl_head_parse(&head, msg, RPNL_HEAD_LONG + 1));
	for (size_t bit = 0; bit < 8 * RPNL_HEAD_LONG; bit++) {
		msg[bit / 8] ^= 1 << bit % 8;
		/* The checksum of a block is verified with the block, not with its header */
		assert(!rpnl_head_parse(&head, msg, RPNL_HEAD_LONG) ||
		       head.type == RPMSG_BULK_DATA);
		msg[bit / 8] ^= 1 << bit % 8;
	}
}

static void check_noise(void)
{
	for (int round = 0; round < 1000000; round++) {
		size_t len = rand() % 40;
		u8 *msg = malloc(len);
		struct rpnl_head head;

		for (size_t at = 0; at < len; at++)
			msg[at] = rand();
		if (len > 2 && rand() % 2) {
			msg[0] = 0xcd;
			msg[1] = 0xab;
		}
		if (rpnl_head_parse(&head, msg, len))
			assert(head.size <= len);
		free(msg);
	}
}

static int headers(void)
{
	static const u32 lengths[] = {
		0, 1, 490, 0xabcd - 7, 0xabcd - 6, 0xabcd - 5, 0xfff9, 0xfffa,
		0x10000, 0x1000000, 0xffffffff,
	};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		check_block(lengths[i]);
		for (u16 type = RPMSG_BULK_STATUS; type <= RPMSG_BULK_RESET_DONE; type++)
			check_control(type, lengths[i], ~lengths[i]);
	}
	assert(!rpnl_is_short(0xabcd - 6) && !rpnl_is_short(0xfffa));
	check_noise();

	return 0;
}

int main(int argc, char **argv)
{
	rpnl_crc_init();
	if (argc == 3 && !strcmp(argv[1], "sum"))
		return sum(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "join"))
		return printf("%u\n", rpnl_crc_join(strtoul(argv[2], NULL, 0),
						    strtoul(argv[3], NULL, 0),
						    strtoul(argv[4], NULL, 0))) < 0;
	if (argc == 2 && !strcmp(argv[1], "headers"))
		return headers();

	return 2;
}
