/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Blocks of bytes over rpmsg channels, for users of generic netlink: what the
 * parts of the module share.
 *
 * Parts
 *	rpmsg_netlink-gen.[ch]	policies and tables, made of rpmsg_netlink.yaml
 *	packet.c	headers and check sum, no I/O
 *	note.c		notifications to clients
 *	send.c		a block on its way to the remote
 *	receive.c	a block on its way from the remote
 *	remote.c	what is at the other end of a channel, and how to speak with it
 *	conv.c		a conversation: what one socket does on one channel
 *	client.c	sockets and their conversations; the requests
 *	channel.c	channels, their driver, and who waits for room to send
 *	main.c		registration
 *
 * No request waits for the remote, so that a client need not have a thread for
 * each block; those of several sockets run at the same time. What finds no room
 * in the ring of the bus is kept, at most one part of a block for each
 * conversation, and goes out from a work item. A client has the next part only
 * after it was told that the last one is on its way.
 *
 * Locks, outermost first
 *	rpnl_clients		the table of sockets (client.c)
 *	rpnl_client.lock	the conversations of a socket
 *	rpnl_chan.lock		the conversations on a channel
 *	rpnl_conv.mutex		sending. Held over calls of the bus that send or
 *				make an endpoint, never over one that destroys
 *				one: that takes the lock under which callbacks
 *				run, and a channel can be removed from within the
 *				callback of the name service.
 *	rpnl_conv.lock		everything that callbacks touch
 *	rpnl_chan.tx_lock	who waits for room
 *	rpnl_chan.remote_lock	what is at the other end
 *
 * Time
 *	Each request has a deadline, so that a remote that is silent does not keep
 *	its client waiting for ever (rpnl_conv.timer). Between two parts it is the
 *	client that is waited for, and there is none. Where the ring stays full,
 *	the next try comes later each time, and when nobody waits any more there
 *	is none until the next request.
 *
 * Ends
 *	A conversation ends with its socket or its channel, whichever goes first.
 *	remove() ends all of a channel and waits until no endpoint is left, also
 *	of those that end at the same moment because of their sockets. Neither
 *	the bus nor the rpmsg device is used after that.
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

/* Shortest message of a bus that a header fits with something behind it */
#define RPNL_MTU_MIN	32
/* Where the bus does not tell its own limit: what virtio has */
#define RPNL_MTU_UNKNOWN	496
/* Longer messages would only make the memory of a conversation larger */
#define RPNL_MTU_MAX	4096

struct rpnl_conv;

/**
 * enum rpnl_remote - what is at the other end of a channel
 * @RPNL_REMOTE_UNKNOWN: it is to be asked, by the next turn of the pump
 * @RPNL_REMOTE_ASKED: it was asked
 * @RPNL_REMOTE_PACKETS: all of <linux/rpmsg_bulk.h>
 * @RPNL_REMOTE_PLAIN: the firmware of the example for the STM32MP1. It takes
 *	one packet with the short header at a time, whoever sends it, and answers
 *	its length, to the first address that it has ever heard of
 */
enum rpnl_remote {
	RPNL_REMOTE_UNKNOWN,
	RPNL_REMOTE_ASKED,
	RPNL_REMOTE_PACKETS,
	RPNL_REMOTE_PLAIN,
};

/**
 * struct rpnl_chan - a channel
 * @ref: the driver has one, each conversation has one
 * @id: number for user space
 * @rpdev: the rpmsg device; not to be used once @gone
 * @device: name of @rpdev
 * @name: name of the channel
 * @address: the remote's address
 * @mtu: longest message
 * @lock: protects @gone and @convs
 * @gone: the channel has been removed
 * @convs: conversations that may have an endpoint
 * @epts: how many may have one
 * @no_epts: woken when there is none left
 * @tx_lock: protects @senders and @stopped
 * @stopped: nothing is to be sent any more
 * @senders: conversations that wait for room; each holds a reference
 * @pump: sends for them
 * @timer: queues @pump when there may be room
 * @pause: time until then
 * @until: in jiffies, up to when there are tries with nobody waiting
 * @remote_lock: protects what follows
 * @remote: what is at the other end. Read without the lock too
 * @hello: messages of the question that are to be sent
 * @hello_value: value of the reset in it, the same for as long as the channel is
 *	there: an answer to an earlier question is as good
 * @fill: bytes that a firmware still expects of a packet that was given up
 * @quiet: expires when the answers to the question have come
 * @owner: whose packet the firmware has; holds a reference
 * @answered: the firmware has answered it,
 * @answer: with this length
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
 * enum rpnl_state - what a conversation is about
 * @RPNL_IDLE: nothing
 * @RPNL_SENDING: a block of which not all parts have come from the client
 * @RPNL_ANSWER: a block of which they have; the remote has to answer
 * @RPNL_RECEIVING: a block from the remote, up to its last part for the client
 * @RPNL_BROKEN: a block that has ended badly, of which the client, which asked
 *	for nothing at that time, has not heard
 */
enum rpnl_state {
	RPNL_IDLE,
	RPNL_SENDING,
	RPNL_ANSWER,
	RPNL_RECEIVING,
	RPNL_BROKEN,
};

/**
 * enum rpnl_due - short messages that are to be sent, in this order
 * @RPNL_DUE_OPEN: end what an earlier user of the address has left unfinished,
 * @RPNL_DUE_OPEN_2: in two messages, as the first may fit what was left
 * @RPNL_DUE_ABORT: end our own packet, which is not complete
 * @RPNL_DUE_RESET: have the remote forget
 * @RPNL_DUE_ANSWER: what became of a block that was received
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
 * struct rpnl_tx - a block on its way to the remote; under rpnl_conv.mutex
 * @active: there is one
 * @begun: some of it is in the ring
 * @deferred: the last part was not in the ring when it was taken
 * @length: bytes of the block
 * @taken: bytes of it that came from the client
 * @unsent: bytes of the packet, header included, that are not in the ring
 * @crc: check sum of the block
 * @message: a message that is being filled
 * @fill: bytes in @message
 * @rest: bytes of a part that found no room in the ring
 * @rest_at: first of them
 * @rest_len: end of them
 * @budget: messages that may be sent in this turn
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

/* The window may begin in the middle of a page. */
#define RPNL_PAGES	(DIV_ROUND_UP(RPMSG_NETLINK_WINDOW, PAGE_SIZE) + 1)

/**
 * struct rpnl_rx - a block on its way from the remote; under rpnl_conv.lock
 * @wanted: length that was asked for, or 0
 * @open: its header has come
 * @head: what that says
 * @mtu: length of its first message, the limit of the others
 * @sum: check sum of what has come
 * @got: bytes that have come
 * @given: bytes that the client has got
 * @credit: bytes that the remote may still send
 * @granted: all credit that it was ever given for this block
 * @pages: the bytes; byte i in page i / PAGE_SIZE % RPNL_PAGES
 * @ready: number of the first page that is not there; under rpnl_conv.mutex
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
	u64 ready;
};

/**
 * struct rpnl_conv - what one socket does on one channel
 * @ref: its client has one, and each who uses it
 * @chan: the channel; holds a reference
 * @net: where the socket is; holds a reference
 * @net_tracker: of that reference
 * @portid: its port
 * @in_client: in rpnl_client.convs
 * @in_chan: in rpnl_chan.convs
 * @in_senders: in rpnl_chan.senders
 * @mutex: protects @ept, @ended, @tx, and the order of messages
 * @ept: the endpoint
 * @ended: there will be no endpoint
 * @sent: counts messages
 * @tx: the block to the remote
 * @lock: protects what follows
 * @state: what it is about
 * @broken: why it is %RPNL_BROKEN
 * @note: memory for the notification that the client waits for, or NULL
 * @seq: sequence number of its request
 * @deadline: in jiffies, when it ends
 * @timer: expires then, or earlier
 * @due: short messages to be sent, bits of &enum rpnl_due
 * @due_change: counts resets, which change @due while one of it is being sent
 * @abort_len: length of %RPNL_DUE_ABORT
 * @reset_value: value of the last reset
 * @resync: until that is answered, all that comes belongs to the past
 * @ignore: answers to come that nobody waits for
 * @tx_drop: the block to the remote is to be dropped
 * @tx_busy: not all of it is in the ring
 * @answer: %RPNL_DUE_ANSWER
 * @answer_len: its length
 * @credit_due: credit that was not yet granted
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
 * @length: bytes of the block
 * @offset: where the part begins
 * @data: the part
 * @len: its bytes
 * @has_crc: the client has said a check sum
 * @crc: that of the block
 * @nowait: take only what there is room for
 * @timeout: milliseconds until the request ends
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
