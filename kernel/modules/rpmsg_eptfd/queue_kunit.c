// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: messages leave the queue in order, and a loss is reported once, ahead of them
 */

#include <kunit/test.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/sizes.h>

/* Includes the queue, as the driver exports nothing, and defines a limit for it. */
#include "queue.c"

unsigned int eptfd_rx_limit;

static int queue_init(struct kunit *test)
{
	struct eptfd_queue *q = kunit_kzalloc(test, sizeof(*q), GFP_KERNEL);

	if (!q)
		return -ENOMEM;
	eptfd_rx_limit = SZ_4K;
	eptfd_queue_init(q);
	test->priv = q;

	return 0;
}

static void queue_exit(struct kunit *test)
{
	if (test->priv)
		eptfd_queue_purge(test->priv);
}

static void push(struct eptfd_queue *q, u8 first, size_t len)
{
	static u8 data[SZ_8K];

	data[0] = first;
	eptfd_queue_push(q, data, len);
}

/* Returns the first byte of the oldest message, or the error. */
static int pop(struct eptfd_queue *q)
{
	struct eptfd_msg *msg;
	int first;

	first = eptfd_queue_pop(q, &msg, NULL, 1, false);
	if (first < 0)
		return first;
	first = msg->data[0];
	kfree(msg);

	return first;
}

static void queue_keeps_the_order(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;
	unsigned int i;

	for (i = 0; i < 3; i++)
		push(q, i, 16);
	KUNIT_EXPECT_EQ(test, q->count, 3);
	for (i = 0; i < 3; i++)
		KUNIT_EXPECT_EQ(test, pop(q), i);
	KUNIT_EXPECT_EQ(test, pop(q), -EAGAIN);

	/* The tail is valid after the last message was taken. */
	push(q, 7, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 7);
	KUNIT_EXPECT_EQ(test, q->bytes, 0);
	KUNIT_EXPECT_EQ(test, q->count, 0);
}

static void queue_tells_losses_once(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;
	unsigned int i, kept;

	for (i = 0; i < 100; i++)
		push(q, i, 100);
	kept = q->count;
	KUNIT_EXPECT_LE(test, q->bytes, eptfd_rx_limit);
	KUNIT_EXPECT_EQ(test, q->dropped, 100 - kept);

	KUNIT_EXPECT_EQ(test, pop(q), -ENOBUFS);
	for (i = 0; i < kept; i++)
		KUNIT_EXPECT_EQ(test, pop(q), i);
	KUNIT_EXPECT_EQ(test, pop(q), -EAGAIN);
}

/* A message that is put back is accepted beyond the limit, and counted. */
static void queue_counts_what_is_put_back(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;
	struct eptfd_msg *msg;
	size_t bytes;

	push(q, 1, 1024);
	bytes = q->bytes;
	KUNIT_ASSERT_EQ(test, eptfd_queue_pop(q, &msg, NULL, 1, false), 1);
	eptfd_queue_unpop(q, &msg, 1);
	KUNIT_EXPECT_EQ(test, q->bytes, bytes);

	push(q, 2, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 1);
	KUNIT_EXPECT_EQ(test, pop(q), 2);
}

static void queue_gives_many_up_to_a_loss(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;
	struct eptfd_msg *msgs[4];
	unsigned int i;

	for (i = 0; i < 5; i++)
		push(q, i, 600);
	KUNIT_EXPECT_EQ(test, q->dropped, 1);
	KUNIT_EXPECT_EQ(test, eptfd_queue_pop(q, msgs, NULL, 4, true), -EAGAIN);
	KUNIT_EXPECT_EQ(test, eptfd_queue_pop(q, msgs, NULL, 4, false), -ENOBUFS);
	KUNIT_ASSERT_EQ(test, eptfd_queue_pop(q, msgs, NULL, 3, false), 3);
	KUNIT_EXPECT_EQ(test, q->count, 1);
	eptfd_queue_unpop(q, msgs + 1, 2);
	kfree(msgs[0]);
	KUNIT_ASSERT_EQ(test, eptfd_queue_pop(q, msgs, NULL, 4, true), 3);
	for (i = 0; i < 3; i++) {
		KUNIT_EXPECT_EQ(test, msgs[i]->data[0], i + 1);
		kfree(msgs[i]);
	}
	KUNIT_EXPECT_EQ(test, q->bytes, 0);
	KUNIT_EXPECT_EQ(test, q->count, 0);

	/* The tail is valid after all were taken together. */
	push(q, 9, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 9);
}

static void queue_gives_many_up_to_a_long_one(struct kunit *test)
{
	static const u32 rooms[] = { 16, 16, 16 };
	struct eptfd_queue *q = test->priv;
	struct eptfd_msg *msgs[3];

	push(q, 1, 16);
	push(q, 2, 17);
	push(q, 3, 16);
	KUNIT_EXPECT_EQ(test, eptfd_queue_pop(q, msgs, rooms, 3, false), 1);
	eptfd_queue_unpop(q, msgs, 1);
	KUNIT_EXPECT_EQ(test, pop(q), 1);
	KUNIT_EXPECT_EQ(test, eptfd_queue_pop(q, msgs, rooms, 3, true), -EAGAIN);
	KUNIT_EXPECT_EQ(test, q->count, 2);
	KUNIT_ASSERT_EQ(test, eptfd_queue_pop(q, msgs, rooms, 3, false), 2);
	KUNIT_EXPECT_EQ(test, msgs[0]->len, 17);
	eptfd_queue_unpop(q, msgs, 2);
	KUNIT_EXPECT_EQ(test, pop(q), 2);
	KUNIT_EXPECT_EQ(test, pop(q), 3);
}

static void queue_takes_one_of_any_size(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;

	push(q, 1, SZ_8K);
	push(q, 2, 16);
	KUNIT_EXPECT_EQ(test, pop(q), -ENOBUFS);
	KUNIT_EXPECT_EQ(test, pop(q), 1);

	eptfd_rx_limit = 0;
	push(q, 3, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 3);
}

static void queue_ends_behind_the_last(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;

	push(q, 1, 16);
	eptfd_queue_end(q);
	push(q, 2, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 1);
	KUNIT_EXPECT_EQ(test, pop(q), -EPIPE);
	KUNIT_EXPECT_EQ(test, pop(q), -EPIPE);
}

static void queue_closed_takes_nothing(struct kunit *test)
{
	struct eptfd_queue *q = test->priv;

	push(q, 1, 16);
	eptfd_queue_close(q);
	push(q, 2, 16);
	KUNIT_EXPECT_EQ(test, pop(q), -EAGAIN);
	eptfd_queue_purge(q);
	push(q, 3, 16);
	KUNIT_EXPECT_EQ(test, pop(q), 3);
}

static struct kunit_case queue_cases[] = {
	KUNIT_CASE(queue_keeps_the_order),
	KUNIT_CASE(queue_tells_losses_once),
	KUNIT_CASE(queue_counts_what_is_put_back),
	KUNIT_CASE(queue_gives_many_up_to_a_loss),
	KUNIT_CASE(queue_gives_many_up_to_a_long_one),
	KUNIT_CASE(queue_takes_one_of_any_size),
	KUNIT_CASE(queue_ends_behind_the_last),
	KUNIT_CASE(queue_closed_takes_nothing),
	{}
};

static struct kunit_suite queue_suite = {
	.name		= "rpmsg_eptfd_queue",
	.init		= queue_init,
	.exit		= queue_exit,
	.test_cases	= queue_cases,
};

kunit_test_suite(queue_suite);

MODULE_DESCRIPTION("KUnit tests of rpmsg_eptfd");
MODULE_LICENSE("GPL");
