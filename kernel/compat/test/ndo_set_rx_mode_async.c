// SPDX-License-Identifier: GPL-2.0
#include <linux/netdevice.h>

static int compat_test(struct net_device *dev, struct netdev_hw_addr_list *uc,
		       struct netdev_hw_addr_list *mc)
{
	return 0;
}

const struct net_device_ops compat_test_ops = {
	.ndo_set_rx_mode_async = compat_test,
};
