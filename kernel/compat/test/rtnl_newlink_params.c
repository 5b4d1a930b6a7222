// SPDX-License-Identifier: GPL-2.0
#include <net/rtnetlink.h>

static int compat_test(struct net_device *dev, struct rtnl_newlink_params *params,
		       struct netlink_ext_ack *extack)
{
	return 0;
}

struct rtnl_link_ops compat_test_ops = {
	.newlink = compat_test,
	.peer_type = 1,
};
