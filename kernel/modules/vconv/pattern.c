// SPDX-License-Identifier: GPL-2.0
/* Patterns that the receiver generates, and conversion between frames and samples */

#include <linux/fixp-arith.h>
#include <linux/math64.h>
#include <linux/time64.h>
#include <linux/unaligned.h>

#include "vconv.h"

#define VCONV_TURN_BITS		12
#define VCONV_TURN		BIT(VCONV_TURN_BITS)

/* Steps per turn as a power of two: the finest resolution of fixp_sin32_rad() */
#define VCONV_FIXP_BITS		18

static s16 vconv_sine[VCONV_TURN];

/**
 * vconv_pattern_init() - compute the sine table
 */
void vconv_pattern_init(void)
{
	unsigned int i;

	for (i = 0; i < VCONV_TURN; i++)
		vconv_sine[i] = fixp_sin32_rad(i << (VCONV_FIXP_BITS - VCONV_TURN_BITS),
					       BIT(VCONV_FIXP_BITS)) >> 16;
}

static __le64 vconv_frame(const u32 *gain, s16 i0, s16 q0, s16 i1, s16 q1)
{
	const s16 value[VCONV_VOLTAGES] = { i0, q0, i1, q1 };
	u64 frame = 0;
	int i;

	for (i = 0; i < VCONV_VOLTAGES; i++)
		frame |= (u64)(u16)(((s64)value[i] * gain[i]) / (s64)VCONV_UNITY) << (16 * i);

	return cpu_to_le64(frame);
}

/* The second channel lags the first by a quarter turn */
static __le64 vconv_sine_frame(const u32 *gain, u32 phase)
{
	/* Rounds to the nearest entry; a sum of a whole turn wraps to 0 */
	u32 at = (u32)(phase + BIT(31 - VCONV_TURN_BITS)) >> (32 - VCONV_TURN_BITS);
	u32 quarter = VCONV_TURN / 4;
	s16 sine = vconv_sine[at];
	s16 cosine = vconv_sine[(at + quarter) % VCONV_TURN];
	s16 minus = vconv_sine[(at - quarter) % VCONV_TURN];

	return vconv_frame(gain, cosine, sine, sine, minus);
}

/* The output function of SplitMix64, as it computes any sample without those before */
static u64 vconv_mix(u64 value)
{
	value += 0x9e3779b97f4a7c15ULL;
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;

	return value ^ (value >> 31);
}

static __le64 vconv_noise_frame(const u32 *gain, u64 count)
{
	u64 mix = vconv_mix(count);

	return vconv_frame(gain, mix, mix >> 16, mix >> 32, mix >> 48);
}

/**
 * vconv_pattern_fill() - generate frames
 * @source: pattern and its settings
 * @frames: destination
 * @first: number of the first sample
 * @n: number of frames
 */
void vconv_pattern_fill(const struct vconv_source *source, __le64 *frames, u64 first, size_t n)
{
	u32 phase = (u32)first * source->step;
	size_t i;

	switch (source->pattern) {
	case VCONV_COUNTER:
		for (i = 0; i < n; i++)
			frames[i] = cpu_to_le64(first + i);
		break;
	case VCONV_SINE:
		for (i = 0; i < n; i++, phase += source->step)
			frames[i] = vconv_sine_frame(source->gain, phase);
		break;
	case VCONV_NOISE:
		for (i = 0; i < n; i++)
			frames[i] = vconv_noise_frame(source->gain, first + i);
		break;
	case VCONV_NONE:
		break;
	}
}

/**
 * vconv_scan_scatter() - copy frames into samples
 * @scan: the layout
 * @to: the first sample
 * @frames: the first frame
 * @n: number of frames
 */
void vconv_scan_scatter(const struct vconv_scan *scan, void *to, const __le64 *frames, size_t n)
{
	const __le16 *from = (const __le16 *)frames;
	size_t i, at;
	int voltage;

	for (voltage = 0; voltage < VCONV_VOLTAGES; voltage++) {
		if (scan->voltage[voltage] < 0)
			continue;
		at = scan->voltage[voltage];
		for (i = 0; i < n; i++, at += scan->size)
			*(__le16 *)(to + at) = from[i * VCONV_VOLTAGES + voltage];
	}
}

/**
 * vconv_scan_gather() - copy samples into frames
 * @scan: the layout; voltages that are not part of it are 0
 * @frames: the first frame
 * @from: the first sample
 * @n: number of frames
 */
void vconv_scan_gather(const struct vconv_scan *scan, __le64 *frames, const void *from, size_t n)
{
	__le16 *to = (__le16 *)frames;
	size_t i, at;
	int voltage;

	memset(frames, 0, n * sizeof(*frames));
	for (voltage = 0; voltage < VCONV_VOLTAGES; voltage++) {
		if (scan->voltage[voltage] < 0)
			continue;
		at = scan->voltage[voltage];
		for (i = 0; i < n; i++, at += scan->size)
			to[i * VCONV_VOLTAGES + voltage] = *(const __le16 *)(from + at);
	}
}

/**
 * vconv_scan_count() - write the numbers of samples, if the layout has a count
 * @scan: the layout
 * @to: the first sample
 * @first: its number
 * @n: number of samples
 */
void vconv_scan_count(const struct vconv_scan *scan, void *to, u64 first, size_t n)
{
	size_t i, at = scan->count;

	if (scan->count < 0)
		return;
	for (i = 0; i < n; i++, at += scan->size)
		*(__le64 *)(to + at) = cpu_to_le64(first + i);
}

/**
 * vconv_scan_time() - write the time of each sample, if the layout has a timestamp
 * @scan: the layout
 * @to: the first sample
 * @start: time of sample 0 in nanoseconds, or of all samples without a rate
 * @rate: samples per second or 0
 * @first: number of the first sample
 * @n: number of samples
 */
void vconv_scan_time(const struct vconv_scan *scan, void *to, s64 start, u32 rate, u64 first,
		     size_t n)
{
	u32 step = 0, fraction = 0, left = 0;
	size_t i, at = scan->timestamp;
	s64 time = start;

	if (scan->timestamp < 0)
		return;
	if (rate) {
		step = NSEC_PER_SEC / rate;
		fraction = NSEC_PER_SEC % rate;
		/* Seconds and remainder separately, as first * NSEC_PER_SEC overflows 64 bits */
		time += (s64)div_u64_rem(first, rate, &left) * NSEC_PER_SEC;
		time += div_u64_rem((u64)left * NSEC_PER_SEC, rate, &left);
	}
	for (i = 0; i < n; i++, at += scan->size) {
		*(__le64 *)(to + at) = cpu_to_le64(time);
		time += step;
		left += fraction;
		if (rate && left >= rate) {
			left -= rate;
			time++;
		}
	}
}
