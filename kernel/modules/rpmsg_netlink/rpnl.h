/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Blocks of bytes over rpmsg channels, for clients of generic netlink: internal
 * interface of the module.
 *
 * Parts
 *	rpmsg_netlink-gen.[ch]	policies and tables, generated from rpmsg_netlink.yaml
 *	packet.c	headers and checksum, no I/O
 *	note.c		notifications to clients
 *	send.c		sends a block to the remote
 *	receive.c	receives a block from the remote
 *	remote.c	detection of the remote's protocol, and its firmware's limits
 *	conv.c		a conversation: the blocks of one socket on one channel
 *	client.c	sockets and their conversations; the requests
 *	channel.c	channels, their driver, and the queue for room to send
 *	main.c		registration
 *
 * No request waits for the remote, so a client does not need a thread per block.
 * Blocks of several sockets are transferred at the same time. Bytes that find no
 * room in the ring of the bus are kept, at most one part of a block per
 * conversation, and a work item sends them. A client sends the next part only
 * after the notification that the previous one is in the ring.
 *
 * Locks, outermost first
 *	rpnl_clients		the table of sockets (client.c)
 *	rpnl_client.lock	the conversations of a socket
 *	rpnl_chan.lock		the conversations on a channel
 *	rpnl_conv.mutex		sending. Held while the bus sends or creates an
 *				endpoint, never while it destroys one: that takes
 *				the lock that callbacks hold, and a channel can be
 *				removed inside the name service's callback.
 *	rpnl_conv.lock		all data that callbacks access
 *	rpnl_chan.tx_lock	the queue of senders
 *	rpnl_chan.remote_lock	the state of the remote
 *
 * Time
 *	Each request has a deadline, so that a client does not wait forever for a
 *	silent remote (rpnl_conv.timer). Between two parts the driver waits for the
 *	client, and there is no deadline. While the ring stays full, the pause
 *	between two tries grows. Once no client waits, tries stop until the next
 *	request.
 *
 * Ends
 *	A conversation ends with its socket or its channel, whichever goes first.
 *	remove() ends all conversations of a channel and waits until no endpoint
 *	is left, including those that a closing socket ends at the same time. After
 *	that neither the bus nor the rpmsg device is used.
 */
#ifndef RPNL_H
#define RPNL_H

#include <linux/atomic.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rpmsg.h>
#include <linux/skbuff.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>

#include "packet.h"
#include "rpmsg_netlink-gen.h"

/* Shortest message length of a bus that is supported: a header and some data */
#define RPNL_MTU_MIN	32
/* Message length on a bus that reports no limit: that of virtio */
#define RPNL_MTU_UNKNOWN	496
/* Longer messages would only make the memory of a conversation larger */
#define RPNL_MTU_MAX	4096

struct rpnl_conv;

/**
 * enum rpnl_remote - the protocol of the remote of a channel
 * @RPNL_REMOTE_UNKNOWN: not known; the next turn of the pump sends the probe
 * @RPNL_REMOTE_ASKED: the probe is being sent, or its answer is awaited
 * @RPNL_REMOTE_PACKETS: all of <linux/rpmsg_bulk.h>
 * @RPNL_REMOTE_PLAIN: the firmware of the example for the STM32MP1. It takes one
 *	packet with the short header at a time, from all senders together, and
 *	answers its length to the first address that it received a message from
 */
enum rpnl_remote {
	RPNL_REMOTE_UNKNOWN,
	RPNL_REMOTE_ASKED,
	RPNL_REMOTE_PACKETS,
	RPNL_REMOTE_PLAIN,
};

/**
 * struct rpnl_chan - a channel
 * @ref: held by the driver and by each conversation
 * @id: number for user space
 * @rpdev: the rpmsg device; must not be used once @gone
 * @device: name of @rpdev
 * @name: name of the channel
 * @address: the remote's address
 * @mtu: longest message
 * @lock: protects @gone and @convs
 * @gone: the channel has been removed
 * @convs: conversations that may have an endpoint
 * @epts: number of conversations that may have an endpoint
 * @no_epts: woken when there is none left
 * @tx_lock: protects @senders and @stopped
 * @stopped: no further message is sent
 * @senders: queue of conversations that wait for room, with a reference of each
 * @pump: sends for the conversations in @senders
 * @timer: queues @pump when there may be room
 * @pause: time until @timer expires
 * @until: end of the retries for messages that no client waits for, in jiffies
 * @remote_lock: protects the members below
 * @remote: protocol of the remote; may also be read without the lock
 * @hello: number of messages of the probe that are still to be sent
 * @hello_value: value of the probe's RESET. All probes of a channel use the same
 *	value, so that a late answer to an earlier one is accepted
 * @fill: bytes that the example firmware still expects of a packet that was given up
 * @quiet: expires when no further answer to the probe is expected
 * @owner: conversation whose packet the example firmware has, with a reference
 * @answered: the firmware has answered that packet
 * @answer: the length in that answer
 */
struct rpnl_chan {
	struct kref ref;
	u32 id;
	struct rpmsg_device *rpdev;
	char *device;
	char name[RPMSG_NAME_SIZE];
	u32 address;
	u32 mtu;

	struct mutex lock;	/* gone, convs */
	bool gone;
	struct list_head convs;
	atomic_t epts;
	wait_queue_head_t no_epts;

	spinlock_t tx_lock;	/* senders, stopped */
	bool stopped;
	struct list_head senders;
	struct work_struct pump;
	struct hrtimer timer;
	u64 pause;
	unsigned long until;

	spinlock_t remote_lock;	/* all that follows */
	enum rpnl_remote remote;
	unsigned int hello;
	u32 hello_value;
	u32 fill;
	struct timer_list quiet;
	struct rpnl_conv *owner;
	bool answered;
	u16 answer;
};

/**
 * enum rpnl_state - state of a conversation
 * @RPNL_IDLE: no block
 * @RPNL_SENDING: a block to the remote; the client has not sent all its parts yet
 * @RPNL_ANSWER: a block to the remote; all parts were taken, the answer is awaited
 * @RPNL_RECEIVING: a block from the remote, until the client gets its last part
 * @RPNL_BROKEN: a block has failed while no request of the client was pending, so
 *	the client has not been told yet
 */
enum rpnl_state {
	RPNL_IDLE,
	RPNL_SENDING,
	RPNL_ANSWER,
	RPNL_RECEIVING,
	RPNL_BROKEN,
};

/**
 * enum rpnl_due - short messages that are due, sent in this order
 * @RPNL_DUE_OPEN: ends a packet that an earlier user of the address has left
 *	incomplete
 * @RPNL_DUE_OPEN_2: the same again, as the first may have completed that packet
 * @RPNL_DUE_ABORT: ends our own incomplete packet
 * @RPNL_DUE_RESET: resets the remote's state for this address
 * @RPNL_DUE_ANSWER: answers a block that was received
 * @RPNL_DUE_RECEIVE: ask for a block
 * @RPNL_DUE_CREDIT: grant credit
 */
enum rpnl_due {
	RPNL_DUE_OPEN,
	RPNL_DUE_OPEN_2,
	RPNL_DUE_ABORT,
	RPNL_DUE_RESET,
	RPNL_DUE_ANSWER,
	RPNL_DUE_RECEIVE,
	RPNL_DUE_CREDIT,
};

/**
 * struct rpnl_tx - the block to the remote; under rpnl_conv.mutex
 * @active: there is a block
 * @begun: a message of it is in the ring
 * @deferred: the last part did not fit into the ring when it was taken
 * @length: number of bytes of the block
 * @taken: number of bytes taken from the client
 * @unsent: bytes of the packet, header included, that are not in the ring yet
 * @crc: checksum of the block
 * @message: the message that is being filled
 * @fill: number of bytes in @message
 * @rest: bytes of a part that found no room in the ring
 * @rest_at: offset of the first byte in @rest that is still to be sent
 * @rest_len: end of the bytes in @rest
 * @budget: number of messages that may still be sent in this turn
 */
struct rpnl_tx {
	bool active;
	bool begun;
	bool deferred;
	u32 length;
	u32 taken;
	u64 unsent;
	u16 crc;
	u8 *message;
	size_t fill;
	u8 *rest;
	size_t rest_at;
	size_t rest_len;
	unsigned int budget;
};

/* One more page, as the window may begin in the middle of a page */
#define RPNL_PAGES	(DIV_ROUND_UP(RPMSG_NETLINK_WINDOW, PAGE_SIZE) + 1)

/**
 * struct rpnl_rx - the block from the remote; under rpnl_conv.lock
 * @wanted: length that was requested, or 0
 * @open: the header was received and the block is not complete
 * @head: the header
 * @mtu: length of the first message, which limits the others
 * @sum: checksum of the bytes received
 * @got: number of bytes received
 * @given: number of bytes that the client has got
 * @credit: number of bytes that the remote may still send
 * @granted: sum of the credit for this block
 * @pages: the bytes; byte i is in page i / PAGE_SIZE % RPNL_PAGES
 * @ready: number of the first page that is not available; under rpnl_conv.mutex
 */
struct rpnl_rx {
	u32 wanted;
	bool open;
	struct rpnl_head head;
	u32 mtu;
	u16 sum;
	u32 got;
	u32 given;
	u64 credit;
	u64 granted;
	struct page *pages[RPNL_PAGES];
	u32 ready;
};

/**
 * struct rpnl_conv - a conversation: the blocks of one socket on one channel
 * @ref: held by its client, the lists it is on, and each current user
 * @chan: the channel, with a reference
 * @net: network namespace of the socket, with a reference
 * @net_tracker: tracker of that reference
 * @portid: port of the socket
 * @in_client: in rpnl_client.convs
 * @in_chan: in rpnl_chan.convs
 * @in_senders: in rpnl_chan.senders
 * @mutex: protects @ept, @ended, @tx, and the order of messages
 * @ept: the endpoint
 * @ended: the conversation has ended and gets no endpoint any more
 * @sent: number of messages sent
 * @tx: the block to the remote
 * @lock: protects the members below
 * @state: its state
 * @broken: errno of the failure while @state is %RPNL_BROKEN
 * @note: memory for the notification that the client waits for, or NULL
 * @seq: sequence number of the client's request
 * @deadline: deadline of the request, in jiffies
 * @timer: expires at @deadline or earlier
 * @due: short messages to be sent, bits of &enum rpnl_due
 * @due_change: counts resets, which change @due while a message is being sent
 * @abort_len: length of %RPNL_DUE_ABORT
 * @reset_value: value of the last RESET
 * @resync: RESET is not answered yet; all other messages are ignored until then
 * @ignore: number of answers to dropped blocks that are still to arrive
 * @tx_drop: the block to the remote has to be dropped
 * @tx_busy: not all of the block to the remote is in the ring
 * @answer: the message %RPNL_DUE_ANSWER
 * @answer_len: its length
 * @credit_due: credit that is not granted yet
 * @rx: the block from the remote
 */
struct rpnl_conv {
	struct kref ref;
	struct rpnl_chan *chan;
	struct net *net;
	netns_tracker net_tracker;
	u32 portid;
	struct list_head in_client;
	struct list_head in_chan;
	struct list_head in_senders;

	struct mutex mutex;	/* ept, ended, tx */
	struct rpmsg_endpoint *ept;
	bool ended;
	unsigned int sent;
	struct rpnl_tx tx;

	spinlock_t lock;	/* all that follows */
	enum rpnl_state state;
	u32 broken;
	struct sk_buff *note;
	u32 seq;
	unsigned long deadline;
	struct timer_list timer;
	unsigned long due;
	unsigned int due_change;
	u8 abort_len;
	u32 reset_value;
	bool resync;
	u32 ignore;
	bool tx_drop;
	bool tx_busy;
	u8 answer[RPNL_HEAD_LONG];
	u8 answer_len;
	u64 credit_due;
	struct rpnl_rx rx;
};

/**
 * struct rpnl_part - a request to send
 * @length: number of bytes of the block
 * @offset: offset of the part in the block
 * @data: the part
 * @len: number of bytes of the part
 * @has_crc: the request has a checksum
 * @crc: checksum of the block
 * @nowait: take only as much as there is room for
 * @timeout: time limit of the request in milliseconds
 */
struct rpnl_part {
	u32 length;
	u32 offset;
	const u8 *data;
	u32 len;
	bool has_crc;
	u16 crc;
	bool nowait;
	u32 timeout;
};

/* note.c */
struct sk_buff *rpnl_note_alloc(void);
struct sk_buff *rpnl_note_take(struct rpnl_conv *conv, u8 cmd, u32 length);
struct sk_buff *rpnl_note_next(struct rpnl_conv *conv, u32 length, u32 offset);
struct sk_buff *rpnl_note_done(struct rpnl_conv *conv, u32 length, u32 status);
struct sk_buff *rpnl_note_data(struct rpnl_conv *conv, u32 len);
struct sk_buff *rpnl_note_no_data(struct rpnl_conv *conv, u32 status);
void rpnl_note_send(struct rpnl_conv *conv, struct sk_buff *skb);

/* send.c */
int rpnl_tx_init(struct rpnl_tx *tx, u32 mtu);
void rpnl_tx_fini(struct rpnl_tx *tx);
int rpnl_conv_send(struct rpnl_conv *conv, const struct rpnl_part *part,
		   struct genl_info *info);
int rpnl_conv_pump(struct rpnl_conv *conv);
void rpnl_tx_end(struct rpnl_conv *conv);

/* receive.c */
void rpnl_rx_fini(struct rpnl_rx *rx);
int rpnl_conv_receive(struct rpnl_conv *conv, u32 length, u32 timeout,
		      struct genl_info *info);
int rpnl_conv_fetch(struct rpnl_conv *conv, u32 timeout,
		    struct genl_info *info);
void rpnl_rx_lost(struct rpnl_conv *conv);
struct sk_buff *rpnl_rx_begin(struct rpnl_conv *conv,
			      const struct rpnl_head *head,
			      const void *msg, size_t len);
struct sk_buff *rpnl_rx_go_on(struct rpnl_conv *conv, const void *msg,
			      size_t len);

/* remote.c */
void rpnl_remote_init(struct rpnl_chan *chan);
void rpnl_remote_fini(struct rpnl_chan *chan);
bool rpnl_remote_is_known(const struct rpnl_chan *chan);
bool rpnl_remote_is_plain(const struct rpnl_chan *chan);
bool rpnl_remote_hears(struct rpnl_chan *chan, const void *msg, size_t len);
int rpnl_remote_ask(struct rpnl_chan *chan);
void rpnl_remote_doubt(struct rpnl_chan *chan);
void rpnl_remote_answered(struct rpnl_chan *chan);
int rpnl_remote_check(struct rpnl_conv *conv, u32 length,
		      struct genl_info *info);
int rpnl_remote_claim(struct rpnl_conv *conv);
void rpnl_remote_leave(struct rpnl_conv *conv);

/* conv.c */
struct rpnl_conv *rpnl_conv_alloc(struct rpnl_chan *chan, struct net *net,
				  u32 portid);
void rpnl_conv_put(struct rpnl_conv *conv);
int rpnl_conv_open(struct rpnl_conv *conv);
void rpnl_conv_end(struct rpnl_conv *conv, bool socket_gone);
int rpnl_conv_begin(struct rpnl_conv *conv, struct genl_info *info);
void rpnl_conv_expect(struct rpnl_conv *conv, struct sk_buff *note, u32 seq,
		      u32 timeout);
void rpnl_conv_flush(struct rpnl_conv *conv);
int rpnl_conv_reset(struct rpnl_conv *conv, struct genl_info *info);
int rpnl_conv_message(struct rpnl_conv *conv, void *msg, size_t len);
int rpnl_conv_ready(struct rpnl_conv *conv);
struct sk_buff *rpnl_conv_length(struct rpnl_conv *conv, u16 length);
struct sk_buff *rpnl_conv_stop(struct rpnl_conv *conv, u32 status);
struct sk_buff *rpnl_conv_break(struct rpnl_conv *conv, u32 status);
int rpnl_conv_told(struct rpnl_conv *conv, struct genl_info *info);

/* client.c */
int rpnl_clients_register(void);
void rpnl_clients_unregister(void);

/* channel.c */
struct rpnl_chan *rpnl_chan_find(u32 id);
void rpnl_chan_put(struct rpnl_chan *chan);
int rpnl_chan_enter(struct rpnl_chan *chan, struct rpnl_conv *conv);
void rpnl_chan_leave(struct rpnl_chan *chan, struct rpnl_conv *conv);
void rpnl_chan_no_ept(struct rpnl_chan *chan);
bool rpnl_chan_is_full(struct rpnl_chan *chan);
void rpnl_chan_wait(struct rpnl_chan *chan, struct rpnl_conv *conv);
void rpnl_chan_kick(struct rpnl_chan *chan, struct rpnl_conv *conv);
void rpnl_chan_poke(struct rpnl_chan *chan);
int rpnl_driver_register(void);
void rpnl_driver_unregister(void);

#endif
