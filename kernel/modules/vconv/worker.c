// SPDX-License-Identifier: GPL-2.0
/*
 * The converter's thread: fills or transmits one block after another at the
 * sampling rate
 *
 * From taking a block to completing it the worker is in a fence signalling section:
 * it allocates no memory and takes no lock whose holders allocate. It accesses
 * blocks through mappings that were made when they were attached.
 */

#include <linux/dma-fence.h>
#include <linux/hrtimer.h>
#include <linux/iio/buffer-dma.h>
#include <linux/kthread.h>
#include <linux/math64.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "vconv.h"

/* Number of bytes after which the worker checks whether it has to stop */
#define VCONV_SLICE	SZ_64K

/* Value of each 16 bits of a block that failed */
#define VCONV_POISON	0x8000

static bool vconv_stopping(struct vconv_dir *dir)
{
	return READ_ONCE(dir->stopping);
}

/* -- Time -- */

static ktime_t vconv_time_of(struct vconv_dir *dir, u64 sample)
{
	return ktime_add_ns(dir->start, mul_u64_u64_div_u64(sample, NSEC_PER_SEC, dir->clock));
}

static u64 vconv_sample_now(struct vconv_dir *dir)
{
	u64 elapsed = ktime_to_ns(ktime_sub(ktime_get(), dir->start));

	return mul_u64_u64_div_u64(elapsed, dir->clock, NSEC_PER_SEC);
}

static void vconv_start_clock(struct vconv_dir *dir)
{
	dir->start = ktime_get();
	dir->start_ns = iio_get_time_ns(dir->indio_dev);
	dir->started = true;
}

/* Sleeps until the time of sample @end, unless the worker has to stop */
static void vconv_sleep_until(struct vconv_dir *dir, u64 end)
{
	ktime_t left;

	if (!dir->clock)
		return;
	left = ktime_sub(vconv_time_of(dir, end), ktime_get());
	if (ktime_to_ns(left) > 0)
		wait_event_interruptible_hrtimeout(dir->wait, vconv_stopping(dir), left);
}

/* -- Queue -- */

/**
 * vconv_worker_reset() - prepare a run
 * @dir: the direction; it has no blocks
 */
void vconv_worker_reset(struct vconv_dir *dir)
{
	spin_lock_irq(&dir->queue.list_lock);
	dir->stopping = false;
	dir->started = false;
	dir->position = 0;
	dir->queued = 0;
	dir->missed = 0;
	dir->enabling = true;
	spin_unlock_irq(&dir->queue.list_lock);
}

/**
 * vconv_worker_start() - start a run after the blocks that waited for it are queued
 * @dir: the direction
 *
 * Starts the clock of a receiver. That of a transmitter starts with its first block.
 */
void vconv_worker_start(struct vconv_dir *dir)
{
	spin_lock_irq(&dir->queue.list_lock);
	if (!dir->started && !dir->tx)
		vconv_start_clock(dir);
	dir->enabling = false;
	spin_unlock_irq(&dir->queue.list_lock);
}

static bool vconv_repeats(struct vconv_dir *dir)
{
	struct vconv_slot *last = list_last_entry(&dir->pending, struct vconv_slot, entry);

	return !list_empty(&dir->pending) && last->block->cyclic;
}

/* Returns the number of samples that passed after the end of the queued blocks */
static u64 vconv_late_by(struct vconv_dir *dir)
{
	u64 end = dir->position + dir->queued, now;

	if (!dir->clock || !dir->started || dir->enabling || vconv_repeats(dir))
		return 0;
	now = vconv_sample_now(dir);

	return now > end ? now - end : 0;
}

/**
 * vconv_worker_submit() - queue a block
 * @dir: the direction; it is enabled
 * @slot: the block, with its number of samples
 *
 * Called with the queue's list_lock held.
 */
void vconv_worker_submit(struct vconv_dir *dir, struct vconv_slot *slot)
{
	lockdep_assert_held(&dir->queue.list_lock);

	slot->missed = vconv_late_by(dir);
	if (!dir->started)
		vconv_start_clock(dir);
	dir->missed += slot->missed;
	dir->queued += slot->missed + slot->samples;
	list_add_tail(&slot->entry, &dir->pending);
	if (wq_has_sleeper(&dir->wait))
		wake_up(&dir->wait);
}

/**
 * vconv_worker_abort() - return all blocks
 * @dir: the direction
 *
 * Called with the queue's lock held, which the worker never takes.
 */
void vconv_worker_abort(struct vconv_dir *dir)
{
	struct vconv_slot *slot;
	LIST_HEAD(blocks);

	spin_lock_irq(&dir->queue.list_lock);
	dir->stopping = true;
	spin_unlock_irq(&dir->queue.list_lock);
	wake_up(&dir->wait);
	wait_event(dir->idle, !READ_ONCE(dir->busy));

	spin_lock_irq(&dir->queue.list_lock);
	list_for_each_entry(slot, &dir->pending, entry)
		list_add_tail(&slot->block->head, &blocks);
	INIT_LIST_HEAD(&dir->pending);
	spin_unlock_irq(&dir->queue.list_lock);

	iio_dma_buffer_block_list_abort(&dir->queue, &blocks);
}

/* -- One block -- */

/**
 * struct vconv_pass - one pass through a block
 * @data: its samples
 * @first: number of the first sample
 * @samples: number of samples; fewer than fit after the fault VCONV_SHORT
 * @error: error for the block's fence
 */
struct vconv_pass {
	void *data;
	u64 first;
	u64 samples;
	int error;
};

/* Consumes one injected failure; called by the worker only */
static bool vconv_take_failure(struct vconv_dir *dir)
{
	return atomic64_dec_if_positive(&dir->faults[VCONV_FAIL]) >= 0;
}

static void vconv_begin(struct vconv_dir *dir, struct vconv_slot *slot, struct vconv_pass *pass)
{
	u64 lose = atomic64_xchg(&dir->faults[VCONV_LOSE], 0);
	u64 cut = min_t(u64, atomic64_xchg(&dir->faults[VCONV_SHORT], 0), slot->samples);

	pass->data = slot->block->vaddr;
	pass->samples = slot->samples - cut;
	pass->error = vconv_take_failure(dir) ? -EIO : 0;

	spin_lock_irq(&dir->queue.list_lock);
	dir->position += slot->missed + lose;
	dir->queued -= slot->missed + cut;
	dir->missed += lose;
	if (pass->error)
		dir->missed += pass->samples;
	pass->first = dir->position;
	slot->samples = pass->samples;
	slot->missed = 0;
	spin_unlock_irq(&dir->queue.list_lock);
}

/* Writes count and time of @n samples from @at on */
static void vconv_stamp(struct vconv_dir *dir, struct vconv_pass *pass, u64 at, size_t n,
			s64 time)
{
	void *to = pass->data + at * dir->scan.size;

	vconv_scan_count(&dir->scan, to, pass->first + at, n);
	vconv_scan_time(&dir->scan, to, time, dir->clock, pass->first + at, n);
}

static void vconv_generate(struct vconv_dir *dir, const struct vconv_source *source, void *to,
			   u64 first, size_t n)
{
	size_t now;

	if (source->pattern == VCONV_NONE || !dir->scan.any_voltage)
		return;
	if (dir->scan.plain) {
		vconv_pattern_fill(source, to, first, n);
		return;
	}
	for (; n; n -= now, first += now, to += now * dir->scan.size) {
		now = min_t(size_t, n, VCONV_RUN);
		vconv_pattern_fill(source, dir->run, first, now);
		vconv_scan_scatter(&dir->scan, to, dir->run, now);
	}
}

static void vconv_get_source(struct vconv_dir *dir, struct vconv_source *source)
{
	u32 rate = dir->clock ?: VCONV_NOMINAL_RATE;
	int i;

	source->pattern = dir->pattern;
	source->step = div_u64((u64)dir->sine_frequency << 32, rate);
	for (i = 0; i < VCONV_VOLTAGES; i++)
		source->gain[i] = READ_ONCE(dir->gain[i]);
}

/* Return: false if it was stopped */
static bool vconv_make(struct vconv_dir *dir, struct vconv_pass *pass, s64 time)
{
	size_t slice = max_t(size_t, VCONV_SLICE / dir->scan.size, 1);
	struct vconv_source source;
	u64 at = 0;
	size_t n;

	vconv_get_source(dir, &source);
	/* With nothing to write, do not loop over a long block */
	if ((source.pattern == VCONV_NONE || !dir->scan.any_voltage) && dir->scan.count < 0 &&
	    dir->scan.timestamp < 0)
		return true;

	for (; at < pass->samples; at += n) {
		if (vconv_stopping(dir))
			return false;
		n = min_t(u64, pass->samples - at, slice);
		vconv_generate(dir, &source, pass->data + at * dir->scan.size, pass->first + at, n);
		vconv_stamp(dir, pass, at, n, time);
		cond_resched();
	}

	return true;
}

static bool vconv_receive(struct vconv_dir *dir, struct vconv_pass *pass, s64 time)
{
	struct vconv_loop *loop = &dir->conv->loop;
	u64 at = 0;
	size_t n;

	while (at < pass->samples) {
		wait_event_interruptible(dir->wait,
					 vconv_stopping(dir) || vconv_loop_has_frames(loop));
		if (vconv_stopping(dir))
			return false;
		n = vconv_loop_pop(dir->conv, dir->run, min_t(u64, pass->samples - at, VCONV_RUN));
		vconv_scan_scatter(&dir->scan, pass->data + at * dir->scan.size, dir->run, n);
		vconv_stamp(dir, pass, at, n, time);
		at += n;
		cond_resched();
	}

	return true;
}

/*
 * Marks the samples of a failed block, for programs that do not check for errors. A
 * sine has a smaller amplitude.
 */
static void vconv_poison(struct vconv_dir *dir, struct vconv_pass *pass)
{
	u16 poison = (__force u16)cpu_to_le16(VCONV_POISON);
	size_t left = pass->samples * dir->scan.size;
	void *to = pass->data;
	size_t n;

	for (; left; left -= n, to += n) {
		n = min_t(size_t, left, VCONV_SLICE);
		memset16(to, poison, n / sizeof(poison));
		cond_resched();
	}
}

static bool vconv_fill(struct vconv_dir *dir, struct vconv_pass *pass)
{
	s64 time = dir->clock ? dir->start_ns : iio_get_time_ns(dir->indio_dev);
	bool whole;

	if (dir->loopback)
		whole = vconv_receive(dir, pass, time);
	else
		whole = vconv_make(dir, pass, time);
	if (pass->error)
		vconv_poison(dir, pass);
	if (whole)
		vconv_sleep_until(dir, pass->first + pass->samples);

	return whole && !vconv_stopping(dir);
}

/* A block that fails takes the same time, but is not sent */
static bool vconv_send(struct vconv_dir *dir, struct vconv_pass *pass)
{
	struct vconv_loop *loop = &dir->conv->loop;
	u64 at = 0;
	size_t n;

	while (!pass->error && at < pass->samples && READ_ONCE(loop->open)) {
		wait_event_interruptible(dir->wait,
					 vconv_stopping(dir) || vconv_loop_has_room(loop));
		if (vconv_stopping(dir))
			return false;
		n = min_t(u64, pass->samples - at, VCONV_RUN);
		vconv_scan_gather(&dir->scan, dir->run, pass->data + at * dir->scan.size, n);
		if (!vconv_loop_push(dir->conv, dir->run, &n))
			break;
		at += n;
		cond_resched();
	}
	vconv_sleep_until(dir, pass->first + pass->samples);

	return !vconv_stopping(dir);
}

/* Without a rate and without a receiver, repetitions would only use CPU time */
static bool vconv_worth_repeating(struct vconv_dir *dir)
{
	return dir->clock || READ_ONCE(dir->conv->loop.open);
}

/* Without the lock: blocks may be added at the same time */
static bool vconv_is_last(struct vconv_dir *dir, struct vconv_slot *slot)
{
	return READ_ONCE(slot->entry.next) == &dir->pending;
}

/*
 * Repeats a cyclic block. Return: true at the end of a pass after which another block
 * follows, false if the buffer is disabled
 */
static bool vconv_repeat(struct vconv_dir *dir, struct vconv_slot *slot, struct vconv_pass *pass)
{
	while (vconv_is_last(dir, slot)) {
		wait_event_interruptible(dir->wait, vconv_stopping(dir) ||
					 vconv_worth_repeating(dir) ||
					 !vconv_is_last(dir, slot));
		if (vconv_stopping(dir))
			return false;
		if (!vconv_worth_repeating(dir))
			continue;

		spin_lock_irq(&dir->queue.list_lock);
		dir->position += pass->samples;
		pass->first = dir->position;
		spin_unlock_irq(&dir->queue.list_lock);
		if (!vconv_send(dir, pass))
			return false;
		cond_resched();
	}

	return true;
}

static bool vconv_transfer(struct vconv_dir *dir, struct vconv_slot *slot, struct vconv_pass *pass)
{
	if (!dir->tx)
		return vconv_fill(dir, pass);
	if (!vconv_send(dir, pass))
		return false;

	if (!slot->block->cyclic || !pass->samples || pass->error)
		return true;

	return vconv_repeat(dir, slot, pass);
}

/*
 * An IIO core without our patch cannot complete a block with an error. The fence is
 * signalled without one, and only the samples show the failure.
 */
#ifndef VCONV_HAS_BLOCK_FAIL
static void iio_dma_buffer_block_fail(struct iio_dma_buffer_block *block, int error)
{
	if (!block->fileio)
		pr_notice_once("vconv: this kernel cannot end one fence with an error\n");
	iio_dma_buffer_block_done(block);
}
#endif

static void vconv_unlink(struct vconv_dir *dir, struct vconv_slot *slot, struct vconv_pass *pass)
{
	spin_lock_irq(&dir->queue.list_lock);
	list_del(&slot->entry);
	dir->position += pass->samples;
	dir->queued -= pass->samples;
	spin_unlock_irq(&dir->queue.list_lock);
}

/* The slot may be freed as soon as its block is completed */
static void vconv_process(struct vconv_dir *dir, struct vconv_slot *slot)
{
	struct iio_dma_buffer_block *block = slot->block;
	struct vconv_pass pass;

	vconv_begin(dir, slot, &pass);
	if (!vconv_transfer(dir, slot, &pass))
		return;

	/* In a transmitter's block, bytes_used is the room for write() */
	if (!dir->tx)
		block->bytes_used = pass.error ? 0 : pass.samples * dir->scan.size;
	vconv_unlink(dir, slot, &pass);
	if (pass.error)
		iio_dma_buffer_block_fail(block, pass.error);
	else
		iio_dma_buffer_block_done(block);
}

/* -- The thread -- */

static struct vconv_slot *vconv_take(struct vconv_dir *dir)
{
	struct vconv_slot *slot = NULL;

	spin_lock_irq(&dir->queue.list_lock);
	if (!dir->stopping)
		slot = list_first_entry_or_null(&dir->pending, struct vconv_slot, entry);
	WRITE_ONCE(dir->busy, !!slot);
	spin_unlock_irq(&dir->queue.list_lock);

	return slot;
}

static bool vconv_has_work(struct vconv_dir *dir)
{
	return !vconv_stopping(dir) && !list_empty_careful(&dir->pending);
}

static int vconv_work(void *data)
{
	struct vconv_dir *dir = data;
	struct vconv_slot *slot;
	bool cookie;

	while (!kthread_should_stop()) {
		wait_event_interruptible(dir->wait, kthread_should_stop() || vconv_has_work(dir));
		slot = vconv_take(dir);
		if (!slot)
			continue;

		cookie = dma_fence_begin_signalling();
		vconv_process(dir, slot);
		dma_fence_end_signalling(cookie);

		spin_lock_irq(&dir->queue.list_lock);
		WRITE_ONCE(dir->busy, false);
		spin_unlock_irq(&dir->queue.list_lock);
		wake_up(&dir->idle);
		cond_resched();
	}

	return 0;
}

/**
 * vconv_worker_create() - start the thread
 * @dir: a direction with a name
 *
 * Return: 0 or a negative errno.
 */
int vconv_worker_create(struct vconv_dir *dir)
{
	struct task_struct *worker;

	INIT_LIST_HEAD(&dir->pending);
	init_waitqueue_head(&dir->wait);
	init_waitqueue_head(&dir->idle);
	worker = kthread_run(vconv_work, dir, "vconv/%s", dir->name);
	if (IS_ERR(worker))
		return PTR_ERR(worker);
	dir->worker = worker;

	return 0;
}

/**
 * vconv_worker_destroy() - end the thread
 * @dir: a direction without blocks
 */
void vconv_worker_destroy(struct vconv_dir *dir)
{
	kthread_stop(dir->worker);
}
