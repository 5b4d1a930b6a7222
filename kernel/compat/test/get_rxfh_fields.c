// SPDX-License-Identifier: GPL-2.0
#include <linux/ethtool.h>

static int compat_test(struct net_device *dev, struct ethtool_rxfh_fields *fields)
{
	return 0;
}

const struct ethtool_ops compat_test_ops = {
	.get_rxfh_fields = compat_test,
};
