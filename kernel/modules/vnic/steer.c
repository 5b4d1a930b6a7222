// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: which queue a frame goes to
 *
 * By the first n-tuple rule that it matches, else by the hash of its flow.
 */

#include <linux/slab.h>
#include <linux/tcp.h>
#include <net/flow_dissector.h>
#include <net/ipv6.h>

#include "vnic.h"

static bool vnic_masked_v4(const struct flow_keys *keys, const struct ethtool_rx_flow_spec *fs)
{
	const struct ethtool_tcpip4_spec *is = &fs->h_u.tcp_ip4_spec;
	const struct ethtool_tcpip4_spec *mask = &fs->m_u.tcp_ip4_spec;

	return keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV4_ADDRS &&
	       !((keys->addrs.v4addrs.src ^ is->ip4src) & mask->ip4src) &&
	       !((keys->addrs.v4addrs.dst ^ is->ip4dst) & mask->ip4dst) &&
	       !((keys->ports.src ^ is->psrc) & mask->psrc) &&
	       !((keys->ports.dst ^ is->pdst) & mask->pdst);
}

static bool vnic_masked_v6(const struct flow_keys *keys, const struct ethtool_rx_flow_spec *fs)
{
	const struct ethtool_tcpip6_spec *is = &fs->h_u.tcp_ip6_spec;
	const struct ethtool_tcpip6_spec *mask = &fs->m_u.tcp_ip6_spec;

	return keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV6_ADDRS &&
	       !ipv6_masked_addr_cmp((void *)is->ip6src, (void *)mask->ip6src,
				     &keys->addrs.v6addrs.src) &&
	       !ipv6_masked_addr_cmp((void *)is->ip6dst, (void *)mask->ip6dst,
				     &keys->addrs.v6addrs.dst) &&
	       !((keys->ports.src ^ is->psrc) & mask->psrc) &&
	       !((keys->ports.dst ^ is->pdst) & mask->pdst);
}

static bool vnic_rule_matches(const struct vnic_rule *rule, const struct flow_keys *keys)
{
	switch (rule->fs.flow_type) {
	case TCP_V4_FLOW:
		return keys->basic.ip_proto == IPPROTO_TCP && vnic_masked_v4(keys, &rule->fs);
	case UDP_V4_FLOW:
		return keys->basic.ip_proto == IPPROTO_UDP && vnic_masked_v4(keys, &rule->fs);
	case TCP_V6_FLOW:
		return keys->basic.ip_proto == IPPROTO_TCP && vnic_masked_v6(keys, &rule->fs);
	default:
		return keys->basic.ip_proto == IPPROTO_UDP && vnic_masked_v6(keys, &rule->fs);
	}
}

/* Bytes before the data of a TCP segment; 0 of anything else */
static unsigned int vnic_tcp_headers(const struct sk_buff *skb, const struct flow_keys *keys)
{
	const struct tcphdr *th;
	struct tcphdr buffer;
	unsigned int headers;

	if (keys->basic.ip_proto != IPPROTO_TCP || (keys->control.flags & FLOW_DIS_IS_FRAGMENT))
		return 0;
	th = skb_header_pointer(skb, keys->control.thoff, sizeof(buffer), &buffer);
	if (!th || th->doff * 4 < sizeof(*th))
		return 0;
	headers = keys->control.thoff + th->doff * 4;

	return headers <= skb->len && headers <= VNIC_HEADERS_MAX ? headers : 0;
}

/**
 * vnic_steer() - find the receive queue of a frame
 * @to: the device that receives it
 * @skb: the frame, from its Ethernet header on; what is found is in its vnic_cb()
 *
 * Context: RCU read lock.
 * Return: number of the queue, or %VNIC_DROP.
 */
unsigned int vnic_steer(struct net_device *to, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(to);
	struct vnic_cb *cb = vnic_cb(skb);
	unsigned int queue, i;
	struct vnic_rule *rule;
	struct flow_keys keys;

	memset(cb, 0, sizeof(*cb));
	if (!skb_flow_dissect_flow_keys(skb, &keys, FLOW_DISSECTOR_F_STOP_AT_ENCAP))
		return 0;

	cb->headers = vnic_tcp_headers(skb, &keys);
	cb->network = skb_network_offset(skb);
	cb->transport = keys.control.thoff;

	for (i = 0; i < VNIC_RULES; i++) {
		rule = rcu_dereference(vnic->rules[i]);
		if (!rule || !vnic_rule_matches(rule, &keys))
			continue;
		if (rule->fs.ring_cookie == RX_CLS_FLOW_DISC)
			return VNIC_DROP;
		queue = rule->fs.ring_cookie;
		break;
	}

	/* This sorts addresses and ports: not before the rules. */
	cb->hash = flow_hash_from_keys(&keys);
	if (i == VNIC_RULES)
		queue = READ_ONCE(vnic->rss[cb->hash % VNIC_RSS_ENTRIES]);

	/* The number of queues may just have been lowered. */
	return queue < READ_ONCE(to->real_num_rx_queues) ? queue : 0;
}

/**
 * vnic_rss_reset() - spread the flows evenly
 * @vnic: the receiving end
 * @queues: number of its receive queues
 */
void vnic_rss_reset(struct vnic *vnic, unsigned int queues)
{
	unsigned int i;

	for (i = 0; i < VNIC_RSS_ENTRIES; i++)
		WRITE_ONCE(vnic->rss[i], ethtool_rxfh_indir_default(i, queues));
}

static unsigned int vnic_rules_count(struct vnic *vnic, u32 *locations)
{
	unsigned int i, count = 0;

	for (i = 0; i < VNIC_RULES; i++) {
		if (!rtnl_dereference(vnic->rules[i]))
			continue;
		if (locations)
			locations[count] = i;
		count++;
	}

	return count;
}

/**
 * vnic_rules_get() - answer ethtool about n-tuple rules
 * @dev: the device
 * @info: the question, and the answer
 * @locations: numbers of the rules, if they are asked for
 *
 * Return: 0, -EINVAL: no such location, -ENOENT: no rule there, -EMSGSIZE: more
 * rules than there is room for, or -EOPNOTSUPP.
 */
int vnic_rules_get(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rule *rule;

	switch (info->cmd) {
	case ETHTOOL_GRXRINGS:
		info->data = dev->real_num_rx_queues;
		return 0;
	case ETHTOOL_GRXCLSRLCNT:
		info->data = VNIC_RULES;
		info->rule_cnt = vnic_rules_count(vnic, NULL);
		return 0;
	case ETHTOOL_GRXCLSRULE:
		if (info->fs.location >= VNIC_RULES)
			return -EINVAL;
		rule = rtnl_dereference(vnic->rules[info->fs.location]);
		if (!rule)
			return -ENOENT;
		info->fs = rule->fs;
		return 0;
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

static int vnic_rule_check(struct net_device *dev, const struct ethtool_rx_flow_spec *fs)
{
	if (!(dev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;
	if (fs->location >= VNIC_RULES)
		return -EINVAL;
	if (fs->ring_cookie != RX_CLS_FLOW_DISC && fs->ring_cookie >= dev->real_num_rx_queues)
		return -EINVAL;

	/* FLOW_EXT and the like are more bits of the type: not known here. */
	switch (fs->flow_type) {
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

static int vnic_rule_insert(struct net_device *dev, const struct ethtool_rx_flow_spec *fs)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rule *rule, *old;
	int err;

	err = vnic_rule_check(dev, fs);
	if (err)
		return err;
	rule = kzalloc(sizeof(*rule), GFP_KERNEL);
	if (!rule)
		return -ENOMEM;

	rule->fs = *fs;
	old = rtnl_dereference(vnic->rules[fs->location]);
	rcu_assign_pointer(vnic->rules[fs->location], rule);
	if (old)
		kfree_rcu(old, rcu);

	return 0;
}

static int vnic_rule_delete(struct vnic *vnic, u32 location)
{
	struct vnic_rule *rule;

	if (location >= VNIC_RULES)
		return -EINVAL;
	rule = rtnl_dereference(vnic->rules[location]);
	if (!rule)
		return -ENOENT;
	RCU_INIT_POINTER(vnic->rules[location], NULL);
	kfree_rcu(rule, rcu);

	return 0;
}

/**
 * vnic_rules_set() - insert or delete an n-tuple rule
 * @dev: the device
 * @info: the rule
 *
 * Return: 0, -EINVAL: no such location or queue, -ENOENT: no rule to delete, -ENOMEM,
 * or -EOPNOTSUPP: n-tuple filters are off, or it asks for more than addresses and
 * ports of TCP and UDP.
 */
int vnic_rules_set(struct net_device *dev, struct ethtool_rxnfc *info)
{
	switch (info->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		return vnic_rule_insert(dev, &info->fs);
	case ETHTOOL_SRXCLSRLDEL:
		return vnic_rule_delete(netdev_priv(dev), info->fs.location);
	default:
		return -EOPNOTSUPP;
	}
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
