// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: counters
 *
 * A lost frame is counted by the receiving end. If that is not up, the sending end
 * counts it.
 */

#include <linux/ethtool.h>
#include <net/netdev_queues.h>

#include "vnic.h"

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

/* Counters of queues that are not in use now, and of frames that were dropped before a
 * queue was chosen
 */
static void vnic_get_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
				struct netdev_queue_stats_tx *tx)
{
	struct vnic *vnic = netdev_priv(dev);

	rx->packets = 0;
	rx->bytes = 0;
	rx->alloc_fail = 0;
	rx->hw_drops = atomic64_read(&vnic->filtered) + atomic64_read(&vnic->oversized);
	rx->hw_drop_overruns = 0;
	tx->packets = 0;
	tx->bytes = 0;
	tx->hw_drops = 0;
	netdev_stat_queue_sum(dev, dev->real_num_rx_queues, dev->num_rx_queues, rx,
			      dev->real_num_tx_queues, dev->num_tx_queues, tx);
}

const struct netdev_stat_ops vnic_stat_ops = {
	.get_queue_stats_rx	= vnic_get_queue_stats_rx,
	.get_queue_stats_tx	= vnic_get_queue_stats_tx,
	.get_base_stats		= vnic_get_base_stats,
};

void vnic_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct vnic *vnic = netdev_priv(dev);
	struct netdev_queue_stats_rx rx = {};
	struct netdev_queue_stats_tx tx = {};

	netdev_stat_queue_sum(dev, 0, dev->num_rx_queues, &rx, 0, dev->num_tx_queues, &tx);
	stats->rx_packets = rx.packets;
	stats->rx_bytes = rx.bytes;
	stats->rx_dropped = rx.alloc_fail + atomic64_read(&vnic->filtered);
	stats->rx_missed_errors = rx.hw_drop_overruns;
	stats->rx_length_errors = atomic64_read(&vnic->oversized);
	stats->rx_errors = stats->rx_length_errors;
	stats->tx_packets = tx.packets;
	stats->tx_bytes = tx.bytes;
	stats->tx_dropped = tx.hw_drops;
}

#define VNIC_STATS_DEVICE	2
#define VNIC_STATS_RX		4
#define VNIC_STATS_TX		3

int vnic_get_sset_count(struct net_device *dev, int set)
{
	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;

	return VNIC_STATS_DEVICE + VNIC_STATS_RX * dev->real_num_rx_queues +
	       VNIC_STATS_TX * dev->real_num_tx_queues;
}

void vnic_get_strings(struct net_device *dev, u32 set, u8 *data)
{
	unsigned int i;

	if (set != ETH_SS_STATS)
		return;
	ethtool_puts(&data, "rx_filtered");
	ethtool_puts(&data, "rx_oversized");
	for (i = 0; i < dev->real_num_rx_queues; i++) {
		ethtool_sprintf(&data, "rx%u_packets", i);
		ethtool_sprintf(&data, "rx%u_bytes", i);
		ethtool_sprintf(&data, "rx%u_alloc_fail", i);
		ethtool_sprintf(&data, "rx%u_overruns", i);
	}
	for (i = 0; i < dev->real_num_tx_queues; i++) {
		ethtool_sprintf(&data, "tx%u_packets", i);
		ethtool_sprintf(&data, "tx%u_bytes", i);
		ethtool_sprintf(&data, "tx%u_drops", i);
	}
}

void vnic_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct vnic *vnic = netdev_priv(dev);
	struct netdev_queue_stats_rx rx;
	struct netdev_queue_stats_tx tx;
	unsigned int i;

	*data++ = atomic64_read(&vnic->filtered);
	*data++ = atomic64_read(&vnic->oversized);
	for (i = 0; i < dev->real_num_rx_queues; i++) {
		vnic_get_queue_stats_rx(dev, i, &rx);
		*data++ = rx.packets;
		*data++ = rx.bytes;
		*data++ = rx.alloc_fail;
		*data++ = rx.hw_drop_overruns;
	}
	for (i = 0; i < dev->real_num_tx_queues; i++) {
		vnic_get_queue_stats_tx(dev, i, &tx);
		*data++ = tx.packets;
		*data++ = tx.bytes;
		*data++ = tx.hw_drops;
	}
}
