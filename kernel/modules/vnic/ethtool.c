// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: what ethtool shows and sets
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

static void vnic_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	channels->max_rx = dev->num_rx_queues;
	channels->max_tx = dev->num_tx_queues;
	channels->rx_count = dev->real_num_rx_queues;
	channels->tx_count = dev->real_num_tx_queues;
}

static int vnic_set_rx_channels(struct net_device *dev, unsigned int count)
{
	unsigned int old = dev->real_num_rx_queues;
	struct vnic *vnic = netdev_priv(dev);
	int err;

	if (count > old && netif_running(dev)) {
		err = vnic_queues_open(dev, old, count);
		if (err)
			return err;
	}

	err = netif_set_real_num_rx_queues(dev, count);
	if (err) {
		if (count > old && netif_running(dev))
			vnic_queues_close(dev, old, count);
		return err;
	}

	if (!netif_is_rxfh_configured(dev))
		vnic_rss_reset(vnic, count);
	if (count < old && netif_running(dev))
		vnic_queues_close(dev, count, old);

	return 0;
}

static int vnic_set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	unsigned int old_tx = dev->real_num_tx_queues;
	int err;

	err = netif_set_real_num_tx_queues(dev, channels->tx_count);
	if (err)
		return err;
	err = vnic_set_rx_channels(dev, channels->rx_count);
	if (err)
		netif_set_real_num_tx_queues(dev, old_tx);

	return err;
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
		NL_SET_ERR_MSG_MOD(extack, "a receive ring has at least 1 entry");
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

	return 0;
}

static u32 vnic_get_rxfh_indir_size(struct net_device *dev)
{
	return VNIC_RSS_ENTRIES;
}

static int vnic_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh)
{
	struct vnic *vnic = netdev_priv(dev);

	if (rxfh->indir)
		memcpy(rxfh->indir, vnic->rss, sizeof(vnic->rss));

	return 0;
}

static int vnic_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
			 struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	/* The hash is the stack's own, of the kernel's secret. */
	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE || rxfh->key)
		return -EOPNOTSUPP;
	if (rxfh->indir)
		for (i = 0; i < VNIC_RSS_ENTRIES; i++)
			WRITE_ONCE(vnic->rss[i], rxfh->indir[i]);

	return 0;
}

const struct ethtool_ops vnic_ethtool_ops = {
	.supported_ring_params	= ETHTOOL_RING_USE_TCP_DATA_SPLIT,
	.get_link		= ethtool_op_get_link,
	.get_link_ksettings	= vnic_get_link_ksettings,
	.get_drvinfo		= vnic_get_drvinfo,
	.get_channels		= vnic_get_channels,
	.set_channels		= vnic_set_channels,
	.get_ringparam		= vnic_get_ringparam,
	.set_ringparam		= vnic_set_ringparam,
	.get_rxfh_indir_size	= vnic_get_rxfh_indir_size,
	.get_rxfh		= vnic_get_rxfh,
	.set_rxfh		= vnic_set_rxfh,
	.get_rxnfc		= vnic_rules_get,
	.set_rxnfc		= vnic_rules_set,
};
