// SPDX-License-Identifier: GPL-2.0
/*
 * Driver of channels whose messages go to user space: creates a device node for
 * the channel's default endpoint.
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
#include <linux/module.h>

#include "eptfd.h"

static void chrdev_put_node(void *data)
{
	struct eptfd_node *node = data;

	put_device(&node->cdev.dev);
}

/*
 * The core destroys the default endpoint after remove(), and messages can arrive
 * until then. The node is device-managed, because such resources are freed later.
 */
static struct eptfd_node *chrdev_node(struct rpmsg_device *rpdev)
{
	struct eptfd_node *node;
	int ret;

	node = eptfd_node_alloc();
	if (IS_ERR(node))
		return node;

	eptfd_ep_init_default(&node->ep, rpdev);
	ret = devm_add_action_or_reset(&rpdev->dev, chrdev_put_node, node);

	return ret ? ERR_PTR(ret) : node;
}

static int chrdev_probe(struct rpmsg_device *rpdev)
{
	struct eptfd_node *node;

	node = chrdev_node(rpdev);
	if (IS_ERR(node))
		return PTR_ERR(node);

	/*
	 * From here on messages are queued, whether the node is open or not.
	 * Not under the lock that callbacks hold: this function may run inside
	 * the name service's callback.
	 */
	smp_store_release(&rpdev->ept->priv, &node->ep);
	dev_set_drvdata(&rpdev->dev, node);

	return eptfd_cdev_add(&node->cdev, &rpdev->dev);
}

static void chrdev_remove(struct rpmsg_device *rpdev)
{
	struct eptfd_node *node = dev_get_drvdata(&rpdev->dev);

	eptfd_ep_end(&node->ep);
	cdev_device_del(&node->cdev.cdev, &node->cdev.dev);
}

static const struct rpmsg_device_id chrdev_ids[] = {
	{ .name = "rpmsg-raw" },
	{ .name = "rpmsg_chrdev" },
	{ }
};

static struct rpmsg_driver chrdev_driver = {
	.probe = chrdev_probe,
	.remove = chrdev_remove,
	.callback = eptfd_ep_rx,
	.flowcontrol = eptfd_ep_flow,
};

/**
 * eptfd_chrdev_register() - register the driver of channels
 * @replace: register under the in-tree driver's name and for its channels;
 *	otherwise only for channels whose driver_override names this driver
 *
 * Return: 0 or a negative errno.
 */
int eptfd_chrdev_register(bool replace)
{
	chrdev_driver.drv.name = replace ? "rpmsg_chrdev" : "rpmsg_eptfd_chrdev";
	chrdev_driver.id_table = replace ? chrdev_ids : NULL;

	return register_rpmsg_driver(&chrdev_driver);
}

/**
 * eptfd_chrdev_unregister() - undo eptfd_chrdev_register()
 */
void eptfd_chrdev_unregister(void)
{
	unregister_rpmsg_driver(&chrdev_driver);
}
