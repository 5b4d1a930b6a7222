/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VCONV_H
#define _VCONV_H

#include <linux/atomic.h>
#include <linux/hashtable.h>
#include <linux/iio/buffer-dma.h>
#include <linux/iio/iio.h>
#include <linux/iosys-map.h>
#include <linux/kconfig.h>
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

/* A frame: one sample of all four voltages, 16 bits each, the first in the lowest bits */
#define VCONV_VOLTAGES		4
#define VCONV_FRAME_SIZE	(VCONV_VOLTAGES * sizeof(__le16))
#define VCONV_COUNT		4
#define VCONV_TIMESTAMP		5

/* Frames that are converted at a time where a scan has another layout */
#define VCONV_RUN		512

/* A gain of 1 */
#define VCONV_UNITY		BIT(16)

/* Samples per second. The nominal rate determines a sine's phase where no rate is set. */
#define VCONV_MAX_RATE		1000000000
#define VCONV_NOMINAL_RATE	1000000
#define VCONV_SINE_FREQUENCY	1000

enum vconv_pattern {
	VCONV_COUNTER,
	VCONV_SINE,
	VCONV_NOISE,
	VCONV_NONE,
};

/* Faults that debugfs injects */
enum vconv_fault {
	VCONV_LOSE,
	VCONV_SHORT,
	VCONV_FAIL,
	VCONV_FAULTS,
};

/**
 * struct vconv_source - a pattern and its settings
 * @pattern: the pattern
 * @step: phase increment of the sine per sample; 2^32 is a turn
 * @gain: gain of each voltage; VCONV_UNITY is 1
 */
struct vconv_source {
	enum vconv_pattern pattern;
	u32 step;
	u32 gain[VCONV_VOLTAGES];
};

/**
 * struct vconv_scan - the layout of a sample
 * @size: number of bytes of a sample
 * @plain: a sample is exactly a frame
 * @any_voltage: the sample has a voltage
 * @voltage: offset of each voltage, negative if the sample does not have it
 * @count: offset of the count, likewise
 * @timestamp: offset of the timestamp, likewise
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
 * struct vconv_slot - the converter's data of a block
 * @node: in vconv_dir.slots
 * @entry: in vconv_dir.pending
 * @block: the block
 * @dmabuf: its DMABUF, NULL for one of the two blocks of read() and write()
 * @map: kernel mapping of the DMABUF
 * @is_udmabuf: this module has mapped it, not its exporter
 * @fence: fence of the last enqueue
 * @samples: number of samples that fit
 * @missed: samples that passed before the block was queued
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
 * struct vconv_loop - the ring from the transmitter to the receiver
 * @lock: protects all members. It is held while samples are copied. The workers
 *	take it within fence signalling, so its holder must not allocate memory
 * @frames: ring of frames, NULL until its first use
 * @head: total number of frames written
 * @tail: total number of frames read
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
 * @queue: the IIO core's side of the buffer; its reference count is that of this
 *	structure
 * @conv: the converter; not valid once @gone
 * @indio_dev: the IIO device; not valid once @gone
 * @name: name of the IIO device
 * @tx: this is the transmitter
 * @io_lock: held in the callbacks of the IIO core, so that several calls of the queue
 *	are one step. Taken before the queue's lock. The worker waits for neither.
 * @gone: the device is being removed; set under both locks
 *
 * @rate: samples per second; 0: as fast as blocks are queued
 * @pattern: pattern that the receiver generates
 * @gain: gain of each voltage; VCONV_UNITY is 1; may change at any time
 * @sine_frequency: frequency of the sine in Hz
 * @loopback: the receiver gets what the transmitter sends
 * @faults: number of each fault to inject
 *
 * @scan: layout of a sample, fixed while the buffer is enabled
 * @clock: samples per second of the current run, 0 for none
 * @start: time of sample 0 on the monotonic clock
 * @start_ns: time of sample 0 on the device's clock
 *
 * @slots: slots of DMABUFs, by block. The queue's list_lock protects this and all
 *	members below.
 * @fileio: slots of the two blocks of read() and write()
 * @pending: queued slots; while @busy, the first is the worker's current one
 * @busy: the worker processes a slot
 * @stopping: the worker has to leave its slot and take no other
 * @started: @start is valid
 * @enabling: blocks queued now were enqueued before the run, so they are not late
 * @position: number of the next sample
 * @queued: number of samples that the pending slots cover
 * @missed: number of samples of this run without a block
 *
 * @worker: fills or transmits blocks
 * @wait: wait queue of the worker: for work, for time and for the other direction
 * @idle: wait queue for the end of @busy
 * @run: frames being converted to or from a scan; used by the worker only
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
 * @loop: the loopback between them
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

/* main.c */
struct vconv *vconv_create(const char *name);
void vconv_destroy(struct vconv *conv);

/* sw.c */
#if IS_ENABLED(CONFIG_IIO_SW_DEVICE)
int vconv_sw_register(void);
void vconv_sw_unregister(void);
#else
static inline int vconv_sw_register(void)
{
	return 0;
}

static inline void vconv_sw_unregister(void)
{
}
#endif

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
