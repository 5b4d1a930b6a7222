/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_NETDEV_H
#define COMPAT_NETDEV_H

#include <linux/netdevice.h>
#include <net/page_pool/types.h>
#include <net/rtnetlink.h>
#ifdef HAVE_netdev_need_ops_lock
#include <net/netdev_lock.h>
#endif

struct netdev_queue_config;

#ifndef HAVE_netdev_need_ops_lock
/* The operations of a device run under the RTNL alone, so there is no lock to be held here */
static inline void compat_napi_enable(struct napi_struct *napi)
{
	napi_enable(napi);
}

static inline void compat_napi_disable(struct napi_struct *napi)
{
	napi_disable(napi);
}

static inline void compat_napi_add(struct net_device *dev, struct napi_struct *napi,
				   int (*poll)(struct napi_struct *, int), int index)
{
	netif_napi_add(dev, napi, poll);
}

static inline void compat_napi_del(struct napi_struct *napi)
{
	__netif_napi_del(napi);
}

#define napi_enable_locked		compat_napi_enable
#define napi_disable_locked		compat_napi_disable
#define netif_napi_add_config_locked	compat_napi_add
#define __netif_napi_del_locked		compat_napi_del

static inline bool compat_ops_held(const struct net_device *dev)
{
	return lockdep_rtnl_is_held();
}
#else
static inline bool compat_ops_held(const struct net_device *dev)
{
	return lockdep_rtnl_is_held() || lockdep_is_held(&dev->lock);
}
#endif

/* For what operations of a device change: they run under its lock, the RTNL, or both */
#define compat_ops_dereference(p, dev)	rcu_dereference_protected(p, compat_ops_held(dev))

#ifndef HAVE_page_pool_alloc_netmems
#define page_pool_alloc_netmems	page_pool_alloc_netmem
#endif

/* Defines NAME_op for struct netdev_queue_mgmt_ops, which calls NAME without the configuration */
#ifdef HAVE_netdev_queue_config
#define COMPAT_QUEUE_OP(name)								\
	static int name##_op(struct net_device *dev, struct netdev_queue_config *config,	\
			     void *memory, int index)						\
	{										\
		return name(dev, memory, index);						\
	}
#else
#define COMPAT_QUEUE_OP(name)								\
	static int name##_op(struct net_device *dev, void *memory, int index)		\
	{										\
		return name(dev, memory, index);						\
	}
#endif

/* The operation of struct net_device_ops for a device that receives all frames, for any address */
#ifdef HAVE_ndo_set_rx_mode_async
static inline int compat_no_rx_mode(struct net_device *dev, struct netdev_hw_addr_list *unicast,
				    struct netdev_hw_addr_list *multicast)
{
	return 0;
}

#define COMPAT_NO_RX_MODE	.ndo_set_rx_mode_async = compat_no_rx_mode
#else
static inline void compat_no_rx_mode(struct net_device *dev)
{
}

#define COMPAT_NO_RX_MODE	.ndo_set_rx_mode = compat_no_rx_mode
#endif

/* Defines NAME_op for struct rtnl_link_ops, which calls NAME with the newest arguments */
#ifdef HAVE_rtnl_newlink_params
#define COMPAT_NEWLINK_OP(name)								\
	static int name##_op(struct net_device *dev, struct rtnl_newlink_params *params,	\
			     struct netlink_ext_ack *extack)				\
	{										\
		return name(dev, params, extack);					\
	}
#else
struct rtnl_newlink_params {
	struct net *src_net;
	/* Older kernels make the device in this namespace and move it afterwards */
	struct net *link_net;
	struct nlattr **tb;
	struct nlattr **data;
};

#define COMPAT_NEWLINK_OP(name)								\
	static int name##_op(struct net *src_net, struct net_device *dev,		\
			     struct nlattr *tb[], struct nlattr *data[],		\
			     struct netlink_ext_ack *extack)				\
	{										\
		struct rtnl_newlink_params params = {					\
			.src_net = src_net,						\
			.tb = tb,							\
			.data = data,							\
		};									\
											\
		return name(dev, &params, extack);					\
	}
#endif

/* Returns a reference to the namespace that a request gives to the other end, which has @tb */
static inline struct net *compat_peer_net(struct rtnl_newlink_params *params, struct nlattr *tb[])
{
#ifdef HAVE_rtnl_newlink_params
	return get_net(rtnl_newlink_peer_net(params));
#else
	return rtnl_link_get_net(params->src_net, tb);
#endif
}

#endif
