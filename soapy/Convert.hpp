/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Values of a converter to those of a stream's format, and back.
 *
 * Between both is a number of 32 bits whose highest bit is the highest valid bit of the value. So full scale becomes
 * full scale, whatever the lengths are: 1.0 in F32 and F64. A value without a sign is taken as its distance from the
 * middle. Only the native format has values as they are.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "Layout.hpp"

namespace soapy_busbar {

/* The formats that a channel can be read or written in: its own first. */
std::vector<std::string> formatsOf(const Channel &channel);

/* The values of one channel, between samples and the elements of a buffer. */
class Converter {
public:
	/* sampleLen: from one sample to the next. Throws if the format is none of formatsOf, or the values have
	 * none of 8, 16 and 32 bits. */
	Converter(const Channel &channel, const std::string &format, size_t sampleLen);

	void read(const void *samples, void *elements, size_t count) const;
	void write(const void *elements, void *samples, size_t count) const;
	/* Bytes of an element. */
	size_t elementLen() const { return len; }

	/* A series of numbers on both sides. */
	struct Line {
		/* Bytes to the first number in the samples, and from one to the next. */
		size_t offset, stride;
		/* The same in numbers of the elements. */
		size_t at, step;
		/* How the bits of a number lie in the sample, and in an element that is an integer. */
		unsigned shift, up, down;
		uint32_t flip, outFlip;
		/* Limits of an element that is an integer. */
		int64_t least, most;
		/* The magnitude of full scale in the sample. */
		double full;
	};
	using Function = void (*)(unsigned char *samples, unsigned char *elements, size_t count, const Line &);

private:
	std::vector<Line> lines;
	/* Numbers of a line in a sample: 2 if I and Q are one line. */
	size_t factor = 1;
	size_t len = 0;
	/* The samples are the elements. */
	bool isCopy = false;
	Function reading, writing;
};

} /* namespace soapy_busbar */
