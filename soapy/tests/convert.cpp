/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Values of all types that a converter may have, to each format and back. */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "Convert.hpp"
#include "tests/check.hpp"

using namespace soapy_busbar;

static Value valueOf(const char *name, size_t offset, unsigned bits, unsigned storageBits, unsigned shift, bool isSigned,
		     bool isBigEndian)
{
	auto channel = sized<busbar_channel>();

	channel.name = name;
	channel.offset = offset;
	channel.bits = bits;
	channel.storage_bits = storageBits;
	channel.shift = shift;
	channel.repeat = 1;
	channel.is_signed = isSigned;
	channel.big_endian = isBigEndian;
	return Value(channel);
}

/* Writes the bits of a value as a converter has them, with all other bits set. */
static void put(unsigned char *sample, const Value &value, uint64_t bits)
{
	uint64_t mask = (uint64_t(1) << value.bits) - 1;
	uint64_t raw = ~(mask << value.shift) | (bits & mask) << value.shift;
	size_t len = value.storageBits / 8;

	for (size_t i = 0; i < len; i++)
		sample[value.offset + i] = raw >> 8 * (value.isBigEndian ? len - 1 - i : i);
}

/* What readStream is to give for a value of `bits`, from -1 to below 1. */
static double expected(const Value &value, uint64_t bits)
{
	double full = std::ldexp(1.0, value.bits - 1);

	if (!value.isSigned)
		return (double(bits) - full) / full;
	return (bits >= full ? double(bits) - 2 * full : double(bits)) / full;
}

/* A number of an element, in parts of full scale. */
static double numberOf(const std::string &format, const unsigned char *at, const Value &value, bool isNative)
{
	auto as = [&](auto number) {
		std::memcpy(&number, at, sizeof(number));
		return double(number);
	};
	std::string kind = format.substr(format[0] == 'C');
	double full = std::ldexp(1.0, isNative ? value.bits - 1 : std::stoi(kind.substr(1)) - 1);

	if (kind == "F32")
		return as(float());
	if (kind == "F64")
		return as(double());
	if (kind[0] == 'U')
		return ((kind == "U8" ? as(uint8_t()) : kind == "U16" ? as(uint16_t()) : as(uint32_t())) - full) / full;
	return (kind == "S8" ? as(int8_t()) : kind == "S16" ? as(int16_t()) : as(int32_t())) / full;
}

static void both_ways(const Value &first, const Value &second, size_t sampleLen)
{
	Channel channel{ "a", { first, second } };
	uint64_t most = (uint64_t(1) << first.bits) - 1, half = most / 2;
	const uint64_t numbers[] = { 0, 1, half - 1, half, half + 1, half + 2, most - 1, most, most / 3, most / 5 };
	const size_t count = sizeof(numbers) / sizeof(numbers[0]);
	std::vector<unsigned char> samples(count * sampleLen), again(count * sampleLen);

	for (size_t i = 0; i < count; i++) {
		put(samples.data() + i * sampleLen, first, numbers[i]);
		put(samples.data() + i * sampleLen, second, numbers[count - 1 - i]);
	}
	for (const std::string &format : formatsOf(channel)) {
		Converter converter(channel, format, sampleLen);
		std::vector<unsigned char> elements(count * converter.elementLen()), back(elements.size());
		bool isNative = format == channel.nativeFormat();
		size_t numberLen = converter.elementLen() / 2;
		/* What is left of a value. */
		double step = format.find('F') != std::string::npos ? 0 : std::ldexp(1.0, 1 - 8 * int(numberLen));

		converter.read(samples.data(), elements.data(), count);
		for (size_t i = 0; i < count; i++) {
			const unsigned char *at = elements.data() + i * converter.elementLen();
			double i_is = expected(first, numbers[i]), q_is = expected(second, numbers[count - 1 - i]);
			/* A float has 24 bits. */
			double most_off = format == "CF32" ? 1e-7 : 0;
			auto isRight = [&](double found, double is) {
				bool isCut = found <= is && is < found + step;

				return isNative ? found == is : isCut || std::abs(found - is) <= most_off;
			};

			CHECK(isRight(numberOf(format, at, first, isNative), i_is));
			CHECK(isRight(numberOf(format, at + numberLen, second, isNative), q_is));
		}
		/* What was written is read. */
		converter.write(elements.data(), again.data(), count);
		converter.read(again.data(), back.data(), count);
		CHECK(format == "CF32" || elements == back);
	}
}

/* A sender over the network may describe values of any length. */
static void refuses_other_lengths()
{
	for (unsigned storageBits : { 0u, 4u, 24u, 40u, 64u }) {
		Value value = valueOf("voltage0", 0, std::min(storageBits, 12u), storageBits, 0, true, false);
		Channel channel{ "voltage0", { value } };

		CHECK(channelsOf({ value }, false).empty());
		for (const std::string &format : formatsOf(channel))
			CHECK(has(error([&] { Converter(channel, format, 8); }), "allowed: 8, 16, 32"));
	}
	CHECK(channelsOf({ valueOf("voltage0", 0, 12, 16, 5, true, false) }, false).empty());
	CHECK(channelsOf({ valueOf("voltage0", 0, 17, 16, 0, true, false) }, false).empty());
	CHECK(channelsOf({ valueOf("voltage0", 0, 12, 16, 4, true, false) }, false).size() == 1);
}

/* Values beyond full scale are limited, in the native format as well. */
static void limits()
{
	const int16_t beyond[] = { 3000, 2047, -2049, -32768 }, limited[] = { 2047, 2047, -2048, -2048 };
	const uint16_t without[] = { 4096, 4095, 65535, 0 }, kept[] = { 4095, 4095, 4095, 0 };

	for (unsigned shift : { 0, 4 }) {
		for (bool isSigned : { true, false }) {
			Channel channel{ "a", { valueOf("a", 0, 12, 16, shift, isSigned, false) } };
			Converter converter(channel, channel.nativeFormat(), 2);
			unsigned char samples[8], elements[8];

			converter.write(isSigned ? static_cast<const void *>(beyond) : without, samples, 4);
			converter.read(samples, elements, 4);
			CHECK(!std::memcmp(elements, isSigned ? static_cast<const void *>(limited) : kept, 8));
		}
	}
}

int main()
{
	limits();
	refuses_other_lengths();
	for (unsigned storageBits : { 8, 16, 32 }) {
		for (unsigned bits : { storageBits, storageBits - 1, storageBits / 2, 6u }) {
			for (unsigned shift : { 0u, storageBits - bits }) {
				for (int kind = 0; kind < 4; kind++) {
					auto value = [&](const char *name, size_t offset) {
						return valueOf(name, offset, bits, storageBits, shift, kind & 1, kind & 2);
					};
					size_t len = storageBits / 8;

					/* Side by side, in the other order, and with others around them. */
					both_ways(value("a_i", 0), value("a_q", len), 2 * len);
					both_ways(value("a_i", len), value("a_q", 0), 2 * len);
					both_ways(value("a_i", len), value("a_q", 3 * len), 5 * len);
				}
			}
		}
	}
	std::puts("done");
	return 0;
}
