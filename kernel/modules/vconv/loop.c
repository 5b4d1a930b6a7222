// SPDX-License-Identifier: GPL-2.0
/*
 * Loopback: passes samples from the transmitter to the receiver
 *
 * While the receiver is running, the transmitter waits for room, so no samples are
 * lost. Without a receiver they are discarded.
 */

#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/string.h>

#include "vconv.h"

#define VCONV_LOOP_FRAMES	BIT(15)

/**
 * vconv_loop_alloc() - allocate the ring
 * @loop: the loop; its receiver is not running
 *
 * Return: 0, also if there is a ring already, or -ENOMEM.
 */
int vconv_loop_alloc(struct vconv_loop *loop)
{
	__le64 *frames;

	if (READ_ONCE(loop->frames))
		return 0;
	frames = kvmalloc_array(VCONV_LOOP_FRAMES, sizeof(*frames), GFP_KERNEL);
	if (!frames)
		return -ENOMEM;

	mutex_lock(&loop->lock);
	if (!loop->frames)
		swap(loop->frames, frames);
	mutex_unlock(&loop->lock);
	kvfree(frames);

	return 0;
}

void vconv_loop_free(struct vconv_loop *loop)
{
	kvfree(loop->frames);
}

/**
 * vconv_loop_open() - the receiver starts
 * @conv: the converter
 */
void vconv_loop_open(struct vconv *conv)
{
	struct vconv_loop *loop = &conv->loop;

	mutex_lock(&loop->lock);
	loop->head = 0;
	loop->tail = 0;
	WRITE_ONCE(loop->open, true);
	mutex_unlock(&loop->lock);
	wake_up(&conv->tx->wait);
}

/**
 * vconv_loop_close() - the receiver stops
 * @conv: the converter
 */
void vconv_loop_close(struct vconv *conv)
{
	mutex_lock(&conv->loop.lock);
	WRITE_ONCE(conv->loop.open, false);
	mutex_unlock(&conv->loop.lock);
	wake_up(&conv->tx->wait);
}

/* Without the lock, as a condition of a wait: vconv_loop_pop() checks again under it */
bool vconv_loop_has_frames(struct vconv_loop *loop)
{
	return READ_ONCE(loop->head) != READ_ONCE(loop->tail);
}

bool vconv_loop_has_room(struct vconv_loop *loop)
{
	return !READ_ONCE(loop->open) ||
	       READ_ONCE(loop->head) - READ_ONCE(loop->tail) < VCONV_LOOP_FRAMES;
}

/**
 * vconv_loop_push() - send frames to the receiver
 * @conv: the converter
 * @frames: the frames
 * @n: number of frames; afterwards, number of frames taken
 *
 * Return: false if the receiver is not running.
 */
bool vconv_loop_push(struct vconv *conv, const __le64 *frames, size_t *n)
{
	struct vconv_loop *loop = &conv->loop;
	u32 i, at;

	mutex_lock(&loop->lock);
	if (!loop->open) {
		mutex_unlock(&loop->lock);
		return false;
	}
	*n = min_t(size_t, *n, VCONV_LOOP_FRAMES - (loop->head - loop->tail));
	for (i = 0, at = loop->head; i < *n; i++, at++)
		loop->frames[at % VCONV_LOOP_FRAMES] = frames[i];
	WRITE_ONCE(loop->head, at);
	mutex_unlock(&loop->lock);
	if (*n)
		wake_up(&conv->rx->wait);

	return true;
}

/**
 * vconv_loop_pop() - receive frames
 * @conv: the converter
 * @frames: destination
 * @n: number of frames that there is room for
 *
 * Return: number of frames received, 0 if there are none yet.
 */
size_t vconv_loop_pop(struct vconv *conv, __le64 *frames, size_t n)
{
	struct vconv_loop *loop = &conv->loop;
	u32 i, at;

	mutex_lock(&loop->lock);
	n = min_t(size_t, n, loop->head - loop->tail);
	for (i = 0, at = loop->tail; i < n; i++, at++)
		frames[i] = loop->frames[at % VCONV_LOOP_FRAMES];
	WRITE_ONCE(loop->tail, at);
	mutex_unlock(&loop->lock);
	if (n)
		wake_up(&conv->tx->wait);

	return n;
}
