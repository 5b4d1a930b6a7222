// SPDX-License-Identifier: GPL-2.0
/*
 * An anonymous endpoint: a file descriptor without a device, a node or an entry
 * in sysfs. The uAPI is that of "rpmsg: Introduce RPMSG_CREATE_EPT_FD_IOCTL
 * uAPI" by Dawei Li, version 5.
 */
#include <linux/anon_inodes.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "eptfd.h"

static void anon_free(struct eptfd_ep *ep)
{
	kfree(ep);
}

static void anon_closed(struct eptfd_ep *ep)
{
	/* Close it before detaching: removal must find every open endpoint */
	eptfd_ep_close(ep);
	eptfd_ctrl_detach(ep->ctrl, ep);
	eptfd_ep_put(ep);
}

static int anon_release(struct inode *inode, struct file *file)
{
	eptfd_ep_leave(file->private_data, anon_closed);

	return 0;
}

static long anon_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct eptfd_ep *ep = file->private_data;

	if (cmd != RPMSG_DESTROY_EPT_IOCTL)
		return eptfd_ep_ioctl(file, cmd, arg);

	eptfd_ep_end(ep);

	return 0;
}

static const struct file_operations anon_fops = {
	.owner = THIS_MODULE,
	.release = anon_release,
	.read_iter = eptfd_ep_read_iter,
	.write_iter = eptfd_ep_write_iter,
	.poll = eptfd_ep_poll,
	.unlocked_ioctl = anon_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = eptfd_ep_show_fdinfo,
};

static struct file *anon_file(struct eptfd_ctrl *ctrl,
			      const struct rpmsg_channel_info *chinfo,
			      unsigned int flags)
{
	struct eptfd_ep *ep;
	struct file *file;

	/* Charged to the caller: the remote can keep the endpoint alive after close() */
	ep = kzalloc(sizeof(*ep), GFP_KERNEL_ACCOUNT);
	if (!ep)
		return ERR_PTR(-ENOMEM);

	eptfd_ep_init(ep, ctrl, chinfo);
	ep->release = anon_free;
	file = anon_inode_getfile("[rpmsg-endpoint]", &anon_fops, ep, flags);
	if (IS_ERR(file))
		eptfd_ep_put(ep);
	else
		eptfd_ep_setup_file(ep, file);

	return file;
}

static int anon_start(struct eptfd_ep *ep)
{
	int ret;

	ret = eptfd_ctrl_attach(ep->ctrl, ep);
	if (ret)
		return ret;

	return eptfd_ep_open(ep);
}

/**
 * eptfd_anon_create() - create an endpoint and a descriptor for it
 * @ctrl: control device
 * @chinfo: name and addresses
 * @flags: O_ACCMODE | O_NONBLOCK | O_CLOEXEC
 * @ufd: user pointer that the descriptor is written to
 *
 * The descriptor is installed last: once the endpoint works and the number has
 * been written to @ufd.
 *
 * Return: 0, -EFAULT, -EINVAL if the bus refuses the address, -EMFILE, -ENFILE,
 * -ENODEV if the rpmsg device is gone, -ENOMEM.
 */
int eptfd_anon_create(struct eptfd_ctrl *ctrl,
		      const struct rpmsg_channel_info *chinfo,
		      unsigned int flags, s32 __user *ufd)
{
	struct file *file;
	int fd, ret;

	fd = get_unused_fd_flags(flags);
	if (fd < 0)
		return fd;

	file = anon_file(ctrl, chinfo, flags);
	if (IS_ERR(file)) {
		ret = PTR_ERR(file);
		goto put_fd;
	}

	ret = anon_start(file->private_data);
	if (ret)
		goto put_file;

	ret = put_user(fd, ufd);
	if (ret)
		goto put_file;

	fd_install(fd, file);

	return 0;

put_file:
	fput(file);
put_fd:
	put_unused_fd(fd);

	return ret;
}
