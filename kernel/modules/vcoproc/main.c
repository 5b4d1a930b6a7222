// SPDX-License-Identifier: GPL-2.0
/*
 * vcoproc: a virtual coprocessor whose core is a user process
 *
 * Each coprocessor is a platform device with a remoteproc and a character device
 * /dev/vcoprocN. The process that opens the character device is the core: it maps
 * the memory of rings and buffers, reads start, stop and kick events, and kicks
 * Linux.
 *
 * Rings and message buffers are allocated from one physically contiguous block, so
 * that device address, DMA address and physical address are equal, as on most
 * SoCs. The DMA operations of the device allocate from this block; remoteproc
 * passes them on to the virtio device. The process has read access only to the
 * parts of a ring that Linux alone writes, because Linux trusts them. It gets a
 * copy of the resource table, because firmware writes to the table and the
 * remoteproc core trusts it.
 *
 * Buffers that drivers share with the process are outside of the block. The
 * process accesses them through an IOMMU, see iommu.c.
 */

#include <linux/bitmap.h>
#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/firmware.h>
#include <linux/fs.h>
#include <linux/irqreturn.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/platform_device.h>
#include <linux/poll.h>
#include <linux/remoteproc.h>
#include <linux/rwsem.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/virtio_ids.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include <compat/dma.h>
#include <compat/workqueue.h>
#include <linux/vcoproc.h>

#include "iommu.h"
#include "ring.h"

#ifndef CONFIG_ARCH_HAS_DMA_OPS
#error "vcoproc needs CONFIG_ARCH_HAS_DMA_OPS (by CONFIG_XEN, on x86 also CONFIG_GART_IOMMU)"
#endif

/* Exported to drivers, but declared in drivers/remoteproc/remoteproc_internal.h only */
irqreturn_t rproc_vq_interrupt(struct rproc *rproc, int vq_id);

#define VCOPROC_MAX		16

/*
 * If a ring entry is shorter than a header, the rpmsg bus trusts the 16-bit length
 * in the message and reads up to 64 KiB from the start of the message. The last
 * 64 KiB of the block are never allocated, so that such a read stays in memory that
 * the process can access anyway.
 */
#define VCOPROC_GUARD		SZ_64K

#define VCOPROC_MIN_KIB		1024
#define VCOPROC_MAX_KIB		4096
#define VCOPROC_MAX_PAGES	(VCOPROC_MAX_KIB * SZ_1K / PAGE_SIZE)

static unsigned int count = 2;
module_param(count, uint, 0444);
MODULE_PARM_DESC(count, "Number of coprocessors, 1 to 16 (default 2)");

static unsigned int memory_kib = VCOPROC_MIN_KIB;
module_param(memory_kib, uint, 0444);
MODULE_PARM_DESC(memory_kib, "Shared memory of each coprocessor in KiB, a power of two from 1024 to 4096 (default 1024)");

static unsigned int stop_timeout_ms = 1000;
module_param(stop_timeout_ms, uint, 0644);
MODULE_PARM_DESC(stop_timeout_ms, "Milliseconds that a stop waits for the process before it is cut off (default 1000)");

/**
 * enum vcoproc_state - state of the core as the process knows it
 * @VCOPROC_IDLE: not started; the process does not access the memory
 * @VCOPROC_UP: the process has read START
 * @VCOPROC_STOPPING: the process has read, or is about to read, STOP and has not
 *	acknowledged it
 */
enum vcoproc_state {
	VCOPROC_IDLE,
	VCOPROC_UP,
	VCOPROC_STOPPING,
};

/**
 * struct vcoproc_vring - interrupts of one vring
 * @work: runs the vring's callback, which sleeps
 * @vc: the coprocessor
 * @id: the notify id
 *
 * Each vring has its own work item, because the callback of the receiving vring may
 * wait for progress of the transmitting one.
 */
struct vcoproc_vring {
	struct work_struct work;
	struct vcoproc *vc;
	int id;
};

/**
 * struct vcoproc - a virtual coprocessor
 * @dev: the character device; its reference count is that of this structure
 * @cdev: its operations
 * @rproc: the remoteproc, with a reference
 * @interrupts: subdevice that enables interrupts between the start and the stop
 *	of the virtio device
 * @interrupts_added: @interrupts is on the list of @rproc
 * @wq: workqueue of the vrings' work items
 * @vring: the vrings, by notify id
 * @mem: shared memory
 * @mem_size: its size in bytes, the guard included
 * @used: pages of @mem that are allocated
 * @used_lock: protects @used
 * @loaded: the remoteproc core's resource table
 * @table: page with the process's copy of @loaded
 * @pause: held for reading while a page of @mem is inserted, for writing while the
 *	process must not write. Taken before the lock of @iommu.
 * @iommu: controls access to Linux's buffers. Its lock is held for reading while a
 *	page is inserted, for writing to cut the process off and while @owner
 *	changes. Taken before @lock.
 * @lock: protects all members below
 * @events: wait queue of the process for events
 * @answer: wait queue of ->stop() for the process
 * @owner: the file of the process, NULL without a process
 * @state: state of the core as the process knows it
 * @gone: the device is being removed
 * @ending: the device will be removed, and the core cannot be started any more
 * @running: Linux has started the core and has not stopped it
 * @interruptible: interrupts may be delivered
 * @start: START is pending for read()
 * @stop: STOP is pending for read()
 * @kicks: kicked vrings that are pending for read()
 * @irqs: vrings that the process has kicked
 * @table_size: number of bytes of @loaded, 0 before the first start
 * @boot: number of starts
 */
struct vcoproc {
	struct device dev;
	struct cdev cdev;
	struct rproc *rproc;
	struct rproc_subdev interrupts;
	bool interrupts_added;
	struct workqueue_struct *wq;
	struct vcoproc_vring vring[VCOPROC_VRINGS];

	void *mem;
	size_t mem_size;
	DECLARE_BITMAP(used, VCOPROC_MAX_PAGES);
	spinlock_t used_lock; /* see above */
	struct resource_table *loaded;
	void *table;
	struct rw_semaphore pause;
	struct vcoproc_iommu iommu;

	spinlock_t lock; /* see above */
	wait_queue_head_t events;
	wait_queue_head_t answer;
	struct file *owner;
	enum vcoproc_state state;
	bool gone;
	bool ending;
	bool running;
	bool interruptible;
	bool start;
	bool stop;
	u32 kicks;
	unsigned long irqs;
	size_t table_size;
	u64 boot;
};

static dev_t vcoproc_devt;
static struct platform_device *vcoproc_pdev[VCOPROC_MAX];
static struct platform_driver vcoproc_driver;

static struct vcoproc *dev_to_vcoproc(struct device *dev)
{
	return container_of(dev, struct vcoproc, dev);
}

/* -- Interrupts: the process kicks Linux -- */

static void vcoproc_vring_work(struct work_struct *work)
{
	struct vcoproc_vring *vring = container_of(work, struct vcoproc_vring, work);

	rproc_vq_interrupt(vring->vc->rproc, vring->id);
}

/* Takes vc->lock. Interrupts that arrive too early are delivered by the subdevice's start. */
static void vcoproc_deliver(struct vcoproc *vc)
{
	unsigned int id;

	spin_lock_irq(&vc->lock);
	if (vc->interruptible) {
		for_each_set_bit(id, &vc->irqs, VCOPROC_VRINGS)
			queue_work(vc->wq, &vc->vring[id].work);
		vc->irqs = 0;
	}
	spin_unlock_irq(&vc->lock);
}

static int vcoproc_interrupts_start(struct rproc_subdev *subdev)
{
	struct vcoproc *vc = container_of(subdev, struct vcoproc, interrupts);

	spin_lock_irq(&vc->lock);
	vc->interruptible = true;
	spin_unlock_irq(&vc->lock);
	vcoproc_deliver(vc);

	return 0;
}

/* Unmaps the memory from the process, so that its next access faults */
static void vcoproc_unmap_memory(struct vcoproc *vc)
{
	down_read(&vc->iommu.lock);
	vcoproc_iommu_zap(&vc->iommu, 0, vc->mem_size >> PAGE_SHIFT);
	up_read(&vc->iommu.lock);
}

/*
 * The vrings are freed next, so no callback may run after this. A running callback
 * ends when its used ring is empty, and the process could keep it filled. So the
 * process is blocked in its next access to memory until the callbacks have ended.
 */
static void vcoproc_interrupts_stop(struct rproc_subdev *subdev, bool crashed)
{
	struct vcoproc *vc = container_of(subdev, struct vcoproc, interrupts);
	int i;

	spin_lock_irq(&vc->lock);
	vc->interruptible = false;
	vc->irqs = 0;
	spin_unlock_irq(&vc->lock);

	down_write(&vc->pause);
	vcoproc_unmap_memory(vc);
	for (i = 0; i < VCOPROC_VRINGS; i++)
		cancel_work_sync(&vc->vring[i].work);
	up_write(&vc->pause);
}

/* -- Resource table: the remoteproc core fills it in, the process has a copy -- */

/* Called with vc->lock held */
static void vcoproc_copy_table(struct vcoproc *vc)
{
	const struct resource_table *loaded = vc->loaded;
	const u8 *from = (const u8 *)loaded;
	u8 *to = vc->table;
	size_t status;

	if (!vc->table_size)
		return;

	status = loaded->offset[0] + offsetof(struct fw_rsc_hdr, data) +
		 offsetof(struct fw_rsc_vdev, status);
	memcpy(to, from, status);
	memcpy(to + status + 1, from + status + 1, vc->table_size - status - 1);
	/* Last, so that a process that sees DRIVER_OK also sees the rest of the table */
	smp_store_release(&to[status], from[status]);
}

/* -- DMA operations: allocations in the shared memory, mappings of buffers -- */

static struct vcoproc *vcoproc_of_dma(struct device *dev)
{
	while (dev && dev->driver != &vcoproc_driver.driver)
		dev = dev->parent;

	return dev ? dev_get_drvdata(dev) : NULL;
}

/* Number of pages of the block that can be allocated */
static unsigned long vcoproc_limit(struct vcoproc *vc)
{
	return (vc->mem_size - VCOPROC_GUARD) >> PAGE_SHIFT;
}

/*
 * Called with vc->used_lock held. Aligns to the next power of two of the size, as
 * dma_alloc_coherent() guarantees.
 */
static unsigned long vcoproc_find_buffer(struct vcoproc *vc, unsigned long pages)
{
	return bitmap_find_next_zero_area(vc->used, vcoproc_limit(vc), VCOPROC_RING_PAGES, pages,
					  roundup_pow_of_two(pages) - 1);
}

/*
 * The remoteproc core allocates for the coprocessor's device, and with a valid
 * resource table it allocates rings only. Drivers of the bus allocate for the bus's
 * device.
 */
static void *vcoproc_dma_alloc(struct device *dev, size_t size, dma_addr_t *handle,
			       gfp_t gfp, unsigned long attrs)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);
	unsigned long pages = PAGE_ALIGN(size) >> PAGE_SHIFT;
	unsigned long page;
	void *va;

	if (!vc || !pages || size > vc->mem_size)
		return NULL;

	spin_lock(&vc->used_lock);
	if (dev == vc->dev.parent)
		page = vcoproc_find_ring(vc->used, pages);
	else
		page = vcoproc_find_buffer(vc, pages);
	if (page < vcoproc_limit(vc))
		bitmap_set(vc->used, page, pages);
	spin_unlock(&vc->used_lock);
	if (page >= vcoproc_limit(vc))
		return NULL;

	va = vc->mem + (page << PAGE_SHIFT);
	memset(va, 0, pages << PAGE_SHIFT);
	*handle = virt_to_phys(va);

	return va;
}

static void vcoproc_dma_free(struct device *dev, size_t size, void *va,
			     dma_addr_t handle, unsigned long attrs)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);

	if (!vc)
		return;

	spin_lock(&vc->used_lock);
	bitmap_clear(vc->used, (va - vc->mem) >> PAGE_SHIFT, PAGE_ALIGN(size) >> PAGE_SHIFT);
	spin_unlock(&vc->used_lock);

	/* A driver frees its buffers after it has reset the device, which has no callback here */
	spin_lock_irq(&vc->lock);
	vcoproc_copy_table(vc);
	spin_unlock_irq(&vc->lock);
}

static int vcoproc_dma_map_sg(struct device *dev, struct scatterlist *sg, int nents,
			      enum dma_data_direction dir, unsigned long attrs)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);

	return vc ? vcoproc_iommu_map(&vc->iommu, sg, nents) : -EINVAL;
}

static void vcoproc_dma_unmap_sg(struct device *dev, struct scatterlist *sg, int nents,
				 enum dma_data_direction dir, unsigned long attrs)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);

	if (vc)
		vcoproc_iommu_unmap(&vc->iommu, sg_dma_address(sg));
}

static void vcoproc_dma_sync_for_device(struct device *dev, dma_addr_t addr, size_t size,
					enum dma_data_direction dir)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);

	if (vc)
		vcoproc_iommu_grant(&vc->iommu, addr, size, dir);
}

static void vcoproc_dma_sync_for_cpu(struct device *dev, dma_addr_t addr, size_t size,
				     enum dma_data_direction dir)
{
	struct vcoproc *vc = vcoproc_of_dma(dev);

	if (vc)
		vcoproc_iommu_revoke(&vc->iommu, addr, size);
}

static const struct dma_map_ops vcoproc_dma_ops = {
	.alloc = vcoproc_dma_alloc,
	.free = vcoproc_dma_free,
	/* Single pages: access is granted by page, and the rest of one may be anything */
	COMPAT_DMA_REFUSE,
	.map_sg = vcoproc_dma_map_sg,
	.unmap_sg = vcoproc_dma_unmap_sg,
	.sync_single_for_device = vcoproc_dma_sync_for_device,
	.sync_single_for_cpu = vcoproc_dma_sync_for_cpu,
};

/* -- remoteproc operations: Linux drives the core -- */

/* The remoteproc core multiplies these fields without an overflow check */
static bool vcoproc_vdev_valid(const struct fw_rsc_vdev *vdev)
{
	const struct fw_rsc_vdev_vring *vring = vdev->vring;
	int i;

	if (vdev->id != VIRTIO_ID_RPMSG || vdev->num_of_vrings != VCOPROC_VRINGS ||
	    vdev->config_len || vring[0].num != vring[1].num)
		return false;

	for (i = 0; i < VCOPROC_VRINGS; i++)
		if (vring[i].align != PAGE_SIZE || !is_power_of_2(vring[i].num) ||
		    vring[i].num > VCOPROC_MAX_RING)
			return false;

	return true;
}

static bool vcoproc_table_valid(const struct resource_table *table, size_t size)
{
	const struct fw_rsc_vdev *vdev;
	const struct fw_rsc_hdr *hdr;
	size_t end;

	if (size < struct_size(table, offset, 1) || size > PAGE_SIZE)
		return false;
	if (table->ver != 1 || table->num != 1 || table->reserved[0] || table->reserved[1])
		return false;

	end = size_add(table->offset[0], struct_size(hdr, data, struct_size(vdev, vring, 2)));
	if (end > size || !IS_ALIGNED(table->offset[0], sizeof(u32)))
		return false;

	hdr = (const void *)table + table->offset[0];
	return hdr->type == RSC_VDEV && vcoproc_vdev_valid((const void *)hdr->data);
}

/* The firmware consists of a resource table only, as the process is the code */
static int vcoproc_parse_fw(struct rproc *rproc, const struct firmware *fw)
{
	const struct resource_table *table = (const void *)fw->data;

	if (!vcoproc_table_valid(table, fw->size)) {
		dev_err(&rproc->dev,
			"firmware must be a resource table with one rpmsg device of two equal vrings of at most %u buffers, aligned to %lu\n",
			VCOPROC_MAX_RING, PAGE_SIZE);
		return -EINVAL;
	}

	rproc->cached_table = kmemdup(table, fw->size, GFP_KERNEL);
	if (!rproc->cached_table)
		return -ENOMEM;
	rproc->table_ptr = rproc->cached_table;
	rproc->table_sz = fw->size;

	return 0;
}

/*
 * Subdevices stop in the reverse order of their addition. Interrupts have to stop
 * before the virtio device, which is on the list by now.
 */
static int vcoproc_load(struct rproc *rproc, const struct firmware *fw)
{
	struct vcoproc *vc = rproc->priv;

	if (!vc->interrupts_added) {
		rproc_add_subdev(rproc, &vc->interrupts);
		vc->interrupts_added = true;
	}

	return 0;
}

static int vcoproc_unprepare(struct rproc *rproc)
{
	struct vcoproc *vc = rproc->priv;

	if (vc->interrupts_added) {
		rproc_remove_subdev(rproc, &vc->interrupts);
		vc->interrupts_added = false;
	}

	return 0;
}

static struct resource_table *
vcoproc_find_loaded_rsc_table(struct rproc *rproc, const struct firmware *fw)
{
	struct vcoproc *vc = rproc->priv;

	return vc->loaded;
}

/*
 * Succeeds without a process, like a core that leaves reset without code. A process
 * that opens the device later finds START and the messages that were sent.
 */
static int vcoproc_start(struct rproc *rproc)
{
	struct vcoproc *vc = rproc->priv;

	if (READ_ONCE(vc->ending))
		return -ENODEV;

	spin_lock_irq(&vc->lock);
	vc->table_size = rproc->table_sz;
	vcoproc_copy_table(vc);
	vc->running = true;
	vc->start = true;
	vc->stop = false;
	vc->kicks = 0;
	vc->boot++;
	spin_unlock_irq(&vc->lock);
	wake_up_all(&vc->events);

	return 0;
}

/* Returns true if the process has to acknowledge before its memory is reused */
static bool vcoproc_ask_to_stop(struct vcoproc *vc)
{
	bool ask;

	spin_lock_irq(&vc->lock);
	ask = vc->owner && vc->state == VCOPROC_UP;
	if (ask) {
		vc->state = VCOPROC_STOPPING;
		vc->stop = true;
	}
	vc->running = false;
	vc->start = false;
	vc->kicks = 0;
	spin_unlock_irq(&vc->lock);

	return ask;
}

/* Revokes descriptor and memory of a process that does not acknowledge STOP */
static void vcoproc_cut_off(struct vcoproc *vc)
{
	bool cut = false;

	down_write(&vc->iommu.lock);
	spin_lock_irq(&vc->lock);
	if (vc->state == VCOPROC_STOPPING && vc->owner) {
		cut = true;
		vc->owner = NULL;
		vc->state = VCOPROC_IDLE;
		vc->stop = false;
	}
	spin_unlock_irq(&vc->lock);
	if (cut) {
		vcoproc_iommu_zap(&vc->iommu, 0, 0);
		vc->iommu.space = NULL;
	}
	up_write(&vc->iommu.lock);

	if (cut) {
		dev_warn(&vc->dev, "cut off a process that did not stop within %u ms\n",
			 stop_timeout_ms);
		wake_up_all(&vc->events);
	}
}

static int vcoproc_stop(struct rproc *rproc)
{
	struct vcoproc *vc = rproc->priv;

	if (!vcoproc_ask_to_stop(vc))
		return 0;

	wake_up_all(&vc->events);
	if (!wait_event_timeout(vc->answer, READ_ONCE(vc->state) != VCOPROC_STOPPING,
				msecs_to_jiffies(stop_timeout_ms)))
		vcoproc_cut_off(vc);

	return 0;
}

static void vcoproc_kick(struct rproc *rproc, int vqid)
{
	struct vcoproc *vc = rproc->priv;
	unsigned long flags;

	spin_lock_irqsave(&vc->lock, flags);
	vcoproc_copy_table(vc);
	if (vc->running)
		vc->kicks |= BIT(vqid);
	spin_unlock_irqrestore(&vc->lock, flags);
	wake_up(&vc->events);
}

static const struct rproc_ops vcoproc_rproc_ops = {
	.unprepare = vcoproc_unprepare,
	.start = vcoproc_start,
	.stop = vcoproc_stop,
	.kick = vcoproc_kick,
	.load = vcoproc_load,
	.parse_fw = vcoproc_parse_fw,
	.find_loaded_rsc_table = vcoproc_find_loaded_rsc_table,
};

/* -- Character device: the process is the core -- */

static int vcoproc_open(struct inode *inode, struct file *filp)
{
	struct vcoproc *vc = container_of(inode->i_cdev, struct vcoproc, cdev);
	int ret = 0;

	down_write(&vc->iommu.lock);
	spin_lock_irq(&vc->lock);
	if (vc->gone) {
		ret = -ENODEV;
	} else if (vc->owner) {
		ret = -EBUSY;
	} else {
		get_device(&vc->dev);
		filp->private_data = vc;
		vc->owner = filp;
		vc->iommu.space = filp->f_mapping;
		vc->state = VCOPROC_IDLE;
	}
	spin_unlock_irq(&vc->lock);
	up_write(&vc->iommu.lock);

	return ret ?: nonseekable_open(inode, filp);
}

/* Called with vc->lock held. Returns 0, or an errno if @filp is not the core any more. */
static int vcoproc_check(struct vcoproc *vc, struct file *filp)
{
	if (vc->gone)
		return -ENODEV;

	return vc->owner == filp ? 0 : -ESHUTDOWN;
}

/*
 * A release while the core runs is reported as a crash, for whatever reason it
 * happens. Taking the IOMMU's lock waits for callers that unmap pages from the file's
 * address space.
 */
static int vcoproc_release(struct inode *inode, struct file *filp)
{
	struct vcoproc *vc = filp->private_data;
	bool crashed = false;

	down_write(&vc->iommu.lock);
	spin_lock_irq(&vc->lock);
	if (vc->owner == filp) {
		crashed = vc->running;
		vc->owner = NULL;
		vc->iommu.space = NULL;
		vc->state = VCOPROC_IDLE;
		vc->running = false;
		vc->start = false;
		vc->stop = false;
	}
	spin_unlock_irq(&vc->lock);
	up_write(&vc->iommu.lock);
	wake_up_all(&vc->answer);

	if (crashed)
		rproc_report_crash(vc->rproc, RPROC_FATAL_ERROR);
	put_device(&vc->dev);

	return 0;
}

/* Called with vc->lock held */
static bool vcoproc_has_event(struct vcoproc *vc)
{
	return vc->stop || vc->start || (vc->state == VCOPROC_UP && vc->kicks);
}

/* Gets the pending event, with 0 in .events if there is none. Returns 0 or an errno. */
static int vcoproc_peek(struct vcoproc *vc, struct file *filp, struct vcoproc_event *event)
{
	int ret;

	spin_lock_irq(&vc->lock);
	ret = vcoproc_check(vc, filp);
	*event = (struct vcoproc_event){ .boot = vc->boot };
	if (!ret && vc->stop) {
		event->events = VCOPROC_EVENT_STOP;
	} else if (!ret && vcoproc_has_event(vc)) {
		event->events = (vc->start ? VCOPROC_EVENT_START : 0) |
				(vc->kicks ? VCOPROC_EVENT_KICK : 0);
		event->vrings = vc->kicks;
	}
	spin_unlock_irq(&vc->lock);

	return ret;
}

/*
 * Marks @event as read. This includes kicks that arrived since the peek, because the
 * process looks at its rings only after read() has returned.
 */
static void vcoproc_commit(struct vcoproc *vc, struct file *filp,
			   const struct vcoproc_event *event)
{
	spin_lock_irq(&vc->lock);
	if (!vcoproc_check(vc, filp) && vc->boot == event->boot) {
		if (event->events & VCOPROC_EVENT_STOP) {
			vc->stop = false;
		} else if (vc->running) {
			if (event->events & VCOPROC_EVENT_START) {
				vc->start = false;
				vc->state = VCOPROC_UP;
			}
			vc->kicks &= ~event->vrings;
		}
	}
	spin_unlock_irq(&vc->lock);
}

static bool vcoproc_readable(struct vcoproc *vc, struct file *filp)
{
	bool readable;

	spin_lock_irq(&vc->lock);
	readable = vcoproc_check(vc, filp) || vcoproc_has_event(vc);
	spin_unlock_irq(&vc->lock);

	return readable;
}

static ssize_t vcoproc_read(struct file *filp, char __user *buf, size_t len, loff_t *pos)
{
	struct vcoproc *vc = filp->private_data;
	struct vcoproc_event event;
	int ret;

	if (len < sizeof(event))
		return -EINVAL;

	for (;;) {
		ret = vcoproc_peek(vc, filp, &event);
		if (ret)
			return ret;
		if (event.events)
			break;
		if (filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(vc->events, vcoproc_readable(vc, filp)))
			return -ERESTARTSYS;
	}

	if (copy_to_user(buf, &event, sizeof(event)))
		return -EFAULT;
	vcoproc_commit(vc, filp, &event);

	return sizeof(event);
}

static __poll_t vcoproc_poll(struct file *filp, poll_table *wait)
{
	struct vcoproc *vc = filp->private_data;
	__poll_t mask = 0;

	poll_wait(filp, &vc->events, wait);

	spin_lock_irq(&vc->lock);
	if (vcoproc_check(vc, filp))
		mask = EPOLLIN | EPOLLERR | EPOLLHUP;
	else if (vcoproc_has_event(vc))
		mask = EPOLLIN | EPOLLRDNORM;
	spin_unlock_irq(&vc->lock);

	return mask;
}

static long vcoproc_ioctl_info(struct vcoproc *vc, void __user *argp)
{
	struct vcoproc_info info = {
		.device_address = virt_to_phys(vc->mem),
		.memory_size = vc->mem_size,
		.table_offset = vc->mem_size,
		.table_size = PAGE_SIZE,
	};

	return copy_to_user(argp, &info, sizeof(info)) ? -EFAULT : 0;
}

static long vcoproc_ioctl_kick(struct vcoproc *vc, struct file *filp, u32 __user *argp)
{
	u32 mask;
	int ret;

	if (get_user(mask, argp))
		return -EFAULT;
	if (!mask || mask & ~GENMASK(VCOPROC_VRINGS - 1, 0))
		return -EINVAL;

	spin_lock_irq(&vc->lock);
	ret = vcoproc_check(vc, filp);
	if (!ret && (!vc->running || vc->state != VCOPROC_UP))
		ret = -ENOTCONN;
	if (!ret)
		vc->irqs |= mask;
	spin_unlock_irq(&vc->lock);

	if (!ret)
		vcoproc_deliver(vc);

	return ret;
}

static long vcoproc_ioctl_stopped(struct vcoproc *vc, struct file *filp)
{
	int ret;

	spin_lock_irq(&vc->lock);
	ret = vcoproc_check(vc, filp);
	if (!ret && (vc->state != VCOPROC_STOPPING || vc->stop))
		ret = -EINVAL;
	if (!ret)
		vc->state = VCOPROC_IDLE;
	spin_unlock_irq(&vc->lock);

	if (!ret)
		wake_up_all(&vc->answer);

	return ret;
}

static long vcoproc_ioctl_crash(struct vcoproc *vc, struct file *filp)
{
	int ret;

	spin_lock_irq(&vc->lock);
	ret = vcoproc_check(vc, filp);
	if (!ret && (!vc->running || vc->state != VCOPROC_UP))
		ret = -ENOTCONN;
	if (!ret) {
		vc->running = false;
		vc->state = VCOPROC_IDLE;
		vc->kicks = 0;
	}
	spin_unlock_irq(&vc->lock);

	if (!ret)
		rproc_report_crash(vc->rproc, RPROC_FATAL_ERROR);

	return ret;
}

static int vcoproc_alive(struct vcoproc *vc, struct file *filp)
{
	int ret;

	spin_lock_irq(&vc->lock);
	ret = vcoproc_check(vc, filp);
	spin_unlock_irq(&vc->lock);

	return ret;
}

static long vcoproc_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct vcoproc *vc = filp->private_data;
	void __user *argp = (void __user *)arg;
	int ret;

	ret = vcoproc_alive(vc, filp);
	if (ret)
		return ret;

	switch (cmd) {
	case VCOPROC_GET_INFO:
		return vcoproc_ioctl_info(vc, argp);
	case VCOPROC_KICK:
		return vcoproc_ioctl_kick(vc, filp, argp);
	case VCOPROC_STOPPED:
		return vcoproc_ioctl_stopped(vc, filp);
	case VCOPROC_CRASH:
		return vcoproc_ioctl_crash(vc, filp);
	default:
		return -ENOTTY;
	}
}

/* Returns the page at @pgoff of a mapping: of the memory, or after it that of the table */
static void *vcoproc_page(struct vcoproc *vc, pgoff_t pgoff)
{
	return pgoff < vc->mem_size >> PAGE_SHIFT ? vc->mem + (pgoff << PAGE_SHIFT) : vc->table;
}

/* Inserts a page frame number, so that the page cannot be pinned and kept after its removal */
static vm_fault_t vcoproc_insert(struct vcoproc *vc, struct vm_fault *vmf)
{
	unsigned long pfn = PHYS_PFN(virt_to_phys(vcoproc_page(vc, vmf->pgoff)));
	unsigned long flags = vmf->vma->vm_flags;

	if (!vcoproc_page_writable(vmf->pgoff)) {
		if (vmf->flags & FAULT_FLAG_WRITE)
			return VM_FAULT_SIGBUS;
		flags &= ~VM_WRITE;
	}

	return vmf_insert_pfn_prot(vmf->vma, vmf->address, pfn, vm_get_page_prot(flags));
}

/* Waits while the process must not write. Returns true, with locks held, if @filp is the core. */
static bool vcoproc_lock_memory(struct vcoproc *vc, struct file *filp)
{
	if (down_read_killable(&vc->pause))
		return false;

	down_read(&vc->iommu.lock);
	if (!vcoproc_alive(vc, filp))
		return true;

	up_read(&vc->iommu.lock);
	up_read(&vc->pause);

	return false;
}

static void vcoproc_unlock_memory(struct vcoproc *vc)
{
	up_read(&vc->iommu.lock);
	up_read(&vc->pause);
}

static vm_fault_t vcoproc_fault(struct vm_fault *vmf)
{
	struct vcoproc *vc = vmf->vma->vm_private_data;
	vm_fault_t ret;

	if (vcoproc_iommu_prepare(vmf))
		return VM_FAULT_OOM;
	if (!vcoproc_lock_memory(vc, vmf->vma->vm_file))
		return VM_FAULT_SIGBUS;
	ret = vcoproc_insert(vc, vmf);
	vcoproc_unlock_memory(vc);

	return ret;
}

/* If the page is unmapped meanwhile, the write faults again */
static vm_fault_t vcoproc_mkwrite(struct vm_fault *vmf)
{
	return vcoproc_page_writable(vmf->pgoff) ? 0 : VM_FAULT_SIGBUS;
}

/* For debuggers, which cannot pin these pages */
static int vcoproc_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len,
			  int write)
{
	struct vcoproc *vc = vma->vm_private_data;
	pgoff_t pgoff = linear_page_index(vma, addr);
	void *va = vcoproc_page(vc, pgoff) + offset_in_page(addr);

	if (write && !(vma->vm_flags & VM_WRITE && vcoproc_page_writable(pgoff)))
		return -EACCES;
	if (!vcoproc_lock_memory(vc, vma->vm_file))
		return -EIO;

	len = min_t(int, len, PAGE_SIZE - offset_in_page(addr));
	if (write)
		memcpy(va, buf, len);
	else
		memcpy(buf, va, len);
	vcoproc_unlock_memory(vc);

	return len;
}

static const struct vm_operations_struct vcoproc_vm_ops = {
	.fault = vcoproc_fault,
	.pfn_mkwrite = vcoproc_mkwrite,
	.access = vcoproc_access,
};

static vm_fault_t vcoproc_buffer_fault(struct vm_fault *vmf)
{
	struct vcoproc *vc = vmf->vma->vm_private_data;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	if (vcoproc_iommu_prepare(vmf))
		return VM_FAULT_OOM;
	down_read(&vc->iommu.lock);
	if (!vcoproc_alive(vc, vmf->vma->vm_file))
		ret = vcoproc_iommu_fault(&vc->iommu, vmf);
	up_read(&vc->iommu.lock);

	return ret;
}

static vm_fault_t vcoproc_buffer_mkwrite(struct vm_fault *vmf)
{
	struct vcoproc *vc = vmf->vma->vm_private_data;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&vc->iommu.lock);
	if (!vcoproc_alive(vc, vmf->vma->vm_file))
		ret = vcoproc_iommu_mkwrite(&vc->iommu, vmf);
	up_read(&vc->iommu.lock);

	return ret;
}

static const struct vm_operations_struct vcoproc_buffer_vm_ops = {
	.fault = vcoproc_buffer_fault,
	.pfn_mkwrite = vcoproc_buffer_mkwrite,
};

/* Maps either a part of the shared memory or the page of the resource table */
static int vcoproc_mmap_memory(struct vcoproc *vc, struct vm_area_struct *vma)
{
	unsigned long pages = vc->mem_size >> PAGE_SHIFT;
	bool table = vma->vm_pgoff == pages;

	if (vma->vm_pgoff > pages || vma_pages(vma) > (table ? 1 : pages - vma->vm_pgoff))
		return -EINVAL;
	vm_flags_set(vma, VM_PFNMAP);
	vma->vm_ops = &vcoproc_vm_ops;

	return 0;
}

/* Maps any range of device addresses; each access checks what is granted there */
static void vcoproc_mmap_buffer(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_PFNMAP | VM_DONTDUMP);
	vma->vm_ops = &vcoproc_buffer_vm_ops;
}

static int vcoproc_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct vcoproc *vc = filp->private_data;
	int ret = 0;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;

	if (vma->vm_pgoff >= VCOPROC_BUFFERS >> PAGE_SHIFT)
		vcoproc_mmap_buffer(vma);
	else
		ret = vcoproc_mmap_memory(vc, vma);
	if (ret)
		return ret;

	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTCOPY);
	vma->vm_private_data = vc;

	return 0;
}

static const struct file_operations vcoproc_fops = {
	.owner = THIS_MODULE,
	/* Device addresses are mmap() offsets, also where a long has 32 bits */
	.fop_flags = FOP_UNSIGNED_OFFSET,
	.open = vcoproc_open,
	.release = vcoproc_release,
	.read = vcoproc_read,
	.poll = vcoproc_poll,
	.unlocked_ioctl = vcoproc_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = vcoproc_mmap,
};

static ssize_t attached_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", !!READ_ONCE(dev_to_vcoproc(dev)->owner));
}
static DEVICE_ATTR_RO(attached);

static struct attribute *vcoproc_attrs[] = {
	&dev_attr_attached.attr,
	NULL
};
ATTRIBUTE_GROUPS(vcoproc);

static const struct class vcoproc_class = {
	.name = "vcoproc",
	.dev_groups = vcoproc_groups,
};

/* -- Creation and removal of a coprocessor -- */

static void vcoproc_free_memory(struct vcoproc *vc)
{
	if (vc->mem)
		free_pages_exact(vc->mem, vc->mem_size);
	free_page((unsigned long)vc->table);
	kfree(vc->loaded);
}

static int vcoproc_alloc_memory(struct vcoproc *vc)
{
	/* The resource table has room for 32-bit addresses only */
	vc->mem_size = memory_kib * SZ_1K;
	vc->mem = alloc_pages_exact(vc->mem_size, GFP_KERNEL | GFP_DMA32 | __GFP_ZERO);
	vc->table = (void *)get_zeroed_page(GFP_KERNEL);
	vc->loaded = kzalloc(PAGE_SIZE, GFP_KERNEL);
	if (vc->mem && vc->table && vc->loaded)
		return 0;

	vcoproc_free_memory(vc);
	return -ENOMEM;
}

static void vcoproc_release_device(struct device *dev)
{
	struct vcoproc *vc = dev_to_vcoproc(dev);

	put_device(&vc->rproc->dev);
	vcoproc_free_memory(vc);
	kfree(vc);
}

static void vcoproc_init(struct vcoproc *vc, struct platform_device *pdev)
{
	int i;

	init_rwsem(&vc->pause);
	vcoproc_iommu_init(&vc->iommu);
	spin_lock_init(&vc->used_lock);
	spin_lock_init(&vc->lock);
	init_waitqueue_head(&vc->events);
	init_waitqueue_head(&vc->answer);
	vc->interrupts.start = vcoproc_interrupts_start;
	vc->interrupts.stop = vcoproc_interrupts_stop;
	for (i = 0; i < VCOPROC_VRINGS; i++) {
		vc->vring[i].vc = vc;
		vc->vring[i].id = i;
		INIT_WORK(&vc->vring[i].work, vcoproc_vring_work);
	}

	device_initialize(&vc->dev);
	vc->dev.class = &vcoproc_class;
	vc->dev.parent = &pdev->dev;
	vc->dev.devt = MKDEV(MAJOR(vcoproc_devt), pdev->id);
	vc->dev.release = vcoproc_release_device;
	cdev_init(&vc->cdev, &vcoproc_fops);
	vc->cdev.owner = THIS_MODULE;
}

static int vcoproc_probe(struct platform_device *pdev)
{
	struct device *dev = &pdev->dev;
	struct vcoproc *vc;
	int ret;

	vc = kzalloc(sizeof(*vc), GFP_KERNEL);
	if (!vc)
		return -ENOMEM;

	ret = vcoproc_alloc_memory(vc);
	if (ret)
		goto free_vc;

	vc->rproc = rproc_alloc(dev, dev_name(dev), &vcoproc_rproc_ops, "vcoproc.fw", 0);
	if (!vc->rproc) {
		ret = -ENOMEM;
		goto free_memory;
	}
	vc->rproc->priv = vc;
	vc->rproc->auto_boot = false;
	get_device(&vc->rproc->dev);

	vcoproc_init(vc, pdev);
	platform_set_drvdata(pdev, vc);
	set_dma_ops(dev, &vcoproc_dma_ops);

	/* For buffers; memory of dma_alloc_coherent() stays below 4 GiB */
	ret = dma_set_mask(dev, DMA_BIT_MASK(64));
	if (ret)
		goto free_rproc;

	ret = dev_set_name(&vc->dev, "vcoproc%d", pdev->id);
	if (ret)
		goto free_rproc;

	/* Bound as in the remoteproc drivers, so that an interrupt stays on its CPU */
	vc->wq = alloc_workqueue("%s", WQ_HIGHPRI | WQ_PERCPU, 0, dev_name(dev));
	if (!vc->wq) {
		ret = -ENOMEM;
		goto free_rproc;
	}

	ret = rproc_add(vc->rproc);
	if (ret)
		goto destroy_wq;

	ret = cdev_device_add(&vc->cdev, &vc->dev);
	if (ret)
		goto del_rproc;

	return 0;

del_rproc:
	rproc_del(vc->rproc);
destroy_wq:
	destroy_workqueue(vc->wq);
free_rproc:
	rproc_free(vc->rproc);
	put_device(&vc->dev);
	return ret;

free_memory:
	vcoproc_free_memory(vc);
free_vc:
	kfree(vc);
	return ret;
}

/*
 * remoteproc counts every start, also of a running core, and needs as many calls of
 * rproc_shutdown(). rproc_del() makes one, or none if a signal interrupts its wait.
 */
static void vcoproc_shut_down(struct vcoproc *vc)
{
	int ret;

	WRITE_ONCE(vc->ending, true);
	while (atomic_read(&vc->rproc->power)) {
		ret = rproc_shutdown(vc->rproc);
		if (ret == -EINTR)
			msleep(20);
		else if (ret)
			break;
	}
}

static void vcoproc_remove(struct platform_device *pdev)
{
	struct vcoproc *vc = platform_get_drvdata(pdev);

	vcoproc_shut_down(vc);
	rproc_del(vc->rproc);

	spin_lock_irq(&vc->lock);
	vc->gone = true;
	spin_unlock_irq(&vc->lock);
	wake_up_all(&vc->events);

	cdev_device_del(&vc->cdev, &vc->dev);
	destroy_workqueue(vc->wq);
	rproc_free(vc->rproc);
	put_device(&vc->dev);
}

static struct platform_driver vcoproc_driver = {
	.probe = vcoproc_probe,
	.remove = vcoproc_remove,
	.driver = {
		.name = "vcoproc",
	},
};

/* -- Module -- */

static void vcoproc_unregister_devices(void)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		platform_device_unregister(vcoproc_pdev[i]);
}

static int vcoproc_register_devices(void)
{
	struct platform_device_info info = {
		.name = "vcoproc",
		.dma_mask = DMA_BIT_MASK(32),
	};
	struct platform_device *pdev;

	for (info.id = 0; info.id < count; info.id++) {
		pdev = platform_device_register_full(&info);
		if (IS_ERR(pdev)) {
			while (info.id--)
				platform_device_unregister(vcoproc_pdev[info.id]);
			return PTR_ERR(pdev);
		}
		vcoproc_pdev[info.id] = pdev;
	}

	return 0;
}

static int __init vcoproc_module_init(void)
{
	int ret;

	if (!count || count > VCOPROC_MAX) {
		pr_err("vcoproc: count=%u is not in the range 1 to %u\n", count, VCOPROC_MAX);
		return -EINVAL;
	}
	if (!is_power_of_2(memory_kib) || memory_kib < VCOPROC_MIN_KIB ||
	    memory_kib > VCOPROC_MAX_KIB) {
		pr_err("vcoproc: memory_kib=%u is not a power of two from %u to %u\n",
		       memory_kib, VCOPROC_MIN_KIB, VCOPROC_MAX_KIB);
		return -EINVAL;
	}

	ret = alloc_chrdev_region(&vcoproc_devt, 0, VCOPROC_MAX, "vcoproc");
	if (ret)
		return ret;

	ret = class_register(&vcoproc_class);
	if (ret)
		goto unregister_chrdev;

	ret = platform_driver_register(&vcoproc_driver);
	if (ret)
		goto unregister_class;

	ret = vcoproc_register_devices();
	if (ret)
		goto unregister_driver;

	return 0;

unregister_driver:
	platform_driver_unregister(&vcoproc_driver);
unregister_class:
	class_unregister(&vcoproc_class);
unregister_chrdev:
	unregister_chrdev_region(vcoproc_devt, VCOPROC_MAX);
	return ret;
}
module_init(vcoproc_module_init);

static void __exit vcoproc_module_exit(void)
{
	vcoproc_unregister_devices();
	platform_driver_unregister(&vcoproc_driver);
	class_unregister(&vcoproc_class);
	unregister_chrdev_region(vcoproc_devt, VCOPROC_MAX);
}
module_exit(vcoproc_module_exit);

MODULE_DESCRIPTION("Virtual coprocessor whose core is a user process");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
MODULE_FIRMWARE("vcoproc.fw");
