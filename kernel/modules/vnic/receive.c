// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: receiving frames
 *
 * A queue's NAPI copies frames from its wire into headers and pages of the queue's
 * page pool, as a NIC's DMA would. If the pages are device memory, they get the data
 * of TCP segments, and all other data goes to ordinary memory.
 */

#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/checksum.h>
#include <net/gro.h>
#include <net/ip6_checksum.h>
#include <net/page_pool/helpers.h>

#include <compat/netdev.h>

#include "vnic.h"

/* Longest linear part of an skb that needs no more than a page */
#define VNIC_LINEAR_MAX	(SKB_WITH_OVERHEAD(PAGE_SIZE) - NET_SKB_PAD - NET_IP_ALIGN)

/* Returns the physical address of @addr, 0 if the IOMMU does not map it */
static phys_addr_t vnic_dma_to_phys(struct device *dev, dma_addr_t addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain ? iommu_iova_to_phys(domain, addr) : dma_to_phys(dev, addr);
}

/* Returns the page at the DMA address of @netmem, or NULL */
static struct page *vnic_dma_page(struct vnic_rq *rq, netmem_ref netmem)
{
	dma_addr_t addr = page_pool_get_dma_addr_netmem(netmem);
	unsigned long pfn;

	if (!netmem_is_net_iov(netmem))
		return netmem_to_page(netmem);
	/* A device's own memory may have no page that the CPU can write to */
	pfn = PHYS_PFN(vnic_dma_to_phys(rq->dev->dev.parent, addr));
	if (!pfn)
		return NULL;

	return pfn_valid(pfn) ? pfn_to_page(pfn) : NULL;
}

/*
 * Writes the CPU's cache back. Readers of device memory expect that a NIC's DMA has
 * written it, and the pool maps it from the device only. Mapping it to the device
 * makes the CPU's writes visible to readers.
 */
static int vnic_dma_flush(struct vnic_rq *rq, struct page *page, unsigned int len)
{
	struct device *dev = rq->dev->dev.parent;
	dma_addr_t addr;

	addr = dma_map_page(dev, page, 0, len, DMA_TO_DEVICE);
	if (dma_mapping_error(dev, addr))
		return -ENOMEM;
	dma_unmap_page(dev, addr, len, DMA_TO_DEVICE);

	return 0;
}

static int vnic_dma_copy(struct vnic_rq *rq, const struct sk_buff *from, unsigned int offset,
			 netmem_ref netmem, unsigned int len)
{
	struct page *page = vnic_dma_page(rq, netmem);
	void *to;
	int err;

	if (!page)
		return -EFAULT;
	to = kmap_local_page(page);
	err = skb_copy_bits(from, offset, to, len);
	kunmap_local(to);
	if (!err && netmem_is_net_iov(netmem))
		err = vnic_dma_flush(rq, page, len);

	return err;
}

/* Copies a part of a frame into a page of the pool and adds the page to @to */
static int vnic_dma(struct vnic_rq *rq, struct sk_buff *to, const struct sk_buff *from,
		    unsigned int offset, unsigned int len)
{
	netmem_ref netmem = page_pool_alloc_netmems(rq->pool, GFP_ATOMIC | __GFP_NOWARN);
	int err;

	if (!netmem)
		return -ENOMEM;
	err = vnic_dma_copy(rq, from, offset, netmem, len);
	if (err) {
		page_pool_put_full_netmem(rq->pool, netmem, true);
		return err;
	}
	skb_add_rx_frag_netmem(to, skb_shinfo(to)->nr_frags, netmem, 0, len, PAGE_SIZE);

	return 0;
}

/* Like vnic_dma(), but into ordinary memory, where the pool has device memory */
static int vnic_copy(struct sk_buff *to, const struct sk_buff *from, unsigned int offset,
		     unsigned int len)
{
	struct page *page = dev_alloc_page();
	void *data;
	int err;

	if (!page)
		return -ENOMEM;
	data = kmap_local_page(page);
	err = skb_copy_bits(from, offset, data, len);
	kunmap_local(data);
	if (err) {
		put_page(page);
		return err;
	}
	skb_add_rx_frag(to, skb_shinfo(to)->nr_frags, page, 0, len, PAGE_SIZE);

	return 0;
}

/* Is the checksum of a TCP segment correct? */
static bool vnic_checksum_right(struct sk_buff *skb)
{
	struct vnic_cb *cb = vnic_cb(skb);
	unsigned int len, ip_len = cb->transport - cb->network;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__wsum sum;

	/* A frame with a VLAN tag has its IP header elsewhere */
	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return false;
	if (!pskb_may_pull(skb, cb->headers))
		return false;
	ip = (void *)skb->data + cb->network;
	ip6 = (void *)ip;
	len = ip->version == 4 ? ntohs(ip->tot_len) : ntohs(ip6->payload_len) + sizeof(*ip6);
	if (len < ip_len || cb->network + len > skb->len)
		return false;
	len -= ip_len;
	sum = skb_checksum(skb, cb->transport, len, 0);

	return ip->version == 4 ?
		!csum_tcpudp_magic(ip->saddr, ip->daddr, len, IPPROTO_TCP, sum) :
		!csum_ipv6_magic(&ip6->saddr, &ip6->daddr, len, IPPROTO_TCP, sum);
}

/* Is the checksum that has to be filled in that of the transport header? */
static bool vnic_checksum_is_known(const struct sk_buff *skb)
{
	const struct vnic_cb *cb = vnic_cb(skb);

	return cb->headers && skb_checksum_start_offset(skb) == cb->transport &&
	       skb->csum_offset == (cb->proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
							       offsetof(struct udphdr, check));
}

/*
 * May headers and data of a frame be split? The stack may not be able to read the data
 * afterwards, so its checksum is verified here.
 */
static bool vnic_may_split(const struct vnic_rq *rq, struct sk_buff *skb)
{
	const struct vnic *vnic = netdev_priv(rq->dev);
	const struct vnic_cb *cb = vnic_cb(skb);

	if (!READ_ONCE(vnic->split) || cb->proto != IPPROTO_TCP)
		return false;
	if (!cb->headers || cb->headers == skb->len)
		return false;
	if (DIV_ROUND_UP(skb->len - cb->headers, PAGE_SIZE) > MAX_SKB_FRAGS)
		return false;
	if (skb->ip_summed == CHECKSUM_PARTIAL)
		return vnic_checksum_is_known(skb);

	return vnic_is_readable(rq->pool) || vnic_checksum_right(skb);
}

/* Returns the length of a frame's linear part */
static unsigned int vnic_linear(const struct sk_buff *skb, bool split)
{
	const struct vnic_cb *cb = vnic_cb(skb);

	if (!split && skb->len <= VNIC_LINEAR_MAX)
		return skb->len;

	return cb->headers ?: min_t(unsigned int, skb->len, VNIC_HEADERS_MAX);
}

/* Fills in a checksum that the sender has offloaded */
static void vnic_finish_checksum(struct sk_buff *to, const struct sk_buff *from)
{
	unsigned int start = skb_checksum_start_offset(from);
	__sum16 sum;

	sum = csum_fold(skb_checksum(from, start, from->len - start, 0)) ?: CSUM_MANGLED_0;
	if (skb_store_bits(to, start + from->csum_offset, &sum, sizeof(sum)))
		return;
	if ((to->dev->features & NETIF_F_RXCSUM) && vnic_checksum_is_known(from))
		to->ip_summed = CHECKSUM_UNNECESSARY;
}

static void vnic_copy_offloads(struct sk_buff *to, const struct sk_buff *from)
{
	if (skb_is_gso(from)) {
		skb_shinfo(to)->gso_size = skb_shinfo(from)->gso_size;
		skb_shinfo(to)->gso_segs = skb_shinfo(from)->gso_segs;
		skb_shinfo(to)->gso_type = skb_shinfo(from)->gso_type;
	}

	if (from->ip_summed == CHECKSUM_PARTIAL && !skb_is_gso(from)) {
		vnic_finish_checksum(to, from);
	} else if (from->ip_summed == CHECKSUM_PARTIAL) {
		/* As GRO does, in case the frame is forwarded and segmented */
		to->ip_summed = CHECKSUM_PARTIAL;
		to->csum_start = skb_headroom(to) + skb_checksum_start_offset(from);
		to->csum_offset = from->csum_offset;
	}
	/* The stack cannot read the data; vnic_may_split() has verified the checksum */
	if (!skb_frags_readable(to))
		to->ip_summed = CHECKSUM_UNNECESSARY;
}

/* Copies a frame for the receiving end. Return: the copy, NULL if there is no memory */
static struct sk_buff *vnic_take_in(struct vnic_rq *rq, struct sk_buff *from)
{
	bool split = vnic_may_split(rq, from);
	unsigned int linear = vnic_linear(from, split);
	unsigned int offset, len;
	struct sk_buff *to;
	int err;

	to = napi_alloc_skb(&rq->napi, linear);
	if (!to)
		return NULL;
	skb_mark_for_recycle(to);
	if (skb_copy_bits(from, 0, skb_put(to, linear), linear))
		goto drop;

	for (offset = linear; offset < from->len; offset += len) {
		if (skb_shinfo(to)->nr_frags == MAX_SKB_FRAGS)
			goto drop;
		len = min_t(unsigned int, from->len - offset, PAGE_SIZE);
		if (split || vnic_is_readable(rq->pool))
			err = vnic_dma(rq, to, from, offset, len);
		else
			err = vnic_copy(to, from, offset, len);
		if (err)
			goto drop;
	}
	vnic_copy_offloads(to, from);

	return to;

drop:
	kfree_skb(to);
	return NULL;
}

static void vnic_receive(struct vnic_rq *rq, struct sk_buff *from)
{
	struct sk_buff *skb = vnic_take_in(rq, from);
	const struct vnic_cb *cb = vnic_cb(from);

	u64_stats_update_begin(&rq->syncp);
	if (skb) {
		u64_stats_inc(&rq->packets);
		u64_stats_add(&rq->bytes, from->len);
	} else {
		u64_stats_inc(&rq->alloc_fail);
	}
	u64_stats_update_end(&rq->syncp);
	if (!skb)
		return;

	if ((rq->dev->features & NETIF_F_RXHASH) && cb->hash_type != PKT_HASH_TYPE_NONE)
		skb_set_hash(skb, cb->hash, cb->hash_type);
	skb_record_rx_queue(skb, rq->index);
	skb->protocol = eth_type_trans(skb, rq->dev);
	napi_gro_receive(&rq->napi, skb);
}

/**
 * vnic_poll() - receive frames from a queue's wire
 * @napi: NAPI of the queue
 * @budget: maximum number of frames
 *
 * Return: the number of frames received.
 */
int vnic_poll(struct napi_struct *napi, int budget)
{
	struct vnic_rq *rq = container_of(napi, struct vnic_rq, napi);
	struct sk_buff *skb;
	int work = 0;

	/* Netpoll asks for transmit completions, and there are none. Continuing
	 * would leave the interrupt masked.
	 */
	if (!budget)
		return 0;

	WRITE_ONCE(rq->armed, false);
	while (work < budget) {
		skb = vnic_queue_pull(rq);
		if (!skb)
			break;
		vnic_receive(rq, skb);
		napi_consume_skb(skb, budget);
		work++;
	}

	/* While interrupts are deferred, a timer of the core polls again */
	if (work < budget && napi_complete_done(napi, work)) {
		WRITE_ONCE(rq->armed, true);
		smp_mb(); /* with vnic_queue_kick() */
		if (!skb_queue_empty(&rq->wire))
			vnic_queue_kick(rq);
	}

	return work;
}
