/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Blocks: access begins and ends, descriptors are shared, and what is no block is refused. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include "check.h"

int main(void)
{
	struct busbar_block_info info = { .size = sizeof(info) };
	struct busbar_block *block, *same, *none;
	const void *read_only;
	void *data;
	size_t len;
	int fd;

	OK(busbar_block_new(10000, "memfd", &block));
	OK(busbar_block_info(block, &info));
	CHECK(info.len >= 10000 && info.len % (size_t)sysconf(_SC_PAGESIZE) == 0);
	CHECK(!info.is_dmabuf && !strcmp(info.memory, "memfd"));
	OK(busbar_block_write(block, &data, &len));
	CHECK(len == info.len);
	for (size_t at = 0; at < len; at++)
		CHECK(!((char *)data)[at]);
	memset(data, 7, len);
	FAILS(busbar_block_read(block, &read_only, &len), EBUSY, "busbar_block_end");
	CHECK(!read_only && !len);
	FAILS(busbar_block_wait_unused(block, 0), EBUSY, "busbar_block_end");
	OK(busbar_block_info(block, &info));
	OK(busbar_block_end(block));
	REFUSES(busbar_block_end(block), "not accessed");

	/* Another descriptor of the same memory; the caller's own stays open. */
	fd = dup(busbar_block_fd(block));
	OK(busbar_block_from_fd(fd, &same));
	CHECK(!close(fd));
	OK(busbar_block_read(same, &read_only, &len));
	CHECK(((const char *)read_only)[len - 1] == 7 && read_only != data);
	/* Freed while it is accessed: that ends the access. */
	OK(busbar_block_free(same));
	OK(busbar_block_write(block, &data, &len));
	OK(busbar_block_free(block));
	REFUSES(busbar_block_free(block), "a block is needed, the handle was freed");

	OK(busbar_block_new(1, NULL, &block));
	OK(busbar_block_wait_filled(block, BUSBAR_FOREVER));
	OK(busbar_block_wait_unused(block, PATIENCE));
	/* A time that has run out is no time for ever. */
	REFUSES(busbar_block_wait_filled(block, -2), "`-2`");
	REFUSES(busbar_block_wait_unused(block, INT64_MIN), "BUSBAR_FOREVER (-1)");
	OK(busbar_block_free(block));

	REFUSES(busbar_block_new(0, "memfd", &none), "1 byte or more");
	REFUSES(busbar_block_new(SIZE_MAX, "memfd", &none), "the length of a block");
	REFUSES(busbar_block_new(1, "cheese", &none), "heap:NAME, pages, huge, memfd");
	REFUSES(busbar_block_new(1, "heap:\xff", &none), "UTF-8");
	CHECK(busbar_block_new(1, "heap:none", &none) == -ENOENT);
	REFUSES(busbar_block_from_fd(-1, &none), "the descriptor is -1");
	FAILS(busbar_block_from_fd(12345, &none), EBADF, "12345");
	fd = open("/dev/null", O_RDONLY);
	CHECK(busbar_block_from_fd(fd, &none) < 0);
	close(fd);
	/* A memfd that can shrink. */
	fd = memfd_create("shrinks", MFD_ALLOW_SEALING);
	CHECK(!ftruncate(fd, 5000));
	FAILS(busbar_block_from_fd(fd, &none), EPERM, "cannot shrink");
	CHECK(!none);
	/* One of any length that cannot. Its offset is the caller's. */
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) && lseek(fd, 100, SEEK_SET) == 100);
	OK(busbar_block_from_fd(fd, &block));
	CHECK(lseek(fd, 0, SEEK_CUR) == 100);
	OK(busbar_block_info(block, &info));
	OK(busbar_block_read(block, &read_only, &len));
	CHECK(info.len == 5000 && len == 5000 && !((const char *)read_only)[4999]);
	OK(busbar_block_free(block));
	/* One that cannot be written to. */
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	OK(busbar_block_from_fd(fd, &block));
	OK(busbar_block_read(block, &read_only, &len));
	CHECK(len == 5000 && !((const char *)read_only)[4999]);
	OK(busbar_block_end(block));
	FAILS(busbar_block_write(block, &data, &len), EACCES, "");
	OK(busbar_block_free(block));
	close(fd);
	puts("done");
	return 0;
}
