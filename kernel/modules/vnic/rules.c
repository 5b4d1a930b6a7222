// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: n-tuple rules
 */

#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/slab.h>

#include <compat/netdev.h>

#include "vnic.h"

static unsigned int vnic_rules_count(struct vnic *vnic, u32 *locations)
{
	unsigned int i, count = 0;

	for (i = 0; i < VNIC_RULES; i++) {
		if (!compat_ops_dereference(vnic->rules[i], vnic->dev))
			continue;
		if (locations)
			locations[count] = i;
		count++;
	}

	return count;
}

static int vnic_rule_get(struct vnic *vnic, struct ethtool_rxnfc *info)
{
	const struct vnic_rule *rule;

	if (info->fs.location >= VNIC_RULES)
		return -EINVAL;
	rule = compat_ops_dereference(vnic->rules[info->fs.location], vnic->dev);
	if (!rule)
		return -ENOENT;
	info->fs = rule->fs;
	if (rule->fs.flow_type & FLOW_RSS)
		info->rss_context = rule->context;

	return 0;
}

/**
 * vnic_rules_get() - ethtool's get_rxnfc: n-tuple rules, and hashed fields
 * @dev: the device
 * @info: the request, and the answer
 * @locations: locations of the rules, if they are requested
 *
 * Return: 0, -EINVAL for an invalid location, -ENOENT if there is no rule,
 * -EMSGSIZE if there are more rules than there is room for, -EOPNOTSUPP.
 */
int vnic_rules_get(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations)
{
	struct vnic *vnic = netdev_priv(dev);

	switch (info->cmd) {
	case ETHTOOL_GRXRINGS:
		info->data = dev->real_num_rx_queues;
		return 0;
	case ETHTOOL_GRXFH:
		return vnic_rss_get_fields(vnic, info);
	case ETHTOOL_GRXCLSRLCNT:
		info->data = VNIC_RULES;
		info->rule_cnt = vnic_rules_count(vnic, NULL);
		return 0;
	case ETHTOOL_GRXCLSRULE:
		return vnic_rule_get(vnic, info);
	case ETHTOOL_GRXCLSRLALL:
		if (info->rule_cnt < vnic_rules_count(vnic, NULL))
			return -EMSGSIZE;
		info->data = VNIC_RULES;
		info->rule_cnt = vnic_rules_count(vnic, locations);
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int vnic_rule_check(struct net_device *dev, const struct vnic_rule *rule)
{
	const struct ethtool_rx_flow_spec *fs = &rule->fs;
	struct vnic *vnic = netdev_priv(dev);

	if (!(dev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;
	if (fs->location >= VNIC_RULES)
		return -EINVAL;
	if (fs->ring_cookie != RX_CLS_FLOW_DISC && fs->ring_cookie >= dev->real_num_rx_queues)
		return -EINVAL;
	if (rule->context >= VNIC_CONTEXTS ||
	    !compat_ops_dereference(vnic->rss[rule->context], vnic->dev))
		return -EINVAL;

	/* FLOW_EXT and other flags are bits of the type and are not supported */
	switch (rule->type) {
	case TCP_V4_FLOW:
	case UDP_V4_FLOW:
		return fs->m_u.tcp_ip4_spec.tos ? -EOPNOTSUPP : 0;
	case TCP_V6_FLOW:
	case UDP_V6_FLOW:
		return fs->m_u.tcp_ip6_spec.tclass ? -EOPNOTSUPP : 0;
	default:
		return -EOPNOTSUPP;
	}
}

static bool vnic_rules_equal(const struct vnic_rule *a, const struct vnic_rule *b)
{
	return a->fs.flow_type == b->fs.flow_type && a->context == b->context &&
	       a->fs.ring_cookie == b->fs.ring_cookie &&
	       !memcmp(&a->fs.h_u, &b->fs.h_u, sizeof(a->fs.h_u)) &&
	       !memcmp(&a->fs.m_u, &b->fs.m_u, sizeof(a->fs.m_u));
}

/* Does another location have the same rule already? */
static bool vnic_rule_is_known(struct vnic *vnic, const struct vnic_rule *rule)
{
	const struct vnic_rule *other;
	unsigned int i;

	for (i = 0; i < VNIC_RULES; i++) {
		other = compat_ops_dereference(vnic->rules[i], vnic->dev);
		if (other && i != rule->fs.location && vnic_rules_equal(other, rule))
			return true;
	}

	return false;
}

static int vnic_rule_insert(struct net_device *dev, const struct ethtool_rxnfc *info)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rule *rule, *old;
	int err;

	rule = kzalloc(sizeof(*rule), GFP_KERNEL_ACCOUNT);
	if (!rule)
		return -ENOMEM;

	rule->fs = info->fs;
	rule->type = info->fs.flow_type & ~FLOW_RSS;
	if (info->fs.flow_type & FLOW_RSS)
		rule->context = info->rss_context;
	err = vnic_rule_check(dev, rule);
	if (!err && vnic_rule_is_known(vnic, rule))
		err = -EEXIST;
	if (err) {
		kfree(rule);
		return err;
	}

	old = compat_ops_dereference(vnic->rules[rule->fs.location], vnic->dev);
	rcu_assign_pointer(vnic->rules[rule->fs.location], rule);
	if (old)
		kfree_rcu(old, rcu);

	return 0;
}

static int vnic_rule_delete(struct vnic *vnic, u32 location)
{
	struct vnic_rule *rule;

	if (location >= VNIC_RULES)
		return -EINVAL;
	rule = compat_ops_dereference(vnic->rules[location], vnic->dev);
	if (!rule)
		return -ENOENT;
	RCU_INIT_POINTER(vnic->rules[location], NULL);
	kfree_rcu(rule, rcu);

	return 0;
}

/**
 * vnic_rules_set() - ethtool's set_rxnfc: insert or delete an n-tuple rule, or set
 *	the hashed fields
 * @dev: the device
 * @info: the request
 *
 * Return: 0, -EINVAL for an invalid location, queue or context, -EEXIST if another
 * location has the same rule, -ENOENT if there is no rule to delete, -ENOMEM,
 * -EOPNOTSUPP if n-tuple filters are off or if the rule matches anything but addresses
 * and ports of TCP and UDP.
 */
int vnic_rules_set(struct net_device *dev, struct ethtool_rxnfc *info)
{
	switch (info->cmd) {
	case ETHTOOL_SRXFH:
		return vnic_rss_set_fields(netdev_priv(dev), info);
	case ETHTOOL_SRXCLSRLINS:
		return vnic_rule_insert(dev, info);
	case ETHTOOL_SRXCLSRLDEL:
		return vnic_rule_delete(netdev_priv(dev), info->fs.location);
	default:
		return -EOPNOTSUPP;
	}
}

/**
 * vnic_rules_use() - does a rule assign flows to an RSS context?
 * @vnic: the receiving end
 * @context: number of the context
 *
 * Return: true if one does.
 */
bool vnic_rules_use(struct vnic *vnic, u32 context)
{
	const struct vnic_rule *rule;
	unsigned int i;

	for (i = 0; i < VNIC_RULES; i++) {
		rule = compat_ops_dereference(vnic->rules[i], vnic->dev);
		if (rule && (rule->fs.flow_type & FLOW_RSS) && rule->context == context)
			return true;
	}

	return false;
}

/**
 * vnic_rules_flush() - delete all n-tuple rules
 * @dev: the device
 */
void vnic_rules_flush(struct net_device *dev)
{
	unsigned int i;

	for (i = 0; i < VNIC_RULES; i++)
		vnic_rule_delete(netdev_priv(dev), i);
}
