// SPDX-License-Identifier: GPL-2.0
/*
 * Channels: the driver, the requests and notifications about channels, and the
 * queue of conversations that wait for room to send.
 */
#include <linux/capability.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/xarray.h>
#include <net/sock.h>

#include <compat/hrtimer.h>

#include "rpnl.h"

/* Shortest and longest pause before another try when there was no room */
#define PAUSE_MIN	(50 * NSEC_PER_USEC)
#define PAUSE_MAX	NSEC_PER_MSEC
/* Longest pause while the remote takes no message */
#define PAUSE_STUCK	(100 * NSEC_PER_MSEC)
/* How long to retry messages that no client waits for */
#define PATIENCE	msecs_to_jiffies(RPMSG_NETLINK_TIMEOUT)
/*
 * Messages to send per try. With fewer, tries are too frequent; with more, the
 * remote may have been idle.
 */
#define ROOM_FEW	32
#define ROOM_MANY	128

static DEFINE_XARRAY_ALLOC1(rpnl_chans);
static u32 rpnl_next_id;
static struct workqueue_struct *rpnl_wq;

static void chan_free(struct kref *ref)
{
	struct rpnl_chan *chan = container_of(ref, struct rpnl_chan, ref);

	kfree(chan->device);
	kfree(chan);
}

/**
 * rpnl_chan_put() - drop a reference
 * @chan: channel
 */
void rpnl_chan_put(struct rpnl_chan *chan)
{
	kref_put(&chan->ref, chan_free);
}

/* Returns the first channel with a number of *@id or more, with a reference */
static struct rpnl_chan *chan_from(unsigned long *id)
{
	struct rpnl_chan *chan;

	xa_lock(&rpnl_chans);
	chan = xa_find(&rpnl_chans, id, ULONG_MAX, XA_PRESENT);
	if (chan)
		kref_get(&chan->ref);
	xa_unlock(&rpnl_chans);

	return chan;
}

/**
 * rpnl_chan_find() - find a channel
 * @id: its number
 *
 * Return: the channel with a reference, or NULL.
 */
struct rpnl_chan *rpnl_chan_find(u32 id)
{
	struct rpnl_chan *chan;

	xa_lock(&rpnl_chans);
	chan = xa_load(&rpnl_chans, id);
	if (chan)
		kref_get(&chan->ref);
	xa_unlock(&rpnl_chans);

	return chan;
}

/**
 * rpnl_chan_enter() - allow a conversation to create an endpoint
 * @chan: channel
 * @conv: new conversation
 *
 * The rpmsg device stays until rpnl_chan_no_ept(). From now on removal of the
 * channel ends the conversation.
 *
 * Return: 0, or -ENODEV if the channel is gone.
 */
int rpnl_chan_enter(struct rpnl_chan *chan, struct rpnl_conv *conv)
{
	int ret = -ENODEV;

	mutex_lock(&chan->lock);
	if (!chan->gone) {
		atomic_inc(&chan->epts);
		list_add(&conv->in_chan, &chan->convs);
		ret = 0;
	}
	mutex_unlock(&chan->lock);

	return ret;
}

/* Removes a conversation from the queue of senders and drops the queue's reference */
static void chan_forget_sender(struct rpnl_chan *chan, struct rpnl_conv *conv)
{
	bool waiting;

	spin_lock_irq(&chan->tx_lock);
	waiting = !list_empty(&conv->in_senders);
	list_del_init(&conv->in_senders);
	spin_unlock_irq(&chan->tx_lock);

	if (waiting)
		rpnl_conv_put(conv);
}

/**
 * rpnl_chan_leave() - undo rpnl_chan_enter(), except for the endpoint
 * @chan: channel
 * @conv: conversation that has ended or has never had an endpoint, whether or not
 *	rpnl_chan_enter() was called for it
 */
void rpnl_chan_leave(struct rpnl_chan *chan, struct rpnl_conv *conv)
{
	mutex_lock(&chan->lock);
	list_del_init(&conv->in_chan);
	mutex_unlock(&chan->lock);
	chan_forget_sender(chan, conv);
}

/**
 * rpnl_chan_no_ept() - note that a conversation's endpoint is gone for good
 * @chan: channel; the caller has a reference
 */
void rpnl_chan_no_ept(struct rpnl_chan *chan)
{
	if (atomic_dec_and_test(&chan->epts))
		wake_up_all(&chan->no_epts);
}

/**
 * rpnl_chan_is_full() - does a conversation wait for room?
 * @chan: channel
 *
 * Return: true if one does.
 */
bool rpnl_chan_is_full(struct rpnl_chan *chan)
{
	return !list_empty_careful(&chan->senders);
}

/* Called with tx_lock held */
static void chan_arm(struct rpnl_chan *chan, bool now)
{
	if (chan->stopped)
		return;

	if (now)
		queue_work(rpnl_wq, &chan->pump);
	else if (!hrtimer_is_queued(&chan->timer))
		hrtimer_start(&chan->timer, ns_to_ktime(chan->pause),
			      HRTIMER_MODE_REL_SOFT);
}

/*
 * Called with tx_lock held. A conversation that has ended must not be queued
 * again. It is marked as ended before rpnl_chan_leave(), which takes tx_lock,
 * removes it.
 */
static void chan_queue(struct rpnl_chan *chan, struct rpnl_conv *conv,
		       bool first)
{
	if (chan->stopped || READ_ONCE(conv->ended) ||
	    !list_empty(&conv->in_senders))
		return;

	kref_get(&conv->ref);
	if (first)
		list_add(&conv->in_senders, &chan->senders);
	else
		list_add_tail(&conv->in_senders, &chan->senders);
}

static void chan_add_sender(struct rpnl_chan *chan, struct rpnl_conv *conv,
			    bool now)
{
	unsigned long irq;

	spin_lock_irqsave(&chan->tx_lock, irq);
	chan_queue(chan, conv, false);
	chan_arm(chan, now);
	spin_unlock_irqrestore(&chan->tx_lock, irq);
}

/* Extends the time of retries, as there is a new message to send */
static void chan_be_patient(struct rpnl_chan *chan)
{
	WRITE_ONCE(chan->until, jiffies + PATIENCE);
}

/**
 * rpnl_chan_wait() - send for a conversation once there is room
 * @chan: channel
 * @conv: conversation
 */
void rpnl_chan_wait(struct rpnl_chan *chan, struct rpnl_conv *conv)
{
	chan_be_patient(chan);
	/* Until the remote is known, sending waits for the question, not for room */
	chan_add_sender(chan, conv, !rpnl_remote_is_known(chan));
}

/**
 * rpnl_chan_kick() - send for a conversation as soon as possible
 * @chan: channel
 * @conv: conversation
 *
 * Context: any.
 */
void rpnl_chan_kick(struct rpnl_chan *chan, struct rpnl_conv *conv)
{
	chan_be_patient(chan);
	chan_add_sender(chan, conv, true);
}

/**
 * rpnl_chan_poke() - resume sending for the conversations that wait
 * @chan: channel
 *
 * Context: any.
 */
void rpnl_chan_poke(struct rpnl_chan *chan)
{
	unsigned long irq;

	chan_be_patient(chan);
	spin_lock_irqsave(&chan->tx_lock, irq);
	chan_arm(chan, true);
	spin_unlock_irqrestore(&chan->tx_lock, irq);
}

static enum hrtimer_restart chan_timer(struct hrtimer *timer)
{
	struct rpnl_chan *chan = container_of(timer, struct rpnl_chan, timer);

	queue_work(rpnl_wq, &chan->pump);

	return HRTIMER_NORESTART;
}

static struct rpnl_conv *chan_next_sender(struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;

	spin_lock_irq(&chan->tx_lock);
	conv = list_first_entry_or_null(&chan->senders, struct rpnl_conv,
					in_senders);
	if (conv)
		list_del_init(&conv->in_senders);
	spin_unlock_irq(&chan->tx_lock);

	return conv;
}

/* Queues a conversation again that lacked room or has used up its turn */
static void chan_put_back(struct rpnl_chan *chan, struct rpnl_conv *conv,
			  bool first)
{
	spin_lock_irq(&chan->tx_lock);
	chan_queue(chan, conv, first);
	spin_unlock_irq(&chan->tx_lock);
}

/* Adds the number of messages sent to *@sent. Return: see rpnl_conv_pump() */
static int chan_turn(struct rpnl_conv *conv, unsigned int *sent)
{
	unsigned int before;
	int ret;

	mutex_lock(&conv->mutex);
	before = conv->sent;
	ret = rpnl_conv_pump(conv);
	*sent += conv->sent - before;
	mutex_unlock(&conv->mutex);

	return ret;
}

/*
 * The pause should be long enough for room to accumulate and short enough to keep
 * the remote busy. For a remote that takes nothing it grows, as that remote may
 * have crashed.
 */
static u64 next_pause(u64 pause, unsigned int sent)
{
	if (!sent)
		return min_t(u64, 2 * pause, PAUSE_STUCK);
	if (sent < ROOM_FEW)
		return min_t(u64, 2 * pause, PAUSE_MAX);
	if (sent > ROOM_MANY)
		pause = max_t(u64, pause / 2, PAUSE_MIN);

	return min_t(u64, pause, PAUSE_MAX);
}

/* Does a client wait for what is to be sent? */
static bool chan_is_awaited(struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;
	bool awaited = false;

	spin_lock_irq(&chan->tx_lock);
	list_for_each_entry(conv, &chan->senders, in_senders)
		awaited |= !!READ_ONCE(conv->note);
	spin_unlock_irq(&chan->tx_lock);

	return awaited;
}

/*
 * There is no room. Arms the timer for another try, unless retries have run out;
 * then the next request tries.
 */
static void chan_try_later(struct rpnl_chan *chan, unsigned int sent)
{
	chan->pause = next_pause(chan->pause, sent);
	if (sent)
		chan_be_patient(chan);
	else if (time_after(jiffies, READ_ONCE(chan->until)) &&
		 !chan_is_awaited(chan))
		return;

	spin_lock_irq(&chan->tx_lock);
	chan_arm(chan, false);
	spin_unlock_irq(&chan->tx_lock);
}

static void chan_pump(struct work_struct *work)
{
	struct rpnl_chan *chan = container_of(work, struct rpnl_chan, pump);
	struct rpnl_conv *conv;
	unsigned int sent = 0;
	int ret;

	rpnl_remote_answered(chan);
	ret = rpnl_remote_ask(chan);
	if (ret == -EINPROGRESS)
		return;

	while (ret != -EAGAIN && (conv = chan_next_sender(chan))) {
		ret = chan_turn(conv, &sent);
		if (ret == -EAGAIN || ret == -EINPROGRESS)
			chan_put_back(chan, conv, ret == -EAGAIN);
		rpnl_conv_put(conv);
	}
	if (ret == -EAGAIN)
		chan_try_later(chan, sent);
}

static int chan_fill(struct sk_buff *skb, const struct rpnl_chan *chan,
		     u32 portid, u32 seq, int flags, u8 cmd)
{
	void *hdr;

	hdr = genlmsg_put(skb, portid, seq, &rpmsg_netlink_nl_family, flags,
			  cmd);
	if (!hdr)
		return -EMSGSIZE;

	if (nla_put_u32(skb, RPMSG_NETLINK_A_CHAN_ID, chan->id) ||
	    nla_put_string(skb, RPMSG_NETLINK_A_CHAN_NAME, chan->name) ||
	    nla_put_string(skb, RPMSG_NETLINK_A_CHAN_DEVICE, chan->device) ||
	    nla_put_u32(skb, RPMSG_NETLINK_A_CHAN_ADDRESS, chan->address) ||
	    nla_put_u32(skb, RPMSG_NETLINK_A_CHAN_MTU, chan->mtu)) {
		genlmsg_cancel(skb, hdr);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, hdr);

	return 0;
}

static struct sk_buff *chan_message(const struct rpnl_chan *chan, u32 portid,
				    u32 seq, u8 cmd)
{
	struct sk_buff *skb;

	skb = genlmsg_new(GENLMSG_DEFAULT_SIZE, GFP_KERNEL);
	if (!skb)
		return NULL;

	if (chan_fill(skb, chan, portid, seq, 0, cmd)) {
		nlmsg_free(skb);
		return NULL;
	}

	return skb;
}

static struct rpnl_chan *request_chan(struct genl_info *info)
{
	struct nlattr *id = info->attrs[RPMSG_NETLINK_A_CHAN_ID];
	struct rpnl_chan *chan;

	if (GENL_REQ_ATTR_CHECK(info, RPMSG_NETLINK_A_CHAN_ID)) {
		NL_SET_ERR_MSG(info->extack, "the channel is missing");
		return ERR_PTR(-EINVAL);
	}

	chan = rpnl_chan_find(nla_get_u32(id));
	if (!chan) {
		NL_SET_ERR_MSG_ATTR(info->extack, id, "there is no such channel");
		return ERR_PTR(-ENODEV);
	}

	return chan;
}

/**
 * rpmsg_netlink_nl_channel_get_doit() - RPMSG_NETLINK_CMD_CHANNEL_GET of one channel
 * @skb: the request
 * @info: the same, parsed
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_channel_get_doit(struct sk_buff *skb,
				      struct genl_info *info)
{
	struct rpnl_chan *chan;
	struct sk_buff *reply;

	chan = request_chan(info);
	if (IS_ERR(chan))
		return PTR_ERR(chan);

	reply = chan_message(chan, info->snd_portid, info->snd_seq,
			     RPMSG_NETLINK_CMD_CHANNEL_GET);
	rpnl_chan_put(chan);

	return reply ? genlmsg_reply(reply, info) : -ENOMEM;
}

/**
 * rpmsg_netlink_nl_channel_get_dumpit() - RPMSG_NETLINK_CMD_CHANNEL_GET of all channels
 * @skb: the answer
 * @cb: state of the dump
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_channel_get_dumpit(struct sk_buff *skb,
					struct netlink_callback *cb)
{
	unsigned long *id = (unsigned long *)cb->ctx;
	struct rpnl_chan *chan;
	int ret = 0;

	while (!ret && (chan = chan_from(id))) {
		ret = chan_fill(skb, chan, NETLINK_CB(cb->skb).portid,
				cb->nlh->nlmsg_seq, NLM_F_MULTI,
				RPMSG_NETLINK_CMD_CHANNEL_GET);
		if (!ret)
			++*id;
		rpnl_chan_put(chan);
	}

	return ret;
}

/*
 * Messages go only to listeners that may communicate with the remote (main.c).
 * Any user can create a user namespace with thousands of network namespaces, and
 * delivery to each of them would cost time per message.
 */
static bool chan_net_hears(const struct net *net, unsigned int group)
{
	return group != RPMSG_NETLINK_NLGRP_MESSAGES ||
	       net->user_ns == &init_user_ns;
}

/* There was no memory for a notification: reports ENOBUFS to all listeners */
static void chan_lost(unsigned int group)
{
	struct net *net;

	rcu_read_lock();
	for_each_net_rcu(net)
		if (chan_net_hears(net, group))
			genl_set_err(&rpmsg_netlink_nl_family, net, 0, group,
				     ENOBUFS);
	rcu_read_unlock();
}

/*
 * A multicast group checks the capability in the socket's user namespace, which
 * any user can create. Channels belong to the whole system, so requests need the
 * capability in the initial user namespace, and so does listening. Return: 0 if
 * the socket had it when it was opened.
 */
static int chan_may_not_hear(struct sock *sk, struct sk_buff *skb, void *data)
{
	unsigned int *group = data;
	struct socket *sock = sk->sk_socket;

	if (*group != RPMSG_NETLINK_NLGRP_MESSAGES)
		return 0;

	return !sock || !sock->file ||
	       !file_ns_capable(sock->file, &init_user_ns, CAP_NET_ADMIN);
}

/*
 * Sends to all network namespaces, in any context. genlmsg_multicast_allns()
 * cannot be used: it stops at the first listener that is full and has set
 * NETLINK_BROADCAST_ERROR.
 */
static void chan_multicast(struct sk_buff *skb, unsigned int group)
{
	struct sk_buff *copy;
	struct net *net;

	rcu_read_lock();
	for_each_net_rcu(net) {
		if (!chan_net_hears(net, group))
			continue;
		copy = skb_clone(skb, GFP_ATOMIC);
		if (!copy) {
			chan_lost(group);
			break;
		}
		genlmsg_multicast_netns_filtered(&rpmsg_netlink_nl_family, net,
						 copy, 0, group, GFP_ATOMIC,
						 chan_may_not_hear, &group);
	}
	rcu_read_unlock();
	consume_skb(skb);
}

static void chan_notify(const struct rpnl_chan *chan, u8 cmd)
{
	struct sk_buff *skb;

	skb = chan_message(chan, 0, 0, cmd);
	if (skb)
		chan_multicast(skb, RPMSG_NETLINK_NLGRP_CHANNELS);
	else
		chan_lost(RPMSG_NETLINK_NLGRP_CHANNELS);
}

static struct sk_buff *chan_unsolicited(const struct rpnl_chan *chan,
					const void *data, int len)
{
	struct sk_buff *skb;
	void *hdr;

	skb = genlmsg_new(nla_total_size(sizeof(u32)) + nla_total_size(len),
			  GFP_ATOMIC);
	if (!skb)
		return NULL;

	hdr = genlmsg_put(skb, 0, 0, &rpmsg_netlink_nl_family, 0,
			  RPMSG_NETLINK_CMD_MESSAGE_NTF);
	nla_put_u32(skb, RPMSG_NETLINK_A_BLOCK_CHANNEL, chan->id);
	nla_put(skb, RPMSG_NETLINK_A_BLOCK_DATA, len, data);
	genlmsg_end(skb, hdr);

	return skb;
}

/* Receives a message to the channel's own endpoint; called by the bus, in any context */
static int chan_rx(struct rpmsg_device *rpdev, void *data, int len, void *priv,
		   u32 src)
{
	struct rpnl_chan *chan = priv;
	struct sk_buff *skb;

	/* There can be no listeners before the driver has been probed */
	if (!chan || rpnl_remote_hears(chan, data, len))
		return 0;
	/* genl_has_listeners() looks at all network namespaces, despite its argument */
	if (!genl_has_listeners(&rpmsg_netlink_nl_family, &init_net,
				RPMSG_NETLINK_NLGRP_MESSAGES))
		return 0;

	skb = len <= RPMSG_NETLINK_PART_MAX ?
	      chan_unsolicited(chan, data, len) : NULL;
	if (skb)
		chan_multicast(skb, RPMSG_NETLINK_NLGRP_MESSAGES);
	else
		chan_lost(RPMSG_NETLINK_NLGRP_MESSAGES);

	return 0;
}

/* Returns the message length for this bus, or 0 if it is too short for packets */
static u32 chan_mtu(struct rpmsg_device *rpdev)
{
	ssize_t mtu = rpmsg_get_mtu(rpdev->ept);

	if (mtu < 0)
		return RPNL_MTU_UNKNOWN;

	return mtu < RPNL_MTU_MIN ? 0 : min_t(ssize_t, mtu, RPNL_MTU_MAX);
}

static struct rpnl_chan *chan_alloc(struct rpmsg_device *rpdev)
{
	struct rpnl_chan *chan;

	chan = kzalloc(sizeof(*chan), GFP_KERNEL);
	if (!chan)
		return NULL;
	chan->device = kstrdup(dev_name(&rpdev->dev), GFP_KERNEL);
	if (!chan->device) {
		kfree(chan);
		return NULL;
	}

	kref_init(&chan->ref);
	chan->rpdev = rpdev;
	strscpy_pad(chan->name, rpdev->id.name);
	chan->address = rpdev->dst;
	mutex_init(&chan->lock);
	INIT_LIST_HEAD(&chan->convs);
	init_waitqueue_head(&chan->no_epts);
	spin_lock_init(&chan->tx_lock);
	INIT_LIST_HEAD(&chan->senders);
	INIT_WORK(&chan->pump, chan_pump);
	hrtimer_setup(&chan->timer, chan_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	chan->pause = PAUSE_MIN;
	rpnl_remote_init(chan);

	return chan;
}

static void chan_put_action(void *data)
{
	rpnl_chan_put(data);
}

/*
 * The core destroys the default endpoint after remove(), and messages can arrive
 * until then. The channel is device-managed, because such resources are freed
 * later.
 */
static struct rpnl_chan *chan_new(struct rpmsg_device *rpdev)
{
	u32 mtu = chan_mtu(rpdev);
	struct rpnl_chan *chan;
	int ret;

	if (!mtu)
		return ERR_PTR(-EOPNOTSUPP);

	chan = chan_alloc(rpdev);
	if (!chan)
		return ERR_PTR(-ENOMEM);
	chan->mtu = mtu;
	ret = devm_add_action_or_reset(&rpdev->dev, chan_put_action, chan);

	return ret ? ERR_PTR(ret) : chan;
}

static int chan_probe(struct rpmsg_device *rpdev)
{
	struct rpnl_chan *chan;
	int ret;

	chan = chan_new(rpdev);
	if (IS_ERR(chan))
		return PTR_ERR(chan);

	/* Reserves a number; the channel cannot be found before it is stored below */
	ret = xa_alloc_cyclic(&rpnl_chans, &chan->id, NULL,
			      XA_LIMIT(1, INT_MAX), &rpnl_next_id, GFP_KERNEL);
	if (ret < 0)
		return ret;

	/*
	 * Not under the lock that callbacks hold: this function may run inside
	 * the name service's callback.
	 */
	smp_store_release(&rpdev->ept->priv, chan);
	dev_set_drvdata(&rpdev->dev, chan);
	/*
	 * Stored last: the first request may send to the remote, and before the
	 * pointer above is set the answer would be lost. The entry is reserved,
	 * so xa_store() cannot fail.
	 */
	xa_store(&rpnl_chans, chan->id, chan, GFP_KERNEL);
	chan_notify(chan, RPMSG_NETLINK_CMD_CHANNEL_ADD_NTF);

	return 0;
}

/* After this returns the pump does not run and is not queued */
static void chan_stop_pump(struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;

	spin_lock_irq(&chan->tx_lock);
	chan->stopped = true;
	spin_unlock_irq(&chan->tx_lock);

	hrtimer_cancel(&chan->timer);
	cancel_work_sync(&chan->pump);
	while ((conv = chan_next_sender(chan)))
		rpnl_conv_put(conv);
}

/* Returns any conversation that is left, with a reference, or NULL */
static struct rpnl_conv *chan_pop_conv(struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;

	mutex_lock(&chan->lock);
	chan->gone = true;
	conv = list_first_entry_or_null(&chan->convs, struct rpnl_conv,
					in_chan);
	if (conv) {
		kref_get(&conv->ref);
		list_del_init(&conv->in_chan);
	}
	mutex_unlock(&chan->lock);

	return conv;
}

static void chan_remove(struct rpmsg_device *rpdev)
{
	struct rpnl_chan *chan = dev_get_drvdata(&rpdev->dev);
	struct rpnl_conv *conv;

	xa_erase(&rpnl_chans, chan->id);
	while ((conv = chan_pop_conv(chan))) {
		rpnl_conv_end(conv, false);
		rpnl_conv_put(conv);
	}
	chan_stop_pump(chan);
	rpnl_remote_fini(chan);
	wait_event(chan->no_epts, !atomic_read(&chan->epts));
	chan_notify(chan, RPMSG_NETLINK_CMD_CHANNEL_DEL_NTF);
}

static const struct rpmsg_device_id chan_ids[] = {
	{ .name = "rpmsg-netlink" },
	{ }
};
MODULE_DEVICE_TABLE(rpmsg, chan_ids);

static struct rpmsg_driver chan_driver = {
	.drv.name = "rpmsg_netlink",
	.id_table = chan_ids,
	.probe = chan_probe,
	.remove = chan_remove,
	.callback = chan_rx,
};

/**
 * rpnl_driver_register() - register the driver of channels
 *
 * Return: 0 or a negative errno.
 */
int rpnl_driver_register(void)
{
	int ret;

	rpnl_wq = alloc_workqueue("rpmsg_netlink", WQ_UNBOUND | WQ_HIGHPRI, 0);
	if (!rpnl_wq)
		return -ENOMEM;

	ret = register_rpmsg_driver(&chan_driver);
	if (ret)
		destroy_workqueue(rpnl_wq);

	return ret;
}

/**
 * rpnl_driver_unregister() - undo rpnl_driver_register()
 *
 * After this returns there are no channels.
 */
void rpnl_driver_unregister(void)
{
	unregister_rpmsg_driver(&chan_driver);
	destroy_workqueue(rpnl_wq);
}
