// SPDX-License-Identifier: GPL-2.0
#include <linux/ethtool.h>

static u32 compat_test(struct net_device *dev)
{
	return 0;
}

const struct ethtool_ops compat_test_ops = {
	.get_rx_ring_count = compat_test,
};
