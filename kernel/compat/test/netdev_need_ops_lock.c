// SPDX-License-Identifier: GPL-2.0
#include <net/netdev_lock.h>

static void compat_test(struct napi_struct *napi)
{
	if (netdev_need_ops_lock(napi->dev))
		napi_enable_locked(napi);
}
