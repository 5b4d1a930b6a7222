/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Handles of libbusbar that free themselves, and its errors as exceptions. */
#pragma once

#include <memory>
#include <stdexcept>

#include <busbar.h>

namespace soapy_busbar {

template <typename Handle, int (*free)(Handle *)> struct Freed {
	void operator()(Handle *handle) const { free(handle); }
};

/* The attributes of all devices of a machine are asked for by it. */
using Context = std::shared_ptr<busbar_context>;
using Samples = std::unique_ptr<busbar_samples, Freed<busbar_samples, busbar_samples_free>>;
using Space = std::unique_ptr<busbar_space, Freed<busbar_space, busbar_space_free>>;
/* A reader and the thread that stops it share these. */
using Source = std::shared_ptr<busbar_source>;
using Sink = std::shared_ptr<busbar_sink>;

/* The devices of a machine. */
struct DeviceList {
	Context context;
	std::unique_ptr<busbar_devices, Freed<busbar_devices, busbar_devices_free>> devices;

	busbar_devices *get() const { return devices.get(); }
};

/* The result of a call, unless it has failed. */
inline int check(int result)
{
	if (result < 0)
		throw std::runtime_error(busbar_error());
	return result;
}

/* A structure of the library, all of it 0 but its size. */
template <typename T> T sized()
{
	T it = {};
	it.size = sizeof(T);
	return it;
}

} /* namespace soapy_busbar */
