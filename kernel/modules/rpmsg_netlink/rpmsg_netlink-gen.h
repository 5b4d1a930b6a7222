/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/* Do not edit directly, auto-generated from: */
/*	Documentation/netlink/specs/rpmsg_netlink.yaml */
/* YNL-GEN kernel header */

#ifndef _LINUX_RPMSG_NETLINK_GEN_H
#define _LINUX_RPMSG_NETLINK_GEN_H

#include <net/netlink.h>
#include <net/genetlink.h>

#include <uapi/linux/rpmsg_netlink.h>

int rpmsg_netlink_nl_channel_get_doit(struct sk_buff *skb,
				      struct genl_info *info);
int rpmsg_netlink_nl_channel_get_dumpit(struct sk_buff *skb,
					struct netlink_callback *cb);
int rpmsg_netlink_nl_send_doit(struct sk_buff *skb, struct genl_info *info);
int rpmsg_netlink_nl_receive_doit(struct sk_buff *skb, struct genl_info *info);
int rpmsg_netlink_nl_fetch_doit(struct sk_buff *skb, struct genl_info *info);
int rpmsg_netlink_nl_reset_doit(struct sk_buff *skb, struct genl_info *info);

enum {
	RPMSG_NETLINK_NLGRP_CHANNELS,
	RPMSG_NETLINK_NLGRP_MESSAGES,
};

extern struct genl_family rpmsg_netlink_nl_family;

#endif /* _LINUX_RPMSG_NETLINK_GEN_H */
