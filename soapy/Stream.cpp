/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "Stream.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include <SoapySDR/Constants.h>
#include <SoapySDR/Errors.h>
#include <SoapySDR/Logger.hpp>

namespace soapy_busbar {

/* How long deactivating waits until everything was transmitted, in addition to the time that it takes at the rate. */
static const int64_t DRAINING = 1000000000;
/* How often a transmitter is asked for samples that it has missed. */
static const std::chrono::milliseconds LOOK(10);

/* No call waits longer: clocks would overflow. */
static const long long YEAR = 365LL * 86400 * 1000000;

static int64_t nanoseconds(long timeoutUs)
{
	return std::clamp<long long>(timeoutUs, 0, YEAR) * 1000;
}

/* How long samples take, in nanoseconds. Rates may be any: others tell them. */
static int64_t lengthOf(double samples, double rate)
{
	return std::llround(std::min(samples / rate * 1e9, double(YEAR) * 1000));
}

Plan::Plan(const End &end, const std::string &wanted, std::vector<size_t> indices, const SoapySDR::Kwargs &args)
	: format(wanted), memory(argument(args, "memory")), interface(argument(args, "interface")), length(end.sampleLen),
	  bytes(number(args, "block_len")), count(number(args, "blocks"))
{
	/* Automatic: the first one, as other devices do. */
	if (indices.empty())
		indices.push_back(0);
	for (size_t index : indices) {
		if (index >= end.channels.size() || holds(end.channels[index].values.front().name))
			throw std::runtime_error("cannot use channel " + std::to_string(index) + " of " + end.name +
						 ": allowed are 0 to " + std::to_string(end.channels.size() - 1) +
						 ", each once");
		chosen.push_back(end.channels[index]);
	}
	if (end.sampleLen == 0)
		choose(end, end.isSynth() ? "" : argument(args, "loss"));
	if (bytes == 0)
		bytes = 64 << 10;
	/* As the library chooses it. */
	if (count == 0)
		count = std::clamp<size_t>((1 << 20) / bytes, 4, 64);
	/* One that is open already tells. */
	if (end.open) {
		auto info = sized<busbar_stream_info>();

		check(busbar_source_info(end.open.get(), &info));
		bytes = info.block_len;
		count = info.blocks;
	}
	if (count > 1024 || bytes > 1 << 30)
		throw std::runtime_error("cannot use " + std::to_string(count) + " blocks of " + std::to_string(bytes) +
					 " bytes: allowed are up to 1024 blocks of up to 1024M bytes");
	arrange();
}

/* Whether a value is one of the channels. */
bool Plan::holds(const std::string &name) const
{
	return std::any_of(chosen.begin(), chosen.end(), [&](const Channel &channel) {
		return channel.values.front().name == name || channel.values.back().name == name;
	});
}

/* Names the values that the channels need, and one that tells losses. Until the stream is open, they are assumed to be
 * where Linux places them. */
void Plan::choose(const End &end, const std::string &loss)
{
	size_t at = 0, largest = 1;
	bool hasLoss = loss.empty();

	for (const Value &value : end.values) {
		size_t len = std::max<size_t>(value.storageBits / 8, 1);

		if (value.name != loss && !holds(value.name))
			continue;
		hasLoss |= value.name == loss;
		names += (names.empty() ? "" : ",") + value.name;
		at = (at + len - 1) / len * len;
		for (Channel &channel : chosen) {
			for (Value &own : channel.values)
				own.offset = own.name == value.name ? at : own.offset;
		}
		at += len;
		largest = std::max(largest, len);
	}
	length = (at + largest - 1) / largest * largest;
	if (!hasLoss)
		throw std::runtime_error("cannot use the argument loss: " + end.name + " has no channel `" + loss + "`");
}

busbar_stream_setup Plan::setup() const
{
	auto setup = sized<busbar_stream_setup>();

	setup.blocks = count;
	setup.block_len = bytes;
	setup.memory = memory.empty() ? nullptr : memory.c_str();
	setup.interface = interface.empty() ? nullptr : interface.c_str();
	setup.channels = names.empty() ? nullptr : names.c_str();
	return setup;
}

void Plan::place(const busbar_stream_info &info, const std::vector<Value> &values)
{
	length = info.sample_len;
	bytes = info.block_len;
	count = info.blocks;
	for (Channel &channel : chosen) {
		for (Value &own : channel.values) {
			auto found = std::find_if(values.begin(), values.end(),
						  [&](const Value &value) { return value.name == own.name; });

			if (found == values.end() || !found->isLike(own) ||
			    found->offset + found->storageBits / 8 > length)
				throw std::runtime_error("channel " + own.name + " is not what it was before");
			own.offset = found->offset;
		}
	}
	arrange();
}

void Plan::arrange()
{
	const Channel &first = chosen.front();

	all.clear();
	for (const Channel &channel : chosen)
		all.emplace_back(channel, format, length);
	direct = chosen.size() == 1 && format == first.nativeFormat() && first.isNative() &&
		 length == all.front().elementLen();
}

int Stream::failed()
{
	SoapySDR::log(SOAPY_SDR_ERROR, std::string("busbar: ") + busbar_error());
	return SOAPY_SDR_STREAM_ERROR;
}

int Stream::status(size_t &, int &, long)
{
	return SOAPY_SDR_NOT_SUPPORTED;
}

void Stream::change(bool isActive)
{
	active = isActive;
	changes++;
	changed.notify_all();
}

bool Stream::idle(std::unique_lock<std::mutex> &lock, long timeoutUs)
{
	unsigned before = changes;

	return changed.wait_for(lock, std::chrono::nanoseconds(nanoseconds(timeoutUs)), [&] { return changes != before; });
}

template <typename Block>
bool Stream::finds(const Lent<Block> &lent, std::unique_lock<std::mutex> &lock, long &timeoutUs)
{
	auto began = std::chrono::steady_clock::now();
	unsigned before = changes;

	if (lent.hasRoom())
		return true;
	changed.wait_for(lock, std::chrono::nanoseconds(nanoseconds(timeoutUs)),
			 [&] { return lent.hasRoom() || changes != before; });
	timeoutUs -= std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began).count();
	return lent.hasRoom() && changes == before;
}

size_t Stream::mtu()
{
	std::lock_guard<std::mutex> lock(mutex);

	return plan.mtu();
}

size_t Stream::directBuffers()
{
	std::lock_guard<std::mutex> lock(mutex);

	return plan.isDirect() ? plan.blocks() : 0;
}

RxStream::RxStream(const End &end, Plan plan, const std::atomic<double> &rate, Losses &losses)
	: Stream(std::move(plan)), name(end.name), wantedRate(rate), losses(losses), opened(end.open),
	  isSynth(end.isSynth()), isRecording(end.isRecording()), endsWell(!end.isSynth() && !end.isDevice())
{
}

int RxStream::direction() const
{
	return SOAPY_SDR_RX;
}

Source RxStream::open()
{
	busbar_stream_setup setup = plan.setup();
	std::string uri = name;
	busbar_source *found;
	Source first;

	first.swap(opened);
	if (first)
		return first;
	if (isSynth)
		uri += (uri.find('?') == std::string::npos ? "?rate=" : "&rate=") + textOf(wantedRate);
	if (busbar_source_open(uri.c_str(), &setup, &found) < 0) {
		failed();
		return nullptr;
	}
	return Source(found, busbar_source_free);
}

int RxStream::activate(int flags, size_t numElems)
{
	std::lock_guard<std::mutex> alone(turn);
	std::unique_lock<std::mutex> lock(mutex);
	auto info = sized<busbar_stream_info>();

	if (flags & (SOAPY_SDR_HAS_TIME | SOAPY_SDR_WAIT_TRIGGER))
		return SOAPY_SDR_NOT_SUPPORTED;
	burst = numElems;
	if (source && !hasEnded)
		return 0;
	/* One that has ended may keep the device from being opened again. */
	Source last = leave();

	lock.unlock();
	if (last)
		busbar_source_stop(last.get());
	last.reset();
	Source next = open();

	if (!next)
		return SOAPY_SDR_STREAM_ERROR;
	lock.lock();
	try {
		check(busbar_source_info(next.get(), &info));
		plan.place(info, [&](size_t i, busbar_channel *channel) {
			return busbar_source_channel(next.get(), i, channel);
		});
	} catch (const std::exception &why) {
		SoapySDR::logf(SOAPY_SDR_ERROR, "busbar: cannot use %s: %s", name.c_str(), why.what());
		return SOAPY_SDR_STREAM_ERROR;
	}
	source = std::move(next);
	/* What is not known otherwise is what the program has set. */
	rate = info.rate > 0 ? info.rate : wantedRate.load();
	hasEnded = hasFailed = isTold = false;
	lent.begin(plan.blocks());
	change(true);
	return 0;
}

/* A thread that waits for a block learns that there will be none. Blocks that are lent stay valid. */
Source RxStream::leave()
{
	Source last;

	last.swap(source);
	block.reset();
	change(false);
	return last;
}

int RxStream::deactivate(int flags)
{
	std::lock_guard<std::mutex> alone(turn);
	std::unique_lock<std::mutex> lock(mutex);

	if (flags & SOAPY_SDR_HAS_TIME)
		return SOAPY_SDR_NOT_SUPPORTED;
	Source last = leave();

	lock.unlock();
	if (last)
		busbar_source_stop(last.get());
	return 0;
}

int RxStream::begin(Samples it, int &flags, long long &timeNs)
{
	auto meta = sized<busbar_meta>();
	const void *bytes;
	size_t len;

	if (busbar_samples_meta(it.get(), &meta) < 0 || busbar_samples_read(it.get(), &bytes, &len) < 0)
		return failed();
	data = static_cast<const unsigned char *>(bytes);
	at = 0;
	samples = len / plan.sampleLen();
	/* A recording without a time begins in 1970. */
	hasTime = rate > 0 && !(isRecording && meta.time < YEAR * 1000) &&
		  !__builtin_sub_overflow(meta.time, lengthOf(samples, rate), &began);
	block = std::move(it);
	if (meta.lost == BUSBAR_LOST_UNKNOWN) {
		losses.unknown++;
		if (!isTold)
			SoapySDR::logf(SOAPY_SDR_INFO, "busbar: %s does not tell losses (stream argument loss=CHANNEL)",
				       name.c_str());
		isTold = true;
		return 0;
	}
	if (meta.lost == 0)
		return 0;
	losses.samples += meta.lost;
	losses.overflows++;
	/* The samples of this block follow with the next call. */
	flags = hasTime ? SOAPY_SDR_HAS_TIME : 0;
	timeNs = hasTime ? began : 0;
	return SOAPY_SDR_OVERFLOW;
}

int RxStream::next(std::unique_lock<std::mutex> &lock, int &flags, long long &timeNs, long timeoutUs)
{
	Source from = source;
	busbar_samples *found;
	int result;

	flags = 0;
	timeNs = 0;
	if (block)
		return 0;
	if (!from || hasEnded) {
		if (idle(lock, timeoutUs) || !from)
			return SOAPY_SDR_TIMEOUT;
		return end(flags);
	}
	lock.unlock();
	result = busbar_source_next(from.get(), nanoseconds(timeoutUs), &found);
	Samples it(result < 0 ? nullptr : found);
	lock.lock();
	/* It was deactivated meanwhile. */
	if (source != from || result == -EAGAIN)
		return SOAPY_SDR_TIMEOUT;
	if (result >= 0)
		return begin(std::move(it), flags, timeNs);
	hasEnded = busbar_error_reason() == BUSBAR_REASON_ENDED;
	if (hasEnded && endsWell)
		return end(flags);
	hasFailed = true;
	return failed();
}

int RxStream::end(int &flags) const
{
	if (!endsWell || hasFailed)
		return SOAPY_SDR_STREAM_ERROR;
	flags = SOAPY_SDR_END_BURST;
	return SOAPY_SDR_TIMEOUT;
}

void RxStream::pass(size_t count, int &flags, long long &timeNs)
{
	if (hasTime) {
		flags |= SOAPY_SDR_HAS_TIME;
		timeNs = began + lengthOf(at, rate);
	}
	at += count;
	if (at < samples)
		flags |= SOAPY_SDR_MORE_FRAGMENTS;
	if (burst && (burst -= count) == 0) {
		flags = (flags & ~SOAPY_SDR_MORE_FRAGMENTS) | SOAPY_SDR_END_BURST;
		leave();
	}
}

int RxStream::read(void *const *buffs, size_t numElems, int &flags, long long &timeNs, long timeoutUs)
{
	std::unique_lock<std::mutex> lock(mutex);
	int result = next(lock, flags, timeNs, timeoutUs);
	size_t count;

	if (result < 0)
		return result;
	count = std::min({ numElems, samples - at, size_t(std::numeric_limits<int>::max()) });
	if (burst)
		count = std::min(count, burst);
	for (size_t i = 0; i < plan.converters().size(); i++)
		plan.converters()[i].read(data + at * plan.sampleLen(), buffs[i], count);
	pass(count, flags, timeNs);
	if (at == samples)
		block.reset();
	return int(count);
}

int RxStream::acquire(size_t &handle, const void **buffs, int &flags, long long &timeNs, long timeoutUs)
{
	std::unique_lock<std::mutex> lock(mutex);
	size_t count;
	int result;

	if (!plan.isDirect())
		return SOAPY_SDR_NOT_SUPPORTED;
	flags = 0;
	timeNs = 0;
	if (!finds(lent, lock, timeoutUs))
		return SOAPY_SDR_TIMEOUT;
	result = next(lock, flags, timeNs, timeoutUs);
	if (result < 0)
		return result;
	count = samples - at;
	if (burst)
		count = std::min(count, burst);
	buffs[0] = data + at * plan.sampleLen();
	handle = lent.add(std::move(block), const_cast<unsigned char *>(data));
	pass(count, flags, timeNs);
	flags &= ~SOAPY_SDR_MORE_FRAGMENTS;
	return int(count);
}

void RxStream::release(size_t handle)
{
	std::lock_guard<std::mutex> lock(mutex);
	bool isLate;

	lent.take(handle, isLate);
	changed.notify_all();
}

int RxStream::address(size_t handle, void **buffs)
{
	std::lock_guard<std::mutex> lock(mutex);

	buffs[0] = lent.address(handle);
	return buffs[0] ? 0 : SOAPY_SDR_NOT_SUPPORTED;
}

static std::string fact(const char *busbar_stream_info::*what, int result, const busbar_stream_info &info)
{
	return result < 0 ? "" : info.*what;
}

std::string RxStream::interface()
{
	std::lock_guard<std::mutex> lock(mutex);
	auto info = sized<busbar_stream_info>();

	return source ? fact(&busbar_stream_info::interface, busbar_source_info(source.get(), &info), info) : "";
}

std::string RxStream::memory()
{
	std::lock_guard<std::mutex> lock(mutex);
	auto info = sized<busbar_stream_info>();

	return source ? fact(&busbar_stream_info::memory, busbar_source_info(source.get(), &info), info) : "";
}

TxStream::TxStream(const End &end, Plan plan, const std::atomic<double> &rate)
	: Stream(std::move(plan)), name(end.name), attributes(end.attributes), isDevice(end.isDevice()), wantedRate(rate)
{
}

TxStream::~TxStream()
{
	deactivate(0);
}

int TxStream::direction() const
{
	return SOAPY_SDR_TX;
}

int TxStream::activate(int flags, size_t numElems)
{
	std::lock_guard<std::mutex> alone(turn);
	std::unique_lock<std::mutex> lock(mutex);
	busbar_stream_setup setup = plan.setup();
	auto info = sized<busbar_stream_info>();
	busbar_sink *found;

	if ((flags & (SOAPY_SDR_HAS_TIME | SOAPY_SDR_WAIT_TRIGGER)) || numElems > 0)
		return SOAPY_SDR_NOT_SUPPORTED;
	if (sink)
		return 0;
	lock.unlock();
	if (!isDevice)
		setup.rate = wantedRate;
	if (busbar_sink_open(name.c_str(), &setup, &found) < 0)
		return failed();
	Sink next(found, busbar_sink_free);

	lock.lock();
	try {
		check(busbar_sink_info(found, &info));
		plan.place(info, [&](size_t i, busbar_channel *channel) { return busbar_sink_channel(found, i, channel); });
	} catch (const std::exception &why) {
		SoapySDR::logf(SOAPY_SDR_ERROR, "busbar: cannot use %s: %s", name.c_str(), why.what());
		return SOAPY_SDR_STREAM_ERROR;
	}
	sink = std::move(next);
	draining = DRAINING + (info.rate > 0 ? lengthOf(double(plan.blocks()) * plan.mtu(), info.rate) : 0);
	hasFailed = false;
	lent.begin(plan.blocks());
	change(true);
	return 0;
}

int TxStream::deactivate(int flags)
{
	std::lock_guard<std::mutex> alone(turn);
	std::unique_lock<std::mutex> lock(mutex);
	int result = 0;
	Sink last;

	if (flags & SOAPY_SDR_HAS_TIME)
		return SOAPY_SDR_NOT_SUPPORTED;
	if (sink && block && at > 0)
		result = send();
	block.reset();
	last.swap(sink);
	bool drains = !hasFailed;

	change(false);
	lock.unlock();
	if (!last)
		return 0;
	if (drains && busbar_sink_drain(last.get(), draining) < 0)
		result = failed();
	if (busbar_sink_stop(last.get()) < 0)
		result = failed();
	return result;
}

int TxStream::next(std::unique_lock<std::mutex> &lock, long timeoutUs)
{
	Sink to = sink;
	busbar_space *found;
	void *bytes;
	size_t len;
	int result;

	if (block)
		return 0;
	if (!to || hasFailed)
		return idle(lock, timeoutUs) || !to ? SOAPY_SDR_TIMEOUT : SOAPY_SDR_STREAM_ERROR;
	lock.unlock();
	result = busbar_sink_space(to.get(), nanoseconds(timeoutUs), &found);
	Space it(result < 0 ? nullptr : found);
	lock.lock();
	if (sink != to || result == -EAGAIN)
		return SOAPY_SDR_TIMEOUT;
	if (result < 0 || busbar_space_write(found, &bytes, &len) < 0) {
		hasFailed = busbar_error_reason() == BUSBAR_REASON_ENDED;
		return failed();
	}
	block = std::move(it);
	data = static_cast<unsigned char *>(bytes);
	at = 0;
	samples = len / plan.sampleLen();
	return 0;
}

int TxStream::send()
{
	hasFailed |= busbar_space_send(block.release(), at * plan.sampleLen()) < 0;
	return hasFailed ? failed() : 0;
}

int TxStream::write(const void *const *buffs, size_t numElems, int &flags, long timeoutUs)
{
	std::unique_lock<std::mutex> lock(mutex);
	bool isEnd = flags & SOAPY_SDR_END_BURST;
	size_t count;
	int result;

	if (flags & (SOAPY_SDR_HAS_TIME | SOAPY_SDR_WAIT_TRIGGER))
		return SOAPY_SDR_NOT_SUPPORTED;
	flags = 0;
	if (numElems > 0) {
		result = next(lock, timeoutUs);
		if (result < 0)
			return result;
	}
	count = numElems ? std::min({ numElems, samples - at, size_t(std::numeric_limits<int>::max()) }) : 0;
	for (size_t i = 0; i < plan.converters().size(); i++)
		plan.converters()[i].write(buffs[i], data + at * plan.sampleLen(), count);
	at += count;
	if (block && at > 0 && (at == samples || (isEnd && count == numElems))) {
		result = send();
		if (result < 0)
			return result;
	}
	return int(count);
}

int TxStream::acquire(size_t &handle, void **buffs, long timeoutUs)
{
	std::unique_lock<std::mutex> lock(mutex);
	int result;

	if (!plan.isDirect())
		return SOAPY_SDR_NOT_SUPPORTED;
	/* What was written before goes first. */
	if (block && at > 0 && (result = send()) < 0)
		return result;
	if (!finds(lent, lock, timeoutUs))
		return SOAPY_SDR_TIMEOUT;
	result = next(lock, timeoutUs);
	if (result < 0)
		return result;
	buffs[0] = data;
	handle = lent.add(std::move(block), data);
	return int(samples);
}

void TxStream::release(size_t handle, size_t numElems, int &flags)
{
	std::lock_guard<std::mutex> lock(mutex);
	bool isTimed = flags & SOAPY_SDR_HAS_TIME, isLate;
	Space it = lent.take(handle, isLate);
	void *bytes;
	size_t len;

	flags = 0;
	changed.notify_all();
	/* After the stream was deactivated, nothing takes it. */
	if (!it || isLate || !sink || numElems == 0)
		return;
	if (busbar_space_write(it.get(), &bytes, &len) < 0) {
		failed();
	} else if (isTimed || numElems > len / plan.sampleLen()) {
		SoapySDR::logf(SOAPY_SDR_ERROR, "busbar: cannot transmit %zu samples of a block%s: allowed are up to %zu, at no time",
			       numElems, isTimed ? " at a time" : "", len / plan.sampleLen());
	} else if (busbar_space_send(it.release(), numElems * plan.sampleLen()) < 0) {
		failed();
		hasFailed = true;
	}
}

unsigned long long TxStream::underruns() const
{
	try {
		return std::strtoull(attributes.get("underruns").c_str(), nullptr, 10);
	} catch (const std::exception &) {
		/* The device has gone: writing tells why. */
		return 0;
	}
}

int TxStream::status(size_t &chanMask, int &flags, long timeoutUs)
{
	auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanoseconds(timeoutUs));

	if (!attributes.has("underruns"))
		return SOAPY_SDR_NOT_SUPPORTED;
	chanMask = 0;
	flags = 0;
	do {
		unsigned long long now = isActive() ? underruns() : 0;

		if (now > told) {
			told = now;
			chanMask = (size_t(1) << plan.channels().size()) - 1;
			return SOAPY_SDR_UNDERFLOW;
		}
		/* The device counts from 0 when it is started again. */
		told = now;
		std::this_thread::sleep_until(std::min(deadline, std::chrono::steady_clock::now() + LOOK));
	} while (std::chrono::steady_clock::now() < deadline);
	return SOAPY_SDR_TIMEOUT;
}

int TxStream::address(size_t handle, void **buffs)
{
	std::lock_guard<std::mutex> lock(mutex);

	buffs[0] = lent.address(handle);
	return buffs[0] ? 0 : SOAPY_SDR_NOT_SUPPORTED;
}

std::string TxStream::interface()
{
	std::lock_guard<std::mutex> lock(mutex);
	auto info = sized<busbar_stream_info>();

	return sink ? fact(&busbar_stream_info::interface, busbar_sink_info(sink.get(), &info), info) : "";
}

std::string TxStream::memory()
{
	std::lock_guard<std::mutex> lock(mutex);
	auto info = sized<busbar_stream_info>();

	return sink ? fact(&busbar_stream_info::memory, busbar_sink_info(sink.get(), &info), info) : "";
}

} /* namespace soapy_busbar */
