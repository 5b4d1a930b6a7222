/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Tells SoapySDR how to find and to make devices of driver=busbar. */
#include <SoapySDR/Logger.hpp>
#include <SoapySDR/Registry.hpp>

#include "Device.hpp"

namespace soapy_busbar {

/* What the arguments name, or else the converters of this machine, or of host. */
static SoapySDR::KwargsList find(const SoapySDR::Kwargs &args)
{
	SoapySDR::KwargsList found;
	std::string uri = argument(args, "uri"), sink = argument(args, "tx"), label = argument(args, "label");

	try {
		if (!uri.empty() || !sink.empty()) {
			SoapySDR::Kwargs named = args;

			/* Waiting for a sender is for who opens the device. */
			if (uri.compare(0, 11, "tcp-listen:") != 0)
				Ends check(args);
			if (label.empty())
				named["label"] = uri.empty() ? "to " + sink : sink.empty() ? uri : uri + " to " + sink;
			found.push_back(named);
			return found;
		}
		/* Who asks for all drivers wants radios. */
		for (const SoapySDR::Kwargs &one : listed(argument(args, "host"), !argument(args, "driver").empty())) {
			if (label.empty() || label == argument(one, "label"))
				found.push_back(one);
		}
	} catch (const std::exception &why) {
		/* It is the error of the call that makes the device. */
		SoapySDR::log(SOAPY_SDR_DEBUG, std::string("busbar: ") + why.what());
	}
	return found;
}

static SoapySDR::Device *make(const SoapySDR::Kwargs &args)
{
	return new Device(args);
}

static SoapySDR::Registry registry("busbar", &find, &make, SOAPY_SDR_ABI_VERSION);

} /* namespace soapy_busbar */
