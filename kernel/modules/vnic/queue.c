// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: receive queues
 *
 * The sending end leaves frames on a queue's wire; the queue's NAPI copies them,
 * as a NIC's DMA would, into headers and pages of the queue's page pool. The
 * pages may be device memory: then the data of TCP segments goes there, and
 * everything else stays in ordinary memory.
 */

#include <linux/dma-direct.h>
#include <linux/etherdevice.h>
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <net/checksum.h>
#include <net/ip6_checksum.h>
#include <net/netdev_queues.h>
#include <net/netdev_rx_queue.h>
#include <net/page_pool/helpers.h>

#include "vnic.h"

/* As the stack's own limit of a queue of packets that are not yet taken in */
#define VNIC_POOL_SIZE	4096

/* What queue management calls a queue's memory */
struct vnic_queue_mem {
	struct page_pool *pool;
};

static struct page_pool *vnic_pool_create(struct net_device *dev, unsigned int index, bool split)
{
	struct page_pool_params params = {
		.flags		= PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV,
		.pool_size	= VNIC_POOL_SIZE,
		.nid		= NUMA_NO_NODE,
		.dev		= dev->dev.parent,
		.netdev		= dev,
		.queue_idx	= index,
		.dma_dir	= DMA_FROM_DEVICE,
		.max_len	= PAGE_SIZE,
	};

	/* Where addresses are translated, nothing tells the page of one. */
	if (split && !device_iommu_mapped(dev->dev.parent))
		params.flags |= PP_FLAG_ALLOW_UNREADABLE_NETMEM;

	return page_pool_create(&params);
}

static void vnic_queue_start(struct vnic_rq *rq, struct page_pool *pool)
{
	rq->pool = pool;
	/* Not a parameter of the pool: one that is never started is destroyed
	 * while the NAPI runs, which the pool would take for a race.
	 */
	WRITE_ONCE(pool->p.napi, &rq->napi);
	napi_enable(&rq->napi);

	local_bh_disable();
	if (!skb_queue_empty(&rq->wire))
		napi_schedule(&rq->napi);
	local_bh_enable();
}

static struct page_pool *vnic_queue_stop(struct vnic_rq *rq)
{
	struct page_pool *pool = rq->pool;

	napi_disable(&rq->napi);
	page_pool_disable_direct_recycling(pool);
	rq->pool = NULL;

	return pool;
}

static int vnic_queue_mem_alloc(struct net_device *dev, void *mem, int index)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_queue_mem *queue = mem;
	struct page_pool *pool;

	if (!netif_running(dev))
		return -ENETDOWN;
	pool = vnic_pool_create(dev, index, vnic->split);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	queue->pool = pool;

	return 0;
}

static void vnic_queue_mem_free(struct net_device *dev, void *mem)
{
	struct vnic_queue_mem *queue = mem;

	page_pool_destroy(queue->pool);
}

static int vnic_queue_mem_start(struct net_device *dev, void *mem, int index)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_queue_mem *queue = mem;

	vnic_queue_start(&vnic->rq[index], queue->pool);

	return 0;
}

static int vnic_queue_mem_stop(struct net_device *dev, void *mem, int index)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_queue_mem *queue = mem;

	queue->pool = vnic_queue_stop(&vnic->rq[index]);

	return 0;
}

const struct netdev_queue_mgmt_ops vnic_queue_mgmt_ops = {
	.ndo_queue_mem_size	= sizeof(struct vnic_queue_mem),
	.ndo_queue_mem_alloc	= vnic_queue_mem_alloc,
	.ndo_queue_mem_free	= vnic_queue_mem_free,
	.ndo_queue_start	= vnic_queue_mem_start,
	.ndo_queue_stop		= vnic_queue_mem_stop,
};

/**
 * vnic_queues_open() - make pools of receive queues and start these
 * @dev: the device
 * @from: the first queue
 * @to: the one after the last
 *
 * Return: 0, or the error of page_pool_create(); then none of them is started.
 */
int vnic_queues_open(struct net_device *dev, unsigned int from, unsigned int to)
{
	struct vnic *vnic = netdev_priv(dev);
	struct page_pool *pool;
	unsigned int i;

	for (i = from; i < to; i++) {
		pool = vnic_pool_create(dev, i, vnic->split);
		if (IS_ERR(pool)) {
			vnic_queues_close(dev, from, i);
			return PTR_ERR(pool);
		}
		vnic_queue_start(&vnic->rq[i], pool);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, &vnic->rq[i].napi);
	}

	return 0;
}

/**
 * vnic_queues_close() - stop receive queues; frames under way to them are lost
 * @dev: the device; no frame is sent to these queues any more
 * @from: the first queue
 * @to: the one after the last
 */
void vnic_queues_close(struct net_device *dev, unsigned int from, unsigned int to)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rq *rq;
	unsigned int i;

	/* Who has chosen one of them has pushed its frame after this. */
	synchronize_net();
	for (i = from; i < to; i++) {
		rq = &vnic->rq[i];
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, NULL);
		page_pool_destroy(vnic_queue_stop(rq));
		atomic64_add(skb_queue_len(&rq->wire), &rq->overruns);
		skb_queue_purge(&rq->wire);
	}
}

/**
 * vnic_queues_set_split() - give all queues new pools, for split headers or not
 * @dev: the device
 * @split: whether headers and data are kept apart
 *
 * Return: 0, -ENOMEM or the error of page_pool_create(); then nothing has changed.
 */
int vnic_queues_set_split(struct net_device *dev, bool split)
{
	unsigned int i, count = netif_running(dev) ? dev->real_num_rx_queues : 0;
	struct vnic *vnic = netdev_priv(dev);
	struct page_pool **pools;
	int err = 0;

	pools = kcalloc(count, sizeof(*pools), GFP_KERNEL);
	if (count && !pools)
		return -ENOMEM;

	for (i = 0; i < count; i++) {
		pools[i] = vnic_pool_create(dev, i, split);
		if (IS_ERR(pools[i])) {
			err = PTR_ERR(pools[i]);
			goto destroy;
		}
	}

	/* What is in the array afterwards are the old ones. */
	for (i = 0; i < count; i++) {
		struct page_pool *pool = vnic_queue_stop(&vnic->rq[i]);

		swap(pool, pools[i]);
		vnic_queue_start(&vnic->rq[i], pool);
	}
	WRITE_ONCE(vnic->split, split);

destroy:
	while (i--)
		page_pool_destroy(pools[i]);
	kfree(pools);

	return err;
}

/**
 * vnic_queue_push() - send a frame to a receive queue
 * @rq: the queue
 * @skb: the frame; the queue's from here on
 *
 * Context: RCU read lock, softirqs off.
 * Return: false if the queue is full; then the frame is dropped.
 */
bool vnic_queue_push(struct vnic_rq *rq, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(rq->dev);

	if (skb_queue_len_lockless(&rq->wire) >= READ_ONCE(vnic->ring)) {
		atomic64_inc(&rq->overruns);
		kfree_skb_reason(skb, SKB_DROP_REASON_FULL_RING);
		return false;
	}
	skb_queue_tail(&rq->wire, skb);
	napi_schedule(&rq->napi);

	return true;
}

/* The page that a NIC would reach by the address of @netmem; NULL: it has none */
static struct page *vnic_dma_page(struct vnic_rq *rq, netmem_ref netmem)
{
	unsigned long pfn;

	if (!netmem_is_net_iov(netmem))
		return netmem_to_page(netmem);
	/* A device's own memory may be nothing that the processor can write. */
	pfn = PHYS_PFN(dma_to_phys(rq->dev->dev.parent, page_pool_get_dma_addr_netmem(netmem)));

	return pfn_valid(pfn) ? pfn_to_page(pfn) : NULL;
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
	/* Whoever reads device memory expects nothing of it in our cache. */
	if (netmem_is_net_iov(netmem))
		dma_sync_single_for_device(rq->dev->dev.parent,
					   page_pool_get_dma_addr_netmem(netmem), len,
					   DMA_TO_DEVICE);

	return err;
}

/* Copies a piece of a frame into a page of its own, and adds that to @to. */
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

/* Whether the checksum that a TCP segment came with is right */
static bool vnic_checksum_right(struct sk_buff *skb)
{
	struct vnic_cb *cb = vnic_cb(skb);
	unsigned int len, ip_len = cb->transport - cb->network;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__wsum sum;

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

/* Whether the data of a frame may go where the stack cannot read it */
static bool vnic_may_split(const struct vnic_rq *rq, struct sk_buff *skb)
{
	unsigned int headers = vnic_cb(skb)->headers;

	if (!headers || headers == skb->len)
		return false;
	if (DIV_ROUND_UP(skb->len - headers, PAGE_SIZE) > MAX_SKB_FRAGS)
		return false;

	return !rq->pool->mp_priv || skb->ip_summed == CHECKSUM_PARTIAL ||
	       vnic_checksum_right(skb);
}

static void vnic_copy_offloads(struct sk_buff *to, const struct sk_buff *from)
{
	if (skb_is_gso(from)) {
		skb_shinfo(to)->gso_size = skb_shinfo(from)->gso_size;
		skb_shinfo(to)->gso_segs = skb_shinfo(from)->gso_segs;
		skb_shinfo(to)->gso_type = skb_shinfo(from)->gso_type;
	}

	if (!skb_frags_readable(to)) {
		to->ip_summed = CHECKSUM_UNNECESSARY;
	} else if (from->ip_summed == CHECKSUM_PARTIAL) {
		/* Still to be filled in, should the frame travel on. */
		to->ip_summed = CHECKSUM_PARTIAL;
		to->csum_start = skb_headroom(to) + skb_checksum_start_offset(from);
		to->csum_offset = from->csum_offset;
	}
}

/* The frame as the receiving end has it; %NULL if there is no memory for it */
static struct sk_buff *vnic_take_in(struct vnic_rq *rq, struct sk_buff *from)
{
	bool split = vnic_may_split(rq, from);
	unsigned int linear = split ? vnic_cb(from)->headers : from->len;
	unsigned int offset, len;
	struct sk_buff *to;

	to = napi_alloc_skb(&rq->napi, linear);
	if (!to)
		return NULL;
	skb_mark_for_recycle(to);
	if (skb_copy_bits(from, 0, skb_put(to, linear), linear))
		goto drop;

	for (offset = linear; offset < from->len; offset += len) {
		len = min_t(unsigned int, from->len - offset, PAGE_SIZE);
		if (vnic_dma(rq, to, from, offset, len))
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

	if (rq->dev->features & NETIF_F_RXHASH)
		skb_set_hash(skb, vnic_cb(from)->hash, PKT_HASH_TYPE_L4);
	skb_record_rx_queue(skb, rq->index);
	skb->protocol = eth_type_trans(skb, rq->dev);
	napi_gro_receive(&rq->napi, skb);
}

static int vnic_poll(struct napi_struct *napi, int budget)
{
	struct vnic_rq *rq = container_of(napi, struct vnic_rq, napi);
	struct sk_buff *skb;
	int work = 0;

	while (work < budget) {
		skb = skb_dequeue(&rq->wire);
		if (!skb)
			break;
		vnic_receive(rq, skb);
		napi_consume_skb(skb, budget);
		work++;
	}

	if (work < budget)
		napi_complete_done(napi, work);

	return work;
}

/**
 * vnic_queues_init() - allocate all queues that a device may have
 * @dev: the device
 *
 * Return: 0 or -ENOMEM.
 */
int vnic_queues_init(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	vnic->rq = kvcalloc(dev->num_rx_queues, sizeof(*vnic->rq), GFP_KERNEL_ACCOUNT);
	vnic->tq = kvcalloc(dev->num_tx_queues, sizeof(*vnic->tq), GFP_KERNEL_ACCOUNT);
	if (!vnic->rq || !vnic->tq) {
		kvfree(vnic->rq);
		kvfree(vnic->tq);
		return -ENOMEM;
	}

	for (i = 0; i < dev->num_rx_queues; i++) {
		vnic->rq[i].dev = dev;
		vnic->rq[i].index = i;
		skb_queue_head_init(&vnic->rq[i].wire);
		u64_stats_init(&vnic->rq[i].syncp);
		netif_napi_add(dev, &vnic->rq[i].napi, vnic_poll);
	}
	for (i = 0; i < dev->num_tx_queues; i++)
		u64_stats_init(&vnic->tq[i].syncp);

	return 0;
}

/**
 * vnic_queues_uninit() - free all queues
 * @dev: the device; it is down
 */
void vnic_queues_uninit(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < dev->num_rx_queues; i++) {
		netif_napi_del(&vnic->rq[i].napi);
		/* What came while the device was only about to open */
		skb_queue_purge(&vnic->rq[i].wire);
	}
	kvfree(vnic->rq);
	kvfree(vnic->tq);
}
