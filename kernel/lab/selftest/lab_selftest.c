// SPDX-License-Identifier: GPL-2.0
/*
 * Does on purpose what the lab must find: a run with any of these faults fails
 * and prints the report. Loading the module with fault=NAME commits it.
 */

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static char *fault = "none";
module_param(fault, charp, 0444);
MODULE_PARM_DESC(fault, "warn, bug, panic, kmemleak, kasan, lockdep, sleep, ubsan, dma, race or none");

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

/* Several, since kmemleak may find a stale copy of one pointer. */
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

static void fault_ubsan(void)
{
	int shift = 32;

	OPTIMIZER_HIDE_VAR(shift);
	pr_info("lab_selftest: %d\n", 1 << shift);
}

/* Unmaps fewer bytes than it has mapped. */
static void fault_dma(void)
{
	struct platform_device *device;
	dma_addr_t address;
	void *memory;

	device = platform_device_register_simple("lab_selftest", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(device))
		return;
	memory = kmalloc(64, GFP_KERNEL);
	if (!memory || dma_coerce_mask_and_coherent(&device->dev, DMA_BIT_MASK(64)))
		goto out;
	address = dma_map_single(&device->dev, memory, 64, DMA_TO_DEVICE);
	if (!dma_mapping_error(&device->dev, address))
		dma_unmap_single(&device->dev, address, 32, DMA_TO_DEVICE);
out:
	kfree(memory);
	platform_device_unregister(device);
}

static int race_count(void *counter)
{
	while (!kthread_should_stop()) {
		++*(unsigned long *)counter;
		cond_resched();
	}

	return 0;
}

/* Two threads increment one counter. */
static void fault_race(void)
{
	static unsigned long counter;
	struct task_struct *thread;

	thread = kthread_run(race_count, &counter, "lab_selftest");
	if (IS_ERR(thread))
		return;
	for (int i = 0; i < 100; i++) {
		for (int j = 0; j < 1000; j++)
			++counter;
		msleep(20);
	}
	kthread_stop(thread);
	pr_info("lab_selftest: counted to %lu\n", counter);
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
	{ "ubsan", fault_ubsan },
	{ "dma", fault_dma },
	{ "race", fault_race },
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
