/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VNIC_H
#define VNIC_H

#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/netdevice.h>
#include <linux/sizes.h>
#include <linux/skbuff.h>
#include <linux/u64_stats_sync.h>
#include <net/page_pool/types.h>

#define VNIC_NAME		"vnic"
#define VNIC_QUEUES		16
/* Most queues of a kind, as each has its own memory */
#define VNIC_QUEUES_MAX		128
#define VNIC_RING_DEFAULT	1024
#define VNIC_RING_MAX		8192
/* Most bytes on a receive queue's wire, as possibly no socket is charged for them */
#define VNIC_WIRE_MAX		SZ_8M
#define VNIC_RSS_ENTRIES	128
/* Length of the Toeplitz key: the longest input (IPv6 addresses and ports) and 4 bytes */
#define VNIC_RSS_KEY		40
/* Number of contexts; context 0 is the default one */
#define VNIC_CONTEXTS		64
#define VNIC_RULES		64
#define VNIC_USECS_MAX		10000000
#define VNIC_FRAMES_DEFAULT	64
/* Longest headers that are split off; a frame with longer headers is not split */
#define VNIC_HEADERS_MAX	256
/* Most VLAN tags before a network header that is parsed */
#define VNIC_VLANS_MAX		8

/**
 * struct vnic_rule - an n-tuple rule
 * @fs: the rule as ethtool gave it
 * @type: the type in @fs.flow_type, without flags
 * @context: RSS context that chooses the queue, if @fs.flow_type has %FLOW_RSS
 * @rcu: for freeing it
 */
struct vnic_rule {
	struct ethtool_rx_flow_spec fs;
	u32 type;
	u32 context;
	struct rcu_head rcu;
};

/**
 * struct vnic_rss - an RSS context; it is replaced, never changed
 * @table: receive queue of each hash
 * @key: Toeplitz key
 * @rcu: for freeing it
 */
struct vnic_rss {
	u32 table[VNIC_RSS_ENTRIES];
	u8 key[VNIC_RSS_KEY];
	struct rcu_head rcu;
};

/* Kinds of flows whose ports can be hashed */
enum vnic_flow {
	VNIC_TCP4,
	VNIC_UDP4,
	VNIC_TCP6,
	VNIC_UDP6,
	VNIC_FLOWS,
};

/**
 * struct vnic_rq - a receive queue
 * @napi: receives the frames
 * @timer: schedules @napi when a frame has waited for the time limit of coalescing
 * @dev: the device
 * @index: number of the queue
 * @armed: the queue's interrupt is not masked, so a frame schedules @napi
 * @pool: memory that the frames are copied to; NULL while the queue is stopped
 * @wire: frames that were sent and not yet received
 * @memory: number of bytes in @wire
 * @syncp: for the counters; their only writer is @napi
 * @packets: number of frames received
 * @bytes: number of bytes received
 * @alloc_fail: frames dropped for lack of memory
 * @overruns: frames dropped because @wire was full or the queue was stopped
 */
struct vnic_rq {
	struct napi_struct napi;
	struct hrtimer timer;
	struct net_device *dev;
	unsigned int index;
	bool armed;
	struct page_pool *pool;
	struct sk_buff_head wire;
	atomic_t memory;

	struct u64_stats_sync syncp;
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t alloc_fail;
	atomic64_t overruns;
};

/**
 * struct vnic_tq - counters of a transmit queue; their writer holds the queue's lock
 * @syncp: for the counters
 * @packets: number of frames sent
 * @bytes: number of bytes sent
 * @drops: number of frames dropped, as the other end was not up
 */
struct vnic_tq {
	struct u64_stats_sync syncp;
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t drops;
};

/**
 * struct vnic - one end of a pair
 * @dev: the device
 * @peer: the other end; set while both are registered
 * @rq: receive queues, the maximum number of the device
 * @tq: transmit queues, the maximum number of the device
 * @ring: maximum number of frames on a receive queue's wire
 * @usecs: longest time that a frame waits for more frames, in microseconds
 * @frames: number of frames that are received without waiting for more
 * @split: headers and data of TCP frames are split
 * @ports: ports are hashed, for each &enum vnic_flow
 * @filtered: number of frames that a rule has dropped
 * @oversized: number of frames dropped because they were longer than the MTU allows
 * @siblings: in the list of devices that are removed with their PCI device
 * @rss: the RSS contexts; changed by operations of the device
 * @rules: n-tuple rules, the first that matches wins; changed by operations of
 *	the device
 */
struct vnic {
	struct net_device *dev;
	struct net_device __rcu *peer;
	struct vnic_rq *rq;
	struct vnic_tq *tq;
	unsigned int ring;
	unsigned int usecs;
	unsigned int frames;
	bool split;
	bool ports[VNIC_FLOWS];
	atomic64_t filtered;
	atomic64_t oversized;
	struct list_head siblings;
	struct vnic_rss __rcu *rss[VNIC_CONTEXTS];
	struct vnic_rule __rcu *rules[VNIC_RULES];
};

/**
 * struct vnic_cb - what the sending end has parsed of a frame
 * @hash: hash of its flow
 * @hash_type: the fields hashed, &enum pkt_hash_types
 * @proto: protocol of the transport header, 0 if it is not supported
 * @network: offset of the IP header
 * @transport: offset of the transport header
 * @headers: number of bytes before the transport's data, 0 if not known
 */
struct vnic_cb {
	u32 hash;
	u8 hash_type;
	u8 proto;
	u16 network;
	u16 transport;
	u16 headers;
};

/* Whether the pool's memory is ordinary, and not a device's */
static inline bool vnic_is_readable(const struct page_pool *pool)
{
	return !pool->mp_priv;
}

static inline struct vnic_cb *vnic_cb(const struct sk_buff *skb)
{
	BUILD_BUG_ON(sizeof(struct vnic_cb) > sizeof(skb->cb));
	return (struct vnic_cb *)skb->cb;
}

/* main.c */
void vnic_dellink(struct net_device *dev, struct list_head *head);

/* pci.c */
#ifdef CONFIG_PCI
struct device *vnic_pci_parent(void);
void vnic_pci_add(struct net_device *dev);
void vnic_pci_del(struct net_device *dev);
int vnic_pci_register(void);
void vnic_pci_unregister(void);
#else
static inline struct device *vnic_pci_parent(void)
{
	return NULL;
}

static inline void vnic_pci_add(struct net_device *dev)
{
}

static inline void vnic_pci_del(struct net_device *dev)
{
}

static inline int vnic_pci_register(void)
{
	return 0;
}

static inline void vnic_pci_unregister(void)
{
}
#endif

/* queue.c */
extern const struct netdev_queue_mgmt_ops vnic_queue_mgmt_ops;
int vnic_queues_init(struct net_device *dev);
void vnic_queues_uninit(struct net_device *dev);
void vnic_queues_free(struct net_device *dev);
int vnic_queues_open(struct net_device *dev, unsigned int from, unsigned int to);
void vnic_queues_close(struct net_device *dev, unsigned int from, unsigned int to);
int vnic_queues_set_split(struct net_device *dev, bool split);
void vnic_queue_push(struct vnic_rq *rq, struct sk_buff *skb);
struct sk_buff *vnic_queue_pull(struct vnic_rq *rq);
void vnic_queues_poll(struct net_device *dev);
void vnic_queue_kick(struct vnic_rq *rq);

/* receive.c */
int vnic_poll(struct napi_struct *napi, int budget);

/* steer.c */
#define VNIC_DROP	UINT_MAX
unsigned int vnic_steer(struct net_device *to, struct sk_buff *skb);

/* rules.c */
int vnic_rules_get(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations);
int vnic_rules_set(struct net_device *dev, struct ethtool_rxnfc *info);
bool vnic_rules_use(struct vnic *vnic, u32 context);
void vnic_rules_flush(struct net_device *dev);

/* rss.c */
int vnic_rss_init(struct net_device *dev);
void vnic_rss_free(struct net_device *dev);
struct vnic_rss *vnic_rss_spread(struct vnic *vnic, unsigned int queues);
void vnic_rss_publish(struct vnic *vnic, u32 context, struct vnic_rss *rss);
int vnic_rss_get_fields(struct vnic *vnic, struct ethtool_rxnfc *info);
int vnic_rss_set_fields(struct vnic *vnic, const struct ethtool_rxnfc *info);
int vnic_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh);
int vnic_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
		  struct netlink_ext_ack *extack);
int vnic_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     const struct ethtool_rxfh_param *rxfh,
			     struct netlink_ext_ack *extack);
int vnic_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     const struct ethtool_rxfh_param *rxfh,
			     struct netlink_ext_ack *extack);
int vnic_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     u32 context, struct netlink_ext_ack *extack);

/* stats.c */
extern const struct netdev_stat_ops vnic_stat_ops;
void vnic_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats);
int vnic_get_sset_count(struct net_device *dev, int set);
void vnic_get_strings(struct net_device *dev, u32 set, u8 *data);
void vnic_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data);

/* ethtool.c */
extern const struct ethtool_ops vnic_ethtool_ops;

#endif
