/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Attributes of IIO devices as rate, gain, frequency, bandwidth, settings; and sensors. */
#include "Device.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <SoapySDR/Constants.h>
#include <SoapySDR/Logger.hpp>

namespace soapy_busbar {

/* A gain and a frequency are one each. */
static const char GAIN[] = "hardwaregain";
static const char FREQUENCY[] = "RF";
/* Where the device does not tell a range. */
static const SoapySDR::Range ANY_GAIN(-100, 100);
static const SoapySDR::Range ANY_RATE(1, 1e9);
/* By how much a converter decimates. */
static const double DECIMATION = 8;
/* What programs offer to choose of a range. */
static const double ROUND[] = { 48e3, 96e3, 192e3, 250e3, 500e3, 1e6,  2e6,  2.5e6, 3e6,  4e6,  5e6,
				6e6,  8e6,  10e6,  12e6,  15e6,	 20e6, 25e6, 30e6,  40e6, 50e6, 60e6 };

/* The number at the beginning of a value, such as that of "71.000000 dB". */
static bool parse(const std::string &text, double &number, size_t &end)
{
	size_t begin = text.find_first_not_of(" \t\n[");

	if (begin == std::string::npos)
		return false;
	if (text[begin] == '+')
		begin++;
	auto [last, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
	end = last - text.data();
	return error == std::errc() && std::isfinite(number);
}

/* The channel without its last part and with its numbers left out, in turn: voltage0_i, voltage_i, voltage0, voltage. */
static std::vector<std::string> sharers(std::string channel)
{
	std::vector<std::string> found;

	while (!channel.empty()) {
		std::string shared;
		size_t at = channel.rfind('_');

		for (char letter : channel) {
			if (letter < '0' || letter > '9')
				shared += letter;
		}
		found.push_back(channel);
		found.push_back(shared);
		channel = at == std::string::npos ? "" : channel.substr(0, at);
	}
	return found;
}

/* Adds the attribute `property` that is nearest to a channel. */
void Device::addPlace(std::vector<Place> &found, const Attributes &of, int direction, const std::string &channel,
		      const std::string &property)
{
	const std::string prefix = direction == SOAPY_SDR_RX ? "in_" : "out_";
	std::vector<std::string> names;

	for (const std::string &sharer : sharers(channel))
		names.push_back(prefix + sharer + "_" + property);
	names.push_back(prefix + property);
	names.push_back(property);
	for (const std::string &name : names) {
		if (!of.has(name))
			continue;
		/* I and Q may share it. */
		if (found.empty() || found.back().name != name)
			found.push_back({ &of, name });
		return;
	}
}

std::vector<Device::Place> Device::ownPlaces(int direction, size_t channel, const std::string &property) const
{
	std::vector<Place> found;

	for (const Value &value : channelAt(direction, channel).values)
		addPlace(found, end(direction).attributes, direction, value.name, property);
	return found;
}

std::vector<Device::Place> Device::places(int direction, size_t channel, const std::string &property) const
{
	std::vector<Place> found;

	addPlace(found, ends.control, direction, "voltage" + std::to_string(channel), property);
	return found.empty() ? ownPlaces(direction, channel, property) : found;
}

/* The frequency of the local oscillator: ad9361-phy has out_altvoltage0_RX_LO_frequency. */
std::vector<Device::Place> Device::frequencyPlaces(int direction) const
{
	const std::string mine = direction == SOAPY_SDR_RX ? "RX" : "TX", other = direction == SOAPY_SDR_RX ? "TX" : "RX";
	const std::string suffix = "_frequency";

	for (const Attributes *of : { &ends.control, &end(direction).attributes }) {
		for (const std::string &name : of->names()) {
			bool isFrequency = name.size() > suffix.size() &&
					   name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;

			if (isFrequency && name.find("altvoltage") != std::string::npos &&
			    (name.find(mine) != std::string::npos || name.find(other) == std::string::npos))
				return { { of, name } };
		}
	}
	return {};
}

std::vector<Device::Place> Device::bandwidthPlaces(int direction, size_t channel) const
{
	std::vector<Place> found = places(direction, channel, "rf_bandwidth");

	return found.empty() ? places(direction, channel, "filter_low_pass_3db_frequency") : found;
}

double Device::numberAt(const std::vector<Place> &places)
{
	double number = 0;
	size_t end;

	if (!places.empty() && !parse(places.front().attributes->get(places.front().name), number, end))
		return 0;
	return number;
}

/* gr-soapy asks for rate and frequency after each loss, in the thread that reads. The answer of another machine would take
 * long. */
double Device::remembered(int direction, const std::vector<Place> &places) const
{
	std::unique_lock<std::mutex> lock(mutex);
	std::string key = places.empty() ? "" : places.front().attributes->device() + " " + places.front().name;
	auto found = numbers.find(key);
	unsigned before = settings;

	bool isActive = direction == SOAPY_SDR_RX ? rx && rx->isActive() : tx && tx->isActive();

	if (isActive && found != numbers.end())
		return found->second;
	lock.unlock();
	double number = numberAt(places);

	lock.lock();
	/* Unless another thread has set it meanwhile. */
	if (settings == before)
		numbers[key] = number;
	return number;
}

Device::Forget::~Forget()
{
	std::lock_guard<std::mutex> lock(device.mutex);

	device.settings++;
	device.numbers.clear();
}

void Device::remember(int direction) const
{
	std::unique_lock<std::mutex> lock(mutex);

	numbers.clear();
	lock.unlock();
	try {
		getSampleRate(direction, 0);
		getFrequency(direction, 0, FREQUENCY);
	} catch (const std::exception &why) {
		/* It is the error of the call that asks. */
		SoapySDR::log(SOAPY_SDR_DEBUG, std::string("busbar: ") + why.what());
	}
}

void Device::setAt(const std::vector<Place> &places, const std::string &value)
{
	for (const Place &place : places)
		place.attributes->set(place.name, value);
}

/* Many drivers take only whole numbers. */
void Device::setRateAt(const std::vector<Place> &places, double rate)
{
	try {
		setAt(places, textOf(rate));
	} catch (const std::exception &) {
		if (rate == std::round(rate))
			throw;
		setAt(places, textOf(std::round(rate)));
	}
}

/* Of a converter behind a device with settings, such as cf-ad9361-lpc, which can decimate to an 8th: below the least rate
 * of that device it does. */
void Device::setRateBehind(const std::vector<Place> &control, const std::vector<Place> &own, double rate)
{
	SoapySDR::RangeList ranges = rangesAt(control);
	double least = ranges.empty() ? 0 : ranges.front().minimum();
	bool decimates = rate < least && rate * DECIMATION >= least;

	setRateAt(control, decimates ? rate * DECIMATION : rate);
	std::string text = textOf(decimates ? std::floor(numberAt(control) / DECIMATION) : numberAt(control));

	try {
		setAt(own, text);
	} catch (const std::runtime_error &) {
		/* Not all such converters can be set: getSampleRate tells what this one has. */
		if (decimates)
			throw;
	}
}

/* The attribute NAME_available: "[least step most]", or a list of values. */
SoapySDR::RangeList Device::rangesAt(const std::vector<Place> &places)
{
	SoapySDR::RangeList ranges;
	std::vector<double> numbers;
	double number;
	size_t end;

	if (places.empty() || !places.front().attributes->has(places.front().name + "_available"))
		return ranges;
	std::string text = places.front().attributes->get(places.front().name + "_available");
	bool isRange = text.compare(0, 1, "[") == 0;

	while (parse(text, number, end)) {
		numbers.push_back(number);
		text.erase(0, end);
	}
	if (isRange && numbers.size() == 3)
		return { SoapySDR::Range(numbers[0], numbers[2], numbers[1]) };
	for (double one : numbers)
		ranges.emplace_back(one, one);
	return ranges;
}

/* The values of a list, or round ones within a range and the present one: never none, since programs take the first and
 * the last one. */
static std::vector<double> listOf(const SoapySDR::RangeList &ranges, double present)
{
	std::set<double> numbers;
	bool hasRange = ranges.empty();

	for (const SoapySDR::Range &range : ranges) {
		bool isValue = range.minimum() == range.maximum();

		hasRange |= !isValue;
		if (isValue)
			numbers.insert(range.minimum());
		for (double round : ROUND) {
			if (!isValue && round >= range.minimum() && round <= range.maximum())
				numbers.insert(round);
		}
	}
	if (numbers.empty() || (hasRange && present > 0))
		numbers.insert(present);
	return { numbers.begin(), numbers.end() };
}

void Device::setSampleRate(int direction, size_t channel, double rate)
{
	std::vector<Place> at = places(direction, channel, "sampling_frequency"),
			   own = ownPlaces(direction, channel, "sampling_frequency");
	const End &of = end(direction);
	bool isBehind = !at.empty() && !own.empty() && own.front().attributes != at.front().attributes;

	if (!std::isfinite(rate) || rate <= 0)
		throw std::runtime_error("cannot use the rate " + textOf(rate) + ": allowed are numbers above 0");
	Forget afterwards(*this);

	if (isBehind) {
		setRateBehind(at, own, rate);
	} else if (!at.empty()) {
		setRateAt(at, rate);
	} else if (of.isSynth() || of.rate == 0) {
		/* Nothing else tells the rate. */
		(direction == SOAPY_SDR_RX ? rxRate : txRate) = rate;
	} else if (std::abs(getSampleRate(direction, channel) - rate) > 1e-6 * rate) {
		throw std::runtime_error("cannot set the rate of " + of.name + ": it has its own, " +
					 textOf(getSampleRate(direction, channel)));
	}
}

double Device::getSampleRate(int direction, size_t channel) const
{
	std::vector<Place> at = ownPlaces(direction, channel, "sampling_frequency");

	if (at.empty())
		at = places(direction, channel, "sampling_frequency");
	if (!at.empty())
		return remembered(direction, at);
	return direction == SOAPY_SDR_RX ? rxRate.load() : txRate.load();
}

SoapySDR::RangeList Device::getSampleRateRange(int direction, size_t channel) const
{
	std::vector<Place> at = places(direction, channel, "sampling_frequency"),
			   own = ownPlaces(direction, channel, "sampling_frequency");
	SoapySDR::RangeList ranges = rangesAt(at);
	const End &of = end(direction);

	if (!ranges.empty()) {
		SoapySDR::Range &first = ranges.front();
		bool isBehind = !own.empty() && own.front().attributes != at.front().attributes;

		/* See setRateBehind. */
		if (isBehind && first.minimum() < first.maximum())
			first = SoapySDR::Range(std::ceil(first.minimum() / DECIMATION), first.maximum(), first.step());
		return ranges;
	}
	if (of.rate > 0 && !of.isSynth())
		return { SoapySDR::Range(of.rate, of.rate) };
	return { ANY_RATE };
}

std::vector<double> Device::listSampleRates(int direction, size_t channel) const
{
	return listOf(getSampleRateRange(direction, channel), getSampleRate(direction, channel));
}

std::vector<std::string> Device::listGains(int direction, size_t channel) const
{
	return places(direction, channel, GAIN).empty() ? std::vector<std::string>() : std::vector<std::string>{ GAIN };
}

bool Device::hasGainMode(int direction, size_t channel) const
{
	return !places(direction, channel, "gain_control_mode").empty();
}

void Device::setGainMode(int direction, size_t channel, bool automatic)
{
	setAt(places(direction, channel, "gain_control_mode"), automatic ? "slow_attack" : "manual");
}

bool Device::getGainMode(int direction, size_t channel) const
{
	std::vector<Place> at = places(direction, channel, "gain_control_mode");

	return !at.empty() && at.front().attributes->get(at.front().name) != "manual";
}

/* As SoapySDR's own, a device without a gain ignores it. */
void Device::setGain(int direction, size_t channel, double value)
{
	setAt(places(direction, channel, GAIN), textOf(value));
}

void Device::setGain(int direction, size_t channel, const std::string &name, double value)
{
	if (name != GAIN)
		throw std::runtime_error("there is no gain `" + name + "`: allowed is " + GAIN);
	setGain(direction, channel, value);
}

double Device::getGain(int direction, size_t channel) const
{
	return numberAt(places(direction, channel, GAIN));
}

double Device::getGain(int direction, size_t channel, const std::string &) const
{
	return getGain(direction, channel);
}

SoapySDR::Range Device::getGainRange(int direction, size_t channel) const
{
	std::vector<Place> at = places(direction, channel, GAIN);
	SoapySDR::RangeList ranges = rangesAt(at);

	if (at.empty())
		return SoapySDR::Range();
	if (ranges.empty())
		return ANY_GAIN;
	return SoapySDR::Range(ranges.front().minimum(), ranges.back().maximum(), ranges.front().step());
}

SoapySDR::Range Device::getGainRange(int direction, size_t channel, const std::string &) const
{
	return getGainRange(direction, channel);
}

std::vector<std::string> Device::listFrequencies(int direction, size_t) const
{
	return frequencyPlaces(direction).empty() ? std::vector<std::string>() : std::vector<std::string>{ FREQUENCY };
}

void Device::setFrequency(int direction, size_t, const std::string &name, double frequency, const SoapySDR::Kwargs &)
{
	std::vector<Place> at = frequencyPlaces(direction);

	if (name != FREQUENCY || at.empty())
		throw std::runtime_error("there is no frequency `" + name + "` of " + end(direction).name);
	Forget afterwards(*this);

	/* Drivers take whole numbers. */
	setAt(at, textOf(std::round(frequency)));
}

double Device::getFrequency(int direction, size_t, const std::string &) const
{
	return remembered(direction, frequencyPlaces(direction));
}

SoapySDR::RangeList Device::getFrequencyRange(int direction, size_t, const std::string &) const
{
	return rangesAt(frequencyPlaces(direction));
}

void Device::setBandwidth(int direction, size_t channel, double bandwidth)
{
	/* Programs pass 0 for "as it is". */
	if (bandwidth > 0)
		setAt(bandwidthPlaces(direction, channel), textOf(std::round(bandwidth)));
}

double Device::getBandwidth(int direction, size_t channel) const
{
	return numberAt(bandwidthPlaces(direction, channel));
}

SoapySDR::RangeList Device::getBandwidthRange(int direction, size_t channel) const
{
	return rangesAt(bandwidthPlaces(direction, channel));
}

/* A channel without a bandwidth has the one 0, which setBandwidth ignores. */
std::vector<double> Device::listBandwidths(int direction, size_t channel) const
{
	channelAt(direction, channel);
	return listOf(getBandwidthRange(direction, channel), getBandwidth(direction, channel));
}

/* The devices that have attributes, each once. */
std::vector<const Attributes *> Device::owners() const
{
	std::vector<const Attributes *> found;

	auto add = [&](const Attributes &of) {
		auto isSame = [&](const Attributes *other) { return other->device() == of.device(); };

		if (!of.device().empty() && std::none_of(found.begin(), found.end(), isSame))
			found.push_back(&of);
	};
	for (const std::optional<End> *end : { &ends.rx, &ends.tx }) {
		if (*end)
			add((*end)->attributes);
	}
	add(ends.control);
	return found;
}

/* NAME, or DEVICE/NAME for a name that another device before it has, too. */
Device::Place Device::settingAt(const std::string &key) const
{
	for (const Attributes *of : owners()) {
		if (of->has(key))
			return { of, key };
	}
	for (const Attributes *of : owners()) {
		std::string prefix = of->title() + "/";

		if (key.compare(0, prefix.size(), prefix) == 0 && of->has(key.substr(prefix.size())))
			return { of, key.substr(prefix.size()) };
	}
	throw std::runtime_error("there is no attribute `" + key + "`: see getSettingInfo");
}

SoapySDR::ArgInfoList Device::getSettingInfo() const
{
	SoapySDR::ArgInfoList list;

	for (const Attributes *of : owners()) {
		for (const std::string &name : of->names()) {
			SoapySDR::ArgInfo info;

			info.key = settingAt(name).attributes == of ? name : of->title() + "/" + name;
			info.name = info.key;
			info.type = SoapySDR::ArgInfo::STRING;
			info.description = "attribute of " + of->device();
			list.push_back(info);
		}
	}
	return list;
}

void Device::writeSetting(const std::string &key, const std::string &value)
{
	Place at = settingAt(key);
	Forget afterwards(*this);

	at.attributes->set(at.name, value);
}

std::string Device::readSetting(const std::string &key) const
{
	Place at = settingAt(key);

	/* Programs read all settings there are. Not each attribute can be read at any time. */
	try {
		return at.attributes->get(at.name);
	} catch (const std::exception &why) {
		SoapySDR::log(SOAPY_SDR_WARNING, std::string("busbar: ") + why.what());
		return "";
	}
}

struct Sensor {
	const char *key;
	SoapySDR::ArgInfo::Type type;
	const char *description;
};

static const Sensor SENSORS[] = {
	{ "rx_lost", SoapySDR::ArgInfo::INT, "Samples that are missing, as far as they are known" },
	{ "rx_overflows", SoapySDR::ArgInfo::INT, "How often samples were missing" },
	{ "rx_unknown", SoapySDR::ArgInfo::INT, "Blocks before which it is not known whether samples are missing" },
	{ "rx_interface", SoapySDR::ArgInfo::STRING, "How blocks come from the driver, while the stream is active" },
	{ "rx_memory", SoapySDR::ArgInfo::STRING, "Where blocks are, while the stream is active" },
	{ "tx_interface", SoapySDR::ArgInfo::STRING, "How blocks go to the driver, while the stream is active" },
	{ "tx_memory", SoapySDR::ArgInfo::STRING, "Where blocks are, while the stream is active" },
};

std::vector<std::string> Device::listSensors() const
{
	std::vector<std::string> found;

	for (const Sensor &sensor : SENSORS) {
		bool isRx = sensor.key[0] == 'r';

		if (isRx ? ends.rx.has_value() : ends.tx.has_value())
			found.push_back(sensor.key);
	}
	return found;
}

SoapySDR::ArgInfo Device::getSensorInfo(const std::string &key) const
{
	SoapySDR::ArgInfo info;

	for (const Sensor &sensor : SENSORS) {
		if (key != sensor.key)
			continue;
		info.key = info.name = sensor.key;
		info.type = sensor.type;
		info.description = sensor.description;
	}
	return info;
}

std::string Device::readSensor(const std::string &key) const
{
	std::unique_lock<std::mutex> lock(mutex);
	std::shared_ptr<Stream> receives = rx, transmits = tx;

	lock.unlock();
	if (key == "rx_lost")
		return std::to_string(losses.samples);
	if (key == "rx_overflows")
		return std::to_string(losses.overflows);
	if (key == "rx_unknown")
		return std::to_string(losses.unknown);
	if (key == "rx_interface")
		return receives ? receives->interface() : "";
	if (key == "rx_memory")
		return receives ? receives->memory() : "";
	if (key == "tx_interface")
		return transmits ? transmits->interface() : "";
	if (key == "tx_memory")
		return transmits ? transmits->memory() : "";
	throw std::runtime_error("there is no sensor `" + key + "`: see listSensors");
}

} /* namespace soapy_busbar */
