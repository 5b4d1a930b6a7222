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
 * Converters are created by the module (parameter "converters") and by mkdir in
 * iio/devices/vconv of configfs.
 */

#include <linux/configfs.h>
#include <linux/ctype.h>
#include <linux/dma-mapping.h>
#include <linux/iio/sw_device.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/string.h>

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

/* The CPU accesses blocks in place of a DMA controller, so caches need no maintenance */
static void vconv_set_coherent(struct device *dev)
{
#if defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_DEVICE) || \
	defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU) || \
	defined(CONFIG_ARCH_HAS_SYNC_DMA_FOR_CPU_ALL)
	dev->dma_coherent = true;
#endif
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
	vconv_set_coherent(&conv->pdev->dev);
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

static struct vconv *vconv_create(const char *name)
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

static void vconv_destroy(struct vconv *conv)
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

/* -- configfs -- */

/**
 * struct vconv_sw - a converter created in configfs
 * @swd: the software device of the IIO core
 * @conv: the converter
 */
struct vconv_sw {
	struct iio_sw_device swd;
	struct vconv *conv;
};

static void vconv_item_release(struct config_item *item)
{
	kfree(container_of(to_iio_sw_device(item), struct vconv_sw, swd));
}

static struct configfs_item_operations vconv_item_ops = {
	.release = vconv_item_release,
};

static const struct config_item_type vconv_item_type = {
	.ct_owner = THIS_MODULE,
	.ct_item_ops = &vconv_item_ops,
};

static struct iio_sw_device *vconv_sw_probe(const char *name)
{
	struct vconv_sw *sw;
	int ret;

	sw = kzalloc(sizeof(*sw), GFP_KERNEL);
	if (!sw)
		return ERR_PTR(-ENOMEM);

	sw->conv = vconv_create(name);
	if (IS_ERR(sw->conv)) {
		ret = PTR_ERR(sw->conv);
		kfree(sw);
		return ERR_PTR(ret);
	}
	sw->swd.device = sw->conv->rx->indio_dev;
	iio_swd_group_init_type_name(&sw->swd, name, &vconv_item_type);

	return &sw->swd;
}

static int vconv_sw_remove(struct iio_sw_device *swd)
{
	vconv_destroy(container_of(swd, struct vconv_sw, swd)->conv);

	return 0;
}

static const struct iio_sw_device_ops vconv_sw_ops = {
	.probe = vconv_sw_probe,
	.remove = vconv_sw_remove,
};

static struct iio_sw_device_type vconv_sw_type = {
	.name = "vconv",
	.owner = THIS_MODULE,
	.ops = &vconv_sw_ops,
};

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
	ret = iio_register_sw_device_type(&vconv_sw_type);
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
	iio_unregister_sw_device_type(&vconv_sw_type);
	vconv_destroy_own();
}
module_exit(vconv_exit);

MODULE_DESCRIPTION("Virtual IIO converter with the DMABUF interface");
MODULE_AUTHOR("The Busbar authors");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS(DMA_BUF);
MODULE_IMPORT_NS(IIO_DMA_BUFFER);
