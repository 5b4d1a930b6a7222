/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the test programs share: each ends with the first check that fails, and says which. */
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <SoapySDR/Device.hpp>
#include <SoapySDR/Formats.hpp>
#include <SoapySDR/Logger.hpp>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			std::exit(1); \
		} \
	} while (0)

/* Long, since valgrind is slow. */
static const long PATIENCE = 60000000;

struct Unmake {
	void operator()(SoapySDR::Device *device) const { SoapySDR::Device::unmake(device); }
};
using Device = std::unique_ptr<SoapySDR::Device, Unmake>;

inline Device make(const std::string &args)
{
	return Device(SoapySDR::Device::make("driver=busbar," + args));
}

/* A stream that is closed with its scope. */
struct Open {
	SoapySDR::Device &device;
	SoapySDR::Stream *stream;

	Open(const Device &of, int direction, const char *format, std::vector<size_t> channels = {},
	     const std::string &args = "")
		: device(*of),
		  stream(of->setupStream(direction, format, channels, SoapySDR::KwargsFromString(args)))
	{
	}
	~Open() { device.closeStream(stream); }
};

/* What a call throws. */
template <typename Call> std::string error(Call call)
{
	try {
		call();
	} catch (const std::runtime_error &why) {
		return why.what();
	}
	return "nothing was thrown";
}

inline bool has(const std::string &text, const std::string &part)
{
	bool is = text.find(part) != std::string::npos;

	if (!is)
		std::fprintf(stderr, "`%s` is not in: %s\n", part.c_str(), text.c_str());
	return is;
}

inline long lost(const Device &device)
{
	return std::stol(device->readSensor("rx_lost"));
}
