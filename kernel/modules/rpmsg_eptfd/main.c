// SPDX-License-Identifier: GPL-2.0
/*
 * rpmsg endpoints for user space, as device nodes and as file descriptors.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/module.h>
#include <linux/sizes.h>

#include "eptfd.h"

/* The in-tree drivers number their devices from 0 in the same class and /dev */
#define EPTFD_FIRST_BESIDE	512

static bool replace;
module_param(replace, bool, 0444);
MODULE_PARM_DESC(replace,
		 "take the place of rpmsg_ctrl and rpmsg_char, which must not be loaded (default: N, work beside them)");

unsigned int eptfd_rx_limit = SZ_8M;
module_param_named(rx_limit, eptfd_rx_limit, uint, 0644);
MODULE_PARM_DESC(rx_limit,
		 "bytes of memory that unread messages of one endpoint may take (default: 8388608)");

static int first_number = -1;
module_param(first_number, int, 0444);
MODULE_PARM_DESC(first_number,
		 "number of the first /dev/rpmsg_ctrlN and /dev/rpmsgN (default: 512, with replace 0)");

unsigned int eptfd_first_number;

static int __init eptfd_choose_first_number(void)
{
	if (first_number == -1) {
		eptfd_first_number = replace ? 0 : EPTFD_FIRST_BESIDE;
		return 0;
	}

	if (first_number < 0 || first_number > MINORMASK) {
		pr_err("first_number=%d: not in 0 to %u\n", first_number, MINORMASK);
		return -EINVAL;
	}
	eptfd_first_number = first_number;

	return 0;
}

static int __init eptfd_register_spaces(void)
{
	int ret;

	ret = eptfd_space_register(&eptfd_ctrl_space, "rpmsg_eptfd_ctrl");
	if (ret)
		return ret;

	ret = eptfd_space_register(&eptfd_node_space, "rpmsg_eptfd");
	if (ret)
		eptfd_space_unregister(&eptfd_ctrl_space);

	return ret;
}

static void eptfd_unregister_spaces(void)
{
	eptfd_space_unregister(&eptfd_node_space);
	eptfd_space_unregister(&eptfd_ctrl_space);
}

static int __init eptfd_register_drivers(void)
{
	int ret;

	ret = eptfd_ctrl_register(replace);
	if (ret)
		return ret;

	ret = eptfd_chrdev_register(replace);
	if (ret)
		eptfd_ctrl_unregister();

	return ret;
}

static int __init eptfd_init(void)
{
	int ret;

	ret = eptfd_choose_first_number();
	if (ret)
		return ret;

	ret = eptfd_dmabuf_init();
	if (ret)
		return ret;

	ret = eptfd_register_spaces();
	if (ret)
		goto exit_dmabuf;

	ret = eptfd_register_drivers();
	/* A driver of that name was loaded meanwhile. modprobe takes -EEXIST for success. */
	if (ret == -EEXIST)
		ret = -EBUSY;
	if (ret == -EBUSY && replace)
		pr_err("replace=1 needs rpmsg_ctrl and rpmsg_char unloaded\n");
	if (ret)
		goto unregister_spaces;

	return 0;

unregister_spaces:
	eptfd_unregister_spaces();
exit_dmabuf:
	eptfd_dmabuf_exit();

	return ret;
}
module_init(eptfd_init);

static void __exit eptfd_exit(void)
{
	eptfd_chrdev_unregister();
	eptfd_ctrl_unregister();
	eptfd_unregister_spaces();
	eptfd_dmabuf_exit();
}
module_exit(eptfd_exit);

/*
 * The module has no alias. With one, udev would load it for each control device,
 * next to the in-tree drivers and without "replace". modprobe.conf has the
 * aliases for systems where it replaces them.
 */
MODULE_AUTHOR("The Busbar authors");
MODULE_DESCRIPTION("rpmsg endpoints as device nodes and as file descriptors");
MODULE_LICENSE("GPL");
