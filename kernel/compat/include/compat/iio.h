/* SPDX-License-Identifier: GPL-2.0 */
#ifndef COMPAT_IIO_H
#define COMPAT_IIO_H

#include <linux/iio/iio.h>

#ifndef HAVE_iio_device_claim_direct
static inline bool iio_device_claim_direct(struct iio_dev *indio_dev)
{
	return !iio_device_claim_direct_mode(indio_dev);
}

static inline void iio_device_release_direct(struct iio_dev *indio_dev)
{
	iio_device_release_direct_mode(indio_dev);
}
#endif

#endif
