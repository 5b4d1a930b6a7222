// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: receive queues
 *
 * The sending end puts frames on a queue's wire and raises its interrupt, at once or
 * when coalescing's limit of frames or of time is reached. The queue's NAPI receives
 * the frames. While the NAPI runs, or defers interrupts, the queue's interrupt is
 * masked.
 */

#include <linux/device.h>
#include <linux/swiotlb.h>
#include <net/netdev_queues.h>
#include <net/netdev_rx_queue.h>
#include <net/page_pool/helpers.h>

#include <compat/hrtimer.h>
#include <compat/netdev.h>

#include "vnic.h"

/* Number of free pages that a pool keeps */
#define VNIC_POOL_SIZE	256

/* The memory of a queue for netdev_queue_mgmt_ops */
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
	struct page_pool *pool;

	if (split)
		params.flags |= PP_FLAG_ALLOW_UNREADABLE_NETMEM;

	pool = page_pool_create(&params);
	if (IS_ERR(pool) || vnic_is_readable(pool) || !is_swiotlb_force_bounce(params.dev))
		return pool;

	/* Nobody would copy the bounce buffer, which gets the data, to the device memory */
	page_pool_destroy(pool);

	return ERR_PTR(-EOPNOTSUPP);
}

static void vnic_queue_start(struct vnic_rq *rq, struct page_pool *pool)
{
	rq->pool = pool;
	/* Set here and not with the pool's parameters: a pool that is never
	 * started is destroyed while the NAPI runs, which the page pool would
	 * report as a race.
	 */
	WRITE_ONCE(pool->p.napi, &rq->napi);
	napi_enable_locked(&rq->napi);
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

	napi_disable_locked(&rq->napi);
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

COMPAT_QUEUE_OP(vnic_queue_mem_alloc)

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

COMPAT_QUEUE_OP(vnic_queue_mem_start)

static int vnic_queue_mem_stop(struct net_device *dev, void *mem, int index)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_queue_mem *queue = mem;

	queue->pool = vnic_queue_stop(&vnic->rq[index]);

	return 0;
}

const struct netdev_queue_mgmt_ops vnic_queue_mgmt_ops = {
	.ndo_queue_mem_size	= sizeof(struct vnic_queue_mem),
	.ndo_queue_mem_alloc	= vnic_queue_mem_alloc_op,
	.ndo_queue_mem_free	= vnic_queue_mem_free,
	.ndo_queue_start	= vnic_queue_mem_start_op,
	.ndo_queue_stop		= vnic_queue_mem_stop,
};

/**
 * vnic_queues_open() - create the pools of receive queues and start the queues
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
		/* Not before the queue is used: Linux waits for each NAPI of the
		 * list when threads are switched off, forever if one is disabled.
		 */
		netif_napi_add_config_locked(dev, &vnic->rq[i].napi, vnic_poll, i);
		vnic_queue_start(&vnic->rq[i], pool);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, &vnic->rq[i].napi);
	}

	return 0;
}

/**
 * vnic_queues_close() - stop receive queues; frames on their wires are lost
 * @dev: the device; senders do not choose these queues any more
 * @from: the first queue
 * @to: the one after the last
 */
void vnic_queues_close(struct net_device *dev, unsigned int from, unsigned int to)
{
	struct vnic *vnic = netdev_priv(dev);
	struct vnic_rq *rq;
	unsigned int i;

	/* After this, senders that chose one of the queues have pushed their frames */
	synchronize_net();
	for (i = from; i < to; i++) {
		rq = &vnic->rq[i];
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, NULL);
		page_pool_destroy(vnic_queue_stop(rq));
		__netif_napi_del_locked(&rq->napi);
		hrtimer_cancel(&rq->timer);
		atomic64_add(skb_queue_len(&rq->wire), &rq->overruns);
		vnic_queue_purge(rq);
	}
	/* One grace period for all NAPIs, before they are added again or freed */
	synchronize_net();
}

/**
 * vnic_queues_poll() - receive the frames that wait according to old settings
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
 * vnic_queues_set_split() - replace the pools of all queues to set header split
 * @dev: the device
 * @split: split headers from data
 *
 * Return: 0; or without any change -ENOMEM or the error of page_pool_create().
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

	/* Afterwards the array contains the old pools */
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

/* Is a limit of coalescing reached: the number of frames, or half of the memory? */
static bool vnic_queue_is_due(const struct vnic_rq *rq)
{
	const struct vnic *vnic = netdev_priv(rq->dev);
	u32 frames = min(READ_ONCE(vnic->frames), READ_ONCE(vnic->ring));

	return skb_queue_len_lockless(&rq->wire) >= frames ||
	       atomic_read(&rq->memory) >= VNIC_WIRE_MAX / 2;
}

/**
 * vnic_queue_kick() - raise the interrupt for waiting frames, or start its timer
 * @rq: the queue
 *
 * Context: softirqs off.
 */
void vnic_queue_kick(struct vnic_rq *rq)
{
	struct vnic *vnic = netdev_priv(rq->dev);
	u64 nsecs = (u64)READ_ONCE(vnic->usecs) * NSEC_PER_USEC;

	/* Either this sees the interrupt unmasked, or the code that has unmasked
	 * it sees the frame.
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
 * @skb: the frame; the queue takes ownership
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
 * vnic_queue_pull() - take the first frame from the wire
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
	hrtimer_setup(&rq->timer, vnic_queue_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
}

/**
 * vnic_queues_init() - allocate the maximum number of queues of a device
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
 * @dev: the device; it is down, and no frame is sent to it any more
 */
void vnic_queues_uninit(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < dev->num_rx_queues; i++) {
		hrtimer_cancel(&vnic->rq[i].timer);
		/* Frames that arrived while the device was being opened */
		vnic_queue_purge(&vnic->rq[i]);
	}
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
