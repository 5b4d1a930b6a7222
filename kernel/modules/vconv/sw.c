// SPDX-License-Identifier: GPL-2.0
/* Converters that mkdir in iio/devices/vconv of configfs creates and rmdir removes */

#include <linux/configfs.h>
#include <linux/iio/sw_device.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "vconv.h"

#if IS_ENABLED(CONFIG_IIO_SW_DEVICE)
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

/**
 * vconv_sw_register() - offer converters in configfs
 *
 * Return: 0 or the error of iio_register_sw_device_type().
 */
int vconv_sw_register(void)
{
	return iio_register_sw_device_type(&vconv_sw_type);
}

/** vconv_sw_unregister() - offer them no longer; there are none */
void vconv_sw_unregister(void)
{
	iio_unregister_sw_device_type(&vconv_sw_type);
}
#endif
