// SPDX-License-Identifier: GPL-2.0
#include <net/netdev_queues.h>

static int compat_test(struct net_device *dev, struct netdev_queue_config *config, void *memory,
		       int index)
{
	return 0;
}

const struct netdev_queue_mgmt_ops compat_test_ops = {
	.ndo_queue_mem_alloc = compat_test,
	.ndo_queue_start = compat_test,
};
