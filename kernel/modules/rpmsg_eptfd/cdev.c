// SPDX-License-Identifier: GPL-2.0
/*
 * Device nodes: numbers, names, registration.
 */
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/module.h>

#include "eptfd.h"
#include "rpmsg_glue.h"

struct eptfd_space eptfd_ctrl_space = {
	.prefix = "rpmsg_ctrl",
	.ida = IDA_INIT(eptfd_ctrl_space.ida),
};

struct eptfd_space eptfd_node_space = {
	.prefix = "rpmsg",
	.ida = IDA_INIT(eptfd_node_space.ida),
};

/**
 * eptfd_space_register() - reserve device numbers
 * @space: the kind of node
 * @name: name for /proc/devices
 *
 * Return: 0 or a negative errno.
 */
int eptfd_space_register(struct eptfd_space *space, const char *name)
{
	return alloc_chrdev_region(&space->region, 0, MINORMASK + 1, name);
}

/**
 * eptfd_space_unregister() - release device numbers
 * @space: the kind of node; no node is left
 */
void eptfd_space_unregister(struct eptfd_space *space)
{
	unregister_chrdev_region(space->region, MINORMASK + 1);
	ida_destroy(&space->ida);
}

/**
 * eptfd_cdev_init() - assign a number and a name to a node
 * @c: zeroed node, in an object whose cdev.dev.type has the release function
 * @space: the kind of node
 * @fops: file operations
 *
 * Return: 0, and from then on put_device() frees the object; or -ENOSPC or
 * -ENOMEM, and the caller frees it.
 */
int eptfd_cdev_init(struct eptfd_cdev *c, struct eptfd_space *space,
		    const struct file_operations *fops)
{
	int id;

	id = ida_alloc_range(&space->ida, eptfd_first_number, MINORMASK,
			     GFP_KERNEL);
	if (id < 0)
		return id;

	c->space = space;
	c->dev.id = id;
	c->dev.devt = MKDEV(MAJOR(space->region), id);
	c->dev.class = &rpmsg_class;
	device_initialize(&c->dev);

	cdev_init(&c->cdev, fops);
	c->cdev.owner = THIS_MODULE;

	return 0;
}

/**
 * eptfd_cdev_add() - register the node
 * @c: initialized node
 * @parent: parent device
 *
 * From here on open files keep the object alive: each holds a reference of the
 * character device, which holds one of the device.
 *
 * Return: 0 or a negative errno.
 */
int eptfd_cdev_add(struct eptfd_cdev *c, struct device *parent)
{
	int ret;

	ret = dev_set_name(&c->dev, "%s%d", c->space->prefix, c->dev.id);
	if (ret)
		return ret;

	c->dev.parent = parent;

	return cdev_device_add(&c->cdev, &c->dev);
}

/**
 * eptfd_cdev_fini() - release the number
 * @c: node whose last reference is gone
 */
void eptfd_cdev_fini(struct eptfd_cdev *c)
{
	ida_free(&c->space->ida, c->dev.id);
}
