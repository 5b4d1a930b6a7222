/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the device is, and its streams. */
#include "Device.hpp"

#include <chrono>

#include <SoapySDR/Constants.h>
#include <SoapySDR/Errors.h>

namespace soapy_busbar {

Device::Device(const SoapySDR::Kwargs &args) : args(args), ends(args)
{
	if (ends.rx)
		rxRate = ends.rx->rate;
	if (ends.tx)
		txRate = ends.tx->rate;
}

const End &Device::end(int direction) const
{
	const std::optional<End> &end = direction == SOAPY_SDR_RX ? ends.rx : ends.tx;

	if (!end)
		throw std::runtime_error(direction == SOAPY_SDR_RX ? "nothing is received: uri names no source"
								  : "nothing is transmitted: tx names no sink");
	return *end;
}

const Channel &Device::channelAt(int direction, size_t channel) const
{
	const End &of = end(direction);

	if (channel >= of.channels.size())
		throw std::runtime_error("cannot use channel " + std::to_string(channel) + " of " + of.name +
					 ": allowed are 0 to " + std::to_string(of.channels.size() - 1));
	return of.channels[channel];
}

std::string Device::getDriverKey() const
{
	return "busbar";
}

std::string Device::getHardwareKey() const
{
	return ends.rx ? ends.rx->name : ends.tx->name;
}

SoapySDR::Kwargs Device::getHardwareInfo() const
{
	SoapySDR::Kwargs info;

	info["libbusbar"] = busbar_version();
	if (ends.rx)
		info["receives from"] = ends.rx->name;
	if (ends.tx)
		info["transmits to"] = ends.tx->name;
	if (!ends.control.device().empty())
		info["settings of"] = ends.control.device();
	return info;
}

size_t Device::getNumChannels(int direction) const
{
	const std::optional<End> &end = direction == SOAPY_SDR_RX ? ends.rx : ends.tx;

	return end ? end->channels.size() : 0;
}

SoapySDR::Kwargs Device::getChannelInfo(int direction, size_t channel) const
{
	const Channel &it = channelAt(direction, channel);
	SoapySDR::Kwargs info;

	info["name"] = it.name;
	info["kind"] = it.isComplex() ? "complex" : "real";
	info["bits"] = std::to_string(it.values.front().bits);
	return info;
}

bool Device::getFullDuplex(int, size_t) const
{
	return ends.rx && ends.tx;
}

std::vector<std::string> Device::listAntennas(int direction, size_t channel) const
{
	return { getAntenna(direction, channel) };
}

std::string Device::getAntenna(int direction, size_t) const
{
	return direction == SOAPY_SDR_RX ? "RX" : "TX";
}

/* The times of a recording and of a sender are on other clocks. gr-soapy asks once, before it sets a rate. */
bool Device::hasHardwareTime(const std::string &what) const
{
	return what.empty() && ends.rx && (ends.rx->isDevice() || ends.rx->isSynth());
}

/* The clock of the times of blocks. */
long long Device::getHardwareTime(const std::string &) const
{
	auto now = std::chrono::system_clock::now().time_since_epoch();

	return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::vector<std::string> Device::getStreamFormats(int direction, size_t channel) const
{
	return formatsOf(channelAt(direction, channel));
}

std::string Device::getNativeStreamFormat(int direction, size_t channel, double &fullScale) const
{
	const Channel &it = channelAt(direction, channel);

	fullScale = it.fullScale();
	return it.nativeFormat();
}

static SoapySDR::ArgInfo info(const char *key, const char *value, SoapySDR::ArgInfo::Type type, const char *description)
{
	SoapySDR::ArgInfo it;

	it.key = it.name = key;
	it.value = value;
	it.type = type;
	it.description = description;
	return it;
}

SoapySDR::ArgInfoList Device::getStreamArgsInfo(int direction, size_t) const
{
	SoapySDR::ArgInfoList list = {
		info("block_len", "64K", SoapySDR::ArgInfo::STRING, "Bytes of a block"),
		info("blocks", "", SoapySDR::ArgInfo::STRING, "Number of blocks, by default as many as have 1 MiB together"),
		info("memory", "", SoapySDR::ArgInfo::STRING, "heap:NAME, pages, huge or memfd, by default the best"),
		info("interface", "", SoapySDR::ArgInfo::STRING, "dmabuf or fileio, by default the best"),
	};

	if (direction == SOAPY_SDR_RX && end(direction).isDevice())
		list.push_back(info("loss", "", SoapySDR::ArgInfo::STRING,
				    "A channel that tells losses and is received as well, such as count0 or timestamp"));
	return list;
}

SoapySDR::Stream *Device::setupStream(int direction, const std::string &format, const std::vector<size_t> &channels,
				      const SoapySDR::Kwargs &streamArgs)
{
	std::lock_guard<std::mutex> lock(mutex);
	SoapySDR::Kwargs all = args;
	void *made;

	for (const auto &one : streamArgs)
		all[one.first] = one.second;
	/* A transmitter has no such channel. */
	if (direction == SOAPY_SDR_TX)
		all.erase("loss");
	if (direction == SOAPY_SDR_RX ? bool(rx) : bool(tx))
		throw std::runtime_error("there is a stream in this direction already: a device has one");

	Plan plan(end(direction), format, channels, all);

	if (direction == SOAPY_SDR_RX) {
		losses.samples = losses.overflows = losses.unknown = 0;
		rx = std::make_shared<RxStream>(*ends.rx, std::move(plan), rxRate, losses);
		/* The stream has it now. */
		ends.rx->open.reset();
		made = static_cast<Stream *>(rx.get());
	} else {
		tx = std::make_shared<TxStream>(*ends.tx, std::move(plan), txRate);
		made = static_cast<Stream *>(tx.get());
	}
	return static_cast<SoapySDR::Stream *>(made);
}

/* SoapySDR's type of a stream is never defined: its addresses are those of ours. */
template <typename Kind> static bool isSame(SoapySDR::Stream *stream, const std::shared_ptr<Kind> &ours)
{
	return ours && static_cast<void *>(stream) == static_cast<Stream *>(ours.get());
}

std::shared_ptr<RxStream> Device::receiving(SoapySDR::Stream *stream) const
{
	std::lock_guard<std::mutex> lock(mutex);

	if (!isSame(stream, rx))
		throw std::runtime_error("this is no open stream that receives");
	return rx;
}

std::shared_ptr<TxStream> Device::transmitting(SoapySDR::Stream *stream) const
{
	std::lock_guard<std::mutex> lock(mutex);

	if (!isSame(stream, tx))
		throw std::runtime_error("this is no open stream that transmits");
	return tx;
}

std::shared_ptr<Stream> Device::either(SoapySDR::Stream *stream) const
{
	std::lock_guard<std::mutex> lock(mutex);

	if (isSame(stream, rx))
		return rx;
	if (isSame(stream, tx))
		return tx;
	throw std::runtime_error("this is no open stream");
}

void Device::closeStream(SoapySDR::Stream *stream)
{
	either(stream)->deactivate(0);

	std::lock_guard<std::mutex> lock(mutex);

	if (isSame(stream, rx))
		rx.reset();
	else if (isSame(stream, tx))
		tx.reset();
}

size_t Device::getStreamMTU(SoapySDR::Stream *stream) const
{
	return either(stream)->mtu();
}

int Device::activateStream(SoapySDR::Stream *stream, int flags, long long, size_t numElems)
{
	std::shared_ptr<Stream> it = either(stream);

	if (!it->isActive())
		remember(it->direction());
	return it->activate(flags, numElems);
}

int Device::deactivateStream(SoapySDR::Stream *stream, int flags, long long)
{
	return either(stream)->deactivate(flags);
}

int Device::readStream(SoapySDR::Stream *stream, void *const *buffs, size_t numElems, int &flags, long long &timeNs,
		       long timeoutUs)
{
	return receiving(stream)->read(buffs, numElems, flags, timeNs, timeoutUs);
}

int Device::writeStream(SoapySDR::Stream *stream, const void *const *buffs, size_t numElems, int &flags, long long,
			long timeoutUs)
{
	return transmitting(stream)->write(buffs, numElems, flags, timeoutUs);
}

int Device::readStreamStatus(SoapySDR::Stream *stream, size_t &chanMask, int &flags, long long &timeNs, long timeoutUs)
{
	timeNs = 0;
	return either(stream)->status(chanMask, flags, timeoutUs);
}

size_t Device::getNumDirectAccessBuffers(SoapySDR::Stream *stream)
{
	return either(stream)->directBuffers();
}

int Device::getDirectAccessBufferAddrs(SoapySDR::Stream *stream, size_t handle, void **buffs)
{
	return either(stream)->address(handle, buffs);
}

int Device::acquireReadBuffer(SoapySDR::Stream *stream, size_t &handle, const void **buffs, int &flags,
			      long long &timeNs, long timeoutUs)
{
	return receiving(stream)->acquire(handle, buffs, flags, timeNs, timeoutUs);
}

void Device::releaseReadBuffer(SoapySDR::Stream *stream, size_t handle)
{
	receiving(stream)->release(handle);
}

int Device::acquireWriteBuffer(SoapySDR::Stream *stream, size_t &handle, void **buffs, long timeoutUs)
{
	return transmitting(stream)->acquire(handle, buffs, timeoutUs);
}

void Device::releaseWriteBuffer(SoapySDR::Stream *stream, size_t handle, size_t numElems, int &flags, long long)
{
	transmitting(stream)->release(handle, numElems, flags);
}

} /* namespace soapy_busbar */
