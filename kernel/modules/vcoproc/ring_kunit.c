// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: rings are placed so that the process can write to used rings only
 */

#include <kunit/test.h>
#include <linux/bitmap.h>
#include <linux/module.h>

#include "ring.h"

static void vcoproc_ring_places(struct kunit *test)
{
	DECLARE_BITMAP(used, VCOPROC_RING_PAGES) = {};
	unsigned long i, page, pages = 2;

	for (i = 1; i <= VCOPROC_VRINGS; i++) {
		page = vcoproc_find_ring(used, pages);
		KUNIT_ASSERT_EQ(test, page, i * VCOPROC_SLOT_PAGES - pages);
		bitmap_set(used, page, pages);
	}
	KUNIT_EXPECT_EQ(test, vcoproc_find_ring(used, pages), ULONG_MAX);

	bitmap_clear(used, VCOPROC_SLOT_PAGES - pages, pages);
	KUNIT_EXPECT_EQ(test, vcoproc_find_ring(used, 1), VCOPROC_SLOT_PAGES - 1);
}

static void vcoproc_ring_too_long(struct kunit *test)
{
	DECLARE_BITMAP(used, VCOPROC_RING_PAGES) = {};

	KUNIT_EXPECT_EQ(test, vcoproc_find_ring(used, VCOPROC_SLOT_PAGES), 0);
	KUNIT_EXPECT_EQ(test, vcoproc_find_ring(used, VCOPROC_SLOT_PAGES + 1), ULONG_MAX);
	KUNIT_EXPECT_EQ(test, vcoproc_find_ring(used, ULONG_MAX), ULONG_MAX);
}

/* For all numbers of entries, with virtio's layout and page alignment */
static void vcoproc_ring_used_is_writable(struct kunit *test)
{
	DECLARE_BITMAP(used, VCOPROC_RING_PAGES) = {};
	unsigned long first, page, pages, used_page;
	unsigned int num;
	struct vring vr;

	for (num = 1; num <= VCOPROC_MAX_RING; num *= 2) {
		pages = PAGE_ALIGN(vring_size(num, PAGE_SIZE)) >> PAGE_SHIFT;
		first = vcoproc_find_ring(used, pages);
		KUNIT_ASSERT_LT(test, first, VCOPROC_RING_PAGES);

		vring_init(&vr, num, (void *)(first << PAGE_SHIFT), PAGE_SIZE);
		used_page = (unsigned long)vr.used >> PAGE_SHIFT;
		for (page = first; page < first + pages; page++)
			KUNIT_EXPECT_EQ(test, vcoproc_page_writable(page), page >= used_page);
	}
}

static void vcoproc_ring_rest_is_writable(struct kunit *test)
{
	unsigned long page, writable = 0;

	for (page = 0; page < VCOPROC_RING_PAGES; page++)
		writable += vcoproc_page_writable(page);
	KUNIT_EXPECT_EQ(test, writable, VCOPROC_VRINGS);
	KUNIT_EXPECT_TRUE(test, vcoproc_page_writable(VCOPROC_RING_PAGES));
	KUNIT_EXPECT_TRUE(test, vcoproc_page_writable(ULONG_MAX));
}

static struct kunit_case vcoproc_ring_cases[] = {
	KUNIT_CASE(vcoproc_ring_places),
	KUNIT_CASE(vcoproc_ring_too_long),
	KUNIT_CASE(vcoproc_ring_used_is_writable),
	KUNIT_CASE(vcoproc_ring_rest_is_writable),
	{}
};

static struct kunit_suite vcoproc_ring_suite = {
	.name		= "vcoproc_ring",
	.test_cases	= vcoproc_ring_cases,
};

kunit_test_suite(vcoproc_ring_suite);

MODULE_DESCRIPTION("KUnit tests of vcoproc");
MODULE_LICENSE("GPL");
