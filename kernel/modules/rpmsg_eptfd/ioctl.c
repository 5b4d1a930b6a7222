// SPDX-License-Identifier: GPL-2.0
/*
 * The ioctls for DMABUFs.
 */
#include <linux/dma-buf.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "eptfd.h"
#include "share.h"

static bool file_blocks(const struct file *file)
{
	return !(file->f_flags & O_NONBLOCK);
}

/*
 * Buffers are mapped for the same device as the memory of messages: the device
 * of the bus, or an ancestor. It stays while the share has a user.
 */
static struct device *ep_dma_device(struct eptfd_ep *ep)
{
	struct device *dev;

	mutex_lock(&ep->lock);
	dev = ep->rpdev ? &ep->rpdev->dev : ERR_PTR(-EPIPE);
	mutex_unlock(&ep->lock);
	if (IS_ERR(dev))
		return dev;

	while (dev && !dev->dma_mask)
		dev = dev->parent;

	return dev ?: ERR_PTR(-EOPNOTSUPP);
}

static int share_attach(struct eptfd_share *share, struct dma_buf *dmabuf, struct file *file)
{
	struct eptfd_buffer *buffer;
	struct device *dev;
	int ret;

	ret = eptfd_share_set_owner(share, file);
	if (ret)
		return ret;

	dev = ep_dma_device(share->ep);
	if (IS_ERR(dev))
		return PTR_ERR(dev);

	buffer = eptfd_buffer_create(share, dmabuf, dev, file_blocks(file));
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);

	ret = eptfd_share_add(share, buffer);
	if (ret)
		eptfd_buffer_put(buffer);

	return ret;
}

static int ep_attach_dmabuf(struct eptfd_ep *ep, struct dma_buf *dmabuf, struct file *file)
{
	struct eptfd_share *share;
	int ret;

	share = eptfd_share_of(ep);
	if (!share)
		return -ENOMEM;
	if (!eptfd_share_get(share))
		return -EPIPE;

	ret = share_attach(share, dmabuf, file);
	eptfd_share_put(share);

	return ret;
}

/* Gets the DMABUF that @arg names, and checks that the rest of @arg is 0 */
static struct dma_buf *get_named(const struct rpmsg_dmabuf_attach __user *arg)
{
	struct rpmsg_dmabuf_attach named;

	if (copy_from_user(&named, arg, sizeof(named)))
		return ERR_PTR(-EFAULT);
	if (named.flags || memchr_inv(named.reserved, 0, sizeof(named.reserved)))
		return ERR_PTR(-EINVAL);

	return dma_buf_get(named.fd);
}

static int ep_attach(struct eptfd_ep *ep, struct file *file,
		     const struct rpmsg_dmabuf_attach __user *arg)
{
	struct dma_buf *dmabuf;
	int ret;

	dmabuf = get_named(arg);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = ep_attach_dmabuf(ep, dmabuf, file);
	dma_buf_put(dmabuf);

	return ret;
}

static int share_detach(struct eptfd_share *share, struct dma_buf *dmabuf)
{
	struct eptfd_buffer *buffer;

	buffer = eptfd_share_remove(share, dmabuf);
	if (!buffer)
		return -EPERM;

	eptfd_buffer_put(buffer);

	return 0;
}

static int ep_detach(struct eptfd_ep *ep, const struct rpmsg_dmabuf_attach __user *arg)
{
	struct eptfd_share *share;
	struct dma_buf *dmabuf;
	int ret;

	dmabuf = get_named(arg);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	share = eptfd_share_enter(ep);
	if (IS_ERR(share)) {
		ret = PTR_ERR(share);
		goto put_dmabuf;
	}

	ret = share_detach(share, dmabuf);
	eptfd_share_put(share);
put_dmabuf:
	dma_buf_put(dmabuf);

	return ret;
}

static int send_check(const struct rpmsg_dmabuf *part, const struct dma_buf *dmabuf)
{
	if (!part->length || part->offset >= dmabuf->size ||
	    part->length > dmabuf->size - part->offset)
		return -EINVAL;

	return 0;
}

static int ep_send(struct eptfd_ep *ep, struct file *file, struct rpmsg_dmabuf __user *arg)
{
	struct eptfd_share *share;
	struct rpmsg_dmabuf part;
	struct dma_buf *dmabuf;
	int ret;

	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	if (copy_from_user(&part, arg, sizeof(part)))
		return -EFAULT;
	if (part.flags != RPMSG_DMABUF_TO_REMOTE && part.flags != RPMSG_DMABUF_FROM_REMOTE)
		return -EINVAL;
	if (memchr_inv(part.reserved, 0, sizeof(part.reserved)))
		return -EINVAL;

	dmabuf = dma_buf_get(part.fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);

	ret = send_check(&part, dmabuf);
	if (ret)
		goto put_dmabuf;

	/* Before becoming a user of the share: put_user() can block without limit */
	part.cookie = eptfd_share_cookie();
	if (put_user(part.cookie, &arg->cookie)) {
		ret = -EFAULT;
		goto put_dmabuf;
	}

	share = eptfd_share_enter(ep);
	if (IS_ERR(share)) {
		ret = PTR_ERR(share);
		goto put_dmabuf;
	}

	ret = eptfd_share_send(share, dmabuf, &part, file_blocks(file));
	eptfd_share_put(share);
put_dmabuf:
	dma_buf_put(dmabuf);

	return ret;
}

/**
 * eptfd_dmabuf_ioctl() - the calls for DMABUFs
 * @ep: endpoint
 * @file: its file
 * @cmd: call
 * @arg: its argument
 *
 * Return: 0, -ENOTTY for any other call, or the call's own error.
 */
long eptfd_dmabuf_ioctl(struct eptfd_ep *ep, struct file *file, unsigned int cmd,
			unsigned long arg)
{
	void __user *argp = (void __user *)arg;

	switch (cmd) {
	case RPMSG_DMABUF_ATTACH_IOCTL:
		return ep_attach(ep, file, argp);
	case RPMSG_DMABUF_DETACH_IOCTL:
		return ep_detach(ep, argp);
	case RPMSG_DMABUF_SEND_IOCTL:
		return ep_send(ep, file, argp);
	default:
		return -ENOTTY;
	}
}
