/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "Layout.hpp"

#include <algorithm>
#include <cmath>

namespace soapy_busbar {

Value::Value(const busbar_channel &channel)
	: name(channel.name), offset(channel.offset), bits(channel.bits), storageBits(channel.storage_bits),
	  shift(channel.shift), isSigned(channel.is_signed), isBigEndian(channel.big_endian)
{
	/* Vectors are no channels. */
	if (channel.repeat != 1)
		bits = 0;
}

bool Value::isLike(const Value &other) const
{
	return bits == other.bits && storageBits == other.storageBits && shift == other.shift &&
	       isSigned == other.isSigned && isBigEndian == other.isBigEndian;
}

std::string Channel::nativeFormat() const
{
	const Value &first = values.front();

	return (isComplex() ? "C" : "") + std::string(first.isSigned ? "S" : "U") + std::to_string(first.storageBits);
}

double Channel::fullScale() const
{
	return std::ldexp(1.0, values.front().bits - 1);
}

bool Channel::isNative() const
{
	const Value &first = values.front();
	bool isForeign = first.storageBits > 8 && first.isBigEndian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);

	return first.shift == 0 && !isForeign &&
	       (!isComplex() || values.back().offset == first.offset + first.storageBits / 8);
}

/* A sender over the network may describe any other value. */
static bool isNumber(const Value &value)
{
	bool hasType = value.storageBits == 8 || value.storageBits == 16 || value.storageBits == 32;

	return hasType && value.bits > 0 && value.bits + value.shift <= value.storageBits;
}

static bool startsWith(const std::string &text, const char *begin)
{
	return text.rfind(begin, 0) == 0;
}

/* The name without _i, if it ends so. */
static std::string baseOf(const std::string &name)
{
	bool isFirst = name.size() > 2 && name.compare(name.size() - 2, 2, "_i") == 0;

	return isFirst ? name.substr(0, name.size() - 2) : "";
}

std::vector<Channel> channelsOf(const std::vector<Value> &values, bool pairs)
{
	auto isVoltage = [](const Value &value) { return startsWith(value.name, "voltage"); };
	bool hasVoltages = std::any_of(values.begin(), values.end(), isVoltage);
	std::vector<Value> chosen;
	std::vector<Channel> found;

	for (const Value &value : values) {
		bool isSignal = hasVoltages ? isVoltage(value)
					    : !startsWith(value.name, "timestamp") && !startsWith(value.name, "count");

		if (isSignal && isNumber(value))
			chosen.push_back(value);
	}
	for (size_t at = 0; at < chosen.size(); at++) {
		const Value &first = chosen[at];
		std::string base = baseOf(first.name);
		bool hasNext = at + 1 < chosen.size() && chosen[at + 1].isLike(first);

		if (hasNext && !base.empty() && chosen[at + 1].name == base + "_q")
			found.push_back({ base, { first, chosen[++at] } });
		else if (hasNext && pairs)
			found.push_back({ first.name, { first, chosen[++at] } });
		else
			found.push_back({ first.name, { first } });
	}
	return found;
}

} /* namespace soapy_busbar */
