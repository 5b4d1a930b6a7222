// SPDX-License-Identifier: GPL-2.0
/*
 * An endpoint that is a device node, /dev/rpmsgN, for one file at a time.
 *
 * Offers the uAPI of drivers/rpmsg/rpmsg_char.c:
 * Copyright (C) 2022, STMicroelectronics
 * Copyright (c) 2016, Linaro Ltd.
 * Copyright (c) 2012, Michal Simek <monstr@monstr.eu>
 * Copyright (c) 2012, PetaLogix
 * Copyright (c) 2011, Texas Instruments, Inc.
 * Copyright (c) 2011, Google, Inc.
 */
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "eptfd.h"

static struct eptfd_node *node_of_dev(struct device *dev)
{
	return container_of(dev, struct eptfd_node, cdev.dev);
}

static int node_open(struct inode *inode, struct file *file)
{
	struct eptfd_node *node = container_of(inode->i_cdev, struct eptfd_node,
					       cdev.cdev);
	int ret;

	ret = eptfd_ep_open(&node->ep);
	if (ret)
		return ret == -ENODEV ? -ENETRESET : ret;

	eptfd_ep_setup_file(&node->ep, file);

	return 0;
}

static void node_closed(struct eptfd_ep *ep)
{
	eptfd_ep_close(ep);
	put_device(&container_of(ep, struct eptfd_node, ep)->cdev.dev);
}

static int node_release(struct inode *inode, struct file *file)
{
	struct eptfd_ep *ep = file->private_data;

	get_device(&container_of(ep, struct eptfd_node, ep)->cdev.dev);
	eptfd_ep_leave(ep, node_closed);

	return 0;
}

static int node_destroy(struct eptfd_node *node)
{
	struct eptfd_ctrl *ctrl = node->ep.ctrl;

	/* The default endpoint of a channel is the core's to destroy */
	if (!ctrl)
		return -EINVAL;

	if (mutex_lock_killable(&ctrl->setup))
		return -EINTR;
	if (!list_empty(&node->link))
		eptfd_node_remove(node);
	mutex_unlock(&ctrl->setup);

	return 0;
}

static long node_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct eptfd_ep *ep = file->private_data;

	if (cmd != RPMSG_DESTROY_EPT_IOCTL)
		return eptfd_ep_ioctl(file, cmd, arg);

	return node_destroy(container_of(ep, struct eptfd_node, ep));
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.open = node_open,
	.release = node_release,
	.read_iter = eptfd_ep_read_iter,
	.write_iter = eptfd_ep_write_iter,
	.poll = eptfd_ep_poll,
	.unlocked_ioctl = node_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = eptfd_ep_show_fdinfo,
};

static ssize_t name_show(struct device *dev, struct device_attribute *attr,
			 char *buf)
{
	return sysfs_emit(buf, "%s\n", node_of_dev(dev)->ep.chinfo.name);
}
static DEVICE_ATTR_RO(name);

/*
 * While the endpoint is open, shows the address that the bus has chosen. Programs
 * read it here to tell the remote where to answer.
 */
static ssize_t src_show(struct device *dev, struct device_attribute *attr,
			char *buf)
{
	struct eptfd_ep *ep = &node_of_dev(dev)->ep;
	u32 src;

	mutex_lock(&ep->lock);
	src = ep->ept ? ep->addr : ep->chinfo.src;
	mutex_unlock(&ep->lock);

	return sysfs_emit(buf, "%d\n", src);
}
static DEVICE_ATTR_RO(src);

static ssize_t dst_show(struct device *dev, struct device_attribute *attr,
			char *buf)
{
	return sysfs_emit(buf, "%d\n", node_of_dev(dev)->ep.chinfo.dst);
}
static DEVICE_ATTR_RO(dst);

static struct attribute *node_attrs[] = {
	&dev_attr_name.attr,
	&dev_attr_src.attr,
	&dev_attr_dst.attr,
	NULL
};
ATTRIBUTE_GROUPS(node);

static void node_free(struct eptfd_ep *ep)
{
	struct eptfd_node *node = container_of(ep, struct eptfd_node, ep);

	eptfd_cdev_fini(&node->cdev);
	kfree(node);
}

/* Drops the device's reference of the endpoint. Removal may hold another one. */
static void node_put_ep(struct device *dev)
{
	eptfd_ep_put(&node_of_dev(dev)->ep);
}

static const struct device_type node_type = {
	.name = "rpmsg_endpoint",
	.groups = node_groups,
	.release = node_put_ep,
};

/**
 * eptfd_node_alloc() - allocate a node
 *
 * Return: a node or an ERR_PTR(). The caller has to initialize its endpoint at
 * once. put_device() frees it.
 */
struct eptfd_node *eptfd_node_alloc(void)
{
	struct eptfd_node *node;
	int ret;

	/* Charged to the caller: the remote can keep the node alive after close() */
	node = kzalloc(sizeof(*node), GFP_KERNEL_ACCOUNT);
	if (!node)
		return ERR_PTR(-ENOMEM);

	INIT_LIST_HEAD(&node->link);
	node->ep.release = node_free;
	node->cdev.dev.type = &node_type;
	ret = eptfd_cdev_init(&node->cdev, &eptfd_node_space, &node_fops);
	if (ret) {
		kfree(node);
		return ERR_PTR(ret);
	}

	return node;
}

/**
 * eptfd_node_create() - create a node for a control device
 * @ctrl: control device, its setup lock held
 * @chinfo: name and addresses
 *
 * Return: 0, -ENODEV if the rpmsg device is gone, -ENOMEM, -ENOSPC without a free
 * number, or an error of registering a device.
 */
int eptfd_node_create(struct eptfd_ctrl *ctrl,
		      const struct rpmsg_channel_info *chinfo)
{
	struct eptfd_node *node;
	int ret;

	node = eptfd_node_alloc();
	if (IS_ERR(node))
		return PTR_ERR(node);

	eptfd_ep_init(&node->ep, ctrl, chinfo);
	ret = eptfd_ctrl_attach(ctrl, &node->ep);
	if (ret)
		goto put_node;

	ret = eptfd_cdev_add(&node->cdev, &ctrl->cdev.dev);
	if (ret)
		goto detach;

	list_add_tail(&node->link, &ctrl->nodes);

	return 0;

detach:
	eptfd_ctrl_detach(ctrl, &node->ep);
put_node:
	put_device(&node->cdev.dev);

	return ret;
}

/**
 * eptfd_node_remove() - end the endpoint and remove the node
 * @node: node of a control device; the setup lock of that device is held
 */
void eptfd_node_remove(struct eptfd_node *node)
{
	list_del_init(&node->link);
	eptfd_ep_end(&node->ep);
	eptfd_ctrl_detach(node->ep.ctrl, &node->ep);
	cdev_device_del(&node->cdev.cdev, &node->cdev.dev);
	put_device(&node->cdev.dev);
}
