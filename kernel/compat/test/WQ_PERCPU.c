// SPDX-License-Identifier: GPL-2.0
#include <linux/workqueue.h>

static const int compat_test = WQ_PERCPU;
