/* SPDX-License-Identifier: GPL-2.0 */
/* What the codec takes from the kernel, for a program. */
#ifndef PACKET_LINUX_MINMAX_H
#define PACKET_LINUX_MINMAX_H

#define min(a, b) ((a) < (b) ? (a) : (b))

#endif
