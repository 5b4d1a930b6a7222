// SPDX-License-Identifier: GPL-2.0
/*
 * Sends blocks of bytes to and from a coprocessor for clients of generic netlink.
 */
#include <linux/module.h>

#include "rpnl.h"

/*
 * Messages of a coprocessor go only to listeners that may communicate with it
 * (chan_multicast()). The groups are defined here, because the generator of Linux
 * 6.12 ignores the flags that the specification has for a group.
 */
static const struct genl_multicast_group mcgrps[] = {
	[RPMSG_NETLINK_NLGRP_CHANNELS] = {
		.name = RPMSG_NETLINK_MCGRP_CHANNELS,
	},
	[RPMSG_NETLINK_NLGRP_MESSAGES] = {
		.name = RPMSG_NETLINK_MCGRP_MESSAGES,
		.flags = GENL_MCAST_CAP_NET_ADMIN,
	},
};

static int __init rpnl_init(void)
{
	int ret;

	rpnl_crc_init();

	ret = rpnl_clients_register();
	if (ret)
		return ret;

	rpmsg_netlink_nl_family.mcgrps = mcgrps;
	ret = genl_register_family(&rpmsg_netlink_nl_family);
	if (ret)
		goto unregister_clients;

	ret = rpnl_driver_register();
	if (ret)
		goto unregister_family;

	return 0;

unregister_family:
	genl_unregister_family(&rpmsg_netlink_nl_family);
unregister_clients:
	rpnl_clients_unregister();

	return ret;
}
module_init(rpnl_init);

static void __exit rpnl_exit(void)
{
	rpnl_driver_unregister();
	genl_unregister_family(&rpmsg_netlink_nl_family);
	rpnl_clients_unregister();
}
module_exit(rpnl_exit);

MODULE_DESCRIPTION("Blocks of bytes over rpmsg channels, by generic netlink");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
