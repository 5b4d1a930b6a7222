/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The streams of a device. One thread reads or writes; another one may activate, deactivate and ask for counters. */
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <SoapySDR/Types.hpp>

#include "Busbar.hpp"
#include "Convert.hpp"
#include "Ends.hpp"

namespace soapy_busbar {

/* What was lost in a stream since it was set up. */
struct Losses {
	/* Samples, as far as they are known, and how often. */
	std::atomic<unsigned long long> samples{ 0 }, overflows{ 0 };
	/* Losses of unknown length. */
	std::atomic<unsigned long long> unknown{ 0 };
};

/* How a stream is set up, and where its values are once it is open. */
class Plan {
public:
	/* Throws if a channel, the format or an argument is not allowed. */
	Plan(const End &end, const std::string &format, std::vector<size_t> channels, const SoapySDR::Kwargs &args);

	/* For the library. Valid as long as the plan. */
	busbar_stream_setup setup() const;
	/* Finds the values in an open stream, which calls channelAt for each of its channels. */
	template <typename ChannelAt>
	void place(const busbar_stream_info &info, ChannelAt channelAt)
	{
		std::vector<Value> values;

		for (size_t i = 0; i < info.channels; i++) {
			auto channel = sized<busbar_channel>();

			check(channelAt(i, &channel));
			values.emplace_back(channel);
		}
		place(info, values);
	}

	size_t sampleLen() const { return length; }
	size_t blocks() const { return count; }
	size_t mtu() const { return bytes / length ? bytes / length : 1; }
	/* Whether a sample is an element of the stream, so that blocks can be handed out. */
	bool isDirect() const { return direct; }
	const std::vector<Channel> &channels() const { return chosen; }
	const std::vector<Converter> &converters() const { return all; }

private:
	bool holds(const std::string &name) const;
	void choose(const End &end, const std::string &loss);
	void place(const busbar_stream_info &info, const std::vector<Value> &values);
	/* Once the places of the values are known, or are assumed. */
	void arrange();

	std::vector<Channel> chosen;
	std::vector<Converter> all;
	std::string format, names, memory, interface;
	size_t length, bytes, count;
	bool direct;
};

/* Blocks that are lent to the program, by their handles, which are the places of their memory in a list. */
template <typename Block> class Lent {
public:
	/* The stream was activated, with so many blocks. What is lent stays so; other memory is no longer known. */
	void begin(size_t blocks)
	{
		most = blocks;
		activation++;
		for (Place &place : all)
			place.address = place.block ? place.address : nullptr;
	}

	/* Whether a handle is free. Programs may still have blocks of an earlier activation. */
	bool hasRoom() const { return find(nullptr) < most; }

	/* A handle for a block at this address: always the same for the same memory. There has to be room. */
	size_t add(Block block, void *address)
	{
		size_t handle = find(address);

		if (handle >= all.size())
			all.resize(handle + 1);
		all[handle].block = std::move(block);
		all[handle].address = address;
		all[handle].activation = activation;
		return handle;
	}

	/* Empty if nothing is lent by that handle. isLate: it was lent before the stream was activated again. */
	Block take(size_t handle, bool &isLate)
	{
		Block block;

		isLate = false;
		if (handle >= all.size() || !all[handle].block)
			return block;
		isLate = all[handle].activation != activation;
		if (isLate)
			all[handle].address = nullptr;
		block.swap(all[handle].block);
		return block;
	}

	/* NULL if there was no such block yet. */
	void *address(size_t handle) const
	{
		bool isKnown = handle < all.size() && handle < most && all[handle].activation == activation;

		return isKnown ? all[handle].address : nullptr;
	}

private:
	struct Place {
		Block block;
		void *address = nullptr;
		unsigned activation = 0;
	};

	/* The place of that memory, or else a new one, or else some that is not lent: memory may come and go. */
	size_t find(const void *address) const
	{
		size_t count = std::min(all.size(), most), other = most;

		for (size_t at = count; at-- > 0;) {
			bool isFree = !all[at].block;

			if (isFree && address && all[at].address == address)
				return at;
			if (isFree && (other == most || !all[at].address))
				other = at;
		}
		bool isNew = other < most && !all[other].address;

		return !isNew && count < most ? count : other;
	}

	std::vector<Place> all;
	size_t most = 0;
	unsigned activation = 0;
};

/* What both directions have. */
class Stream {
public:
	virtual ~Stream() = default;

	/* These return what SoapySDR expects: 0 or a number of elements, or a negative SOAPY_SDR_… */
	virtual int activate(int flags, size_t numElems) = 0;
	virtual int deactivate(int flags) = 0;
	virtual int status(size_t &chanMask, int &flags, long timeoutUs);

	virtual int direction() const = 0;
	bool isActive() const { return active; }

	size_t mtu();
	size_t directBuffers();
	virtual int address(size_t handle, void **buffs) = 0;
	/* Facts about the open stream; "" if it is not open. */
	virtual std::string interface() = 0;
	virtual std::string memory() = 0;

protected:
	explicit Stream(Plan plan) : plan(std::move(plan)) {}

	/* Tells the user of the library's last error. Returns SOAPY_SDR_STREAM_ERROR. */
	static int failed();
	/* The stream was activated or deactivated. */
	void change(bool isActive);
	/* Waits as long as a call may take, since nothing will come. Returns whether it has changed meanwhile. */
	bool idle(std::unique_lock<std::mutex> &lock, long timeoutUs);
	/* Waits until there is a handle for one more block, or the stream has changed. Returns whether there is, and how
	 * much of the time is left. */
	template <typename Block>
	bool finds(const Lent<Block> &lent, std::unique_lock<std::mutex> &lock, long &timeoutUs);

	Plan plan;
	/* Held while the stream is opened and closed, which takes long: the plan changes only then. Taken before the mutex. */
	std::mutex turn;
	std::mutex mutex;
	/* How often the stream was activated and deactivated, and notified when it is, and when a block comes back. */
	unsigned changes = 0;
	std::condition_variable changed;
	std::atomic<bool> active{ false };
};

class RxStream : public Stream {
public:
	RxStream(const End &end, Plan plan, const std::atomic<double> &rate, Losses &losses);

	int activate(int flags, size_t numElems) override;
	int deactivate(int flags) override;
	int direction() const override;
	int read(void *const *buffs, size_t numElems, int &flags, long long &timeNs, long timeoutUs);
	int acquire(size_t &handle, const void **buffs, int &flags, long long &timeNs, long timeoutUs);
	void release(size_t handle);
	int address(size_t handle, void **buffs) override;
	std::string interface() override;
	std::string memory() override;

private:
	/* Opens what the stream reads from; empty if that fails. */
	Source open();
	/* Has a block to take samples of, or returns why not. Releases the lock while it waits. */
	int next(std::unique_lock<std::mutex> &lock, int &flags, long long &timeNs, long timeoutUs);
	/* What is returned once the stream has ended. */
	int end(int &flags) const;
	/* Notes what is known of a block that has come. */
	int begin(Samples samples, int &flags, long long &timeNs);
	/* Sets time and flags for so many samples of the block, and takes them. */
	void pass(size_t count, int &flags, long long &timeNs);
	/* Returns what is to be stopped: without the lock. */
	Source leave();

	std::string name;
	const std::atomic<double> &wantedRate;
	Losses &losses;
	/* NULL while it is not active. */
	Source source, opened;
	bool isSynth, isRecording;
	/* Its last sample is no error, unless there was one before. */
	bool endsWell, hasFailed = false;
	/* The stream has ended by itself: a recording was played, or the device has gone. */
	bool hasEnded = false, isTold = false;
	double rate = 0;
	/* The block that samples are taken of. */
	Samples block;
	const unsigned char *data = nullptr;
	size_t at = 0, samples = 0;
	/* When its first sample was taken, if that is known. */
	long long began = 0;
	bool hasTime = false;
	/* Samples until the stream ends; 0: it does not. */
	size_t burst = 0;
	Lent<Samples> lent;
};

class TxStream : public Stream {
public:
	TxStream(const End &end, Plan plan, const std::atomic<double> &rate);
	~TxStream() override;

	int activate(int flags, size_t numElems) override;
	int deactivate(int flags) override;
	int direction() const override;
	int write(const void *const *buffs, size_t numElems, int &flags, long timeoutUs);
	int acquire(size_t &handle, void **buffs, long timeoutUs);
	void release(size_t handle, size_t numElems, int &flags);
	int status(size_t &chanMask, int &flags, long timeoutUs) override;
	int address(size_t handle, void **buffs) override;
	std::string interface() override;
	std::string memory() override;

private:
	/* Has a block to fill, or returns why not. Releases the lock while it waits. */
	int next(std::unique_lock<std::mutex> &lock, long timeoutUs);
	/* Sends what was written to the block. */
	int send();
	/* How many samples the device has not got in time. */
	unsigned long long underruns() const;

	std::string name;
	Attributes attributes;
	bool isDevice;
	const std::atomic<double> &wantedRate;
	Sink sink;
	Space block;
	unsigned char *data = nullptr;
	size_t at = 0, samples = 0;
	/* A block could not be sent: nothing more can be. */
	bool hasFailed = false;
	int64_t draining = 0;
	/* For the thread that asks for the state. */
	unsigned long long told = 0;
	Lent<Space> lent;
};

} /* namespace soapy_busbar */
