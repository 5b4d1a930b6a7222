// SPDX-License-Identifier: GPL-2.0
/*
 * vconv: a virtual converter
 *
 * A converter is a pair of IIO devices on one platform device: a receiver NAME
 * and a transmitter NAME-tx. The receiver generates samples and the transmitter
 * discards them, or in loopback the receiver gets what the transmitter sends. The
 * buffers are those of converters with a DMA controller: read() and write(), and
 * DMABUFs.
 *
 * Converters are created by the module (parameter "converters") and, with
 * CONFIG_IIO_SW_DEVICE, by mkdir in iio/devices/vconv of configfs (sw.c).
 */

#include <linux/ctype.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <compat/device.h>

#include "vconv.h"

#define VCONV_MAX_CONVERTERS	64

static unsigned int converters = 1;
module_param(converters, uint, 0444);
MODULE_PARM_DESC(converters, "Number of converters vconv0, vconv1, ... that the module creates, 0 to 64 (default 1)");

/* Converters that the parameter asked for */
static struct vconv *vconv_own[VCONV_MAX_CONVERTERS];

/* All converters; names are unique */
static LIST_HEAD(vconv_list);
static DEFINE_MUTEX(vconv_list_lock);

static bool vconv_name_valid(const char *name)
{
	size_t len = strlen(name);
	size_t suffix = strlen(VCONV_TX_SUFFIX);
	const char *at;

	if (!len || len >= VCONV_NAME_LEN)
		return false;
	for (at = name; *at; at++)
		if (!isalnum(*at) && !strchr("-_.", *at))
			return false;

	/* A receiver NAME-tx would have the name of the transmitter of NAME */
	return len < suffix || strcmp(name + len - suffix, VCONV_TX_SUFFIX);
}

static int vconv_list_add(struct vconv *conv)
{
	struct vconv *each;

	guard(mutex)(&vconv_list_lock);
	list_for_each_entry(each, &vconv_list, entry)
		if (!strcmp(each->name, conv->name))
			return -EEXIST;
	list_add(&conv->entry, &vconv_list);

	return 0;
}

static void vconv_list_del(struct vconv *conv)
{
	guard(mutex)(&vconv_list_lock);
	list_del(&conv->entry);
}

static int vconv_add_device(struct vconv *conv)
{
	const struct platform_device_info info = {
		.name = "vconv",
		.id = PLATFORM_DEVID_AUTO,
		.dma_mask = DMA_BIT_MASK(64),
	};

	conv->pdev = platform_device_register_full(&info);
	if (IS_ERR(conv->pdev))
		return PTR_ERR(conv->pdev);
	/* The CPU accesses blocks in place of a DMA controller: caches need no maintenance */
	dev_set_dma_coherent(&conv->pdev->dev);
	dma_set_max_seg_size(&conv->pdev->dev, UINT_MAX);

	return 0;
}

static int vconv_add_directions(struct vconv *conv)
{
	int ret;

	conv->rx = vconv_dir_create(conv, false);
	if (IS_ERR(conv->rx))
		return PTR_ERR(conv->rx);

	conv->tx = vconv_dir_create(conv, true);
	if (IS_ERR(conv->tx)) {
		ret = PTR_ERR(conv->tx);
		goto err_rx;
	}

	ret = vconv_dir_register(conv->rx);
	if (ret)
		goto err_tx;
	ret = vconv_dir_register(conv->tx);
	if (ret)
		goto err_unregister;

	return 0;

err_unregister:
	vconv_dir_unregister(conv->rx);
err_tx:
	vconv_dir_destroy(conv->tx);
err_rx:
	vconv_dir_destroy(conv->rx);
	return ret;
}

/**
 * vconv_create() - create a converter
 * @name: its name
 *
 * Return: the converter; ERR_PTR(-EINVAL) or ERR_PTR(-EEXIST) for a bad name, or another error.
 */
struct vconv *vconv_create(const char *name)
{
	struct vconv *conv;
	int ret;

	if (!vconv_name_valid(name))
		return ERR_PTR(-EINVAL);

	conv = kzalloc(sizeof(*conv), GFP_KERNEL);
	if (!conv)
		return ERR_PTR(-ENOMEM);
	strscpy(conv->name, name);
	mutex_init(&conv->loop.lock);

	ret = vconv_list_add(conv);
	if (ret)
		goto err_free;
	ret = vconv_add_device(conv);
	if (ret)
		goto err_list;
	ret = vconv_add_directions(conv);
	if (ret)
		goto err_device;

	return conv;

err_device:
	platform_device_unregister(conv->pdev);
err_list:
	vconv_list_del(conv);
	vconv_loop_free(&conv->loop);
err_free:
	mutex_destroy(&conv->loop.lock);
	kfree(conv);
	return ERR_PTR(ret);
}

/**
 * vconv_destroy() - remove a converter
 * @conv: the converter
 */
void vconv_destroy(struct vconv *conv)
{
	vconv_dir_unregister(conv->rx);
	vconv_dir_unregister(conv->tx);
	vconv_dir_destroy(conv->rx);
	vconv_dir_destroy(conv->tx);
	platform_device_unregister(conv->pdev);
	vconv_list_del(conv);
	vconv_loop_free(&conv->loop);
	mutex_destroy(&conv->loop.lock);
	kfree(conv);
}

/* -- Module -- */

static void vconv_destroy_own(void)
{
	unsigned int i;

	for (i = 0; i < VCONV_MAX_CONVERTERS && vconv_own[i]; i++)
		vconv_destroy(vconv_own[i]);
	vconv_buffers_drain();
}

static int vconv_create_own(void)
{
	char name[VCONV_NAME_LEN];
	struct vconv *conv;
	unsigned int i;

	for (i = 0; i < converters; i++) {
		snprintf(name, sizeof(name), "vconv%u", i);
		conv = vconv_create(name);
		if (IS_ERR(conv))
			return PTR_ERR(conv);
		vconv_own[i] = conv;
	}

	return 0;
}

static int __init vconv_init(void)
{
	int ret;

	if (converters > VCONV_MAX_CONVERTERS)
		return -EINVAL;

	vconv_pattern_init();
	ret = vconv_create_own();
	if (ret)
		goto err_destroy;
	ret = vconv_sw_register();
	if (ret)
		goto err_destroy;

	return 0;

err_destroy:
	vconv_destroy_own();
	return ret;
}
module_init(vconv_init);

static void __exit vconv_exit(void)
{
	vconv_sw_unregister();
	vconv_destroy_own();
}
module_exit(vconv_exit);

MODULE_DESCRIPTION("Virtual IIO converter with the DMABUF interface");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
MODULE_INFO(import_ns, "DMA_BUF");
MODULE_INFO(import_ns, "IIO_DMA_BUFFER");
