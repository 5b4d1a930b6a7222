/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VCONV_H
#define _VCONV_H

#include <linux/atomic.h>
#include <linux/hashtable.h>
#include <linux/iio/buffer-dma.h>
#include <linux/iio/iio.h>
#include <linux/iosys-map.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/wait.h>

struct dma_buf;
struct dma_fence;
struct platform_device;
struct task_struct;
struct vconv;

#define VCONV_NAME_LEN		32
#define VCONV_TX_SUFFIX		"-tx"

/* A frame: one sample of all four voltages, 16 bits each, the first one lowest. */
#define VCONV_VOLTAGES		4
#define VCONV_FRAME_SIZE	(VCONV_VOLTAGES * sizeof(__le16))
#define VCONV_COUNT		4
#define VCONV_TIMESTAMP		5

/* Frames that are made at a time where they have to be sorted into a scan. */
#define VCONV_RUN		512

/* A gain of 1 */
#define VCONV_UNITY		BIT(16)

/* Samples per second; the second is what a sine is reckoned with where there is no rate. */
#define VCONV_MAX_RATE		1000000000
#define VCONV_NOMINAL_RATE	1000000
#define VCONV_SINE_FREQUENCY	1000

enum vconv_pattern {
	VCONV_COUNTER,
	VCONV_SINE,
	VCONV_NOISE,
	VCONV_NONE,
};

/* Faults that are asked for in debugfs */
enum vconv_fault {
	VCONV_LOSE,
	VCONV_SHORT,
	VCONV_FAIL,
	VCONV_FAULTS,
};

/**
 * struct vconv_source - what a pattern is made of
 * @pattern: which one
 * @step: by how much the phase of the sine advances, 2^32 being a turn
 * @gain: of each voltage, VCONV_UNITY being 1
 */
struct vconv_source {
	enum vconv_pattern pattern;
	u32 step;
	u32 gain[VCONV_VOLTAGES];
};

/**
 * struct vconv_scan - where the channels are in a sample
 * @size: bytes of a sample
 * @plain: a sample is a frame, no more and no less
 * @any_voltage: there is one in it
 * @voltage: offset of each voltage, negative if it is not in it
 * @count: offset of the count
 * @timestamp: offset of the timestamp
 */
struct vconv_scan {
	size_t size;
	bool plain;
	bool any_voltage;
	int voltage[VCONV_VOLTAGES];
	int count;
	int timestamp;
};

/**
 * struct vconv_slot - a block as the converter sees it
 * @node: in the table of the direction's DMABUFs
 * @entry: in the list of those that are queued
 * @block: the block
 * @dmabuf: its DMABUF, NULL for one of the two that read() and write() use
 * @map: where that is mapped
 * @is_udmabuf: whether it was mapped here and not by its exporter
 * @fence: what its DMABUF was queued with last
 * @samples: how many fit
 * @missed: samples that went by before the block was queued
 */
struct vconv_slot {
	struct hlist_node node;
	struct list_head entry;
	struct iio_dma_buffer_block *block;
	struct dma_buf *dmabuf;
	struct iosys_map map;
	bool is_udmabuf;
	struct dma_fence *fence;
	u64 samples;
	u64 missed;
};

/**
 * struct vconv_loop - samples on their way from transmitter to receiver
 * @lock: protects everything here; held while samples are copied, taken by the
 *	workers within fence signalling: no memory is allocated under it
 * @frames: ring of frames, NULL until it is used for the first time
 * @head: frames that were ever put in
 * @tail: frames that were ever taken out
 * @open: the receiver is running
 */
struct vconv_loop {
	struct mutex lock; /* see above */
	__le64 *frames;
	u32 head;
	u32 tail;
	bool open;
};

/**
 * struct vconv_dir - one direction of a converter
 * @queue: the IIO core's side of the buffer, whose reference count is that of this structure
 * @conv: the converter; not valid once @gone
 * @indio_dev: the IIO device, likewise
 * @name: its name
 * @tx: this is the transmitter
 * @io_lock: held by all that the IIO core calls, so that several of the queue's own
 *	calls can be one. Taken before the queue's lock. The worker waits for neither.
 * @gone: the device is being removed; set under both locks
 *
 * @rate: samples per second, 0 is as fast as blocks come
 * @pattern: what the receiver makes
 * @gain: of each voltage, VCONV_UNITY being 1; may change at any time
 * @sine_frequency: in Hz
 * @loopback: the receiver takes what the transmitter sends
 * @faults: faults that wait to happen
 *
 * @scan: layout of a sample, fixed while the buffer is enabled
 * @clock: samples per second of the present run, 0 for none
 * @start: when sample 0 was, on the monotonic clock
 * @start_ns: the same on the device's clock
 *
 * @slots: DMABUFs, by block. Protected by the queue's list_lock, as all that follows.
 * @fileio: the two blocks of read() and write()
 * @pending: queued slots, the first being the one that @busy says
 * @busy: the worker is at a slot
 * @stopping: it shall leave that and take no other
 * @started: @start is valid
 * @enabling: what is queued now was queued before, and is in time
 * @position: number of the next sample
 * @queued: samples that the pending slots are good for
 * @missed: samples of this run that no block was there for
 *
 * @worker: fills or transmits blocks
 * @wait: where it waits for work, for time to pass and for the other direction
 * @idle: where others wait for it to be out of a slot
 * @run: frames on their way into or out of a scan; the worker's own
 */
struct vconv_dir {
	struct iio_dma_buffer_queue queue;
	struct vconv *conv;
	struct iio_dev *indio_dev;
	char name[VCONV_NAME_LEN + sizeof(VCONV_TX_SUFFIX)];
	bool tx;
	struct mutex io_lock; /* see above */
	bool gone;

	u32 rate;
	enum vconv_pattern pattern;
	u32 gain[VCONV_VOLTAGES];
	u32 sine_frequency;
	bool loopback;
	atomic64_t faults[VCONV_FAULTS];

	struct vconv_scan scan;
	u32 clock;
	ktime_t start;
	s64 start_ns;

	DECLARE_HASHTABLE(slots, 6);
	struct vconv_slot fileio[2];
	struct list_head pending;
	bool busy;
	bool stopping;
	bool started;
	bool enabling;
	u64 position;
	u64 queued;
	u64 missed;

	struct task_struct *worker;
	wait_queue_head_t wait;
	wait_queue_head_t idle;
	__le64 run[VCONV_RUN];
};

/**
 * struct vconv - a converter
 * @entry: in the list of converters
 * @name: its name
 * @pdev: the device that blocks are mapped for
 * @rx: the receiver
 * @tx: the transmitter
 * @loop: between them
 */
struct vconv {
	struct list_head entry;
	char name[VCONV_NAME_LEN];
	struct platform_device *pdev;
	struct vconv_dir *rx;
	struct vconv_dir *tx;
	struct vconv_loop loop;
};

static inline struct vconv_dir *vconv_dir_of(struct iio_buffer *buffer)
{
	return container_of(buffer, struct vconv_dir, queue.buffer);
}

/* device.c */
struct vconv_dir *vconv_dir_create(struct vconv *conv, bool tx);
int vconv_dir_register(struct vconv_dir *dir);
void vconv_dir_unregister(struct vconv_dir *dir);
void vconv_dir_destroy(struct vconv_dir *dir);

/* buffer.c */
struct vconv_dir *vconv_buffer_create(struct device *dev, bool tx);
void vconv_buffer_cut_off(struct vconv_dir *dir);
void vconv_buffers_drain(void);

/* worker.c */
int vconv_worker_create(struct vconv_dir *dir);
void vconv_worker_destroy(struct vconv_dir *dir);
void vconv_worker_reset(struct vconv_dir *dir);
void vconv_worker_start(struct vconv_dir *dir);
void vconv_worker_submit(struct vconv_dir *dir, struct vconv_slot *slot);
void vconv_worker_abort(struct vconv_dir *dir);

/* pattern.c */
void vconv_pattern_init(void);
void vconv_pattern_fill(const struct vconv_source *source, __le64 *frames, u64 first, size_t n);
void vconv_scan_scatter(const struct vconv_scan *scan, void *to, const __le64 *frames, size_t n);
void vconv_scan_gather(const struct vconv_scan *scan, __le64 *frames, const void *from, size_t n);
void vconv_scan_count(const struct vconv_scan *scan, void *to, u64 first, size_t n);
void vconv_scan_time(const struct vconv_scan *scan, void *to, s64 start, u32 rate, u64 first,
		     size_t n);

/* loop.c */
int vconv_loop_alloc(struct vconv_loop *loop);
void vconv_loop_free(struct vconv_loop *loop);
void vconv_loop_open(struct vconv *conv);
void vconv_loop_close(struct vconv *conv);
bool vconv_loop_has_frames(struct vconv_loop *loop);
bool vconv_loop_has_room(struct vconv_loop *loop);
bool vconv_loop_push(struct vconv *conv, const __le64 *frames, size_t *n);
size_t vconv_loop_pop(struct vconv *conv, __le64 *frames, size_t n);

#endif
