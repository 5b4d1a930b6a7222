// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: choosing the receive queue of a frame
 *
 * The first n-tuple rule that matches the frame chooses, otherwise the Toeplitz hash of
 * its flow.
 */

#include <linux/if_vlan.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/flow_dissector.h>
#include <net/ipv6.h>

#include "toeplitz.h"
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
	switch (rule->type) {
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

/* Returns the number of bytes before the data of TCP or UDP, 0 for other protocols */
static unsigned int vnic_headers(const struct sk_buff *skb, const struct flow_keys *keys)
{
	unsigned int headers = keys->control.thoff;
	const struct tcphdr *th;
	struct tcphdr buffer;

	if (keys->control.flags & FLOW_DIS_IS_FRAGMENT)
		return 0;
	switch (keys->basic.ip_proto) {
	case IPPROTO_TCP:
		th = skb_header_pointer(skb, headers, sizeof(buffer), &buffer);
		if (!th || th->doff * 4 < sizeof(*th))
			return 0;
		headers += th->doff * 4;
		break;
	case IPPROTO_UDP:
		headers += sizeof(struct udphdr);
		break;
	default:
		return 0;
	}

	return headers <= skb->len && headers <= VNIC_HEADERS_MAX ? headers : 0;
}

/* Are the ports of a flow hashed? Fragments have no ports. */
static bool vnic_hashes_ports(const struct vnic *vnic, const struct flow_keys *keys, bool is_ip4)
{
	if (keys->control.flags & FLOW_DIS_IS_FRAGMENT)
		return false;
	switch (keys->basic.ip_proto) {
	case IPPROTO_TCP:
		return READ_ONCE(vnic->ports[is_ip4 ? VNIC_TCP4 : VNIC_TCP6]);
	case IPPROTO_UDP:
		return READ_ONCE(vnic->ports[is_ip4 ? VNIC_UDP4 : VNIC_UDP6]);
	default:
		return false;
	}
}

static void vnic_hash(const struct vnic *vnic, const struct vnic_rss *rss,
		      const struct flow_keys *keys, struct vnic_cb *cb)
{
	u8 data[sizeof(keys->addrs.v6addrs) + sizeof(keys->ports)];
	bool is_ip4 = keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV4_ADDRS;
	unsigned int len;

	if (!is_ip4 && keys->control.addr_type != FLOW_DISSECTOR_KEY_IPV6_ADDRS)
		return;
	len = is_ip4 ? sizeof(keys->addrs.v4addrs) : sizeof(keys->addrs.v6addrs);
	memcpy(data, &keys->addrs, len);
	cb->hash_type = PKT_HASH_TYPE_L3;
	if (vnic_hashes_ports(vnic, keys, is_ip4)) {
		memcpy(data + len, &keys->ports, sizeof(keys->ports));
		len += sizeof(keys->ports);
		cb->hash_type = PKT_HASH_TYPE_L4;
	}
	BUILD_BUG_ON(sizeof(data) + sizeof(cb->hash) > VNIC_RSS_KEY);
	cb->hash = vnic_toeplitz(rss->key, data, len);
}

/* Returns the first rule that matches a frame, or NULL */
static const struct vnic_rule *vnic_find_rule(struct vnic *vnic, const struct flow_keys *keys)
{
	const struct vnic_rule *rule;
	unsigned int i;

	for (i = 0; i < VNIC_RULES; i++) {
		rule = rcu_dereference(vnic->rules[i]);
		if (rule && vnic_rule_matches(rule, keys))
			return rule;
	}

	return NULL;
}

/* Finds the network header after VLAN tags, as the sender's stack may have inserted one */
static bool vnic_find_network(struct sk_buff *skb)
{
	__be16 proto = ((struct ethhdr *)skb->data)->h_proto;
	unsigned int offset = ETH_HLEN;
	struct vlan_hdr buffer, *vlan;

	while (eth_type_vlan(proto)) {
		/* Bounded, and more tags than the kernel's flow dissector accepts */
		if (offset == ETH_HLEN + VNIC_VLANS_MAX * VLAN_HLEN)
			return false;
		vlan = skb_header_pointer(skb, offset, sizeof(buffer), &buffer);
		if (!vlan)
			return false;
		proto = vlan->h_vlan_encapsulated_proto;
		offset += VLAN_HLEN;
	}
	skb_set_network_header(skb, offset);
	skb->protocol = proto;

	return true;
}

/**
 * vnic_steer() - find the receive queue of a frame
 * @to: the device that receives it
 * @skb: the frame, from its Ethernet header on; the results are stored in its vnic_cb()
 *
 * Context: RCU read lock.
 * Return: number of the queue, or %VNIC_DROP.
 */
unsigned int vnic_steer(struct net_device *to, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(to);
	struct vnic_cb *cb = vnic_cb(skb);
	const struct vnic_rule *rule;
	const struct vnic_rss *rss;
	struct flow_keys keys;
	unsigned int queue;

	memset(cb, 0, sizeof(*cb));
	if (!vnic_find_network(skb) ||
	    !skb_flow_dissect_flow_keys(skb, &keys, FLOW_DISSECTOR_F_STOP_AT_ENCAP))
		return 0;

	cb->headers = vnic_headers(skb, &keys);
	cb->proto = keys.basic.ip_proto;
	cb->network = skb_network_offset(skb);
	cb->transport = keys.control.thoff;

	rule = vnic_find_rule(vnic, &keys);
	if (rule && rule->fs.ring_cookie == RX_CLS_FLOW_DISC)
		return VNIC_DROP;
	/* The context of a rule that was just deleted may be gone already */
	rss = rule ? rcu_dereference(vnic->rss[rule->context]) : NULL;
	if (!rss)
		rss = rcu_dereference(vnic->rss[0]);
	vnic_hash(vnic, rss, &keys, cb);
	if (rule && !(rule->fs.flow_type & FLOW_RSS))
		queue = rule->fs.ring_cookie;
	else
		queue = rss->table[cb->hash % VNIC_RSS_ENTRIES];

	/* The number of queues may have been reduced meanwhile */
	return queue < READ_ONCE(to->real_num_rx_queues) ? queue : 0;
}
