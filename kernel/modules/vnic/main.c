// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: pairs of NICs without hardware
 *
 * Two Ethernet devices joined back to back, as veth's, but with what a NIC has:
 * receive queues with page pools, header split, steering of flows, and queues
 * that restart with other memory. So device-memory TCP runs on them.
 */

#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <net/netdev_queues.h>
#include <net/rtnetlink.h>

#include "vnic.h"

/* The device that all DMA is said to be of */
static struct platform_device *vnic_parent;

static struct rtnl_link_ops vnic_link_ops;

static bool vnic_deliver(struct net_device *peer, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(peer);
	unsigned int queue;

	if (!netif_running(peer) || !is_skb_forwardable(peer, skb))
		goto drop;
	queue = vnic_steer(peer, skb);
	if (queue == VNIC_DROP)
		goto drop;

	return vnic_queue_push(&vnic->rq[queue], skb);

drop:
	kfree_skb(skb);
	return false;
}

static netdev_tx_t vnic_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_tq *tq = &vnic->tq[skb_get_queue_mapping(skb)];
	unsigned int len = skb->len;
	struct net_device *peer;
	bool sent = false;

	/* The frame is held till the other end has taken it in, as a NIC holds it:
	 * so the sender's socket knows what is under way. What belongs to the
	 * sender's namespace is not held.
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

static void vnic_get_queue_stats_rx(struct net_device *dev, int index,
				    struct netdev_queue_stats_rx *stats)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rq *rq = &vnic->rq[index];
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&rq->syncp);
		stats->packets = u64_stats_read(&rq->packets);
		stats->bytes = u64_stats_read(&rq->bytes);
		stats->alloc_fail = u64_stats_read(&rq->alloc_fail);
	} while (u64_stats_fetch_retry(&rq->syncp, start));
	stats->hw_drop_overruns = atomic64_read(&rq->overruns);
	stats->hw_drops = stats->hw_drop_overruns;
}

static void vnic_get_queue_stats_tx(struct net_device *dev, int index,
				    struct netdev_queue_stats_tx *stats)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_tq *tq = &vnic->tq[index];
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&tq->syncp);
		stats->packets = u64_stats_read(&tq->packets);
		stats->bytes = u64_stats_read(&tq->bytes);
		stats->hw_drops = u64_stats_read(&tq->drops);
	} while (u64_stats_fetch_retry(&tq->syncp, start));
}

/* What the queues that the device has no more, or not yet, have counted */
static void vnic_get_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
				struct netdev_queue_stats_tx *tx)
{
	rx->packets = 0;
	rx->bytes = 0;
	rx->alloc_fail = 0;
	rx->hw_drops = 0;
	rx->hw_drop_overruns = 0;
	tx->packets = 0;
	tx->bytes = 0;
	tx->hw_drops = 0;
	netdev_stat_queue_sum(dev, dev->real_num_rx_queues, dev->num_rx_queues, rx,
			      dev->real_num_tx_queues, dev->num_tx_queues, tx);
}

static const struct netdev_stat_ops vnic_stat_ops = {
	.get_queue_stats_rx	= vnic_get_queue_stats_rx,
	.get_queue_stats_tx	= vnic_get_queue_stats_tx,
	.get_base_stats		= vnic_get_base_stats,
};

static void vnic_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct netdev_queue_stats_rx rx = {};
	struct netdev_queue_stats_tx tx = {};

	netdev_stat_queue_sum(dev, 0, dev->num_rx_queues, &rx, 0, dev->num_tx_queues, &tx);
	stats->rx_packets = rx.packets;
	stats->rx_bytes = rx.bytes;
	stats->rx_dropped = rx.alloc_fail;
	stats->rx_missed_errors = rx.hw_drop_overruns;
	stats->tx_packets = tx.packets;
	stats->tx_bytes = tx.bytes;
	stats->tx_dropped = tx.hw_drops;
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

static void vnic_uninit(struct net_device *dev)
{
	vnic_rules_flush(dev);
}

static const struct net_device_ops vnic_netdev_ops = {
	.ndo_init		= vnic_queues_init,
	.ndo_uninit		= vnic_uninit,
	.ndo_open		= vnic_open,
	.ndo_stop		= vnic_stop,
	.ndo_start_xmit		= vnic_start_xmit,
	.ndo_get_stats64	= vnic_get_stats64,
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

	ether_setup(dev);
	SET_NETDEV_DEV(dev, &vnic_parent->dev);
	dev->netdev_ops = &vnic_netdev_ops;
	dev->ethtool_ops = &vnic_ethtool_ops;
	dev->stat_ops = &vnic_stat_ops;
	dev->queue_mgmt_ops = &vnic_queue_mgmt_ops;
	dev->needs_free_netdev = true;
	dev->priv_destructor = vnic_queues_uninit;

	dev->priv_flags &= ~IFF_TX_SKB_SHARING;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE | IFF_NO_QUEUE;
	dev->features |= VNIC_FEATURES;
	dev->hw_features |= VNIC_FEATURES;
	dev->vlan_features |= VNIC_FEATURES & ~NETIF_F_NTUPLE;
	dev->max_mtu = ETH_MAX_MTU;
	vnic->ring = VNIC_RING_DEFAULT;
}

static int vnic_register(struct net_device *dev)
{
	int err;

	vnic_rss_reset(netdev_priv(dev), dev->real_num_rx_queues);
	err = register_netdevice(dev);
	if (!err)
		netif_carrier_off(dev);

	return err;
}

static int vnic_newlink(struct net *src_net, struct net_device *dev, struct nlattr *tb[],
			struct nlattr *data[], struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer;
	int err;

	peer = rtnl_create_link(dev_net(dev), VNIC_NAME "%d", NET_NAME_ENUM, &vnic_link_ops, tb,
				extack);
	if (IS_ERR(peer))
		return PTR_ERR(peer);

	if (!tb[IFLA_ADDRESS])
		eth_hw_addr_random(dev);
	eth_hw_addr_random(peer);

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
	err = rtnl_configure_link(peer, NULL, 0, NULL);
	if (err)
		goto unregister_peer;

	rcu_assign_pointer(vnic->peer, peer);
	vnic = netdev_priv(peer);
	rcu_assign_pointer(vnic->peer, dev);

	return 0;

unregister_peer:
	unregister_netdevice(peer);
unregister_dev:
	unregister_netdevice(dev);
	return err;
}

static void vnic_dellink(struct net_device *dev, struct list_head *head)
{
	struct vnic *vnic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(vnic->peer);

	/* The two may be deleted in one go, from two namespaces: each ends once. */
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

static struct rtnl_link_ops vnic_link_ops = {
	.kind			= VNIC_NAME,
	.priv_size		= sizeof(struct vnic),
	.setup			= vnic_setup,
	.newlink		= vnic_newlink,
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
	err = rtnl_link_register(&vnic_link_ops);
	if (err)
		platform_device_unregister(vnic_parent);

	return err;
}
module_init(vnic_init);

static void __exit vnic_exit(void)
{
	rtnl_link_unregister(&vnic_link_ops);
	platform_device_unregister(vnic_parent);
}
module_exit(vnic_exit);

MODULE_DESCRIPTION("Pairs of virtual NICs that device-memory TCP runs on");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
MODULE_ALIAS_RTNL_LINK(VNIC_NAME);
