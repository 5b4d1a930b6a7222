/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VNIC_H
#define VNIC_H

#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/u64_stats_sync.h>
#include <net/page_pool/types.h>

#define VNIC_NAME		"vnic"
#define VNIC_QUEUES		16
#define VNIC_RING_DEFAULT	1024
#define VNIC_RING_MAX		8192
#define VNIC_RSS_ENTRIES	128
#define VNIC_RULES		64
/* Longest headers that are split off; a frame with more stays in one piece */
#define VNIC_HEADERS_MAX	256

/**
 * struct vnic_rule - an n-tuple rule
 * @fs: the rule as ethtool gave it
 * @rcu: for freeing it
 */
struct vnic_rule {
	struct ethtool_rx_flow_spec fs;
	struct rcu_head rcu;
};

/**
 * struct vnic_rq - a receive queue
 * @napi: takes the frames in
 * @dev: the device
 * @index: number of the queue
 * @pool: what the frames are copied into; NULL while the queue is stopped
 * @wire: frames that are under way to this queue
 * @syncp: for the counters; their only writer is @napi
 * @packets: frames taken in
 * @bytes: their bytes
 * @alloc_fail: frames dropped for want of memory
 * @overruns: frames dropped because @wire was full, or of a queue that ended
 */
struct vnic_rq {
	struct napi_struct napi;
	struct net_device *dev;
	unsigned int index;
	struct page_pool *pool;
	struct sk_buff_head wire;

	struct u64_stats_sync syncp;
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t alloc_fail;
	atomic64_t overruns;
};

/**
 * struct vnic_tq - a transmit queue's counters; its lock is held by who writes them
 * @syncp: for the counters
 * @packets: frames sent
 * @bytes: their bytes
 * @drops: frames that the other end did not take
 */
struct vnic_tq {
	struct u64_stats_sync syncp;
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t drops;
};

/**
 * struct vnic - one end of a pair
 * @peer: the other end; set while both are registered
 * @rq: receive queues, as many as the device has at most
 * @tq: transmit queues, likewise
 * @ring: frames that a receive queue holds at most
 * @split: whether headers and data of TCP frames are kept apart
 * @rss: receive queue of each hash
 * @rules: n-tuple rules, the first that matches wins; changed under RTNL
 */
struct vnic {
	struct net_device __rcu *peer;
	struct vnic_rq *rq;
	struct vnic_tq *tq;
	unsigned int ring;
	bool split;
	u32 rss[VNIC_RSS_ENTRIES];
	struct vnic_rule __rcu *rules[VNIC_RULES];
};

/**
 * struct vnic_cb - what the sending end found out of a frame
 * @hash: of its flow
 * @headers: bytes before TCP's data; 0: no TCP segment, or not to be split
 * @network: offset of the IP header
 * @transport: offset of the TCP header
 */
struct vnic_cb {
	u32 hash;
	u16 headers;
	u16 network;
	u16 transport;
};

static inline struct vnic_cb *vnic_cb(const struct sk_buff *skb)
{
	BUILD_BUG_ON(sizeof(struct vnic_cb) > sizeof(skb->cb));
	return (struct vnic_cb *)skb->cb;
}

/* queue.c */
extern const struct netdev_queue_mgmt_ops vnic_queue_mgmt_ops;
int vnic_queues_init(struct net_device *dev);
void vnic_queues_uninit(struct net_device *dev);
int vnic_queues_open(struct net_device *dev, unsigned int from, unsigned int to);
void vnic_queues_close(struct net_device *dev, unsigned int from, unsigned int to);
int vnic_queues_set_split(struct net_device *dev, bool split);
bool vnic_queue_push(struct vnic_rq *rq, struct sk_buff *skb);

/* steer.c */
#define VNIC_DROP	UINT_MAX
unsigned int vnic_steer(struct net_device *to, struct sk_buff *skb);
void vnic_rss_reset(struct vnic *vnic, unsigned int queues);
int vnic_rules_get(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations);
int vnic_rules_set(struct net_device *dev, struct ethtool_rxnfc *info);
void vnic_rules_flush(struct net_device *dev);

/* ethtool.c */
extern const struct ethtool_ops vnic_ethtool_ops;

#endif
