// SPDX-License-Identifier: GPL-2.0
/*
 * The control device, /dev/rpmsg_ctrlN: creates endpoints and channels.
 *
 * Offers the uAPI of drivers/rpmsg/rpmsg_ctrl.c:
 * Copyright (C) 2022, STMicroelectronics
 * Copyright (c) 2016, Linaro Ltd.
 * Copyright (c) 2012, Michal Simek <monstr@monstr.eu>
 * Copyright (c) 2012, PetaLogix
 * Copyright (c) 2011, Texas Instruments, Inc.
 * Copyright (c) 2011, Google, Inc.
 */
#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/limits.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include <linux/rpmsg_eptfd.h>

#include "eptfd.h"
#include "rpmsg_glue.h"

#define EPT_FD_FLAGS	(O_ACCMODE | O_NONBLOCK | O_CLOEXEC)

/**
 * eptfd_ctrl_attach() - let an endpoint use the rpmsg device
 * @ctrl: control device
 * @ep: endpoint
 *
 * From then on, removal of the rpmsg device ends the endpoint.
 *
 * Return: 0 or -ENODEV if the rpmsg device is gone.
 */
int eptfd_ctrl_attach(struct eptfd_ctrl *ctrl, struct eptfd_ep *ep)
{
	int ret = 0;

	mutex_lock(&ctrl->lock);
	if (ctrl->rpdev) {
		ep->rpdev = ctrl->rpdev;
		list_add_tail(&ep->link, &ctrl->eps);
	} else {
		ret = -ENODEV;
	}
	mutex_unlock(&ctrl->lock);

	return ret;
}

/**
 * eptfd_ctrl_detach() - undo eptfd_ctrl_attach()
 * @ctrl: control device
 * @ep: endpoint, closed or ended. It need not be attached.
 */
void eptfd_ctrl_detach(struct eptfd_ctrl *ctrl, struct eptfd_ep *ep)
{
	mutex_lock(&ctrl->lock);
	list_del_init(&ep->link);
	mutex_unlock(&ctrl->lock);
}

static int ctrl_chinfo(struct rpmsg_channel_info *chinfo, const char *name,
		       u32 src, u32 dst)
{
	/* The bus keeps local addresses in an IDR, which warns about a larger id */
	if (src > INT_MAX && src != RPMSG_ADDR_ANY)
		return -EINVAL;

	memcpy(chinfo->name, name, RPMSG_NAME_SIZE);
	chinfo->name[RPMSG_NAME_SIZE - 1] = '\0';
	chinfo->src = src;
	chinfo->dst = dst;

	return 0;
}

static int ctrl_copy_chinfo(struct rpmsg_channel_info *chinfo,
			    const void __user *arg)
{
	struct rpmsg_endpoint_info info;

	if (copy_from_user(&info, arg, sizeof(info)))
		return -EFAULT;

	return ctrl_chinfo(chinfo, info.name, info.src, info.dst);
}

static int ctrl_create_fd(struct eptfd_ctrl *ctrl,
			  struct rpmsg_endpoint_fd_info __user *arg)
{
	struct rpmsg_endpoint_fd_info info;
	struct rpmsg_channel_info chinfo;
	int ret;

	if (copy_from_user(&info, arg, sizeof(info)))
		return -EFAULT;
	if (info.flags & ~EPT_FD_FLAGS)
		return -EINVAL;

	ret = ctrl_chinfo(&chinfo, info.name, info.src, info.dst);
	if (ret)
		return ret;

	return eptfd_anon_create(ctrl, &chinfo, info.flags, &arg->fd);
}

/*
 * The devices that the bus created for itself must not be released. Releasing
 * the control device from its own ioctl would also deadlock.
 */
static bool ctrl_name_reserved(struct eptfd_ctrl *ctrl, const char *name)
{
	return !strncmp(name, ctrl->rpdev->id.name, RPMSG_NAME_SIZE) ||
	       !strncmp(name, "rpmsg_ns", RPMSG_NAME_SIZE);
}

static int ctrl_create_channel(struct eptfd_ctrl *ctrl,
			       struct rpmsg_channel_info *chinfo)
{
	if (ctrl_name_reserved(ctrl, chinfo->name))
		return -EINVAL;

	return rpmsg_create_channel(ctrl->rpdev, chinfo) ? 0 : -ENXIO;
}

static int ctrl_release_channel(struct eptfd_ctrl *ctrl,
				struct rpmsg_channel_info *chinfo)
{
	if (ctrl_name_reserved(ctrl, chinfo->name))
		return -EINVAL;

	return rpmsg_release_channel(ctrl->rpdev, chinfo);
}

/* Called with the setup lock held and the rpmsg device present */
static int ctrl_do_setup(struct eptfd_ctrl *ctrl, unsigned int cmd,
			 struct rpmsg_channel_info *chinfo)
{
	switch (cmd) {
	case RPMSG_CREATE_EPT_IOCTL:
		return eptfd_node_create(ctrl, chinfo);
	case RPMSG_CREATE_DEV_IOCTL:
		return ctrl_create_channel(ctrl, chinfo);
	case RPMSG_RELEASE_DEV_IOCTL:
		return ctrl_release_channel(ctrl, chinfo);
	default:
		return -ENOTTY;
	}
}

static int ctrl_setup(struct eptfd_ctrl *ctrl, unsigned int cmd,
		      const void __user *arg)
{
	struct rpmsg_channel_info chinfo;
	int ret;

	ret = ctrl_copy_chinfo(&chinfo, arg);
	if (ret)
		return ret;

	if (mutex_lock_killable(&ctrl->setup))
		return -EINTR;
	ret = ctrl->rpdev ? ctrl_do_setup(ctrl, cmd, &chinfo) : -ENODEV;
	mutex_unlock(&ctrl->setup);

	return ret;
}

static int ctrl_open(struct inode *inode, struct file *file)
{
	file->private_data = container_of(inode->i_cdev, struct eptfd_ctrl,
					  cdev.cdev);

	return 0;
}

static long ctrl_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct eptfd_ctrl *ctrl = file->private_data;
	void __user *argp = (void __user *)arg;

	switch (cmd) {
	case RPMSG_CREATE_EPT_FD_IOCTL:
		return ctrl_create_fd(ctrl, argp);
	case RPMSG_CREATE_EPT_IOCTL:
	case RPMSG_CREATE_DEV_IOCTL:
	case RPMSG_RELEASE_DEV_IOCTL:
		return ctrl_setup(ctrl, cmd, argp);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations ctrl_fops = {
	.owner = THIS_MODULE,
	.open = ctrl_open,
	.unlocked_ioctl = ctrl_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static void ctrl_free(struct device *dev)
{
	struct eptfd_ctrl *ctrl = container_of(dev, struct eptfd_ctrl, cdev.dev);

	eptfd_cdev_fini(&ctrl->cdev);
	kfree(ctrl);
}

static const struct device_type ctrl_type = {
	.name = "rpmsg_ctrl",
	.release = ctrl_free,
};

static struct eptfd_ctrl *ctrl_alloc(struct rpmsg_device *rpdev)
{
	struct eptfd_ctrl *ctrl;
	int ret;

	ctrl = kzalloc(sizeof(*ctrl), GFP_KERNEL);
	if (!ctrl)
		return ERR_PTR(-ENOMEM);

	mutex_init(&ctrl->setup);
	INIT_LIST_HEAD(&ctrl->nodes);
	mutex_init(&ctrl->lock);
	INIT_LIST_HEAD(&ctrl->eps);
	ctrl->rpdev = rpdev;

	ctrl->cdev.dev.type = &ctrl_type;
	ret = eptfd_cdev_init(&ctrl->cdev, &eptfd_ctrl_space, &ctrl_fops);
	if (ret) {
		kfree(ctrl);
		return ERR_PTR(ret);
	}

	return ctrl;
}

static int ctrl_probe(struct rpmsg_device *rpdev)
{
	struct eptfd_ctrl *ctrl;
	int ret;

	ctrl = ctrl_alloc(rpdev);
	if (IS_ERR(ctrl))
		return PTR_ERR(ctrl);

	ret = eptfd_cdev_add(&ctrl->cdev, &rpdev->dev);
	if (ret) {
		put_device(&ctrl->cdev.dev);
		return ret;
	}
	dev_set_drvdata(&rpdev->dev, ctrl);

	return 0;
}

/* After this returns no endpoint uses the rpmsg device, and none can attach */
static void ctrl_end_all(struct eptfd_ctrl *ctrl)
{
	struct eptfd_ep *ep, *next;
	LIST_HEAD(ending);

	mutex_lock(&ctrl->lock);
	ctrl->rpdev = NULL;
	list_for_each_entry(ep, &ctrl->eps, link) {
		eptfd_ep_get(ep);
		list_add_tail(&ep->ending, &ending);
	}
	mutex_unlock(&ctrl->lock);

	/* Without ctrl->lock, which closing an endpoint takes */
	list_for_each_entry(ep, &ending, ending)
		eptfd_ep_break(ep);
	list_for_each_entry_safe(ep, next, &ending, ending) {
		eptfd_ep_end(ep);
		eptfd_ep_put(ep);
	}
}

static void ctrl_remove(struct rpmsg_device *rpdev)
{
	struct eptfd_ctrl *ctrl = dev_get_drvdata(&rpdev->dev);
	struct eptfd_node *node, *next;

	mutex_lock(&ctrl->setup);
	ctrl_end_all(ctrl);
	list_for_each_entry_safe(node, next, &ctrl->nodes, link)
		eptfd_node_remove(node);
	mutex_unlock(&ctrl->setup);

	cdev_device_del(&ctrl->cdev.cdev, &ctrl->cdev.dev);
	put_device(&ctrl->cdev.dev);
}

static struct rpmsg_driver ctrl_driver = {
	.probe = ctrl_probe,
	.remove = ctrl_remove,
};

/**
 * eptfd_ctrl_register() - register the driver of control devices
 * @replace: register under the name that the bus binds its control devices to
 *
 * Return: 0 or a negative errno.
 */
int eptfd_ctrl_register(bool replace)
{
	ctrl_driver.drv.name = replace ? "rpmsg_ctrl" : "rpmsg_eptfd";

	return register_rpmsg_driver(&ctrl_driver);
}

/**
 * eptfd_ctrl_unregister() - undo eptfd_ctrl_register()
 */
void eptfd_ctrl_unregister(void)
{
	unregister_rpmsg_driver(&ctrl_driver);
}
