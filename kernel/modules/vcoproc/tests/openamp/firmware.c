// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Firmware built with OpenAMP that runs as the process of a vcoproc core: it announces the
 * service "echo" and sends each message back. See docs/openamp.md.
 *
 *	cc -I/usr/local/include/busbar firmware.c -lopen_amp -lmetal -o firmware
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <metal/io.h>
#include <openamp/open_amp.h>

#include <linux/vcoproc.h>

/* Memory that the process shares with Linux, in the structures of libmetal and OpenAMP */
struct part {
	void *at;
	metal_phys_addr_t address;
	struct metal_io_region io;
	struct remoteproc_mem mem;
};

static int core;

static struct remoteproc *init(struct remoteproc *rproc, const struct remoteproc_ops *ops,
			       void *arg)
{
	rproc->ops = ops;
	rproc->priv = arg;
	return rproc;
}

static void remove_nothing(struct remoteproc *rproc)
{
}

/* Called by OpenAMP to kick Linux */
static int notify(struct remoteproc *rproc, uint32_t id)
{
	__u32 vrings = 1u << id;

	return ioctl(core, VCOPROC_KICK, &vrings);
}

static const struct remoteproc_ops ops = {
	.init = init,
	.remove = remove_nothing,
	.notify = notify,
};

static void map(struct part *part, struct remoteproc *rproc, const char *name, __u64 offset,
		__u64 size, __u64 address)
{
	part->at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, core, offset);
	if (part->at == MAP_FAILED)
		err(1, "mmap of the %s", name);
	part->address = address;
	metal_io_init(&part->io, part->at, &part->address, size, -1, 0, NULL);
	remoteproc_init_mem(&part->mem, name, address, address, size, &part->io);
	remoteproc_add_mem(rproc, &part->mem);
}

static int echo(struct rpmsg_endpoint *ept, void *data, size_t len, uint32_t src, void *priv)
{
	return rpmsg_sendto(ept, data, len, src) < 0 ? RPMSG_ERR_PARAM : RPMSG_SUCCESS;
}

/* Waits for one of the events, or STOP */
static struct vcoproc_event wait_for(uint32_t events)
{
	struct vcoproc_event event;

	do {
		if (read(core, &event, sizeof(event)) != sizeof(event))
			err(1, "read an event");
	} while (!(event.events & (events | VCOPROC_EVENT_STOP)));

	return event;
}

int main(int argc, char **argv)
{
	struct rpmsg_virtio_device rpmsg;
	struct part memory, table;
	struct rpmsg_endpoint ept;
	struct virtio_device *vdev;
	struct vcoproc_event event;
	struct vcoproc_info info;
	struct remoteproc rproc;

	core = open(argc > 1 ? argv[1] : "/dev/vcoproc0", O_RDWR | O_CLOEXEC);
	if (core < 0 || ioctl(core, VCOPROC_GET_INFO, &info))
		err(1, "be the core");
	/* After the first kick, Linux's driver has filled in the resource table */
	event = wait_for(VCOPROC_EVENT_KICK);

	/* Without metal_init(), which needs UIO devices on Linux */
	if (!remoteproc_init(&rproc, &ops, NULL))
		errx(1, "initialize OpenAMP");
	map(&memory, &rproc, "memory", 0, info.memory_size, info.device_address);
	map(&table, &rproc, "resource table", info.table_offset, info.table_size,
	    info.device_address + info.table_offset);
	if (remoteproc_set_rsc_table(&rproc, table.at, info.table_size))
		errx(1, "take the resource table");
	vdev = remoteproc_create_virtio(&rproc, 0, VIRTIO_DEV_DEVICE, NULL);
	if (!vdev || rpmsg_init_vdev(&rpmsg, vdev, NULL, &memory.io, NULL))
		errx(1, "set up the rpmsg device");
	if (rpmsg_create_ept(&ept, rpmsg_virtio_get_rpmsg_device(&rpmsg), "echo", RPMSG_ADDR_ANY,
			     RPMSG_ADDR_ANY, echo, NULL))
		errx(1, "announce the service");
	puts("ready");
	fflush(stdout);

	while (!(event.events & VCOPROC_EVENT_STOP)) {
		/* All vrings: which one was kicked does not matter */
		remoteproc_get_notification(&rproc, RSC_NOTIFY_ID_ANY);
		event = wait_for(VCOPROC_EVENT_KICK);
	}

	return ioctl(core, VCOPROC_STOPPED) ? 1 : 0;
}
