// SPDX-License-Identifier: GPL-2.0
/*
 * Clients: sockets, their conversations and their requests.
 *
 * The table identifies a socket by its address and keeps it until it is released.
 * Modules cannot use generic netlink's private data of sockets.
 */
#include <linux/hashtable.h>
#include <linux/netlink.h>
#include <linux/notifier.h>
#include <linux/slab.h>
#include <net/sock.h>

#include "rpnl.h"

/**
 * struct rpnl_client - a socket that has made a request
 * @node: in rpnl_clients
 * @sk: the socket; holds a reference
 * @portid: its port
 * @lock: protects @convs
 * @convs: its conversations, one per channel
 */
struct rpnl_client {
	struct hlist_node node;
	struct sock *sk;
	u32 portid;
	struct mutex lock;	/* convs */
	struct list_head convs;
};

static DEFINE_HASHTABLE(rpnl_clients, 6);
static DEFINE_MUTEX(rpnl_clients_lock);

static struct rpnl_client *client_alloc(struct sock *sk, u32 portid)
{
	struct rpnl_client *client;

	client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	if (!client)
		return NULL;

	sock_hold(sk);
	client->sk = sk;
	client->portid = portid;
	mutex_init(&client->lock);
	INIT_LIST_HEAD(&client->convs);
	hash_add(rpnl_clients, &client->node, (unsigned long)sk);

	return client;
}

static struct rpnl_client *client_find(struct sock *sk)
{
	struct rpnl_client *client;

	hash_for_each_possible(rpnl_clients, client, node, (unsigned long)sk)
		if (client->sk == sk)
			return client;

	return NULL;
}

/* The client stays while its request runs, because its socket cannot be released */
static struct rpnl_client *client_get(struct sk_buff *skb)
{
	struct sock *sk = NETLINK_CB(skb).sk;
	struct rpnl_client *client;

	mutex_lock(&rpnl_clients_lock);
	client = client_find(sk);
	if (!client)
		client = client_alloc(sk, NETLINK_CB(skb).portid);
	mutex_unlock(&rpnl_clients_lock);

	return client;
}

/*
 * Removes a conversation from all lists and drops the client's reference. It
 * leaves the channel after its end, because until then it can be queued for room
 * again.
 */
static void client_end_conv(struct rpnl_conv *conv)
{
	list_del(&conv->in_client);
	rpnl_conv_end(conv, true);
	rpnl_chan_leave(conv->chan, conv);
	rpnl_conv_put(conv);
}

static void client_end(struct rpnl_client *client)
{
	struct rpnl_conv *conv, *next;

	list_for_each_entry_safe(conv, next, &client->convs, in_client)
		client_end_conv(conv);
	sock_put(client->sk);
	kfree(client);
}

/* Called with the client's lock held. Ends conversations of channels that are gone */
static struct rpnl_conv *client_find_conv(struct rpnl_client *client,
					  struct rpnl_chan *chan)
{
	struct rpnl_conv *conv, *next, *found = NULL;

	list_for_each_entry_safe(conv, next, &client->convs, in_client) {
		if (conv->chan == chan)
			found = conv;
		else if (READ_ONCE(conv->ended))
			client_end_conv(conv);
	}

	return found;
}

/* Called with the client's lock held */
static struct rpnl_conv *client_new_conv(struct rpnl_client *client,
					 struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;
	int ret;

	conv = rpnl_conv_alloc(chan, sock_net(client->sk), client->portid);
	if (!conv)
		return ERR_PTR(-ENOMEM);

	ret = rpnl_conv_open(conv);
	if (ret) {
		rpnl_conv_put(conv);
		return ERR_PTR(ret);
	}
	list_add(&conv->in_client, &client->convs);

	return conv;
}

static struct rpnl_conv *client_conv(struct rpnl_client *client,
				     struct rpnl_chan *chan)
{
	struct rpnl_conv *conv;

	mutex_lock(&client->lock);
	conv = client_find_conv(client, chan);
	if (!conv)
		conv = client_new_conv(client, chan);
	if (!IS_ERR(conv))
		kref_get(&conv->ref);
	mutex_unlock(&client->lock);

	return conv;
}

/* Returns the conversation of a request, with a reference */
static struct rpnl_conv *request_conv(struct sk_buff *skb,
				      struct genl_info *info)
{
	struct nlattr *id = info->attrs[RPMSG_NETLINK_A_BLOCK_CHANNEL];
	struct rpnl_client *client;
	struct rpnl_chan *chan;
	struct rpnl_conv *conv;

	if (GENL_REQ_ATTR_CHECK(info, RPMSG_NETLINK_A_BLOCK_CHANNEL)) {
		NL_SET_ERR_MSG(info->extack, "the channel is missing");
		return ERR_PTR(-EINVAL);
	}

	chan = rpnl_chan_find(nla_get_u32(id));
	if (!chan) {
		NL_SET_ERR_MSG_ATTR(info->extack, id, "there is no such channel");
		return ERR_PTR(-ENODEV);
	}
	client = client_get(skb);
	conv = client ? client_conv(client, chan) : ERR_PTR(-ENOMEM);
	rpnl_chan_put(chan);

	return conv;
}

/* Returns the time limit of a request in milliseconds */
static u32 request_timeout(const struct genl_info *info)
{
	struct nlattr *timeout = info->attrs[RPMSG_NETLINK_A_BLOCK_TIMEOUT];

	return timeout ? nla_get_u32(timeout) : RPMSG_NETLINK_TIMEOUT;
}

static int part_parse(struct rpnl_part *part, struct genl_info *info)
{
	struct nlattr *length = info->attrs[RPMSG_NETLINK_A_BLOCK_LENGTH];
	struct nlattr *offset = info->attrs[RPMSG_NETLINK_A_BLOCK_OFFSET];
	struct nlattr *crc = info->attrs[RPMSG_NETLINK_A_BLOCK_CRC];
	struct nlattr *data = info->attrs[RPMSG_NETLINK_A_BLOCK_DATA];

	if (GENL_REQ_ATTR_CHECK(info, RPMSG_NETLINK_A_BLOCK_LENGTH)) {
		NL_SET_ERR_MSG(info->extack, "the length of the block is missing");
		return -EINVAL;
	}
	if (GENL_REQ_ATTR_CHECK(info, RPMSG_NETLINK_A_BLOCK_DATA)) {
		NL_SET_ERR_MSG(info->extack, "the data is missing");
		return -EINVAL;
	}

	part->length = nla_get_u32(length);
	part->offset = offset ? nla_get_u32(offset) : 0;
	part->data = nla_data(data);
	part->len = nla_len(data);
	part->has_crc = crc;
	part->crc = crc ? nla_get_u16(crc) : 0;
	part->nowait = info->attrs[RPMSG_NETLINK_A_BLOCK_NOWAIT];
	part->timeout = request_timeout(info);

	return 0;
}

static int part_check(const struct rpnl_part *part, struct genl_info *info)
{
	struct nlattr *data = info->attrs[RPMSG_NETLINK_A_BLOCK_DATA];

	if (part->len > RPMSG_NETLINK_PART_MAX) {
		NL_SET_ERR_MSG_ATTR(info->extack, data,
				    "the part is too long");
		return -EMSGSIZE;
	}
	if (part->offset > part->length ||
	    part->len > part->length - part->offset) {
		NL_SET_ERR_MSG_ATTR(info->extack, data,
				    "the part extends beyond the block");
		return -EINVAL;
	}
	if (!part->len && part->length) {
		NL_SET_ERR_MSG_ATTR(info->extack, data, "the part is empty");
		return -EINVAL;
	}

	return 0;
}

/**
 * rpmsg_netlink_nl_send_doit() - RPMSG_NETLINK_CMD_SEND
 * @skb: the request
 * @info: the same, parsed
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_send_doit(struct sk_buff *skb, struct genl_info *info)
{
	struct rpnl_part part;
	struct rpnl_conv *conv;
	int ret;

	ret = part_parse(&part, info) ?: part_check(&part, info);
	if (ret)
		return ret;

	conv = request_conv(skb, info);
	if (IS_ERR(conv))
		return PTR_ERR(conv);
	ret = rpnl_conv_send(conv, &part, info);
	rpnl_conv_put(conv);

	return ret;
}

/**
 * rpmsg_netlink_nl_receive_doit() - RPMSG_NETLINK_CMD_RECEIVE
 * @skb: the request
 * @info: the same, parsed
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_receive_doit(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *length = info->attrs[RPMSG_NETLINK_A_BLOCK_LENGTH];
	struct rpnl_conv *conv;
	int ret;

	conv = request_conv(skb, info);
	if (IS_ERR(conv))
		return PTR_ERR(conv);
	ret = rpnl_conv_receive(conv, length ? nla_get_u32(length) : 0,
				request_timeout(info), info);
	rpnl_conv_put(conv);

	return ret;
}

/**
 * rpmsg_netlink_nl_fetch_doit() - RPMSG_NETLINK_CMD_FETCH
 * @skb: the request
 * @info: the same, parsed
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_fetch_doit(struct sk_buff *skb, struct genl_info *info)
{
	struct rpnl_conv *conv;
	int ret;

	conv = request_conv(skb, info);
	if (IS_ERR(conv))
		return PTR_ERR(conv);
	ret = rpnl_conv_fetch(conv, request_timeout(info), info);
	rpnl_conv_put(conv);

	return ret;
}

/**
 * rpmsg_netlink_nl_reset_doit() - RPMSG_NETLINK_CMD_RESET
 * @skb: the request
 * @info: the same, parsed
 *
 * Return: 0 or a negative errno.
 */
int rpmsg_netlink_nl_reset_doit(struct sk_buff *skb, struct genl_info *info)
{
	struct rpnl_conv *conv;
	int ret;

	conv = request_conv(skb, info);
	if (IS_ERR(conv))
		return PTR_ERR(conv);
	ret = rpnl_conv_reset(conv, info);
	rpnl_conv_put(conv);

	return ret;
}

/*
 * Another socket can get the port before the release of the previous one is
 * notified. Only the socket that is being released is dead.
 */
static bool client_is_released(const struct rpnl_client *client,
			       const struct netlink_notify *n)
{
	return client->portid == n->portid &&
	       net_eq(sock_net(client->sk), n->net) &&
	       sock_flag(client->sk, SOCK_DEAD);
}

/* Removes a client from the table: the one that is being released, or any without @n */
static struct rpnl_client *client_remove(const struct netlink_notify *n)
{
	struct rpnl_client *client, *found = NULL;
	unsigned int bucket;

	mutex_lock(&rpnl_clients_lock);
	hash_for_each(rpnl_clients, bucket, client, node) {
		if (!n || client_is_released(client, n)) {
			hash_del(&client->node);
			found = client;
			break;
		}
	}
	mutex_unlock(&rpnl_clients_lock);

	return found;
}

static int clients_notify(struct notifier_block *nb, unsigned long event,
			  void *data)
{
	struct netlink_notify *n = data;
	struct rpnl_client *client;

	if (event != NETLINK_URELEASE || n->protocol != NETLINK_GENERIC)
		return NOTIFY_DONE;

	while ((client = client_remove(n)))
		client_end(client);

	return NOTIFY_DONE;
}

static struct notifier_block clients_nb = {
	.notifier_call = clients_notify,
};

/**
 * rpnl_clients_register() - subscribe to the release of sockets
 *
 * Return: 0 or a negative errno.
 */
int rpnl_clients_register(void)
{
	return netlink_register_notifier(&clients_nb);
}

/**
 * rpnl_clients_unregister() - remove all sockets
 *
 * Called when there are neither requests nor channels.
 */
void rpnl_clients_unregister(void)
{
	struct rpnl_client *client;

	netlink_unregister_notifier(&clients_nb);
	while ((client = client_remove(NULL)))
		client_end(client);
}
