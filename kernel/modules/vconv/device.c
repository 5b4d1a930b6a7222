// SPDX-License-Identifier: GPL-2.0
/* The IIO device of one direction: channels, attributes, faults */

#include <linux/debugfs.h>
#include <linux/iio/buffer.h>
#include <linux/iio/sysfs.h>
#include <linux/kstrtox.h>
#include <linux/math64.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include <compat/iio.h>

#include "vconv.h"

#define VCONV_GAIN_MICRO	1000000

static struct vconv_dir *vconv_dir_of_iio(struct iio_dev *indio_dev)
{
	return *(struct vconv_dir **)iio_priv(indio_dev);
}

static struct vconv_dir *vconv_dir_of_dev(struct device *dev)
{
	return vconv_dir_of_iio(dev_to_iio_dev(dev));
}

/* -- Settings shared by the channels -- */

static int vconv_get_pattern(struct iio_dev *indio_dev, const struct iio_chan_spec *chan)
{
	return READ_ONCE(vconv_dir_of_iio(indio_dev)->pattern);
}

static int vconv_set_pattern(struct iio_dev *indio_dev, const struct iio_chan_spec *chan,
			     unsigned int pattern)
{
	if (!iio_device_claim_direct(indio_dev))
		return -EBUSY;
	WRITE_ONCE(vconv_dir_of_iio(indio_dev)->pattern, pattern);
	iio_device_release_direct(indio_dev);

	return 0;
}

static const char * const vconv_pattern_names[] = {
	[VCONV_COUNTER] = "counter",
	[VCONV_SINE] = "sine",
	[VCONV_NOISE] = "noise",
	[VCONV_NONE] = "none",
};

static const struct iio_enum vconv_pattern_enum = {
	.items = vconv_pattern_names,
	.num_items = ARRAY_SIZE(vconv_pattern_names),
	.get = vconv_get_pattern,
	.set = vconv_set_pattern,
};

static const struct iio_chan_spec_ext_info vconv_rx_ext_info[] = {
	IIO_ENUM("pattern", IIO_SHARED_BY_ALL, &vconv_pattern_enum),
	IIO_ENUM_AVAILABLE("pattern", IIO_SHARED_BY_ALL, &vconv_pattern_enum),
	{ }
};

static ssize_t sine_frequency_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(vconv_dir_of_dev(dev)->sine_frequency));
}

static ssize_t sine_frequency_store(struct device *dev, struct device_attribute *attr,
				    const char *buf, size_t len)
{
	struct iio_dev *indio_dev = dev_to_iio_dev(dev);
	u32 frequency;
	int ret;

	ret = kstrtou32(buf, 10, &frequency);
	if (ret)
		return ret;
	if (frequency > VCONV_MAX_RATE)
		return -EINVAL;

	if (!iio_device_claim_direct(indio_dev))
		return -EBUSY;
	WRITE_ONCE(vconv_dir_of_iio(indio_dev)->sine_frequency, frequency);
	iio_device_release_direct(indio_dev);

	return len;
}

static ssize_t loopback_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", READ_ONCE(vconv_dir_of_dev(dev)->loopback));
}

static ssize_t loopback_store(struct device *dev, struct device_attribute *attr, const char *buf,
			      size_t len)
{
	struct iio_dev *indio_dev = dev_to_iio_dev(dev);
	struct vconv_dir *dir = vconv_dir_of_iio(indio_dev);
	bool loopback;
	int ret;

	ret = kstrtobool(buf, &loopback);
	if (ret)
		return ret;

	if (!iio_device_claim_direct(indio_dev))
		return -EBUSY;
	if (loopback)
		ret = vconv_loop_alloc(&dir->conv->loop);
	if (!ret)
		WRITE_ONCE(dir->loopback, loopback);
	iio_device_release_direct(indio_dev);

	return ret ?: len;
}

static ssize_t vconv_missed_show(struct device *dev, char *buf)
{
	struct vconv_dir *dir = vconv_dir_of_dev(dev);
	u64 missed;

	spin_lock_irq(&dir->queue.list_lock);
	missed = dir->missed;
	spin_unlock_irq(&dir->queue.list_lock);

	return sysfs_emit(buf, "%llu\n", missed);
}

static ssize_t overruns_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return vconv_missed_show(dev, buf);
}

static ssize_t underruns_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return vconv_missed_show(dev, buf);
}

static IIO_DEVICE_ATTR_RW(sine_frequency, 0);
static IIO_DEVICE_ATTR_RW(loopback, 0);
static IIO_DEVICE_ATTR_RO(overruns, 0);
static IIO_DEVICE_ATTR_RO(underruns, 0);

static struct attribute *vconv_rx_attrs[] = {
	&iio_dev_attr_sine_frequency.dev_attr.attr,
	&iio_dev_attr_loopback.dev_attr.attr,
	&iio_dev_attr_overruns.dev_attr.attr,
	NULL
};

static const struct attribute_group vconv_rx_group = {
	.attrs = vconv_rx_attrs,
};

static struct attribute *vconv_tx_attrs[] = {
	&iio_dev_attr_underruns.dev_attr.attr,
	NULL
};

static const struct attribute_group vconv_tx_group = {
	.attrs = vconv_tx_attrs,
};

/* -- Standard settings of the IIO core -- */

static int vconv_read_raw(struct iio_dev *indio_dev, const struct iio_chan_spec *chan, int *val,
			  int *val2, long mask)
{
	struct vconv_dir *dir = vconv_dir_of_iio(indio_dev);
	u64 micro;
	u32 rest;

	switch (mask) {
	case IIO_CHAN_INFO_SAMP_FREQ:
		*val = READ_ONCE(dir->rate);
		return IIO_VAL_INT;
	case IIO_CHAN_INFO_HARDWAREGAIN:
		micro = (u64)READ_ONCE(dir->gain[chan->scan_index]) * VCONV_GAIN_MICRO;
		micro = DIV_ROUND_CLOSEST_ULL(micro, VCONV_UNITY);
		*val = div_u64_rem(micro, VCONV_GAIN_MICRO, &rest);
		*val2 = rest;
		return IIO_VAL_INT_PLUS_MICRO;
	default:
		return -EINVAL;
	}
}

static int vconv_set_rate(struct iio_dev *indio_dev, int rate)
{
	if (!iio_device_claim_direct(indio_dev))
		return -EBUSY;
	WRITE_ONCE(vconv_dir_of_iio(indio_dev)->rate, rate);
	iio_device_release_direct(indio_dev);

	return 0;
}

static int vconv_write_raw(struct iio_dev *indio_dev, const struct iio_chan_spec *chan, int val,
			   int val2, long mask)
{
	struct vconv_dir *dir = vconv_dir_of_iio(indio_dev);
	u64 micro;

	if (val < 0 || val2 < 0)
		return -EINVAL;

	switch (mask) {
	case IIO_CHAN_INFO_SAMP_FREQ:
		if (val > VCONV_MAX_RATE || val2)
			return -EINVAL;
		return vconv_set_rate(indio_dev, val);
	case IIO_CHAN_INFO_HARDWAREGAIN:
		micro = (u64)val * VCONV_GAIN_MICRO + val2;
		if (micro > VCONV_GAIN_MICRO)
			return -EINVAL;
		WRITE_ONCE(dir->gain[chan->scan_index],
			   DIV_ROUND_CLOSEST_ULL(micro * VCONV_UNITY, VCONV_GAIN_MICRO));
		return 0;
	default:
		return -EINVAL;
	}
}

static int vconv_read_avail(struct iio_dev *indio_dev, const struct iio_chan_spec *chan,
			    const int **vals, int *type, int *length, long mask)
{
	static const int rates[] = { 0, 1, VCONV_MAX_RATE };
	static const int gains[] = { 0, 0, 0, 1, 1, 0 };

	switch (mask) {
	case IIO_CHAN_INFO_SAMP_FREQ:
		*vals = rates;
		*type = IIO_VAL_INT;
		return IIO_AVAIL_RANGE;
	case IIO_CHAN_INFO_HARDWAREGAIN:
		*vals = gains;
		*type = IIO_VAL_INT_PLUS_MICRO;
		return IIO_AVAIL_RANGE;
	default:
		return -EINVAL;
	}
}

/* -- Faults -- */

static const char * const vconv_fault_names[] = {
	[VCONV_LOSE] = "lose_samples",
	[VCONV_SHORT] = "short_samples",
	[VCONV_FAIL] = "fail_blocks",
};

static int vconv_fault_get(void *fault, u64 *value)
{
	*value = atomic64_read(fault);

	return 0;
}

static int vconv_fault_set(void *fault, u64 value)
{
	if (value > U32_MAX)
		return -EINVAL;
	atomic64_set(fault, value);

	return 0;
}

DEFINE_DEBUGFS_ATTRIBUTE(vconv_fault_fops, vconv_fault_get, vconv_fault_set, "%llu\n");

/* Accesses faults by number. With this callback the IIO core creates a debugfs directory. */
static int vconv_reg_access(struct iio_dev *indio_dev, unsigned int reg, unsigned int writeval,
			    unsigned int *readval)
{
	struct vconv_dir *dir = vconv_dir_of_iio(indio_dev);
	u64 value;

	if (reg >= VCONV_FAULTS)
		return -EINVAL;
	if (!readval)
		return vconv_fault_set(&dir->faults[reg], writeval);
	vconv_fault_get(&dir->faults[reg], &value);
	*readval = value;

	return 0;
}

static void vconv_debugfs_add(struct vconv_dir *dir)
{
	struct dentry *folder = iio_get_debugfs_dentry(dir->indio_dev);
	int i;

	if (!folder)
		return;
	for (i = 0; i < VCONV_FAULTS; i++)
		debugfs_create_file_unsafe(vconv_fault_names[i], 0600, folder, &dir->faults[i],
					   &vconv_fault_fops);
}

/* -- The device -- */

#define VCONV_VOLTAGE(_index, _modifier, _scan, ...) {			\
	.type = IIO_VOLTAGE,						\
	.indexed = 1,							\
	.channel = (_index),						\
	.modified = 1,							\
	.channel2 = (_modifier),					\
	.info_mask_shared_by_all = BIT(IIO_CHAN_INFO_SAMP_FREQ),	\
	.info_mask_shared_by_all_available =				\
		BIT(IIO_CHAN_INFO_SAMP_FREQ),				\
	.scan_index = (_scan),						\
	.scan_type = {							\
		.sign = 's',						\
		.realbits = 16,						\
		.storagebits = 16,					\
		.endianness = IIO_LE,					\
	},								\
	__VA_ARGS__							\
}

#define VCONV_RX_VOLTAGE(_index, _modifier, _scan)			\
	VCONV_VOLTAGE(_index, _modifier, _scan,				\
		.info_mask_separate = BIT(IIO_CHAN_INFO_HARDWAREGAIN),	\
		.info_mask_shared_by_type_available =			\
			BIT(IIO_CHAN_INFO_HARDWAREGAIN),		\
		.ext_info = vconv_rx_ext_info,				\
	)

#define VCONV_TX_VOLTAGE(_index, _modifier, _scan)			\
	VCONV_VOLTAGE(_index, _modifier, _scan, .output = 1)

static const struct iio_chan_spec vconv_rx_channels[] = {
	VCONV_RX_VOLTAGE(0, IIO_MOD_I, 0),
	VCONV_RX_VOLTAGE(0, IIO_MOD_Q, 1),
	VCONV_RX_VOLTAGE(1, IIO_MOD_I, 2),
	VCONV_RX_VOLTAGE(1, IIO_MOD_Q, 3),
	{
		.type = IIO_COUNT,
		.indexed = 1,
		.channel = 0,
		.scan_index = VCONV_COUNT,
		.scan_type = {
			.sign = 'u',
			.realbits = 64,
			.storagebits = 64,
			.endianness = IIO_LE,
		},
	},
	{
		.type = IIO_TIMESTAMP,
		.channel = -1,
		.scan_index = VCONV_TIMESTAMP,
		.scan_type = {
			.sign = 's',
			.realbits = 64,
			.storagebits = 64,
			.endianness = IIO_LE,
		},
	},
};

static const struct iio_chan_spec vconv_tx_channels[] = {
	VCONV_TX_VOLTAGE(0, IIO_MOD_I, 0),
	VCONV_TX_VOLTAGE(0, IIO_MOD_Q, 1),
	VCONV_TX_VOLTAGE(1, IIO_MOD_I, 2),
	VCONV_TX_VOLTAGE(1, IIO_MOD_Q, 3),
};

static const struct iio_info vconv_rx_info = {
	.attrs = &vconv_rx_group,
	.read_raw = vconv_read_raw,
	.write_raw = vconv_write_raw,
	.read_avail = vconv_read_avail,
	.debugfs_reg_access = vconv_reg_access,
};

static const struct iio_info vconv_tx_info = {
	.attrs = &vconv_tx_group,
	.read_raw = vconv_read_raw,
	.write_raw = vconv_write_raw,
	.read_avail = vconv_read_avail,
	.debugfs_reg_access = vconv_reg_access,
};

static void vconv_describe(struct vconv_dir *dir)
{
	struct iio_dev *indio_dev = dir->indio_dev;

	*(struct vconv_dir **)iio_priv(indio_dev) = dir;
	indio_dev->name = dir->name;
	indio_dev->modes = INDIO_BUFFER_HARDWARE;
	if (dir->tx) {
		indio_dev->info = &vconv_tx_info;
		indio_dev->channels = vconv_tx_channels;
		indio_dev->num_channels = ARRAY_SIZE(vconv_tx_channels);
	} else {
		indio_dev->info = &vconv_rx_info;
		indio_dev->channels = vconv_rx_channels;
		indio_dev->num_channels = ARRAY_SIZE(vconv_rx_channels);
	}
}

/**
 * vconv_dir_create() - create a direction of a converter
 * @conv: the converter, with name and device
 * @tx: the direction is the transmitter
 *
 * Return: the direction, whose device is not registered yet, or an ERR_PTR().
 */
struct vconv_dir *vconv_dir_create(struct vconv *conv, bool tx)
{
	struct device *dev = &conv->pdev->dev;
	struct iio_dev *indio_dev;
	struct vconv_dir *dir;
	int ret = -ENOMEM, i;

	dir = vconv_buffer_create(dev, tx);
	if (!dir)
		return ERR_PTR(ret);
	dir->conv = conv;
	snprintf(dir->name, sizeof(dir->name), "%s%s", conv->name, tx ? VCONV_TX_SUFFIX : "");
	for (i = 0; i < VCONV_VOLTAGES; i++)
		dir->gain[i] = VCONV_UNITY;
	dir->sine_frequency = VCONV_SINE_FREQUENCY;

	indio_dev = iio_device_alloc(dev, sizeof(dir));
	if (!indio_dev)
		goto err_put;
	dir->indio_dev = indio_dev;
	vconv_describe(dir);

	ret = iio_device_attach_buffer(indio_dev, &dir->queue.buffer);
	if (ret)
		goto err_free;
	ret = vconv_worker_create(dir);
	if (ret)
		goto err_free;

	return dir;

err_free:
	iio_device_free(indio_dev);
err_put:
	iio_buffer_put(&dir->queue.buffer);
	return ERR_PTR(ret);
}

/**
 * vconv_dir_register() - register the IIO device of a direction
 * @dir: the direction; both directions exist already
 *
 * Return: 0 or a negative errno.
 */
int vconv_dir_register(struct vconv_dir *dir)
{
	int ret;

	ret = iio_device_register(dir->indio_dev);
	if (ret)
		return ret;
	vconv_debugfs_add(dir);

	return 0;
}

/**
 * vconv_dir_unregister() - unregister the IIO device and disable its buffer
 * @dir: the direction
 */
void vconv_dir_unregister(struct vconv_dir *dir)
{
	iio_device_unregister(dir->indio_dev);
}

/**
 * vconv_dir_destroy() - free a direction that is not registered
 * @dir: the direction; open files may keep its buffer alive
 */
void vconv_dir_destroy(struct vconv_dir *dir)
{
	vconv_buffer_cut_off(dir);
	vconv_worker_destroy(dir);
	iio_device_free(dir->indio_dev);
	iio_buffer_put(&dir->queue.buffer);
}
