/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "Convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <SoapySDR/Formats.hpp>

namespace soapy_busbar {

namespace {

using Line = Converter::Line;

template <typename Raw> Raw swapped(Raw raw)
{
	if constexpr (sizeof(Raw) == 2)
		return __builtin_bswap16(raw);
	else if constexpr (sizeof(Raw) == 4)
		return __builtin_bswap32(raw);
	else
		return raw;
}

/* Neither samples nor buffers need to be aligned. */
template <typename T> T load(const unsigned char *from)
{
	T value;

	std::memcpy(&value, from, sizeof(T));
	return value;
}

template <typename T> void store(unsigned char *to, T value)
{
	std::memcpy(to, &value, sizeof(T));
}

template <typename Raw, bool isForeign, typename Out>
inline void readOne(const unsigned char *sample, unsigned char *element, const Line &line)
{
	Raw raw = load<Raw>(sample);
	uint32_t full;

	if (isForeign)
		raw = swapped(raw);
	full = ((uint32_t(raw) >> line.shift) ^ line.flip) << line.up;
	if constexpr (std::is_floating_point_v<Out>)
		store(element, Out(int32_t(full)) * Out(1.0 / 2147483648.0));
	else if constexpr (std::is_signed_v<Out>)
		store(element, Out(int32_t(full) >> line.down));
	else
		store(element, Out((full >> line.down) ^ line.outFlip));
}

template <typename Raw, bool isForeign, typename Out>
inline void writeOne(unsigned char *sample, const unsigned char *element, const Line &line)
{
	Out out = load<Out>(element);
	uint32_t full, raw;

	if constexpr (std::is_floating_point_v<Out>) {
		/* What is no number becomes the least one, and what is too large the largest. */
		double value = std::fmin(std::fmax(double(out) * line.full, -line.full), line.full - 1);

		full = uint32_t(int32_t(std::lrint(value))) << line.up;
	} else {
		/* An element has more bits than the value in the native format. */
		full = (uint32_t(std::clamp<int64_t>(out, line.least, line.most)) ^ line.outFlip) << line.down;
	}
	raw = line.flip ? (full >> line.up) ^ line.flip : uint32_t(int32_t(full) >> line.up);
	raw <<= line.shift;
	store(sample, isForeign ? swapped(Raw(raw)) : Raw(raw));
}

template <typename Raw, bool isForeign, typename Out>
void readLine(unsigned char *samples, unsigned char *elements, size_t count, const Line &line)
{
	/* Known distances let the compiler take many at a time. */
	if (line.stride == sizeof(Raw) && line.step == 1) {
		for (size_t i = 0; i < count; i++)
			readOne<Raw, isForeign, Out>(samples + i * sizeof(Raw), elements + i * sizeof(Out), line);
		return;
	}
	for (size_t i = 0; i < count; i++)
		readOne<Raw, isForeign, Out>(samples + i * line.stride, elements + i * line.step * sizeof(Out), line);
}

template <typename Raw, bool isForeign, typename Out>
void writeLine(unsigned char *samples, unsigned char *elements, size_t count, const Line &line)
{
	for (size_t i = 0; i < count; i++)
		writeOne<Raw, isForeign, Out>(samples + i * line.stride, elements + i * line.step * sizeof(Out), line);
}

struct Both {
	Converter::Function read, write;
};

template <typename Raw, bool isForeign> Both functionsTo(const std::string &number)
{
#define TO(name, type) \
	if (number == name) \
		return { readLine<Raw, isForeign, type>, writeLine<Raw, isForeign, type> }
	TO("F32", float);
	TO("F64", double);
	TO("S8", int8_t);
	TO("S16", int16_t);
	TO("S32", int32_t);
	TO("U8", uint8_t);
	TO("U16", uint16_t);
	TO("U32", uint32_t);
#undef TO
	return { nullptr, nullptr };
}

Both functionsOf(const Value &value, const std::string &number)
{
	bool isForeign = value.isBigEndian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);

	switch (value.storageBits) {
	case 8:
		return functionsTo<uint8_t, false>(number);
	case 16:
		return isForeign ? functionsTo<uint16_t, true>(number) : functionsTo<uint16_t, false>(number);
	case 32:
		return isForeign ? functionsTo<uint32_t, true>(number) : functionsTo<uint32_t, false>(number);
	default:
		return { nullptr, nullptr };
	}
}

} /* namespace */

std::vector<std::string> formatsOf(const Channel &channel)
{
	std::vector<std::string> found = { channel.nativeFormat() };

	for (const char *number : { "F32", "F64", "S32", "S16", "S8" }) {
		std::string format = (channel.isComplex() ? "C" : "") + std::string(number);

		if (format != found.front())
			found.push_back(format);
	}
	return found;
}

Converter::Converter(const Channel &channel, const std::string &format, size_t sampleLen)
{
	std::vector<std::string> allowed = formatsOf(channel);
	const Value &first = channel.values.front();
	bool isOwn = format == allowed.front();
	size_t count = channel.values.size();
	std::string number;
	Both functions;

	if (std::find(allowed.begin(), allowed.end(), format) == allowed.end()) {
		std::string names;

		for (const std::string &name : allowed)
			names += (names.empty() ? "" : ", ") + name;
		throw std::runtime_error("cannot use the format of channel " + channel.name + ": `" + format +
					 "` is not allowed (allowed: " + names + ")");
	}
	number = format.substr(channel.isComplex() ? 1 : 0);
	len = SoapySDR::formatToSize(format);
	functions = functionsOf(first, number);
	if (!functions.read || !functions.write)
		throw std::runtime_error("cannot convert channel " + channel.name + ": its values have " +
					 std::to_string(first.storageBits) + " bits (allowed: 8, 16, 32)");
	reading = functions.read;
	writing = functions.write;
	for (size_t at = 0; at < count; at++) {
		Line line = {};
		unsigned outBits = isOwn ? first.bits : 8 * len / count;

		line.offset = channel.values[at].offset;
		line.stride = sampleLen;
		line.at = at;
		line.step = count;
		line.shift = first.shift;
		line.up = 32 - first.bits;
		line.flip = first.isSigned ? 0 : uint32_t(1) << (first.bits - 1);
		/* Not used for numbers of 64 bits, which are no integers. */
		line.down = outBits > 32 ? 0 : 32 - outBits;
		line.outFlip = number[0] == 'U' ? uint32_t(1) << (outBits - 1) : 0;
		if (outBits <= 32) {
			line.least = number[0] == 'U' ? 0 : -(int64_t(1) << (outBits - 1));
			line.most = line.least + (int64_t(1) << outBits) - 1;
		}
		line.full = channel.fullScale();
		lines.push_back(line);
	}
	if (count == 2 && channel.isNative() && sampleLen == first.storageBits / 4) {
		/* I and Q are one line of numbers. */
		factor = 2;
		lines.resize(1);
		lines[0].stride = sampleLen / 2;
		lines[0].step = 1;
	}
	isCopy = isOwn && channel.isNative() && sampleLen == len && first.bits == first.storageBits;
}

void Converter::read(const void *samples, void *elements, size_t count) const
{
	/* The functions for both directions have one type. Reading does not write to samples. */
	auto from = const_cast<unsigned char *>(static_cast<const unsigned char *>(samples));
	auto to = static_cast<unsigned char *>(elements);
	size_t numberLen = len / (lines.size() * factor);

	if (isCopy) {
		std::memcpy(elements, samples, count * len);
		return;
	}
	for (const Line &line : lines)
		reading(from + line.offset, to + line.at * numberLen, count * factor, line);
}

void Converter::write(const void *elements, void *samples, size_t count) const
{
	auto from = const_cast<unsigned char *>(static_cast<const unsigned char *>(elements));
	auto to = static_cast<unsigned char *>(samples);
	size_t numberLen = len / (lines.size() * factor);

	if (isCopy) {
		std::memcpy(samples, elements, count * len);
		return;
	}
	for (const Line &line : lines)
		writing(to + line.offset, from + line.at * numberLen, count * factor, line);
}

} /* namespace soapy_busbar */
