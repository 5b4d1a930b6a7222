/* SPDX-License-Identifier: GPL-2.0 */
/*
 * DMABUFs passed by reference: an endpoint sends the address of a part of a
 * DMABUF instead of its bytes. Internal interface of the files for DMABUFs.
 *
 * The calls and their rules are those of IIO's DMABUF interface
 * (drivers/iio/industrialio-buffer.c): a buffer is attached once, parts of it
 * are sent often, and each send adds a fence to the buffer.
 *
 * The remote owns a part from the message GIVEN until the message DONE with the
 * same cookie. Lifetimes:
 *
 *	struct eptfd_transfer	from the send until the part is returned. It
 *				contains the fence, so it lives as long as anyone
 *				refers to that. It holds a reference of the module.
 *	struct eptfd_buffer	from the attach until it is detached and all its
 *				transfers have ended.
 *	struct eptfd_share	as long as the endpoint. It counts its users:
 *				transfers, buffers and calls in progress. The end of
 *				an endpoint waits until there are none, so a user
 *				must not access user memory: a page fault there can
 *				wait for a file server that does not answer. If a
 *				file is closed while there are users, the last of
 *				them finishes the endpoint.
 */
#ifndef RPMSG_EPTFD_SHARE_H
#define RPMSG_EPTFD_SHARE_H

#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rpmsg.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include <linux/rpmsg_bulk.h>
#include <linux/rpmsg_eptfd.h>

struct dma_buf;
struct dma_buf_attachment;
struct dma_resv;
struct eptfd_ep;
struct eptfd_owner;
struct file;

/* Most parts of one endpoint that the remote can hold at a time */
#define EPTFD_TRANSFERS_MAX	1024

/**
 * struct eptfd_share - the buffers that an endpoint shares with the remote
 * @ep: the endpoint
 * @lock: protects the members up to @idle; taken in callbacks
 * @transfers: parts that the remote holds or is about to get
 * @count: number of @transfers
 * @users: see above
 * @owner: user that the endpoint is charged to while @count is not 0, NULL for
 *	none. Set by each attach: another user may open a node next.
 * @strays: number of answers for parts that the remote did not hold
 * @ended: no further part is shared
 * @closed: finishes an endpoint whose file was closed while there were users
 * @closing: calls @closed, as the last user may hold a lock that @closed takes
 * @late: signals the fences of parts that the remote keeps too long
 * @idle: wait queue of the end of the endpoint, woken when @users is 0
 * @setup: protects @buffers
 * @buffers: attached buffers
 */
struct eptfd_share {
	struct eptfd_ep *ep;
	spinlock_t lock;	/* see above */
	struct list_head transfers;
	unsigned int count;
	unsigned int users;
	struct eptfd_owner *owner;
	u64 strays;
	bool ended;
	void (*closed)(struct eptfd_ep *ep);
	struct work_struct closing;
	struct delayed_work late;
	wait_queue_head_t idle;
	struct mutex setup;	/* buffers */
	struct list_head buffers;
};

/**
 * struct eptfd_buffer - a DMABUF that is mapped for the remote
 * @ref: held by the list and by each transfer
 * @share: the share it belongs to
 * @link: in eptfd_share.buffers; empty once detached
 * @dmabuf: the DMABUF
 * @attach: its attachment
 * @sgt: its mapping
 * @addr: its DMA address
 * @work: releases it
 */
struct eptfd_buffer {
	struct kref ref;
	struct eptfd_share *share;
	struct list_head link;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	dma_addr_t addr;
	struct work_struct work;
};

/**
 * struct eptfd_transfer - a part of a buffer that the remote holds
 * @fence: signalled when the part is returned. The first member, because
 *	dma_fence_free() frees the transfer. Each fence has its own context,
 *	because the remote returns parts in any order.
 * @lock: lock of @fence
 * @share: the share it belongs to
 * @buffer: the buffer, with a reference from listing until the transfer is finished
 * @link: in eptfd_share.transfers; empty once the transfer is being finished
 * @work: finishes it
 * @deadline: when the fence is signalled at the latest, in jiffies, if @timed
 * @cookie: identifies the transfer
 * @offset: first byte
 * @length: number of bytes
 * @dir: direction, from which follows who writes
 * @granted: synced for the remote, which has not been told yet; used by the sender
 *	only
 * @armed: the message may be on its way
 * @timed: the message was sent and @deadline is set
 * @expired: the fence was or will be signalled because @deadline has passed
 * @busy: the fence is being signalled for that reason; @work is queued afterwards
 * @answered: the remote has returned the part
 * @error: error of the fence, 0 for none
 * @message: the message to the remote, afterwards the one for the reader
 * @name: name of the endpoint, which the fence can outlive
 */
struct eptfd_transfer {
	struct dma_fence fence;
	spinlock_t lock;	/* of fence */
	struct eptfd_share *share;
	struct eptfd_buffer *buffer;
	struct list_head link;
	struct work_struct work;
	u64 cookie;
	u64 offset;
	u64 length;
	enum dma_data_direction dir;
	unsigned long deadline;
	bool granted;
	bool armed;
	bool timed;
	bool expired;
	bool busy;
	bool answered;
	int error;
	struct rpmsg_dmabuf_message message;
	char name[RPMSG_NAME_SIZE];
};

/*
 * Finishes transfers: revoking access may sleep, and callbacks may not. Its work
 * items must not wait for anyone who may wait for a fence.
 */
extern struct workqueue_struct *eptfd_share_wq;
/* Releases buffers and finishes endpoints, which may wait for a fence */
extern struct workqueue_struct *eptfd_close_wq;

/* share.c */
bool eptfd_share_get(struct eptfd_share *share);
void eptfd_share_get_another(struct eptfd_share *share);
void eptfd_share_put(struct eptfd_share *share);
struct eptfd_share *eptfd_share_of(struct eptfd_ep *ep);
struct eptfd_share *eptfd_share_enter(struct eptfd_ep *ep);
int eptfd_share_set_owner(struct eptfd_share *share, const struct file *file);

/* owner.c */
struct eptfd_owner *eptfd_owner_get(const struct file *file);
void eptfd_owner_put(struct eptfd_owner *owner);
bool eptfd_owner_charge(struct eptfd_owner *owner);
void eptfd_owner_uncharge(struct eptfd_owner *owner);

/* buffer.c */
int eptfd_resv_lock(struct dma_resv *resv, bool block);
void eptfd_buffer_sync_for_device(struct eptfd_transfer *t);
void eptfd_buffer_sync_for_cpu(struct eptfd_transfer *t);
struct eptfd_buffer *eptfd_buffer_create(struct eptfd_share *share, struct dma_buf *dmabuf,
					 struct device *dev, bool block);
void eptfd_buffer_put(struct eptfd_buffer *buffer);
void eptfd_buffer_put_later(struct eptfd_buffer *buffer);
struct eptfd_buffer *eptfd_share_find(struct eptfd_share *share, struct dma_buf *dmabuf);
int eptfd_share_add(struct eptfd_share *share, struct eptfd_buffer *buffer);
struct eptfd_buffer *eptfd_share_remove(struct eptfd_share *share, struct dma_buf *dmabuf);
void eptfd_share_remove_all(struct eptfd_share *share, void (*put)(struct eptfd_buffer *buffer));

/* transfer.c */
void eptfd_fence_forget(struct dma_resv *resv);
u64 eptfd_share_cookie(void);
int eptfd_share_send(struct eptfd_share *share, struct dma_buf *dmabuf,
		     const struct rpmsg_dmabuf *part, bool block);
void eptfd_share_late(struct work_struct *work);

#endif
