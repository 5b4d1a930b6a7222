// SPDX-License-Identifier: GPL-2.0
#include <linux/ethtool.h>

const struct ethtool_ops compat_test_ops = {
	.op_needs_rtnl = ETHTOOL_OP_NEEDS_RTNL_SCHANNELS | ETHTOOL_OP_NEEDS_RTNL_SRINGPARAM,
};
