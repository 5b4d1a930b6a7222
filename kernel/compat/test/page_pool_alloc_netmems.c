// SPDX-License-Identifier: GPL-2.0
#include <net/page_pool/helpers.h>

static netmem_ref compat_test(struct page_pool *pool)
{
	return page_pool_alloc_netmems(pool, GFP_ATOMIC);
}
