/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the test programs share: each ends with the first check that fails, and says which. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <busbar.h>

#define SECOND 1000000000LL
/* Long, since emulators and valgrind are slow. */
#define PATIENCE (60 * SECOND)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #condition, \
				busbar_error()); \
			exit(1); \
		} \
	} while (0)

/* The call succeeds. */
#define OK(call) \
	do { \
		int result_ = (call); \
		if (result_ < 0) { \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, result_, \
				busbar_error()); \
			exit(1); \
		} \
	} while (0)

/* The call fails with this number, and the text of the error has these words. */
#define FAILS(call, number, words) \
	do { \
		int result_ = (call); \
		if (result_ != -(number) || !strstr(busbar_error(), words)) { \
			fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, result_, \
				busbar_error()); \
			exit(1); \
		} \
	} while (0)

/* The call refuses its argument. */
#define REFUSES(call, words) FAILS(call, EINVAL, words)

#endif
