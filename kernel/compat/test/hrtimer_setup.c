// SPDX-License-Identifier: GPL-2.0
#include <linux/hrtimer.h>

static void compat_test(struct hrtimer *timer,
			enum hrtimer_restart (*function)(struct hrtimer *timer))
{
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
}
