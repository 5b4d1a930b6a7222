// SPDX-License-Identifier: GPL-2.0
/*
 * Plugin for ip(8) that parses the other end: ip link add NAME type vnic peer name NAME netns NETNS
 *
 * For an unknown kind of link, ip loads link_KIND.so and uses its KIND_link_util. Arguments and
 * attributes of vnic are those of veth, so this plugin uses ip's functions for veth.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

struct nlmsghdr;
struct rtattr;

/* The first members of ip's struct link_util, and space for further ones */
struct link_util {
	struct link_util *next;
	const char *id;
	int maxattr;
	int (*parse_opt)(struct link_util *link, int argc, char **argv, struct nlmsghdr *request);
	void (*print_opt)(struct link_util *link, FILE *to, struct rtattr **attributes);
	void (*print_xstats)(struct link_util *link, FILE *to, struct rtattr *attribute);
	void (*print_help)(struct link_util *link, int argc, char **argv, FILE *to);
	void *more[8];
};

struct link_util vnic_link_util = { .id = "vnic" };

static void __attribute__((constructor)) vnic_take(void)
{
	const struct link_util *veth = dlsym(RTLD_DEFAULT, "veth_link_util");

	if (!veth)
		return;
	vnic_link_util.maxattr = veth->maxattr;
	vnic_link_util.parse_opt = veth->parse_opt;
	vnic_link_util.print_help = veth->print_help;
}
