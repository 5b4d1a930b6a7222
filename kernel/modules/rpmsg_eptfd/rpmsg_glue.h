/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions of the rpmsg core that a control driver needs and no public header
 * declares.
 *
 * rpmsg_core exports these symbols for rpmsg_ctrl and rpmsg_char, but their
 * declarations are in drivers/rpmsg/rpmsg_internal.h, which a tree that is
 * prepared for building modules does not have. This file copies prototypes only,
 * no layout of a structure.
 *
 * Copyright (C) 2011 Texas Instruments, Inc.
 * Copyright (C) 2011 Google, Inc.
 */
#ifndef RPMSG_EPTFD_GLUE_H
#define RPMSG_EPTFD_GLUE_H

#include <linux/rpmsg.h>

extern const struct class rpmsg_class;

struct rpmsg_device *rpmsg_create_channel(struct rpmsg_device *rpdev,
					  struct rpmsg_channel_info *chinfo);
int rpmsg_release_channel(struct rpmsg_device *rpdev,
			  struct rpmsg_channel_info *chinfo);

#endif
