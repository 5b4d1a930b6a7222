// SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause)
/* Do not edit directly, auto-generated from: */
/*	Documentation/netlink/specs/rpmsg_netlink.yaml */
/* YNL-GEN kernel source */

#include <net/netlink.h>
#include <net/genetlink.h>

#include "rpmsg_netlink-gen.h"

#include <uapi/linux/rpmsg_netlink.h>

/* RPMSG_NETLINK_CMD_CHANNEL_GET - do */
static const struct nla_policy rpmsg_netlink_channel_get_nl_policy[RPMSG_NETLINK_A_CHAN_ID + 1] = {
	[RPMSG_NETLINK_A_CHAN_ID] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* RPMSG_NETLINK_CMD_SEND - do */
static const struct nla_policy rpmsg_netlink_send_nl_policy[RPMSG_NETLINK_A_BLOCK_TIMEOUT + 1] = {
	[RPMSG_NETLINK_A_BLOCK_CHANNEL] = NLA_POLICY_MIN(NLA_U32, 1),
	[RPMSG_NETLINK_A_BLOCK_LENGTH] = { .type = NLA_U32, },
	[RPMSG_NETLINK_A_BLOCK_OFFSET] = { .type = NLA_U32, },
	[RPMSG_NETLINK_A_BLOCK_CRC] = { .type = NLA_U16, },
	[RPMSG_NETLINK_A_BLOCK_NOWAIT] = { .type = NLA_FLAG, },
	[RPMSG_NETLINK_A_BLOCK_DATA] = { .type = NLA_BINARY, },
	[RPMSG_NETLINK_A_BLOCK_TIMEOUT] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* RPMSG_NETLINK_CMD_RECEIVE - do */
static const struct nla_policy rpmsg_netlink_receive_nl_policy[RPMSG_NETLINK_A_BLOCK_TIMEOUT + 1] = {
	[RPMSG_NETLINK_A_BLOCK_CHANNEL] = NLA_POLICY_MIN(NLA_U32, 1),
	[RPMSG_NETLINK_A_BLOCK_LENGTH] = { .type = NLA_U32, },
	[RPMSG_NETLINK_A_BLOCK_TIMEOUT] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* RPMSG_NETLINK_CMD_FETCH - do */
static const struct nla_policy rpmsg_netlink_fetch_nl_policy[RPMSG_NETLINK_A_BLOCK_TIMEOUT + 1] = {
	[RPMSG_NETLINK_A_BLOCK_CHANNEL] = NLA_POLICY_MIN(NLA_U32, 1),
	[RPMSG_NETLINK_A_BLOCK_TIMEOUT] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* RPMSG_NETLINK_CMD_RESET - do */
static const struct nla_policy rpmsg_netlink_reset_nl_policy[RPMSG_NETLINK_A_BLOCK_CHANNEL + 1] = {
	[RPMSG_NETLINK_A_BLOCK_CHANNEL] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* Ops table for rpmsg_netlink */
static const struct genl_split_ops rpmsg_netlink_nl_ops[] = {
	{
		.cmd		= RPMSG_NETLINK_CMD_CHANNEL_GET,
		.doit		= rpmsg_netlink_nl_channel_get_doit,
		.policy		= rpmsg_netlink_channel_get_nl_policy,
		.maxattr	= RPMSG_NETLINK_A_CHAN_ID,
		.flags		= GENL_CMD_CAP_DO,
	},
	{
		.cmd	= RPMSG_NETLINK_CMD_CHANNEL_GET,
		.dumpit	= rpmsg_netlink_nl_channel_get_dumpit,
		.flags	= GENL_CMD_CAP_DUMP,
	},
	{
		.cmd		= RPMSG_NETLINK_CMD_SEND,
		.doit		= rpmsg_netlink_nl_send_doit,
		.policy		= rpmsg_netlink_send_nl_policy,
		.maxattr	= RPMSG_NETLINK_A_BLOCK_TIMEOUT,
		.flags		= GENL_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= RPMSG_NETLINK_CMD_RECEIVE,
		.doit		= rpmsg_netlink_nl_receive_doit,
		.policy		= rpmsg_netlink_receive_nl_policy,
		.maxattr	= RPMSG_NETLINK_A_BLOCK_TIMEOUT,
		.flags		= GENL_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= RPMSG_NETLINK_CMD_FETCH,
		.doit		= rpmsg_netlink_nl_fetch_doit,
		.policy		= rpmsg_netlink_fetch_nl_policy,
		.maxattr	= RPMSG_NETLINK_A_BLOCK_TIMEOUT,
		.flags		= GENL_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= RPMSG_NETLINK_CMD_RESET,
		.doit		= rpmsg_netlink_nl_reset_doit,
		.policy		= rpmsg_netlink_reset_nl_policy,
		.maxattr	= RPMSG_NETLINK_A_BLOCK_CHANNEL,
		.flags		= GENL_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
};

static const struct genl_multicast_group rpmsg_netlink_nl_mcgrps[] = {
	[RPMSG_NETLINK_NLGRP_CHANNELS] = { "channels", },
	[RPMSG_NETLINK_NLGRP_MESSAGES] = { "messages", },
};

struct genl_family rpmsg_netlink_nl_family __ro_after_init = {
	.name		= RPMSG_NETLINK_FAMILY_NAME,
	.version	= RPMSG_NETLINK_FAMILY_VERSION,
	.netnsok	= true,
	.parallel_ops	= true,
	.module		= THIS_MODULE,
	.split_ops	= rpmsg_netlink_nl_ops,
	.n_split_ops	= ARRAY_SIZE(rpmsg_netlink_nl_ops),
	.mcgrps		= rpmsg_netlink_nl_mcgrps,
	.n_mcgrps	= ARRAY_SIZE(rpmsg_netlink_nl_mcgrps),
};
