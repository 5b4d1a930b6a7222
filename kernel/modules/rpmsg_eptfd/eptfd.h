/* SPDX-License-Identifier: GPL-2.0 */
/*
 * rpmsg endpoints for user space: internal interface of the module.
 *
 * Parts
 *	queue.c		a bounded queue of received messages
 *	endpoint.c	an endpoint: read, write, poll, flow control
 *	many.c		many messages in one call
 *	share.c		users and end of the buffers that an endpoint shares
 *	owner.c		limits per user on endpoints that share buffers
 *	buffer.c	DMABUFs that are mapped for the remote
 *	transfer.c	parts of DMABUFs that the remote holds
 *	ioctl.c		the ioctls for DMABUFs
 *	anon.c		an endpoint that is an anonymous file descriptor
 *	node.c		an endpoint that is a device node, /dev/rpmsgN
 *	cdev.c		numbers and names of device nodes
 *	ctrl.c		the control device, /dev/rpmsg_ctrlN, and its driver
 *	chrdev.c	the driver of channels: a node for a default endpoint
 *	main.c		parameters, registration
 *
 * Locks, outermost first
 *	eptfd_ctrl.setup	nodes, calls that create or release channels, and
 *				removal. Held while devices are registered.
 *	eptfd_ctrl.lock		the list of endpoints, the rpmsg device. Never held
 *				while an endpoint ends, which waits for work items.
 *	eptfd_ep.lock		the endpoint of the bus. Never held while waiting
 *				for room to send. Held while the bus creates or
 *				destroys the endpoint, so it is taken before the
 *				bus's rpmsg_endpoint.cb_lock. Callbacks run with
 *				cb_lock held and must not take it.
 *	eptfd_queue.lock	the messages; taken in callbacks
 *	Locks of buffers. They are taken with none of the above held, except for
 *	those that the caller of eptfd_ep_end() holds:
 *	dma_buf.resv		the fences of a buffer. Its holder may wait for a
 *				fence, so no path that signals a fence takes it.
 *				eptfd_ep.lock is taken inside, to send.
 *	eptfd_share.setup	the list of buffers. Nothing is taken inside.
 *	owners_lock		the users with endpoints that share buffers. Nothing
 *				is taken inside.
 *	eptfd_share.lock	the parts that the remote holds; taken in callbacks
 *				and inside dma_buf.resv. Nothing is taken inside.
 *
 * Ends
 *	The rpmsg device, and with it all of the bus, may be freed as soon as a
 *	driver's remove() returns. remove() therefore ends every endpoint. It first
 *	revokes the parts of buffers that the remotes hold, for all endpoints, and
 *	then waits for each endpoint, with a reference of it and without the lock
 *	of the list. Files stay valid and find the end marked.
 *	If a file is closed while the remote holds a part of a buffer, its endpoint
 *	stays until the remote returns the part or the endpoint ends. Meanwhile it
 *	keeps its address and discards messages.
 */
#ifndef RPMSG_EPTFD_H
#define RPMSG_EPTFD_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/hrtimer.h>
#include <linux/idr.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/rpmsg.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>

struct file;
struct iov_iter;
struct kiocb;
struct kvec;
struct rpmsg_messages;
struct seq_file;

/**
 * struct eptfd_msg - a received message
 * @next: the message received after this one
 * @len: bytes of @data
 * @data: the payload
 *
 * The list is singly linked, so that a message of 496 bytes, the most that virtio
 * carries, fits an allocation of 512.
 */
struct eptfd_msg {
	struct eptfd_msg *next;
	u32 len;
	u8 data[] __counted_by(len);
};

/**
 * struct eptfd_queue - received messages that nobody has read yet
 * @lock: protects all other members; @head, @lossy, @closed and @ended may also
 *	be read without it
 * @head: oldest message
 * @tail: where to link the next message
 * @bytes: memory of the messages
 * @count: number of messages
 * @dropped: number of messages lost so far
 * @lossy: messages were lost and the reader has not been told yet
 * @closed: there is no reader; new messages are discarded
 * @ended: no message will follow
 */
struct eptfd_queue {
	spinlock_t lock;	/* all other members */
	struct eptfd_msg *head;
	struct eptfd_msg **tail;
	size_t bytes;
	unsigned int count;
	u64 dropped;
	bool lossy;
	bool closed;
	bool ended;
};

void eptfd_queue_init(struct eptfd_queue *q);
void eptfd_queue_push(struct eptfd_queue *q, const void *data, size_t len);
int eptfd_queue_pop(struct eptfd_queue *q, struct eptfd_msg **msgs, const u32 *rooms,
		    int count, bool more);
void eptfd_queue_unpop(struct eptfd_queue *q, struct eptfd_msg **msgs, int count);
void eptfd_queue_purge(struct eptfd_queue *q);
void eptfd_queue_close(struct eptfd_queue *q);
void eptfd_queue_end(struct eptfd_queue *q);

/**
 * eptfd_queue_ended() - has the endpoint ended?
 * @q: the queue
 *
 * Return: true if it has.
 */
static inline bool eptfd_queue_ended(const struct eptfd_queue *q)
{
	return READ_ONCE(q->ended);
}

/**
 * eptfd_queue_ready() - is there a message to read or a loss to report?
 * @q: the queue
 *
 * Return: true if there is.
 */
static inline bool eptfd_queue_ready(const struct eptfd_queue *q)
{
	return READ_ONCE(q->head) || READ_ONCE(q->lossy);
}

/**
 * enum eptfd_ep_flag - bits of eptfd_ep.flags
 * @EPTFD_TX_FULL: the bus had no room to send; the timer will clear it
 * @EPTFD_TX_LIMIT: the remote had as many parts of DMABUFs as it may have, whatever
 *	room the bus reports; the timer will clear it
 * @EPTFD_NO_DST: the bus wants a destination and the endpoint has none
 * @EPTFD_FLOW_STOPPED: the remote has asked to pause
 * @EPTFD_FLOW_NEWS: %EPTFD_FLOW_STOPPED has changed since user space last asked
 */
enum eptfd_ep_flag {
	EPTFD_TX_FULL,
	EPTFD_TX_LIMIT,
	EPTFD_NO_DST,
	EPTFD_FLOW_STOPPED,
	EPTFD_FLOW_NEWS,
};

struct eptfd_ctrl;
struct eptfd_share;

/**
 * struct eptfd_ep - an endpoint for user space
 * @ref: held by its file or node, and by the removal that ends it
 * @release: frees the object that the endpoint is embedded in
 * @lock: protects @rpdev and @ept
 * @rpdev: the device that the endpoint belongs to, NULL at its end
 * @ept: the endpoint of the bus, NULL while closed and at its end
 * @default_ept: the endpoint that the core created for a channel and will
 *	destroy, used instead of creating one; NULL for all other endpoints
 * @chinfo: name and addresses as requested
 * @addr: local address while @ept is set
 * @mtu: longest message that can be sent
 * @flags: see &enum eptfd_ep_flag
 * @queue: received messages
 * @wait: readers, writers and pollers
 * @tx_timer: clears %EPTFD_TX_FULL and %EPTFD_TX_LIMIT
 * @share: buffers shared with the remote, NULL until one is attached
 * @ctrl: the control device that created the endpoint, with a reference; NULL
 *	for a default endpoint
 * @link: in eptfd_ctrl.eps
 * @ending: on the list of the removal that ends it
 */
struct eptfd_ep {
	struct kref ref;
	void (*release)(struct eptfd_ep *ep);
	struct mutex lock;	/* rpdev, ept */
	struct rpmsg_device *rpdev;
	struct rpmsg_endpoint *ept;
	struct rpmsg_endpoint *default_ept;
	struct rpmsg_channel_info chinfo;
	u32 addr;
	size_t mtu;
	unsigned long flags;
	struct eptfd_queue queue;
	wait_queue_head_t wait;
	struct hrtimer tx_timer;
	struct eptfd_share *share;
	struct eptfd_ctrl *ctrl;
	struct list_head link;
	struct list_head ending;
};

/**
 * eptfd_ep_share() - get the buffers that the endpoint shares with the remote
 * @ep: endpoint
 *
 * Return: the buffers, NULL if none has ever been attached.
 */
static inline struct eptfd_share *eptfd_ep_share(struct eptfd_ep *ep)
{
	/* Pairs with the cmpxchg() in eptfd_share_of(), which publishes it */
	return smp_load_acquire(&ep->share);
}

void eptfd_ep_init(struct eptfd_ep *ep, struct eptfd_ctrl *ctrl,
		   const struct rpmsg_channel_info *chinfo);
void eptfd_ep_init_default(struct eptfd_ep *ep, struct rpmsg_device *rpdev);
void eptfd_ep_get(struct eptfd_ep *ep);
void eptfd_ep_put(struct eptfd_ep *ep);
int eptfd_ep_open(struct eptfd_ep *ep);
void eptfd_ep_close(struct eptfd_ep *ep);
void eptfd_ep_leave(struct eptfd_ep *ep, void (*closed)(struct eptfd_ep *ep));
void eptfd_ep_break(struct eptfd_ep *ep);
void eptfd_ep_end(struct eptfd_ep *ep);
int eptfd_ep_send(struct eptfd_ep *ep, void *data, size_t len, bool nowait,
		  bool block);
int eptfd_ep_send_once(struct eptfd_ep *ep, void *data, size_t len, bool nowait,
		       bool block);
int eptfd_ep_send_group(struct eptfd_ep *ep, const struct kvec *group, int count,
			bool nowait, bool block, int *sent);
int eptfd_ep_wait_room(struct eptfd_ep *ep, u64 *pause);
void eptfd_ep_mark_full(struct eptfd_ep *ep, enum eptfd_ep_flag why);
int eptfd_ep_take(struct eptfd_ep *ep, struct eptfd_msg **msgs, const u32 *rooms,
		  int count, bool more, bool block);
void eptfd_ep_untake(struct eptfd_ep *ep, struct eptfd_msg **msgs, int count);

int eptfd_ep_rx(struct rpmsg_device *rpdev, void *data, int len, void *priv,
		u32 addr);
int eptfd_ep_flow(struct rpmsg_device *rpdev, void *priv, bool stop);

void eptfd_ep_setup_file(struct eptfd_ep *ep, struct file *file);
ssize_t eptfd_ep_read_iter(struct kiocb *iocb, struct iov_iter *to);
ssize_t eptfd_ep_write_iter(struct kiocb *iocb, struct iov_iter *from);
__poll_t eptfd_ep_poll(struct file *file, poll_table *wait);
long eptfd_ep_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
void eptfd_ep_show_fdinfo(struct seq_file *m, struct file *file);

long eptfd_many_send(struct file *file, const struct rpmsg_messages __user *arg);
long eptfd_many_recv(struct file *file, const struct rpmsg_messages __user *arg);

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)
long eptfd_dmabuf_ioctl(struct eptfd_ep *ep, struct file *file,
			unsigned int cmd, unsigned long arg);
bool eptfd_share_rx(struct eptfd_share *share, const void *data, size_t len);
void eptfd_share_break(struct eptfd_share *share);
void eptfd_share_end(struct eptfd_share *share);
bool eptfd_share_close(struct eptfd_share *share,
		       void (*closed)(struct eptfd_ep *ep));
void eptfd_share_free(struct eptfd_share *share);
void eptfd_share_show_fdinfo(struct eptfd_share *share, struct seq_file *m);
int eptfd_dmabuf_init(void);
void eptfd_dmabuf_exit(void);
#else
static inline long eptfd_dmabuf_ioctl(struct eptfd_ep *ep, struct file *file,
				      unsigned int cmd, unsigned long arg)
{
	return -ENOTTY;
}

static inline bool eptfd_share_rx(struct eptfd_share *share, const void *data,
				  size_t len)
{
	return false;
}

static inline void eptfd_share_break(struct eptfd_share *share) { }
static inline void eptfd_share_end(struct eptfd_share *share) { }
static inline bool eptfd_share_close(struct eptfd_share *share,
				     void (*closed)(struct eptfd_ep *ep))
{
	return false;
}

static inline void eptfd_share_free(struct eptfd_share *share) { }
static inline void eptfd_share_show_fdinfo(struct eptfd_share *share,
					   struct seq_file *m) { }
static inline int eptfd_dmabuf_init(void)
{
	return 0;
}

static inline void eptfd_dmabuf_exit(void) { }
#endif

/**
 * struct eptfd_space - the numbers and names of one kind of device node
 * @prefix: part of the name before the number
 * @region: device numbers
 * @ida: numbers in use
 */
struct eptfd_space {
	const char *prefix;
	dev_t region;
	struct ida ida;
};

extern struct eptfd_space eptfd_ctrl_space;
extern struct eptfd_space eptfd_node_space;

int eptfd_space_register(struct eptfd_space *space, const char *name);
void eptfd_space_unregister(struct eptfd_space *space);

/**
 * struct eptfd_cdev - a device node
 * @dev: device; its last reference frees the whole object
 * @cdev: character device
 * @space: the space that its number is from
 */
struct eptfd_cdev {
	struct device dev;
	struct cdev cdev;
	struct eptfd_space *space;
};

int eptfd_cdev_init(struct eptfd_cdev *c, struct eptfd_space *space,
		    const struct file_operations *fops);
int eptfd_cdev_add(struct eptfd_cdev *c, struct device *parent);
void eptfd_cdev_fini(struct eptfd_cdev *c);

/**
 * struct eptfd_node - an endpoint that is a device node
 * @cdev: the node
 * @ep: the endpoint
 * @link: in eptfd_ctrl.nodes; empty once the node has been removed
 */
struct eptfd_node {
	struct eptfd_cdev cdev;
	struct eptfd_ep ep;
	struct list_head link;
};

struct eptfd_node *eptfd_node_alloc(void);
int eptfd_node_create(struct eptfd_ctrl *ctrl,
		      const struct rpmsg_channel_info *chinfo);
void eptfd_node_remove(struct eptfd_node *node);

int eptfd_anon_create(struct eptfd_ctrl *ctrl,
		      const struct rpmsg_channel_info *chinfo,
		      unsigned int flags, s32 __user *ufd);

/**
 * struct eptfd_ctrl - a control device
 * @cdev: its node
 * @setup: serializes nodes, channels and removal
 * @nodes: endpoints that are device nodes, under @setup
 * @lock: protects @eps
 * @rpdev: the rpmsg device, NULL once it is gone. Written with both @setup and
 *	@lock held, so that holding either keeps it from changing.
 * @eps: all endpoints
 */
struct eptfd_ctrl {
	struct eptfd_cdev cdev;
	struct mutex setup;	/* nodes, channels, removal; rpdev */
	struct list_head nodes;
	struct mutex lock;	/* eps, rpdev */
	struct rpmsg_device *rpdev;
	struct list_head eps;
};

int eptfd_ctrl_attach(struct eptfd_ctrl *ctrl, struct eptfd_ep *ep);
void eptfd_ctrl_detach(struct eptfd_ctrl *ctrl, struct eptfd_ep *ep);

int eptfd_ctrl_register(bool replace);
void eptfd_ctrl_unregister(void);
int eptfd_chrdev_register(bool replace);
void eptfd_chrdev_unregister(void);

extern unsigned int eptfd_rx_limit;
extern unsigned int eptfd_first_number;

#endif
