// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: the hash agrees with the specification of receive side scaling
 *
 * Key, addresses and hashes are from "Verifying the RSS Hash Calculation", which belongs
 * to that specification.
 */

#include <kunit/test.h>
#include <linux/module.h>

#include "toeplitz.h"

static const u8 vnic_key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
	0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
	0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

/* Source, destination, source port, destination port */
static void vnic_toeplitz_v4(struct kunit *test)
{
	static const u8 first[] = { 66, 9, 149, 187, 161, 142, 100, 80, 10, 234, 6, 230 };
	static const u8 second[] = { 199, 92, 111, 2, 65, 69, 140, 83, 55, 150, 18, 131 };

	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, first, 12), 0x51ccc178);
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, first, 8), 0x323e8fc2);
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, second, 12), 0xc626b0ea);
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, second, 8), 0xd718262a);
}

static void vnic_toeplitz_v6(struct kunit *test)
{
	static const u8 data[36] = {
		0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, [15] = 0x07,
		0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, [31] = 0x01,
		0x0a, 0xea, 0x06, 0xe6,
	};

	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, data, 36), 0x40207d3d);
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, data, 32), 0x2cc18cd5);
}

/* The hash of the XOR of two inputs is the XOR of their hashes */
static void vnic_toeplitz_linear(struct kunit *test)
{
	u8 one[36], other[36], both[36] = {};
	unsigned int i;

	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, both, 36), 0);
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, both, 0), 0);
	for (i = 0; i < sizeof(one); i++) {
		one[i] = i * 37 + 11;
		other[i] = i * 101 + 3;
		both[i] = one[i] ^ other[i];
	}
	KUNIT_EXPECT_EQ(test, vnic_toeplitz(vnic_key, both, 36),
			vnic_toeplitz(vnic_key, one, 36) ^ vnic_toeplitz(vnic_key, other, 36));
}

static struct kunit_case vnic_toeplitz_cases[] = {
	KUNIT_CASE(vnic_toeplitz_v4),
	KUNIT_CASE(vnic_toeplitz_v6),
	KUNIT_CASE(vnic_toeplitz_linear),
	{}
};

static struct kunit_suite vnic_toeplitz_suite = {
	.name		= "vnic_toeplitz",
	.test_cases	= vnic_toeplitz_cases,
};

kunit_test_suite(vnic_toeplitz_suite);

MODULE_DESCRIPTION("KUnit tests of vnic");
MODULE_LICENSE("GPL");
