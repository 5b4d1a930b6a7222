// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: receive-side scaling
 *
 * A context is an indirection table of receive queues and a key for the hash.
 * Context 0 applies to all flows that no rule assigns to another context.
 */

#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/slab.h>

#include <compat/netdev.h>

#include "vnic.h"

static void vnic_rss_fill(struct vnic_rss *rss, unsigned int queues)
{
	unsigned int i;

	for (i = 0; i < VNIC_RSS_ENTRIES; i++)
		rss->table[i] = ethtool_rxfh_indir_default(i, queues);
}

/**
 * vnic_rss_init() - create context 0 with a random key and an even spread
 * @dev: the device
 *
 * Return: 0 or -ENOMEM.
 */
int vnic_rss_init(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rss *rss;

	rss = kzalloc(sizeof(*rss), GFP_KERNEL_ACCOUNT);
	if (!rss)
		return -ENOMEM;
	netdev_rss_key_fill(rss->key, sizeof(rss->key));
	vnic_rss_fill(rss, dev->real_num_rx_queues);
	rcu_assign_pointer(vnic->rss[0], rss);

	return 0;
}

/**
 * vnic_rss_free() - free all contexts
 * @dev: the device; no frame is sent to it any more
 */
void vnic_rss_free(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < VNIC_CONTEXTS; i++)
		kfree(rcu_dereference_protected(vnic->rss[i], true));
}

/* Copies a context, with @table and @key replaced where they are not NULL */
static struct vnic_rss *vnic_rss_change(struct vnic *vnic, u32 context, const u32 *table,
					const u8 *key)
{
	const struct vnic_rss *old = compat_ops_dereference(vnic->rss[context], vnic->dev);
	struct vnic_rss *rss;

	rss = kmemdup(old, sizeof(*old), GFP_KERNEL_ACCOUNT);
	if (!rss)
		return NULL;
	if (table)
		memcpy(rss->table, table, sizeof(rss->table));
	if (key)
		memcpy(rss->key, key, sizeof(rss->key));

	return rss;
}

/**
 * vnic_rss_spread() - create a context with the key of context 0 and an even spread
 * @vnic: the receiving end
 * @queues: number of its receive queues
 *
 * Return: the context, NULL if there is no memory.
 */
struct vnic_rss *vnic_rss_spread(struct vnic *vnic, unsigned int queues)
{
	struct vnic_rss *rss = vnic_rss_change(vnic, 0, NULL, NULL);

	if (rss)
		vnic_rss_fill(rss, queues);

	return rss;
}

/**
 * vnic_rss_publish() - install a context and free its predecessor
 * @vnic: the receiving end
 * @context: number of the context
 * @rss: the context; NULL to remove it
 */
void vnic_rss_publish(struct vnic *vnic, u32 context, struct vnic_rss *rss)
{
	struct vnic_rss *old = compat_ops_dereference(vnic->rss[context], vnic->dev);

	rcu_assign_pointer(vnic->rss[context], rss);
	if (old)
		kfree_rcu(old, rcu);
}

static bool vnic_rxfh_is_known(const struct ethtool_rxfh_param *rxfh)
{
	return (rxfh->hfunc == ETH_RSS_HASH_NO_CHANGE || rxfh->hfunc == ETH_RSS_HASH_TOP) &&
	       (rxfh->input_xfrm == RXH_XFRM_NO_CHANGE || !rxfh->input_xfrm);
}

static int vnic_rss_modify(struct vnic *vnic, u32 context, const struct ethtool_rxfh_param *rxfh)
{
	struct vnic_rss *rss;

	if (!vnic_rxfh_is_known(rxfh))
		return -EOPNOTSUPP;
	rss = vnic_rss_change(vnic, context, rxfh->indir, rxfh->key);
	if (!rss)
		return -ENOMEM;
	vnic_rss_publish(vnic, context, rss);

	return 0;
}

int vnic_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh)
{
	struct vnic *vnic = netdev_priv(dev);
	const struct vnic_rss *rss = compat_ops_dereference(vnic->rss[0], vnic->dev);

	rxfh->hfunc = ETH_RSS_HASH_TOP;
	if (rxfh->indir)
		memcpy(rxfh->indir, rss->table, sizeof(rss->table));
	if (rxfh->key)
		memcpy(rxfh->key, rss->key, sizeof(rss->key));

	return 0;
}

int vnic_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
		  struct netlink_ext_ack *extack)
{
	return vnic_rss_modify(netdev_priv(dev), 0, rxfh);
}

int vnic_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     const struct ethtool_rxfh_param *rxfh,
			     struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rss *rss;

	if (!vnic_rxfh_is_known(rxfh))
		return -EOPNOTSUPP;
	rss = vnic_rss_spread(vnic, dev->real_num_rx_queues);
	if (!rss)
		return -ENOMEM;
	if (rxfh->indir)
		memcpy(rss->table, rxfh->indir, sizeof(rss->table));
	if (rxfh->key)
		memcpy(rss->key, rxfh->key, sizeof(rss->key));
	else if (!memchr_inv(rss->key, 0, sizeof(rss->key)))
		/* The core warns about a key of zeros that the user did not request */
		netdev_rss_key_fill(rss->key, sizeof(rss->key));

	/* The core knows requested values, but not our defaults */
	memcpy(ethtool_rxfh_context_indir(ctx), rss->table, sizeof(rss->table));
	memcpy(ethtool_rxfh_context_key(ctx), rss->key, sizeof(rss->key));
	ctx->hfunc = ETH_RSS_HASH_TOP;
	ctx->input_xfrm = 0;
	vnic_rss_publish(vnic, rxfh->rss_context, rss);

	return 0;
}

int vnic_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     const struct ethtool_rxfh_param *rxfh,
			     struct netlink_ext_ack *extack)
{
	return vnic_rss_modify(netdev_priv(dev), rxfh->rss_context, rxfh);
}

int vnic_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
			     u32 context, struct netlink_ext_ack *extack)
{
	struct vnic *vnic = netdev_priv(dev);

	if (vnic_rules_use(vnic, context))
		return -EBUSY;
	vnic_rss_publish(vnic, context, NULL);

	return 0;
}

static int vnic_flow(u32 flow_type)
{
	switch (flow_type) {
	case TCP_V4_FLOW:
		return VNIC_TCP4;
	case UDP_V4_FLOW:
		return VNIC_UDP4;
	case TCP_V6_FLOW:
		return VNIC_TCP6;
	case UDP_V6_FLOW:
		return VNIC_UDP6;
	case SCTP_V4_FLOW:
	case SCTP_V6_FLOW:
	case AH_ESP_V4_FLOW:
	case AH_ESP_V6_FLOW:
	case IPV4_FLOW:
	case IPV6_FLOW:
		return VNIC_FLOWS;
	default:
		return -EOPNOTSUPP;
	}
}

#define VNIC_HASH_ADDRESSES	(RXH_IP_SRC | RXH_IP_DST)
#define VNIC_HASH_PORTS		(RXH_L4_B_0_1 | RXH_L4_B_2_3)

/**
 * vnic_rss_get_fields() - get the fields of a flow that are hashed
 * @vnic: the receiving end
 * @info: the kind of flow, and the answer
 *
 * Return: 0, or -EOPNOTSUPP for an unsupported kind of flow.
 */
int vnic_rss_get_fields(struct vnic *vnic, struct ethtool_rxnfc *info)
{
	int flow = vnic_flow(info->flow_type);

	if (flow < 0)
		return flow;
	info->data = VNIC_HASH_ADDRESSES;
	if (flow < VNIC_FLOWS && vnic->ports[flow])
		info->data |= VNIC_HASH_PORTS;

	return 0;
}

/**
 * vnic_rss_set_fields() - set the fields of a flow that are hashed: addresses, or also ports
 * @vnic: the receiving end
 * @info: the kind of flow, and its fields
 *
 * Return: 0, -EOPNOTSUPP for an unsupported kind of flow, -EINVAL for other fields.
 */
int vnic_rss_set_fields(struct vnic *vnic, const struct ethtool_rxnfc *info)
{
	int flow = vnic_flow(info->flow_type);

	if (flow < 0)
		return flow;
	switch (info->data) {
	case VNIC_HASH_ADDRESSES:
		if (flow < VNIC_FLOWS)
			WRITE_ONCE(vnic->ports[flow], false);
		return 0;
	case VNIC_HASH_ADDRESSES | VNIC_HASH_PORTS:
		if (flow == VNIC_FLOWS)
			return -EINVAL;
		WRITE_ONCE(vnic->ports[flow], true);
		return 0;
	default:
		return -EINVAL;
	}
}
