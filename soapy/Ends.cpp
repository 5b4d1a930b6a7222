/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "Ends.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <sstream>

namespace soapy_busbar {

namespace {

const char RX_NAMES[] = "iio:NAME, iio:NAME@ip:HOST, synth:PATTERN, file:NAME, tcp-listen:[HOST:]PORT";
const char TX_NAMES[] = "iio:NAME, iio:NAME@ip:HOST, file:NAME, tcp:HOST:PORT, verify:counter, null:";
/* Converters whose settings are another device's, and whose values are pairs without being named so. */
const char TRANSCEIVER[] = "cf-ad9361-";
const char TRANSCEIVER_CONTROL[] = "ad9361-phy";
/* Samples per second below which a device is taken for a sensor. */
const double LEAST_RATE = 10e3;
/* Nanoseconds that a machine has for each answer. */
const int64_t PATIENCE = 10000000000;

[[noreturn]] void refuse(const std::string &what, const std::string &found, const std::string &allowed)
{
	throw std::runtime_error("cannot use " + what + ": `" + found + "` is not allowed (allowed: " + allowed + ")");
}

bool startsWith(const std::string &text, const std::string &begin)
{
	return text.compare(0, begin.size(), begin) == 0;
}

bool isOneOf(const std::string &text, std::initializer_list<const char *> kinds)
{
	for (const char *kind : kinds) {
		if (startsWith(text, kind))
			return true;
	}
	return false;
}

/* "NAME" and "HOST" of iio:NAME@ip:HOST. */
struct Name {
	std::string device, host;

	explicit Name(const std::string &uri)
	{
		std::string rest = uri.substr(4);
		size_t at = rest.find("@ip:");

		device = rest.substr(0, at);
		if (at != std::string::npos)
			host = rest.substr(at + 4);
	}

	/* A device of the same machine. */
	std::string beside(const std::string &other) const { return host.empty() ? other : other + "@ip:" + host; }
};

DeviceList listDevices(const std::string &host)
{
	busbar_context *context;
	busbar_devices *devices;
	DeviceList list;

	check(busbar_context_open(host.empty() ? nullptr : host.c_str(), PATIENCE, &context));
	list.context.reset(context, busbar_context_free);
	check(busbar_context_devices(context, &devices));
	list.devices.reset(devices);
	return list;
}

busbar_device deviceAt(const DeviceList &list, size_t index)
{
	auto device = sized<busbar_device>();

	check(busbar_devices_device(list.get(), index, &device));
	return device;
}

/* The device of a name or number, as the library finds it. */
size_t find(const DeviceList &list, const std::string &name)
{
	size_t count = check(busbar_devices_count(list.get())), index = count;
	std::string known;

	for (size_t i = 0; i < count; i++) {
		busbar_device device = deviceAt(list, i);

		if (name == device.id || "iio:" + name == device.id)
			return i;
		if (name == device.name && !name.empty()) {
			if (index < count)
				refuse("the name of an IIO device that several have", name,
				       "by number: " + std::string(deviceAt(list, index).id) + ", " + device.id);
			index = i;
		}
		known += (known.empty() ? "" : ", ") + std::string(*device.name ? device.name : device.id);
	}
	if (index == count)
		refuse("the name of an IIO device", name, known.empty() ? "none: there is no IIO device" : known);
	return index;
}

std::vector<Value> valuesOf(const DeviceList &list, size_t index, bool isInput)
{
	busbar_device device = deviceAt(list, index);
	size_t count = isInput ? device.inputs : device.outputs;
	auto channel = sized<busbar_channel>();
	std::vector<Value> values;

	for (size_t i = 0; i < count; i++) {
		check(isInput ? busbar_devices_input(list.get(), index, i, &channel)
			      : busbar_devices_output(list.get(), index, i, &channel));
		values.emplace_back(channel);
	}
	return values;
}

/* Of a device of the machine that `name` names. */
Attributes attributesOf(const DeviceList &list, size_t index, const Name &name)
{
	busbar_device device = deviceAt(list, index);

	return Attributes(list.context, device.id, name.beside(device.id), *device.name ? device.name : device.id,
			  device.attributes);
}

/* One direction of an IIO device, if it has that. */
std::optional<End> deviceEnd(const DeviceList &list, const std::string &uri, bool isInput, bool pairs)
{
	Name name(uri);
	size_t index = find(list, name.device);
	busbar_device device = deviceAt(list, index);
	End end;

	end.name = uri;
	end.values = valuesOf(list, index, isInput);
	end.channels = channelsOf(end.values, pairs || startsWith(device.name, TRANSCEIVER));
	end.attributes = attributesOf(list, index, name);
	if (end.channels.empty())
		return std::nullopt;
	return end;
}

/* A source or sink that was opened tells what its samples are. */
template <typename Channels> void describe(End &end, const busbar_stream_info &info, Channels channelAt)
{
	for (size_t i = 0; i < info.channels; i++) {
		auto channel = sized<busbar_channel>();

		check(channelAt(i, &channel));
		end.values.emplace_back(channel);
	}
	end.channels = channelsOf(end.values, false);
	end.rate = info.rate;
	if (end.channels.empty())
		throw std::runtime_error("cannot use " + end.name + ": it has no channel of numbers of 8, 16 or 32 bits");
}

End sourceEnd(const std::string &uri, const SoapySDR::Kwargs &args)
{
	auto setup = sized<busbar_stream_setup>();
	auto info = sized<busbar_stream_info>();
	std::string memory = argument(args, "memory");
	bool staysOpen = startsWith(uri, "tcp-listen:");
	busbar_source *source;
	End end;

	/* Others are opened again when a stream is activated. */
	setup.blocks = staysOpen ? number(args, "blocks") : 1;
	setup.block_len = staysOpen ? 0 : 4096;
	setup.memory = staysOpen && !memory.empty() ? memory.c_str() : nullptr;
	check(busbar_source_open(uri.c_str(), &setup, &source));
	end.name = uri;
	end.open = Source(source, busbar_source_free);
	check(busbar_source_info(source, &info));
	describe(end, info, [&](size_t i, busbar_channel *channel) { return busbar_source_channel(source, i, channel); });
	if (!end.isSynth())
		end.sampleLen = info.sample_len;
	if (!staysOpen)
		end.open.reset();
	return end;
}

/* A sink that is no device takes what it is sent. It is opened when a stream is activated: it may make a file. */
End sinkEnd(const std::string &name)
{
	auto setup = sized<busbar_stream_setup>();
	auto info = sized<busbar_stream_info>();
	busbar_sink *sink;
	End end;

	setup.blocks = 1;
	setup.channels = "voltage0_i,voltage0_q,voltage1_i,voltage1_q";
	check(busbar_sink_open("null:", &setup, &sink));
	Sink like(sink, busbar_sink_free);
	end.name = name;
	check(busbar_sink_info(sink, &info));
	describe(end, info, [&](size_t i, busbar_channel *channel) { return busbar_sink_channel(sink, i, channel); });
	return end;
}

End txEnd(const std::string &name, bool pairs)
{
	if (startsWith(name, "iio:")) {
		std::optional<End> end = deviceEnd(listDevices(Name(name).host), name, false, pairs);

		if (!end)
			throw std::runtime_error("cannot transmit to " + name + ": it has no buffer for that");
		return *end;
	}
	if (!isOneOf(name, { "file:", "tcp:", "verify:", "null:" }))
		refuse("tx", name, TX_NAMES);
	return sinkEnd(name);
}

/* The device that has the settings of another one: the one that is asked for, or the usual one if it is there. */
Attributes controlOf(const DeviceList &list, const Name &name, const std::string &settings)
{
	bool isTransceiver = startsWith(deviceAt(list, find(list, name.device)).name, TRANSCEIVER);
	size_t count = check(busbar_devices_count(list.get())), index = count;

	if (!settings.empty())
		index = find(list, settings);
	for (size_t i = 0; isTransceiver && settings.empty() && i < count; i++) {
		if (deviceAt(list, i).name == std::string(TRANSCEIVER_CONTROL))
			index = i;
	}
	if (index == count)
		return Attributes();
	return attributesOf(list, index, name);
}

/* As a part of a list of arguments, KEY=VALUE,… */
std::string plain(std::string text)
{
	for (char &letter : text) {
		if (letter == ',' || letter == '=')
			letter = ' ';
	}
	return text;
}

bool flag(const SoapySDR::Kwargs &args, const std::string &key)
{
	std::string value = argument(args, key);

	if (!value.empty() && value != "true" && value != "false")
		refuse(key, value, "true, false");
	return value == "true";
}

} /* namespace */

Attributes::Attributes(Context context, std::string id, std::string device, std::string title,
		       const std::string &names)
	: machine(std::move(context)), number(std::move(id)), where(std::move(device)), called(std::move(title))
{
	std::istringstream rest(names);
	std::string name;

	while (std::getline(rest, name, ','))
		all.insert(name);
}

std::string Attributes::get(const std::string &name) const
{
	char text[4096];

	check(busbar_context_get(machine.get(), number.c_str(), name.c_str(), text, sizeof(text)));
	return text;
}

void Attributes::set(const std::string &name, const std::string &value) const
{
	check(busbar_context_set(machine.get(), number.c_str(), name.c_str(), value.c_str()));
}

bool End::isSynth() const
{
	return startsWith(name, "synth:");
}

bool End::isRecording() const
{
	return startsWith(name, "file:");
}

bool End::isDevice() const
{
	return startsWith(name, "iio:");
}

std::string textOf(double number)
{
	char text[400];
	auto [end, error] = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed);

	return error == std::errc() ? std::string(text, end) : "0";
}

std::string argument(const SoapySDR::Kwargs &args, const std::string &key)
{
	auto found = args.find(key);

	return found == args.end() ? "" : found->second;
}

size_t number(const SoapySDR::Kwargs &args, const std::string &key)
{
	std::string text = argument(args, key), digits = text;
	unsigned long long factor = 1;

	if (text.empty())
		return 0;
	if (text.back() == 'K' || text.back() == 'M') {
		factor = text.back() == 'K' ? 1 << 10 : 1 << 20;
		digits.pop_back();
	}
	if (digits.empty() || digits.size() > 10 || digits.find_first_not_of("0123456789") != std::string::npos ||
	    std::strtoull(digits.c_str(), nullptr, 10) == 0)
		refuse(key, text, "a number from 1 on, which may end in K or M");
	/* On 32 bits, what is too large stays so. */
	return std::min<unsigned long long>(std::strtoull(digits.c_str(), nullptr, 10) * factor, SIZE_MAX);
}

Ends::Ends(const SoapySDR::Kwargs &args)
{
	std::string uri = argument(args, "uri"), sink = argument(args, "tx"), settings = argument(args, "control");
	bool pairs = flag(args, "pairs");

	if (uri.empty() && sink.empty())
		refuse("the arguments", SoapySDR::KwargsToString(args),
		       "uri=SOURCE, tx=SINK; uri: " + std::string(RX_NAMES));
	if (startsWith(uri, "iio:")) {
		DeviceList list = listDevices(Name(uri).host);

		rx = deviceEnd(list, uri, true, pairs);
		if (sink.empty())
			tx = deviceEnd(list, uri, false, pairs);
		control = controlOf(list, Name(uri), settings);
		if (!rx && !tx)
			throw std::runtime_error("cannot use " + uri + ": it has no buffer, or no channel of numbers");
	} else if (sink.empty() && isOneOf(uri, { "tcp:", "verify:", "null:" })) {
		tx = txEnd(uri, pairs);
	} else if (isOneOf(uri, { "synth:", "file:", "tcp-listen:" })) {
		rx = sourceEnd(uri, args);
	} else if (!uri.empty()) {
		refuse("uri", uri, RX_NAMES);
	}
	if (!sink.empty())
		tx = txEnd(sink, pairs);

	if (!rx && tx->isDevice())
		control = controlOf(listDevices(Name(tx->name).host), Name(tx->name), settings);
	if (!settings.empty() && control.device().empty())
		refuse("control", settings, "only with a device, iio:NAME");
}

/* Whether a device takes or gives voltages, at a rate that no sensor has, or an unknown one. */
static bool mayBeRadio(const DeviceList &list, size_t index)
{
	double rate = deviceAt(list, index).rate;
	bool hasVoltage = false;

	for (bool isInput : { true, false }) {
		for (const Value &value : valuesOf(list, index, isInput))
			hasVoltage |= startsWith(value.name, "voltage");
	}
	return hasVoltage && (rate == 0 || rate >= LEAST_RATE);
}

SoapySDR::KwargsList listed(const std::string &host, bool all)
{
	DeviceList list = listDevices(host);
	size_t count = check(busbar_devices_count(list.get()));
	SoapySDR::KwargsList found;

	for (size_t i = 0; i < count; i++) {
		busbar_device device = deviceAt(list, i);
		std::string name = *device.name ? device.name : device.id;
		bool receives = device.inputs > 0;

		if ((!receives && device.outputs == 0) || (!all && !mayBeRadio(list, i)))
			continue;
		/* The machine chooses it, too. */
		if (plain(device.id) != device.id)
			continue;
		/* A name that others have is none; neither is one that cannot be part of a list of arguments. */
		for (size_t j = 0; j < count; j++) {
			if ((j != i && name == deviceAt(list, j).name) || name.find_first_of(",=@ ") != std::string::npos)
				name = device.id;
		}
		SoapySDR::Kwargs args;
		args["uri"] = "iio:" + name + (host.empty() ? "" : "@ip:" + host);
		args["label"] = plain(std::string(*device.name ? device.name : device.id) +
				      (host.empty() ? " (" : " of " + host + " (") + device.id + ") " +
				      (receives ? "receives" : "transmits"));
		found.push_back(args);
	}
	return found;
}

} /* namespace soapy_busbar */
