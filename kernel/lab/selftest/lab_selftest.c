// SPDX-License-Identifier: GPL-2.0
/*
 * Does on purpose what the lab must find: a run with any of these faults fails
 * and prints the report. Loading the module with fault=NAME commits it.
 */

#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static char *fault = "none";
module_param(fault, charp, 0444);
MODULE_PARM_DESC(fault, "warn, bug, panic, kmemleak, kasan, lockdep, sleep or none");

static void fault_warn(void)
{
	WARN(1, "asked to\n");
}

static void fault_bug(void)
{
	BUG();
}

static void fault_panic(void)
{
	panic("asked to");
}

/* Several, since a stale copy of one pointer may lie about somewhere. */
static void fault_kmemleak(void)
{
	int i;

	for (i = 0; i < 16; i++) {
		void *lost = kmalloc(64, GFP_KERNEL);

		OPTIMIZER_HIDE_VAR(lost);
	}
}

static void fault_kasan(void)
{
	size_t past = 64;
	char *p = kmalloc(past, GFP_KERNEL);

	if (!p)
		return;
	OPTIMIZER_HIDE_VAR(past);
	WRITE_ONCE(p[past], 1);
	kfree(p);
}

static void fault_lockdep(void)
{
	static DEFINE_MUTEX(a);
	static DEFINE_MUTEX(b);

	mutex_lock(&a);
	mutex_lock(&b);
	mutex_unlock(&b);
	mutex_unlock(&a);

	mutex_lock(&b);
	mutex_lock(&a);
	mutex_unlock(&a);
	mutex_unlock(&b);
}

static void fault_sleep(void)
{
	static DEFINE_SPINLOCK(lock);

	spin_lock(&lock);
	might_sleep();
	spin_unlock(&lock);
}

static const struct {
	const char *name;
	void (*commit)(void);
} faults[] = {
	{ "warn", fault_warn },
	{ "bug", fault_bug },
	{ "panic", fault_panic },
	{ "kmemleak", fault_kmemleak },
	{ "kasan", fault_kasan },
	{ "lockdep", fault_lockdep },
	{ "sleep", fault_sleep },
};

static int __init lab_selftest_init(void)
{
	size_t i;

	if (!strcmp(fault, "none"))
		return 0;
	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		if (!strcmp(fault, faults[i].name)) {
			faults[i].commit();
			return 0;
		}
	}
	pr_err("lab_selftest: fault=%s is unknown\n", fault);
	return -EINVAL;
}

static void __exit lab_selftest_exit(void)
{
}

module_init(lab_selftest_init);
module_exit(lab_selftest_exit);

MODULE_DESCRIPTION("Faults that the lab must find");
MODULE_LICENSE("GPL");
