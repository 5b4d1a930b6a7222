// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: receive queues
 *
 * The sending end leaves frames on a queue's wire and interrupts, at once or when
 * as many or as old frames are there as coalescing says; the queue's NAPI takes
 * them in. While its NAPI works, or puts interrupts off, a queue's interrupt is
 * masked.
 */

#include <linux/device.h>
#include <net/netdev_queues.h>
#include <net/netdev_rx_queue.h>
#include <net/page_pool/helpers.h>

#include "vnic.h"

/* Pages that a pool keeps for frames to come */
#define VNIC_POOL_SIZE	256

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

	if (split)
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
	smp_store_mb(rq->armed, true); /* with vnic_queue_kick() */

	local_bh_disable();
	if (!skb_queue_empty(&rq->wire))
		napi_schedule(&rq->napi);
	local_bh_enable();
}

static void vnic_queue_purge(struct vnic_rq *rq)
{
	skb_queue_purge(&rq->wire);
	atomic_set(&rq->memory, 0);
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
		hrtimer_cancel(&rq->timer);
		atomic64_add(skb_queue_len(&rq->wire), &rq->overruns);
		vnic_queue_purge(rq);
	}
}

/**
 * vnic_queues_poll() - take in what waits, which it does by settings that are no more
 * @dev: the device
 *
 * Context: RTNL.
 */
void vnic_queues_poll(struct net_device *dev)
{
	unsigned int i, count = netif_running(dev) ? dev->real_num_rx_queues : 0;
	struct vnic *vnic = netdev_priv(dev);

	local_bh_disable();
	for (i = 0; i < count; i++)
		napi_schedule(&vnic->rq[i].napi);
	local_bh_enable();
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

/* Whether frames wait no longer: there are as many as may, or half of the memory */
static bool vnic_queue_is_due(const struct vnic_rq *rq)
{
	const struct vnic *vnic = netdev_priv(rq->dev);
	u32 frames = min(READ_ONCE(vnic->frames), READ_ONCE(vnic->ring));

	return skb_queue_len_lockless(&rq->wire) >= frames ||
	       atomic_read(&rq->memory) >= VNIC_WIRE_MAX / 2;
}

/**
 * vnic_queue_kick() - interrupt, or have that done soon, for frames that wait
 * @rq: the queue
 *
 * Context: softirqs off.
 */
void vnic_queue_kick(struct vnic_rq *rq)
{
	struct vnic *vnic = netdev_priv(rq->dev);
	u64 nsecs = (u64)READ_ONCE(vnic->usecs) * NSEC_PER_USEC;

	/* Either this sees that the interrupt is not masked any more, or who has
	 * unmasked it sees the frame.
	 */
	smp_mb();
	if (!READ_ONCE(rq->armed))
		return;
	if (!nsecs || vnic_queue_is_due(rq))
		napi_schedule(&rq->napi);
	else if (!hrtimer_is_queued(&rq->timer))
		hrtimer_start(&rq->timer, ns_to_ktime(nsecs), HRTIMER_MODE_REL_SOFT);
}

static enum hrtimer_restart vnic_queue_timer(struct hrtimer *timer)
{
	struct vnic_rq *rq = container_of(timer, struct vnic_rq, timer);

	if (READ_ONCE(rq->armed))
		napi_schedule(&rq->napi);

	return HRTIMER_NORESTART;
}

/**
 * vnic_queue_push() - send a frame to a receive queue
 * @rq: the queue; if it is full, the frame is dropped
 * @skb: the frame; the queue's from here on
 *
 * Context: RCU read lock, softirqs off.
 */
void vnic_queue_push(struct vnic_rq *rq, struct sk_buff *skb)
{
	struct vnic *vnic = netdev_priv(rq->dev);

	if (skb_queue_len_lockless(&rq->wire) >= READ_ONCE(vnic->ring) ||
	    atomic_read(&rq->memory) >= VNIC_WIRE_MAX) {
		atomic64_inc(&rq->overruns);
		kfree_skb_reason(skb, SKB_DROP_REASON_FULL_RING);
		return;
	}
	atomic_add(skb->truesize, &rq->memory);
	skb_queue_tail(&rq->wire, skb);
	vnic_queue_kick(rq);
}

/**
 * vnic_queue_pull() - take the first frame that is under way
 * @rq: the queue
 *
 * Return: the frame, NULL if there is none.
 */
struct sk_buff *vnic_queue_pull(struct vnic_rq *rq)
{
	struct sk_buff *skb = skb_dequeue(&rq->wire);

	if (skb)
		atomic_sub(skb->truesize, &rq->memory);

	return skb;
}

static void vnic_queue_init(struct vnic_rq *rq, struct net_device *dev, unsigned int index)
{
	rq->dev = dev;
	rq->index = index;
	skb_queue_head_init(&rq->wire);
	u64_stats_init(&rq->syncp);
	hrtimer_init(&rq->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	rq->timer.function = vnic_queue_timer;
	netif_napi_add(dev, &rq->napi, vnic_poll);
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
		vnic_queues_free(dev);
		return -ENOMEM;
	}

	for (i = 0; i < dev->num_rx_queues; i++)
		vnic_queue_init(&vnic->rq[i], dev, i);
	for (i = 0; i < dev->num_tx_queues; i++)
		u64_stats_init(&vnic->tq[i].syncp);

	return 0;
}

/**
 * vnic_queues_uninit() - end all queues; their counters can still be read
 * @dev: the device; it is down, and nothing is sent to it any more
 */
void vnic_queues_uninit(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < dev->num_rx_queues; i++) {
		hrtimer_cancel(&vnic->rq[i].timer);
		__netif_napi_del(&vnic->rq[i].napi);
		/* What came while the device was only about to open */
		vnic_queue_purge(&vnic->rq[i]);
	}
	/* One grace period for all of them */
	synchronize_net();
}

/**
 * vnic_queues_free() - free the memory of all queues
 * @dev: the device
 */
void vnic_queues_free(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);

	kvfree(vnic->rq);
	kvfree(vnic->tq);
}
