/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Buffers that change hands: DMABUFs of which an endpoint sends parts without
 * sending their bytes. What the parts of this share.
 *
 * The calls and their rules are those of IIO's DMABUF interface
 * (drivers/iio/industrialio-buffer.c): a buffer is attached once, parts of it
 * are sent often, each send is a fence on the buffer.
 *
 * A part is the remote's from the message GIVEN until the message DONE with the
 * same cookie. What keeps what alive meanwhile:
 *
 *	struct eptfd_transfer	from the send until the part is back. It is the
 *				fence too, and as such stays as long as somebody
 *				looks at that, holding a reference of the module.
 *	struct eptfd_buffer	from the attach until the detach and the end of
 *				all its transfers.
 *	struct eptfd_share	as long as the endpoint. It counts its users, which
 *				are transfers, buffers, and calls that are under
 *				way. The end of an endpoint waits until there is
 *				none, so none of them touches user memory: that can
 *				be of a file whose server does not answer. A file
 *				that is closed while there are some leaves the
 *				endpoint to the last of them.
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

/* Parts of one endpoint that the remote can have at a time */
#define EPTFD_TRANSFERS_MAX	1024

/**
 * struct eptfd_share - what an endpoint shares with the remote
 * @ep: the endpoint
 * @lock: protects the members up to @idle; taken in callbacks
 * @transfers: parts that the remote has, or will have in a moment
 * @count: number of @transfers
 * @users: see above
 * @owner: whom the endpoint is counted for while @count is not 0, NULL for nobody.
 *	Set by each attach: the next file of a node can be somebody else's.
 * @strays: number of answers to what the remote did not have
 * @ended: nothing is shared any more
 * @closed: finishes an endpoint whose file was closed while there were users
 * @closing: calls @closed; the last user may hold a lock that it takes
 * @late: ends the fences of what the remote keeps too long
 * @idle: where the end waits for @users
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
 * @ref: of the list and of each transfer
 * @share: whose buffer it is
 * @link: in eptfd_share.buffers; empty once detached
 * @dmabuf: the buffer
 * @attach: that it is attached
 * @sgt: how it is mapped
 * @addr: where it begins for the remote
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
 * struct eptfd_transfer - a part of a buffer that the remote has
 * @fence: signalled when it is back; first, because it is freed as one. Of a
 *	context of its own, because the remote gives back in any order.
 * @lock: of @fence
 * @share: whose part it is
 * @buffer: a reference while @link is on the list, and until it is finished
 * @link: in eptfd_share.transfers; empty once somebody finishes the transfer
 * @work: finishes it
 * @deadline: when the fence is signalled at the latest, in jiffies, if @timed
 * @cookie: its name
 * @offset: first byte
 * @length: bytes
 * @dir: who writes
 * @granted: prepared for the remote, which is not told yet; for the sender only
 * @armed: the message may be on its way
 * @timed: it was sent, and the clock runs
 * @expired: the fence was signalled, or is about to be, because it was time
 * @busy: it is about to be. Then @work is queued afterwards.
 * @answered: the remote has given it back
 * @error: what the fence will say
 * @message: what the remote is told, and afterwards the reader
 * @name: of the endpoint, which the fence can outlive
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
 * Finishes transfers. Callbacks may not sleep; to take access away may. What
 * runs here waits for nobody who may wait for a fence.
 */
extern struct workqueue_struct *eptfd_share_wq;
/* Releases buffers and finishes endpoints, which may wait for such people */
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
