// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: pairs of virtual NICs
 *
 * Two Ethernet devices are connected back to back, as with veth. They have features
 * of NICs that device-memory TCP needs: receive queues with page pools, header
 * split, flow steering, and queues that restart with other memory.
 */

#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/veth.h>
#include <net/rtnetlink.h>

#include <compat/netdev.h>

#include "vnic.h"

/* The DMA device of pairs without a PCI device */
static struct platform_device *vnic_parent;

static struct rtnl_link_ops vnic_link_ops;

/* Passes a frame to the other end. Return: false if that is down */
static bool vnic_deliver(struct net_device *peer, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(peer);
	unsigned int queue;

	if (!netif_running(peer)) {
		kfree_skb(skb);
		return false;
	}

	/* From here on a loss is counted by the other end */
	if (!is_skb_forwardable(peer, skb)) {
		atomic64_inc(&vnic->oversized);
		kfree_skb_reason(skb, SKB_DROP_REASON_PKT_TOO_BIG);
		return true;
	}
	queue = vnic_steer(peer, skb);
	if (queue == VNIC_DROP) {
		atomic64_inc(&vnic->filtered);
		kfree_skb(skb);
		return true;
	}
	vnic_queue_push(&vnic->rq[queue], skb);

	return true;
}

static netdev_tx_t vnic_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_tq *tq = &vnic->tq[skb_get_queue_mapping(skb)];
	unsigned int len = skb->len;
	struct net_device *peer;
	bool sent = false;

	/* A packet socket can send less than an Ethernet header */
	if (unlikely(!pskb_may_pull(skb, ETH_HLEN))) {
		kfree_skb(skb);
		goto count;
	}

	/* The frame keeps its socket until the other end has received it, as
	 * with a NIC, so that the socket accounts for bytes in flight. State of
	 * the sender's namespace is dropped now.
	 */
	skb_tx_timestamp(skb);
	nf_reset_ct(skb);

	rcu_read_lock();
	peer = rcu_dereference(vnic->peer);
	if (likely(peer))
		sent = vnic_deliver(peer, skb);
	else
		kfree_skb(skb);
	rcu_read_unlock();

count:
	u64_stats_update_begin(&tq->syncp);
	if (sent) {
		u64_stats_inc(&tq->packets);
		u64_stats_add(&tq->bytes, len);
	} else {
		u64_stats_inc(&tq->drops);
	}
	u64_stats_update_end(&tq->syncp);

	return NETDEV_TX_OK;
}

static int vnic_open(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(vnic->peer);
	int err;

	err = vnic_queues_open(dev, 0, dev->real_num_rx_queues);
	if (err)
		return err;

	if (peer && netif_running(peer)) {
		netif_carrier_on(dev);
		netif_carrier_on(peer);
	}

	return 0;
}

static int vnic_stop(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(vnic->peer);

	netif_carrier_off(dev);
	if (peer)
		netif_carrier_off(peer);
	vnic_queues_close(dev, 0, dev->real_num_rx_queues);

	return 0;
}

static int vnic_set_features(struct net_device *dev, netdev_features_t features)
{
	if (!(features & NETIF_F_NTUPLE))
		vnic_rules_flush(dev);

	return 0;
}

static int vnic_get_iflink(const struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer;
	int iflink;

	rcu_read_lock();
	peer = rcu_dereference(vnic->peer);
	iflink = peer ? READ_ONCE(peer->ifindex) : 0;
	rcu_read_unlock();

	return iflink;
}

static int vnic_init_device(struct net_device *dev)
{
	int err;

	/* Both ends go in one batch, each under a lock of its own */
	netdev_lockdep_set_classes(dev);
	err = vnic_queues_init(dev);
	if (err)
		return err;
	err = vnic_rss_init(dev);
	if (err) {
		vnic_queues_uninit(dev);
		vnic_queues_free(dev);
		return err;
	}
	vnic_pci_add(dev);

	return 0;
}

static void vnic_uninit_device(struct net_device *dev)
{
	vnic_pci_del(dev);
	vnic_rules_flush(dev);
	vnic_queues_uninit(dev);
}

/* Frees data that can be read until the device's last user is gone */
static void vnic_free(struct net_device *dev)
{
	vnic_rss_free(dev);
	vnic_queues_free(dev);
}

static const struct net_device_ops vnic_netdev_ops = {
	.ndo_init		= vnic_init_device,
	.ndo_uninit		= vnic_uninit_device,
	.ndo_open		= vnic_open,
	.ndo_stop		= vnic_stop,
	.ndo_start_xmit		= vnic_start_xmit,
	.ndo_get_stats64	= vnic_get_stats64,
	COMPAT_NO_RX_MODE,
	.ndo_set_mac_address	= eth_mac_addr,
	.ndo_validate_addr	= eth_validate_addr,
	.ndo_set_features	= vnic_set_features,
	.ndo_features_check	= passthru_features_check,
	.ndo_get_iflink		= vnic_get_iflink,
};

#define VNIC_FEATURES (NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_RXCSUM | NETIF_F_HIGHDMA | \
		       NETIF_F_ALL_TSO | NETIF_F_RXHASH | NETIF_F_NTUPLE)

static void vnic_setup(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int flow;

	vnic->dev = dev;
	ether_setup(dev);
	SET_NETDEV_DEV(dev, vnic_pci_parent() ?: &vnic_parent->dev);
	dev->netdev_ops = &vnic_netdev_ops;
	dev->ethtool_ops = &vnic_ethtool_ops;
	dev->stat_ops = &vnic_stat_ops;
	dev->queue_mgmt_ops = &vnic_queue_mgmt_ops;
	dev->needs_free_netdev = true;
	dev->priv_destructor = vnic_free;

	dev->priv_flags &= ~IFF_TX_SKB_SHARING;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE | IFF_NO_QUEUE | IFF_UNICAST_FLT;
	dev->features |= VNIC_FEATURES;
	dev->hw_features |= VNIC_FEATURES;
	dev->vlan_features |= VNIC_FEATURES & ~NETIF_F_NTUPLE;
	dev->max_mtu = ETH_MAX_MTU;
	vnic->ring = VNIC_RING_DEFAULT;
	vnic->frames = VNIC_FRAMES_DEFAULT;
	for (flow = 0; flow < VNIC_FLOWS; flow++)
		vnic->ports[flow] = true;
}

static int vnic_register(struct net_device *dev)
{
	int err = register_netdevice(dev);

	if (!err)
		netif_carrier_off(dev);

	return err;
}

static int vnic_validate(struct nlattr *tb[], struct nlattr *data[],
			 struct netlink_ext_ack *extack)
{
	const struct nlattr *address = tb[IFLA_ADDRESS];

	if (!address)
		return 0;
	if (nla_len(address) != ETH_ALEN) {
		NL_SET_ERR_MSG_ATTR(extack, address, "an address must have 6 bytes");
		return -EINVAL;
	}
	if (!is_valid_ether_addr(nla_data(address))) {
		NL_SET_ERR_MSG_ATTR(extack, address, "not a unicast address");
		return -EADDRNOTAVAIL;
	}

	return 0;
}

/* May this user create a pair with this number of queues? */
static int vnic_check(const struct net_device *dev, struct netlink_ext_ack *extack)
{
	/* Frames are received into pages that no control group is charged for */
	if (!capable(CAP_NET_ADMIN)) {
		NL_SET_ERR_MSG_MOD(extack, "needs CAP_NET_ADMIN in the initial user namespace");
		return -EPERM;
	}
	if (dev->num_rx_queues > VNIC_QUEUES_MAX || dev->num_tx_queues > VNIC_QUEUES_MAX) {
		NL_SET_ERR_MSG_MOD(extack, "more than 128 receive or transmit queues");
		return -EINVAL;
	}

	return 0;
}

/**
 * struct vnic_other - what the request says about the other end
 * @tb: its attributes
 * @ifm: its header; NULL if the request does not describe the other end
 * @parsed: storage for @tb
 */
struct vnic_other {
	struct nlattr **tb;
	const struct ifinfomsg *ifm;
	struct nlattr *parsed[IFLA_MAX + 1];
};

static int vnic_parse_other(struct vnic_other *other, struct nlattr *tb[], struct nlattr *data[],
			    struct netlink_ext_ack *extack)
{
	int err;

	if (!data || !data[VETH_INFO_PEER]) {
		other->tb = tb;
		return 0;
	}
	err = rtnl_nla_parse_ifinfomsg(other->parsed, data[VETH_INFO_PEER], extack);
	if (err)
		return err;
	other->tb = other->parsed;
	other->ifm = nla_data(data[VETH_INFO_PEER]);

	return vnic_validate(other->tb, NULL, extack);
}

/* Returns the other end's namespace; without one in the request, link-netns or that of this end */
static struct net *vnic_other_net(struct rtnl_newlink_params *params, const struct net_device *dev,
				  const struct vnic_other *other)
{
	if (other->ifm)
		return compat_peer_net(params, other->tb);
	return get_net(params->link_net ?: dev_net(dev));
}

/* Creates the other end of @dev and does not register it */
static struct net_device *vnic_create_other(struct rtnl_newlink_params *params,
					    const struct net_device *dev,
					    const struct vnic_other *other,
					    struct netlink_ext_ack *extack)
{
	unsigned char assign_type = NET_NAME_ENUM;
	char name[IFNAMSIZ] = VNIC_NAME "%d";
	struct net_device *peer;
	struct net *net;
	int err;

	if (other->ifm && other->tb[IFLA_IFNAME]) {
		nla_strscpy(name, other->tb[IFLA_IFNAME], sizeof(name));
		assign_type = NET_NAME_USER;
	}
	net = vnic_other_net(params, dev, other);
	if (IS_ERR(net))
		return ERR_CAST(net);
	peer = rtnl_create_link(net, name, assign_type, &vnic_link_ops, other->tb, extack);
	put_net(net);
	if (IS_ERR(peer))
		return peer;

	err = vnic_check(peer, extack);
	if (err) {
		free_netdev(peer);
		return ERR_PTR(err);
	}
	if (!other->ifm || !other->tb[IFLA_ADDRESS])
		eth_hw_addr_random(peer);
	if (other->ifm)
		peer->ifindex = other->ifm->ifi_index;

	return peer;
}

static void vnic_set_peer(struct net_device *dev, struct net_device *peer)
{
	struct vnic *vnic = netdev_priv(dev);

	rcu_assign_pointer(vnic->peer, peer);
}

static int vnic_register_pair(struct net_device *dev, struct net_device *peer,
			      const struct vnic_other *other)
{
	int err;

	err = vnic_register(dev);
	if (err) {
		free_netdev(peer);
		return err;
	}
	err = vnic_register(peer);
	if (err) {
		free_netdev(peer);
		goto unregister_dev;
	}
	vnic_set_peer(dev, peer);
	vnic_set_peer(peer, dev);
	err = rtnl_configure_link(peer, other->ifm, 0, NULL);
	if (err)
		goto unregister_peer;

	return 0;

unregister_peer:
	vnic_set_peer(dev, NULL);
	vnic_set_peer(peer, NULL);
	unregister_netdevice(peer);
unregister_dev:
	unregister_netdevice(dev);
	return err;
}

static int vnic_newlink(struct net_device *dev, struct rtnl_newlink_params *params,
			struct netlink_ext_ack *extack)
{
	struct vnic_other *other;
	struct net_device *peer;
	int err;

	err = vnic_check(dev, extack);
	if (err)
		return err;
	other = kzalloc(sizeof(*other), GFP_KERNEL);
	if (!other)
		return -ENOMEM;
	err = vnic_parse_other(other, params->tb, params->data, extack);
	if (err)
		goto out;
	peer = vnic_create_other(params, dev, other, extack);
	if (IS_ERR(peer)) {
		err = PTR_ERR(peer);
		goto out;
	}
	if (!params->tb[IFLA_ADDRESS])
		eth_hw_addr_random(dev);
	err = vnic_register_pair(dev, peer, other);

out:
	kfree(other);
	return err;
}

COMPAT_NEWLINK_OP(vnic_newlink)

/**
 * vnic_dellink() - queue both ends of a pair for unregistration
 * @dev: one of them
 * @head: the list for unregister_netdevice_many()
 */
void vnic_dellink(struct net_device *dev, struct list_head *head)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(vnic->peer);

	/* Both ends may be deleted in one batch, from two namespaces: queue each once */
	RCU_INIT_POINTER(vnic->peer, NULL);
	unregister_netdevice_queue(dev, head);
	if (!peer)
		return;
	vnic = netdev_priv(peer);
	RCU_INIT_POINTER(vnic->peer, NULL);
	unregister_netdevice_queue(peer, head);
}

static unsigned int vnic_default_queues(void)
{
	return VNIC_QUEUES;
}

static struct net *vnic_get_link_net(const struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(vnic->peer);

	return peer ? dev_net(peer) : dev_net(dev);
}

/* The attributes of veth, which iproute2 supports */
static const struct nla_policy vnic_policy[VETH_INFO_MAX + 1] = {
	[VETH_INFO_PEER]	= { .len = sizeof(struct ifinfomsg) },
};

static struct rtnl_link_ops vnic_link_ops = {
	.kind			= VNIC_NAME,
	.maxtype		= VETH_INFO_MAX,
	.policy			= vnic_policy,
	.validate		= vnic_validate,
	.priv_size		= sizeof(struct vnic),
	.setup			= vnic_setup,
	.newlink		= vnic_newlink_op,
#ifdef HAVE_rtnl_newlink_params
	.peer_type		= VETH_INFO_PEER,
#endif
	.dellink		= vnic_dellink,
	.get_num_tx_queues	= vnic_default_queues,
	.get_num_rx_queues	= vnic_default_queues,
	.get_link_net		= vnic_get_link_net,
};

static int __init vnic_init(void)
{
	struct platform_device_info info = {
		.name		= VNIC_NAME,
		.id		= PLATFORM_DEVID_NONE,
		.dma_mask	= DMA_BIT_MASK(64),
	};
	int err;

	vnic_parent = platform_device_register_full(&info);
	if (IS_ERR(vnic_parent))
		return PTR_ERR(vnic_parent);
	dma_set_max_seg_size(&vnic_parent->dev, UINT_MAX);
	err = vnic_pci_register();
	if (err)
		goto unregister_parent;
	err = rtnl_link_register(&vnic_link_ops);
	if (err)
		goto unregister_pci;

	return 0;

unregister_pci:
	vnic_pci_unregister();
unregister_parent:
	platform_device_unregister(vnic_parent);
	return err;
}
module_init(vnic_init);

static void __exit vnic_exit(void)
{
	rtnl_link_unregister(&vnic_link_ops);
	vnic_pci_unregister();
	platform_device_unregister(vnic_parent);
}
module_exit(vnic_exit);

MODULE_DESCRIPTION("Pairs of virtual NICs that device-memory TCP runs on");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
/* No alias: a user without CAP_NET_ADMIN must not load the module by requesting a pair */
