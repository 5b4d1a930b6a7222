/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_WORKQUEUE_H
#define COMPAT_WORKQUEUE_H

#include <linux/workqueue.h>

#ifndef HAVE_WQ_PERCPU
/* A workqueue is bound to processors unless it is told otherwise. */
#define WQ_PERCPU 0
#endif

#endif
