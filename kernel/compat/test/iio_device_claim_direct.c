// SPDX-License-Identifier: GPL-2.0
#include <linux/iio/iio.h>

static int compat_test(struct iio_dev *indio_dev)
{
	if (!iio_device_claim_direct(indio_dev))
		return -EBUSY;
	iio_device_release_direct(indio_dev);

	return 0;
}
