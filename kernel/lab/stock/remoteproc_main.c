// SPDX-License-Identifier: GPL-2.0-only
/*
 * remoteproc as a module: Linux has it built in only. Two of its files start by
 * themselves, and a module has one start. Without an end it stays, as what is
 * built in.
 */
#include <linux/init.h>
#include <linux/module.h>

int remoteproc_core_start(void);
int remoteproc_virtio_start(void);

static int __init remoteproc_start(void)
{
	int ret = remoteproc_core_start();

	return ret ?: remoteproc_virtio_start();
}
module_init(remoteproc_start);

MODULE_DESCRIPTION("Generic Remote Processor Framework, of Debian's source");
MODULE_LICENSE("GPL");
