// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: ethtool operations
 */

#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <net/netdev_rx_queue.h>

#include "vnic.h"

static int vnic_get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *cmd)
{
	cmd->base.speed = SPEED_UNKNOWN;
	cmd->base.duplex = DUPLEX_FULL;
	cmd->base.port = PORT_OTHER;
	cmd->base.autoneg = AUTONEG_DISABLE;

	return 0;
}

static void vnic_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, VNIC_NAME, sizeof(info->driver));
}

/* A combined channel is a receive and a transmit queue. Surplus queues of one kind are alone. */
static void vnic_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	unsigned int rx = dev->real_num_rx_queues, tx = dev->real_num_tx_queues;

	channels->max_combined = min(dev->num_rx_queues, dev->num_tx_queues);
	channels->max_rx = dev->num_rx_queues - 1;
	channels->max_tx = dev->num_tx_queues - 1;
	channels->combined_count = min(rx, tx);
	channels->rx_count = rx - channels->combined_count;
	channels->tx_count = tx - channels->combined_count;
}

static int vnic_set_rx_queues(struct net_device *dev, unsigned int count)
{
	unsigned int old = dev->real_num_rx_queues;
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rss *rss = NULL;
	int err = 0;

	if (!netif_is_rxfh_configured(dev)) {
		rss = vnic_rss_spread(vnic, count);
		if (!rss)
			return -ENOMEM;
	}

	if (count > old && netif_running(dev))
		err = vnic_queues_open(dev, old, count);
	if (err)
		goto free;
	err = netif_set_real_num_rx_queues(dev, count);
	if (err)
		goto close;

	if (rss)
		vnic_rss_publish(vnic, 0, rss);
	if (count < old && netif_running(dev))
		vnic_queues_close(dev, count, old);

	return 0;

close:
	if (count > old && netif_running(dev))
		vnic_queues_close(dev, old, count);
free:
	kfree(rss);
	return err;
}

static int vnic_set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	unsigned int rx = channels->combined_count + channels->rx_count;
	unsigned int tx = channels->combined_count + channels->tx_count;
	unsigned int old_tx = dev->real_num_tx_queues;
	int err;

	/* A receive-only and a transmit-only queue would be a combined channel */
	if (channels->rx_count && channels->tx_count)
		return -EINVAL;
	if (rx > dev->num_rx_queues || tx > dev->num_tx_queues)
		return -EINVAL;

	err = netif_set_real_num_tx_queues(dev, tx);
	if (err)
		return err;
	err = vnic_set_rx_queues(dev, rx);
	if (err)
		netif_set_real_num_tx_queues(dev, old_tx);

	return err;
}

static int vnic_get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			     struct kernel_ethtool_coalesce *kernel,
			     struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);

	coalesce->rx_coalesce_usecs = vnic->usecs;
	coalesce->rx_max_coalesced_frames = vnic->frames;

	return 0;
}

static int vnic_set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			     struct kernel_ethtool_coalesce *kernel,
			     struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);

	if (coalesce->rx_coalesce_usecs > VNIC_USECS_MAX) {
		NL_SET_ERR_MSG_MOD(extack, "rx-usecs must be 10 s or less");
		return -ERANGE;
	}
	if (!coalesce->rx_max_coalesced_frames) {
		NL_SET_ERR_MSG_MOD(extack, "rx-frames must be at least 1");
		return -EINVAL;
	}
	WRITE_ONCE(vnic->usecs, coalesce->rx_coalesce_usecs);
	WRITE_ONCE(vnic->frames, coalesce->rx_max_coalesced_frames);
	vnic_queues_poll(dev);

	return 0;
}

static void vnic_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			       struct kernel_ethtool_ringparam *kernel,
			       struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);

	ring->rx_max_pending = VNIC_RING_MAX;
	ring->rx_pending = vnic->ring;
	kernel->tcp_data_split = vnic->split ? ETHTOOL_TCP_DATA_SPLIT_ENABLED :
					       ETHTOOL_TCP_DATA_SPLIT_DISABLED;
}

static bool vnic_has_device_memory(struct net_device *dev)
{
	unsigned int i;

	for (i = 0; i < dev->num_rx_queues; i++)
		if (__netif_get_rx_queue(dev, i)->mp_params.mp_ops)
			return true;

	return false;
}

static int vnic_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			      struct kernel_ethtool_ringparam *kernel,
			      struct netlink_ext_ack *extack)
{
	bool split = kernel->tcp_data_split == ETHTOOL_TCP_DATA_SPLIT_ENABLED;
	struct vnic *vnic = netdev_priv(dev);
	int err;

	if (!ring->rx_pending) {
		NL_SET_ERR_MSG_MOD(extack, "a receive ring must have at least 1 entry");
		return -EINVAL;
	}

	if (split != vnic->split) {
		if (!split && vnic_has_device_memory(dev)) {
			NL_SET_ERR_MSG_MOD(extack, "device memory needs tcp-data-split");
			return -EBUSY;
		}
		err = vnic_queues_set_split(dev, split);
		if (err)
			return err;
	}
	WRITE_ONCE(vnic->ring, ring->rx_pending);
	vnic_queues_poll(dev);

	return 0;
}

static u32 vnic_get_rxfh_indir_size(struct net_device *dev)
{
	return VNIC_RSS_ENTRIES;
}

/* Older kernels ask for these by get_rxnfc and set_rxnfc alone. */
#ifdef HAVE_get_rx_ring_count
static u32 vnic_get_rx_ring_count(struct net_device *dev)
{
	return dev->real_num_rx_queues;
}
#endif

#ifdef HAVE_get_rxfh_fields
static int vnic_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields)
{
	struct ethtool_rxnfc info = { .flow_type = fields->flow_type };
	int ret = vnic_rss_get_fields(netdev_priv(dev), &info);

	fields->data = info.data;
	return ret;
}

static int vnic_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
				struct netlink_ext_ack *extack)
{
	struct ethtool_rxnfc info = { .flow_type = fields->flow_type, .data = fields->data };

	return vnic_rss_set_fields(netdev_priv(dev), &info);
}
#endif

static u32 vnic_get_rxfh_key_size(struct net_device *dev)
{
	return VNIC_RSS_KEY;
}

const struct ethtool_ops vnic_ethtool_ops = {
	.rxfh_per_ctx_key	= true,
	.rxfh_max_num_contexts	= VNIC_CONTEXTS,
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS | ETHTOOL_COALESCE_RX_MAX_FRAMES,
	.supported_ring_params	= ETHTOOL_RING_USE_TCP_DATA_SPLIT,
#ifdef HAVE_op_needs_rtnl
	/* They open and close queues, as vnic_open() and vnic_stop() do under the RTNL */
	.op_needs_rtnl		= ETHTOOL_OP_NEEDS_RTNL_SCHANNELS |
				  ETHTOOL_OP_NEEDS_RTNL_SRINGPARAM,
#endif
	.get_link		= ethtool_op_get_link,
	.get_link_ksettings	= vnic_get_link_ksettings,
	.get_drvinfo		= vnic_get_drvinfo,
	.get_ts_info		= ethtool_op_get_ts_info,
	.get_channels		= vnic_get_channels,
	.set_channels		= vnic_set_channels,
	.get_coalesce		= vnic_get_coalesce,
	.set_coalesce		= vnic_set_coalesce,
	.get_ringparam		= vnic_get_ringparam,
	.set_ringparam		= vnic_set_ringparam,
	.get_sset_count		= vnic_get_sset_count,
	.get_strings		= vnic_get_strings,
	.get_ethtool_stats	= vnic_get_ethtool_stats,
	.get_rxfh_indir_size	= vnic_get_rxfh_indir_size,
	.get_rxfh_key_size	= vnic_get_rxfh_key_size,
	.get_rxfh		= vnic_get_rxfh,
	.set_rxfh		= vnic_set_rxfh,
	.create_rxfh_context	= vnic_create_rxfh_context,
	.modify_rxfh_context	= vnic_modify_rxfh_context,
	.remove_rxfh_context	= vnic_remove_rxfh_context,
#ifdef HAVE_get_rx_ring_count
	.get_rx_ring_count	= vnic_get_rx_ring_count,
#endif
#ifdef HAVE_get_rxfh_fields
	.get_rxfh_fields	= vnic_get_rxfh_fields,
	.set_rxfh_fields	= vnic_set_rxfh_fields,
#endif
	.get_rxnfc		= vnic_rules_get,
	.set_rxnfc		= vnic_rules_set,
};
