/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The values of a sample, and the channels that SoapySDR sees in them. */
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "Busbar.hpp"

namespace soapy_busbar {

/* One value of a sample. */
struct Value {
	std::string name;
	size_t offset;
	unsigned bits, storageBits, shift;
	bool isSigned, isBigEndian;

	explicit Value(const busbar_channel &channel);
	/* Whether the values have the same type, wherever they are. */
	bool isLike(const Value &other) const;
};

/* A channel of SoapySDR: one real value, or I and Q. */
struct Channel {
	std::string name;
	std::vector<Value> values;

	bool isComplex() const { return values.size() == 2; }
	/* The format of SoapySDR that holds its values as they are, such as CS16. */
	std::string nativeFormat() const;
	/* The magnitude of the largest value in that format. */
	double fullScale() const;
	/* Whether its values are in memory as the native format has them. */
	bool isNative() const;
};

/*
 * The channels of a sample: voltages, or if there are none, all but the time and the count. NAME_i and NAME_q are one
 * complex channel NAME; with pairs, so are each two other values. What is no number of 8, 16 or 32 bits is left out.
 */
std::vector<Channel> channelsOf(const std::vector<Value> &values, bool pairs);

} /* namespace soapy_busbar */
