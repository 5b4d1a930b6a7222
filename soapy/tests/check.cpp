/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The module on any host, by SoapySDR's API.
 *
 * Usage: check FOLDER [HOST:PORT HOST:PORT]    an empty folder; a server of libiio's protocol with the device `adc`,
 *                                              synth:counter?rate=1M; another one with the devices of an ADALM-Pluto
 */
#include <atomic>
#include <chrono>
#include <climits>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.hpp"

using Clock = std::chrono::steady_clock;

static long microseconds(Clock::time_point since)
{
	return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since).count();
}

/* Two complex channels have all 64 bits of the counter. */
static void counts_in_copies()
{
	Device device = make("uri=synth:counter?rate=20M");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 0, 1 });
	std::vector<uint32_t> low(3001), high(3001);
	void *buffs[] = { low.data(), high.data() };
	uint64_t next = 0;
	long long expected = 0;

	CHECK(device->getNumDirectAccessBuffers(rx.stream) == 0);
	CHECK(device->getStreamMTU(rx.stream) == 8192);
	CHECK(device->activateStream(rx.stream) == 0);
	while (next < 200000) {
		long long time;
		int flags, count = device->readStream(rx.stream, buffs, low.size(), flags, time, PATIENCE);

		if (count == SOAPY_SDR_OVERFLOW) {
			next = 0;
			continue;
		}
		CHECK(count > 0 && (flags & SOAPY_SDR_HAS_TIME));
		if (next == 0)
			next = low[0];
		/* The counter tells the time, too. */
		if (expected == 0)
			expected = time - std::llround(next / 20e6 * 1e9);
		CHECK(std::llabs(time - expected - std::llround(next / 20e6 * 1e9)) < 1000);
		for (int i = 0; i < count; i++, next++)
			CHECK((uint64_t(high[i]) << 32 | low[i]) == next);
	}
	CHECK(std::llabs(device->getHardwareTime() - expected) < 600000000000);
	CHECK(device->readSensor("rx_interface") == "synth" && !device->readSensor("rx_memory").empty());
}

static void counts_in_place()
{
	Device device = make("uri=synth:counter?channels=1&rate=10M");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, {}, "block_len=4096,blocks=8");
	uint32_t next = 0;
	const void *seen[8] = {};

	CHECK(device->getNumDirectAccessBuffers(rx.stream) == 8 && device->getStreamMTU(rx.stream) == 1024);
	CHECK(device->getDirectAccessBufferAddrs(rx.stream, 0, const_cast<void **>(seen)) == SOAPY_SDR_NOT_SUPPORTED);
	CHECK(device->activateStream(rx.stream) == 0);
	/* The program may have several at a time, and gives them back in any order. */
	for (int round = 0; round < 100; round++) {
		size_t handles[3];

		for (size_t &handle : handles) {
			const void *buff;
			void *address;
			long long time;
			int flags, count;

			do {
				long before = lost(device);

				count = device->acquireReadBuffer(rx.stream, handle, &buff, flags, time, PATIENCE);
				next += lost(device) - before;
			} while (count == SOAPY_SDR_OVERFLOW);
			CHECK(count == 1024 && handle < 8 && flags == SOAPY_SDR_HAS_TIME);
			CHECK(!seen[handle] || seen[handle] == buff);
			seen[handle] = buff;
			CHECK(device->getDirectAccessBufferAddrs(rx.stream, handle, &address) == 0 && address == buff);
			for (int i = 0; i < count; i++, next++)
				CHECK(static_cast<const uint32_t *>(buff)[i] == next);
		}
		for (int i : { 1, 2, 0 })
			device->releaseReadBuffer(rx.stream, handles[i]);
	}
	/* What is no handle is ignored. */
	device->releaseReadBuffer(rx.stream, 7000);
	device->releaseReadBuffer(rx.stream, 0);
	/* Blocks outlive the activity. */
	const void *buff;
	size_t handle;
	long long time;
	int flags, count;

	do
		count = device->acquireReadBuffer(rx.stream, handle, &buff, flags, time, PATIENCE);
	while (count == SOAPY_SDR_OVERFLOW);
	CHECK(device->deactivateStream(rx.stream) == 0);
	CHECK(static_cast<const uint32_t *>(buff)[1] - static_cast<const uint32_t *>(buff)[0] == 1);
	device->releaseReadBuffer(rx.stream, handle);
}

/* Handles stay below their number, whatever the program still has of an earlier activity. */
static void keeps_handles_apart()
{
	Device device = make("uri=synth:counter?channels=1");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, {}, "block_len=4096,blocks=4");
	bool isLent[4] = {};
	size_t handle;
	const void *buff;
	void *address;
	long long time;
	int flags;

	auto acquires = [&](long timeout) {
		return device->acquireReadBuffer(rx.stream, handle, &buff, flags, time, timeout);
	};
	auto knows = [&](size_t of) { return device->getDirectAccessBufferAddrs(rx.stream, of, &address) == 0; };

	CHECK(acquires(1000) == SOAPY_SDR_TIMEOUT);
	CHECK(device->activateStream(rx.stream) == 0);
	for (int i = 0; i < 4; i++) {
		CHECK(acquires(PATIENCE) == 1024 && handle < 4 && !isLent[handle] && knows(handle));
		isLent[handle] = true;
	}
	CHECK(device->deactivateStream(rx.stream) == 0 && device->activateStream(rx.stream) == 0);
	/* All handles are lent, and none is one of this activity. */
	CHECK(acquires(1000) == SOAPY_SDR_TIMEOUT && !knows(0) && !knows(3));
	device->releaseReadBuffer(rx.stream, 2);
	CHECK(acquires(PATIENCE) == 1024 && handle == 2 && knows(2) && address == buff);
	CHECK(acquires(1000) == SOAPY_SDR_TIMEOUT);
	for (size_t lent : { 0, 1, 2, 3 })
		device->releaseReadBuffer(rx.stream, lent);
	CHECK(!knows(0) && knows(2));
	CHECK(device->deactivateStream(rx.stream) == 0 && device->activateStream(rx.stream) == 0 && !knows(2));
}

/* Full scale is full scale in each format. */
static void converts()
{
	Device device = make("uri=synth:counter?channels=1");
	std::vector<std::string> formats = device->getStreamFormats(SOAPY_SDR_RX, 0);
	double fullScale;

	CHECK(formats.front() == "CS16" && formats.size() == 5);
	CHECK(device->getNativeStreamFormat(SOAPY_SDR_RX, 0, fullScale) == "CS16" && fullScale == 32768);
	for (const std::string &format : formats) {
		Open rx(device, SOAPY_SDR_RX, format.c_str());
		std::vector<unsigned char> room(70000 * SoapySDR::formatToSize(format));
		uint32_t next = 0;

		CHECK((device->getNumDirectAccessBuffers(rx.stream) > 0) == (format == "CS16"));
		CHECK(device->activateStream(rx.stream) == 0);
		while (next < 70000) {
			void *buff = room.data();
			long long time;
			int flags, count = device->readStream(rx.stream, &buff, 70000, flags, time, PATIENCE);

			/* As fast as it is taken: nothing is lost, and there is no time. */
			CHECK(count > 0 && !(flags & SOAPY_SDR_HAS_TIME));
			for (int i = 0; i < count; i++, next++) {
				double i_is = int16_t(next) / 32768.0, q_is = int16_t(next >> 16) / 32768.0;
				auto is = [&](auto number, double full) {
					auto *at = reinterpret_cast<decltype(number) *>(buff) + 2 * i;

					return at[0] == std::floor(i_is * full) && at[1] == std::floor(q_is * full);
				};

				CHECK(format != "CS8" || is(int8_t(), 128));
				CHECK(format != "CS16" || is(int16_t(), 32768));
				CHECK(format != "CS32" || is(int32_t(), 2147483648.0));
				CHECK(format != "CF32" || (static_cast<std::complex<float> *>(buff)[i] ==
							   std::complex<float>(i_is, q_is)));
				CHECK(format != "CF64" || (static_cast<std::complex<double> *>(buff)[i] ==
							   std::complex<double>(i_is, q_is)));
			}
		}
	}
}

/* A loss is told once, and exactly. */
static void tells_losses()
{
	Device device = make("uri=synth:counter?rate=1M&channels=1");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 0 }, "block_len=4000,blocks=4");
	std::vector<uint32_t> samples(1000);
	void *buff = samples.data();
	uint32_t next = 0;
	long overflows = 0;

	CHECK(device->activateStream(rx.stream) == 0);
	for (int i = 0; i < 50; i++) {
		long before = lost(device);
		long long time;
		int flags, count = device->readStream(rx.stream, &buff, 1000, flags, time, PATIENCE);

		if (i % 10 == 5)
			std::this_thread::sleep_for(std::chrono::milliseconds(20));
		if (count == SOAPY_SDR_OVERFLOW) {
			CHECK(lost(device) > before && (flags & SOAPY_SDR_HAS_TIME));
			next += lost(device) - before;
			overflows++;
			/* The samples after it come with the next call. */
			count = device->readStream(rx.stream, &buff, 1000, flags, time, PATIENCE);
		}
		CHECK(count > 0);
		for (int at = 0; at < count; at++, next++)
			CHECK(samples[at] == next);
	}
	CHECK(overflows > 0 && overflows == std::stol(device->readSensor("rx_overflows")));
	CHECK(device->readSensor("rx_unknown") == "0");
}

static void keeps_time_limits()
{
	/* A block takes hours. */
	Device device = make("uri=synth:counter?rate=1&channels=1");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, {}, "block_len=40000");
	std::vector<uint32_t> samples(1000);
	void *buff = samples.data();
	long long time;
	int flags;

	auto waits = [&](long timeout) {
		Clock::time_point began = Clock::now();

		CHECK(device->readStream(rx.stream, &buff, 1000, flags, time, timeout) == SOAPY_SDR_TIMEOUT);
		CHECK(microseconds(began) >= timeout && microseconds(began) < timeout + 10000000);
	};
	/* Another thread ends a wait, whether the stream is active or not, and reads sensors meanwhile. */
	auto ends_a_wait = [&] {
		std::atomic<bool> waited{ false };
		std::thread reader([&] {
			CHECK(device->readStream(rx.stream, &buff, 1000, flags, time, LONG_MAX) == SOAPY_SDR_TIMEOUT);
			CHECK(flags == 0);
			waited = true;
		});

		std::this_thread::sleep_for(std::chrono::milliseconds(50));
		CHECK(device->readSensor("rx_lost") == "0" && !waited);
		/* The thread may not have begun to wait. */
		while (!waited) {
			CHECK(device->deactivateStream(rx.stream) == 0);
			std::this_thread::sleep_for(std::chrono::milliseconds(10));
		}
		reader.join();
	};
	waits(20000);
	CHECK(device->activateStream(rx.stream, SOAPY_SDR_HAS_TIME, 1) == SOAPY_SDR_NOT_SUPPORTED);
	CHECK(device->activateStream(rx.stream) == 0 && device->activateStream(rx.stream) == 0);
	waits(20000);
	waits(0);
	waits(-1);
	ends_a_wait();
	waits(1000);
	ends_a_wait();
	CHECK(device->deactivateStream(rx.stream) == 0);
	size_t mask;

	CHECK(device->readStreamStatus(rx.stream, mask, flags, time, 0) == SOAPY_SDR_NOT_SUPPORTED);
}

/* A number of samples, after which the stream has ended. */
static void ends_a_burst()
{
	Device device = make("uri=synth:counter");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 1 });
	std::vector<uint32_t> samples(5000);
	void *buff = samples.data();
	int flags = 0, total = 0;
	long long time;

	CHECK(device->activateStream(rx.stream, SOAPY_SDR_END_BURST, 0, 20000) == 0);
	while (!(flags & SOAPY_SDR_END_BURST)) {
		int count = device->readStream(rx.stream, &buff, 5000, flags, time, PATIENCE);

		CHECK(count > 0);
		total += count;
	}
	CHECK(total == 20000);
	CHECK(device->readStream(rx.stream, &buff, 5000, flags, time, 1000) == SOAPY_SDR_TIMEOUT && flags == 0);
	/* Once more, from the start. */
	CHECK(device->activateStream(rx.stream, 0, 0, 1) == 0);
	CHECK(device->readStream(rx.stream, &buff, 5000, flags, time, PATIENCE) == 1);
	CHECK((flags & SOAPY_SDR_END_BURST) && samples[0] == 0);
	/* Of a stream that is active. */
	CHECK(device->activateStream(rx.stream) == 0 && device->activateStream(rx.stream, 0, 0, 7) == 0);
	CHECK(device->readStream(rx.stream, &buff, 5000, flags, time, PATIENCE) == 7 && (flags & SOAPY_SDR_END_BURST));
}

static void sets_a_rate()
{
	Device device = make("uri=synth:counter?rate=5k&channels=1");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, {}, "block_len=4000,blocks=8");
	uint32_t samples[1000];
	void *buff = samples;
	long long first, second;
	int flags;

	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 5000);
	device->setSampleRate(SOAPY_SDR_RX, 0, 100000);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 100000);
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->readStream(rx.stream, &buff, 500, flags, first, PATIENCE) == 500);
	CHECK(flags == (SOAPY_SDR_HAS_TIME | SOAPY_SDR_MORE_FRAGMENTS));
	CHECK(device->readStream(rx.stream, &buff, 1000, flags, second, PATIENCE) == 500);
	CHECK(flags == SOAPY_SDR_HAS_TIME && second - first == 5000000);
	CHECK(has(error([&] { device->setSampleRate(SOAPY_SDR_RX, 0, -1); }), "above 0"));
	CHECK(device->listSampleRates(SOAPY_SDR_RX, 0).front() == 48000);
	CHECK(device->listBandwidths(SOAPY_SDR_RX, 0) == std::vector<double>{ 0 });
	CHECK(has(error([&] { device->listBandwidths(SOAPY_SDR_RX, 1); }), "0 to 0"));
}

/* Writes the counter, and what is no counter. */
static void transmits()
{
	Device device = make("tx=verify:counter");
	Open tx(device, SOAPY_SDR_TX, SOAPY_SDR_CS16, {}, "block_len=4096,blocks=4");
	std::vector<uint32_t> samples(1500);
	const void *buff = samples.data();
	uint32_t next = 0, wrong = 7;
	const void *bad = &wrong;
	size_t handle, mask;
	long long time;
	int flags = 0;
	void *room;

	CHECK(device->getNumChannels(SOAPY_SDR_RX) == 0 && device->getNumChannels(SOAPY_SDR_TX) == 2);
	CHECK(device->writeStream(tx.stream, &buff, 1, flags, 0, 1000) == SOAPY_SDR_TIMEOUT);
	CHECK(device->activateStream(tx.stream) == 0);
	flags = SOAPY_SDR_HAS_TIME;
	CHECK(device->writeStream(tx.stream, &buff, 1, flags, 1, 1000) == SOAPY_SDR_NOT_SUPPORTED);
	while (next < 10000) {
		size_t at = 0;

		for (size_t i = 0; i < samples.size(); i++)
			samples[i] = next + i;
		while (at < samples.size()) {
			buff = samples.data() + at;
			flags = SOAPY_SDR_END_BURST;
			int count = device->writeStream(tx.stream, &buff, samples.size() - at, flags, 0, PATIENCE);

			CHECK(count > 0);
			at += count;
		}
		next += samples.size();
		/* In place. */
		CHECK(device->acquireWriteBuffer(tx.stream, handle, &room, PATIENCE) == 1024 && handle < 4);
		for (size_t i = 0; i < 100; i++, next++)
			static_cast<uint32_t *>(room)[i] = next;
		device->releaseWriteBuffer(tx.stream, handle, 100, flags);
		/* Not used. */
		CHECK(device->acquireWriteBuffer(tx.stream, handle, &room, PATIENCE) == 1024);
		device->releaseWriteBuffer(tx.stream, handle, 0, flags);
	}
	CHECK(device->readStreamStatus(tx.stream, mask, flags, time, 0) == SOAPY_SDR_NOT_SUPPORTED);
	/* What cannot be sent is not, and the stream goes on. */
	for (int refused : { 0, SOAPY_SDR_HAS_TIME }) {
		CHECK(device->acquireWriteBuffer(tx.stream, handle, &room, PATIENCE) == 1024);
		flags = refused;
		device->releaseWriteBuffer(tx.stream, handle, refused ? 1 : 1025, flags, 1);
		CHECK(flags == 0);
	}
	buff = &next;
	flags = SOAPY_SDR_END_BURST;
	CHECK(device->writeStream(tx.stream, &buff, 1, flags, 0, PATIENCE) == 1);
	/* A block of an earlier activity. */
	CHECK(device->acquireWriteBuffer(tx.stream, handle, &room, PATIENCE) == 1024);
	CHECK(device->deactivateStream(tx.stream) == 0 && device->activateStream(tx.stream) == 0);
	device->releaseWriteBuffer(tx.stream, handle, 1, flags);
	next = 0;
	flags = SOAPY_SDR_END_BURST;
	CHECK(device->writeStream(tx.stream, &buff, 1, flags, 0, PATIENCE) == 1);
	flags = SOAPY_SDR_END_BURST;
	CHECK(device->writeStream(tx.stream, &bad, 1, flags, 0, PATIENCE) == SOAPY_SDR_STREAM_ERROR);
	CHECK(device->writeStream(tx.stream, &bad, 1, flags, 0, 1000) == SOAPY_SDR_STREAM_ERROR);
	/* It can be started again. */
	device->deactivateStream(tx.stream);
	CHECK(device->activateStream(tx.stream) == 0);
	CHECK(device->writeStream(tx.stream, &bad, 1, flags, 0, PATIENCE) == 1);
	CHECK(device->deactivateStream(tx.stream) == 0);
}

/* A recording that is made in one format and played in another. */
static void records(const std::string &folder)
{
	std::string name = "file:" + folder + "/recording";
	const float edges[] = { -2, -1, -0.5, 0, 0.5, 1, 2, NAN };
	const int16_t expected[] = { -32768, -32768, -16384, 0, 16384, 32767, 32767, -32768 };
	const void *buff = edges;
	int16_t samples[8];
	void *to = samples;
	long long time;
	int flags = 0;

	{
		Device device = make("tx=" + name);
		Open tx(device, SOAPY_SDR_TX, SOAPY_SDR_CF32);

		CHECK(device->getNumDirectAccessBuffers(tx.stream) == 0);
		device->setSampleRate(SOAPY_SDR_TX, 0, 48000);
		CHECK(device->activateStream(tx.stream) == 0);
		CHECK(device->writeStream(tx.stream, &buff, 4, flags, 0, PATIENCE) == 4);
		CHECK(device->deactivateStream(tx.stream) == 0);
		/* A recording is not overwritten. */
		CHECK(device->activateStream(tx.stream) == SOAPY_SDR_STREAM_ERROR);
	}
	Device device = make("uri=" + name);
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16);

	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 48000 && device->getNumChannels(SOAPY_SDR_TX) == 0);
	device->setSampleRate(SOAPY_SDR_RX, 0, 48000);
	CHECK(has(error([&] { device->setSampleRate(SOAPY_SDR_RX, 0, 96000); }), "48000"));
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == 4);
	CHECK(!std::memcmp(samples, expected, sizeof(samples)));
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == SOAPY_SDR_TIMEOUT);
	CHECK(flags == SOAPY_SDR_END_BURST);
	/* Again from its beginning. */
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == 4);
}

/* A recording without a rate has the one that is set. */
static void takes_a_rate(const std::string &folder)
{
	std::string name = "file:" + folder + "/timeless";
	std::vector<uint32_t> samples(1000);
	const void *from = samples.data();
	void *to = samples.data();
	long long time;
	int flags = 0;

	{
		Device device = make("tx=" + name);
		Open tx(device, SOAPY_SDR_TX, SOAPY_SDR_CS16);

		CHECK(device->activateStream(tx.stream) == 0);
		CHECK(device->writeStream(tx.stream, &from, 1000, flags, 0, PATIENCE) == 1000);
	}
	Device device = make("uri=" + name);
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16);

	CHECK(!device->hasHardwareTime() && make("uri=synth:counter")->hasHardwareTime());
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 0 && device->listSampleRates(SOAPY_SDR_RX, 0).size() > 1);
	device->setSampleRate(SOAPY_SDR_RX, 0, 1e6);
	device->setSampleRate(SOAPY_SDR_RX, 0, 2e6);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 2e6);
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == 100 && (flags & SOAPY_SDR_HAS_TIME));
	long long first = time;
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == 100 && time - first == 50000);
}

/* A recording that does not tell when it was made has no time. */
static void has_no_time(const std::string &folder)
{
	uint32_t samples[100] = {};
	void *to = samples;
	long long time;
	int flags;

	std::ofstream(folder + "/undated.sigmf-data").write(reinterpret_cast<char *>(samples), sizeof(samples));
	std::ofstream(folder + "/undated.sigmf-meta")
		<< R"({"global": {"core:datatype": "ci16_le", "core:version": "1.0.0", "core:sample_rate": 1000000},
		    "captures": [{"core:sample_start": 0}], "annotations": []})";
	Device device = make("uri=file:" + folder + "/undated");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16);

	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 1e6 && device->activateStream(rx.stream) == 0);
	CHECK(device->readStream(rx.stream, &to, 100, flags, time, PATIENCE) == 100 && flags == 0);
}

static int free_port()
{
	sockaddr_in address = {};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!bind(fd, reinterpret_cast<sockaddr *>(&address), len));
	CHECK(!getsockname(fd, reinterpret_cast<sockaddr *>(&address), &len));
	close(fd);
	return ntohs(address.sin_port);
}

/* From one device to another, over the network. */
static void goes_over_the_network()
{
	const std::string port = std::to_string(free_port());
	const uint32_t total = 100000;
	auto send = [&] {
		Device device = make("tx=tcp:127.0.0.1:" + port);
		Open tx(device, SOAPY_SDR_TX, SOAPY_SDR_CS16, {}, "block_len=32K");
		std::vector<uint32_t> samples(total);
		int flags = 0;

		for (uint32_t i = 0; i < total; i++)
			samples[i] = i;
		device->setSampleRate(SOAPY_SDR_TX, 0, 1e6);
		CHECK(device->activateStream(tx.stream) == 0);
		for (uint32_t at = 0; at < total;) {
			const void *buff = samples.data() + at;
			int count = device->writeStream(tx.stream, &buff, total - at, flags, 0, PATIENCE);

			CHECK(count > 0);
			at += count;
		}
		CHECK(device->deactivateStream(tx.stream) == 0);
	};
	std::thread sender(send);
	Device device = make("uri=tcp-listen:127.0.0.1:" + port);
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16);
	std::vector<uint32_t> samples(total);
	long long time;
	int flags;

	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 1e6 && device->getNumChannels(SOAPY_SDR_RX) == 1);
	/* The sender chooses the length of a block, and with it their number. */
	CHECK(device->getStreamMTU(rx.stream) == 8192 && device->getNumDirectAccessBuffers(rx.stream) == 32);
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->getStreamMTU(rx.stream) == 8192 && device->getNumDirectAccessBuffers(rx.stream) == 32);
	auto receives_all = [&] {
		uint32_t next = 0;

		for (;;) {
			void *buff = samples.data();
			int count = device->readStream(rx.stream, &buff, total, flags, time, PATIENCE);

			if (count < 0) {
				CHECK(count == SOAPY_SDR_TIMEOUT && flags == SOAPY_SDR_END_BURST);
				break;
			}
			for (int i = 0; i < count; i++, next++)
				CHECK(samples[i] == next);
		}
		CHECK(next == total && lost(device) == 0);
	};
	receives_all();
	sender.join();
	/* While a stream waits for another sender, other threads do not wait for it. */
	CHECK(device->deactivateStream(rx.stream) == 0);
	std::thread opener([&] { CHECK(device->activateStream(rx.stream) == 0); });
	std::this_thread::sleep_for(std::chrono::milliseconds(50));
	CHECK(device->readSensor("rx_interface") == "");
	void *buff = samples.data();
	CHECK(device->readStream(rx.stream, &buff, total, flags, time, 0) == SOAPY_SDR_TIMEOUT);
	sender = std::thread(send);
	opener.join();
	receives_all();
	sender.join();
}

static void refuses()
{
	const char *const wrong[][2] = {
		{ "uri=cheese", "iio:NAME, iio:NAME@ip:HOST, synth:PATTERN" },
		{ "uri=iio:", "IIO device" },
		{ "uri=iio:none-such", "none-such" },
		{ "uri=iio:none@ip:127.0.0.1:1", "127.0.0.1:1" },
		{ "uri=synth:cheese", "counter, sine, noise" },
		{ "uri=file:/none/such", "/none/such" },
		{ "uri=tcp-listen:cheese", "cheese" },
		{ "tx=cheese", "verify:counter" },
		{ "tx=iio:none@ip:127.0.0.1:1", "127.0.0.1:1" },
		{ "uri=synth:counter,control=x", "only with a device" },
		{ "uri=synth:counter,pairs=x", "true, false" },
		{ "", "uri=SOURCE, tx=SINK" },
	};

	for (auto [args, text] : wrong)
		CHECK(has(error([&] { make(args); }), text));

	Device device = make("uri=synth:counter");
	auto refuses = [&](const char *format, std::vector<size_t> channels, const char *args, const char *text) {
		CHECK(has(error([&] { Open(device, SOAPY_SDR_RX, format, channels, args); }), text));
	};

	refuses("CS12", {}, "", "CS16, CF32");
	refuses("", {}, "", "CS16, CF32");
	refuses("S16", {}, "", "CS16, CF32");
	refuses("CS16", { 2 }, "", "0 to 1");
	refuses("CS16", { 0, 0 }, "", "each once");
	refuses("CS16", {}, "blocks=0", "from 1 on");
	refuses("CS16", {}, "blocks=1025", "up to 1024 blocks");
	refuses("CS16", {}, "block_len=99999999999999999999", "from 1 on");
	refuses("CS16", {}, "block_len=2048M", "up to 1024M");
	CHECK(has(error([&] { Open(device, SOAPY_SDR_TX, "CS16"); }), "tx names no sink"));
	CHECK(has(error([&] { device->getStreamFormats(SOAPY_SDR_RX, 9); }), "0 to 1"));
	CHECK(has(error([&] { device->readSensor("x"); }), "listSensors"));
	CHECK(has(error([&] { device->readSetting("x"); }), "getSettingInfo"));
	CHECK(has(error([&] { device->writeSetting("x", "1"); }), "getSettingInfo"));
	CHECK(has(error([&] { device->activateStream(nullptr); }), "no open stream"));
	CHECK(device->listGains(SOAPY_SDR_RX, 0).empty() && device->listFrequencies(SOAPY_SDR_RX, 0).empty());
	device->setGain(SOAPY_SDR_RX, 0, 10);

	Open rx(device, SOAPY_SDR_RX, "CS16", {}, "memory=cheese");
	CHECK(has(error([&] { Open(device, SOAPY_SDR_RX, "CS16"); }), "already"));
	CHECK(device->activateStream(rx.stream) == SOAPY_SDR_STREAM_ERROR);
}

/* A device of another machine. */
static void receives_from(const std::string &host)
{
	SoapySDR::KwargsList found = SoapySDR::Device::enumerate("driver=busbar,host=" + host);

	CHECK(found.size() == 1 && found[0]["uri"] == "iio:adc@ip:" + host);
	CHECK(has(found[0]["label"], "adc of " + host));

	CHECK(has(error([&] { make("tx=iio:adc@ip:" + host); }), "no buffer for that"));

	Device device(SoapySDR::Device::make(found[0]));
	CHECK(has(error([&] { Open(device, SOAPY_SDR_RX, "CS16", {}, "loss=x"); }), "no channel `x`"));
	/* With a channel that counts, losses are known. */
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 0, 1 }, "loss=count0,block_len=16000");
	std::vector<uint32_t> low(1000), high(1000);
	void *buffs[] = { low.data(), high.data() };
	uint64_t next = 0;

	CHECK(device->getNumChannels(SOAPY_SDR_RX) == 2 && device->getNumChannels(SOAPY_SDR_TX) == 0);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 1e6);
	CHECK(device->readSetting("busbar_report_loss") == "0");
	device->writeSetting("busbar_report_loss", "1");
	CHECK(device->readSetting("busbar_report_loss") == "1");
	device->writeSetting("busbar_report_loss", "0");
	CHECK(has(error([&] { device->setSampleRate(SOAPY_SDR_RX, 0, 2e6); }), "sampling_frequency"));
	CHECK(device->activateStream(rx.stream) == 0);
	while (next < 100000) {
		long before = lost(device);
		long long time;
		int flags, count = device->readStream(rx.stream, buffs, 1000, flags, time, PATIENCE);

		if (count == SOAPY_SDR_OVERFLOW) {
			next += lost(device) - before;
			continue;
		}
		CHECK(count > 0 && (flags & SOAPY_SDR_HAS_TIME));
		if (next == 0)
			next = low[0];
		for (int i = 0; i < count; i++, next++)
			CHECK((uint64_t(high[i]) << 32 | low[i]) == next);
	}
	CHECK(std::stol(device->readSensor("rx_unknown")) <= 1 && device->readSensor("rx_interface") == "iiod");
}

/* Sensors are found only by who asks for this driver. */
static void finds_radios(const std::string &host)
{
	CHECK(SoapySDR::Device::enumerate("driver=busbar,host=" + host).size() == 3);
	SoapySDR::KwargsList found = SoapySDR::Device::enumerate("host=" + host);
	CHECK(found.size() == 1 && found[0]["uri"] == "iio:cf-ad9361-lpc@ip:" + host);
}

/* A receiver whose settings are another device's. */
static void sets_a_transceiver(const std::string &host)
{
	Device device = make("uri=iio:cf-ad9361-lpc@ip:" + host);
	auto is = [&](const char *key, const char *value) { return device->readSetting(key) == value; };
	double fullScale;

	CHECK(has(device->getHardwareInfo().at("settings of"), "iio:device0@ip:"));
	/* Two voltages that are not named so are I and Q. */
	CHECK(device->getNumChannels(SOAPY_SDR_RX) == 1 && device->getNumChannels(SOAPY_SDR_TX) == 0);
	CHECK(device->getNativeStreamFormat(SOAPY_SDR_RX, 0, fullScale) == "CS16" && fullScale == 2048);
	/* Programs read all settings. */
	for (const SoapySDR::ArgInfo &info : device->getSettingInfo())
		device->readSetting(info.key);
	CHECK(device->getSettingInfo().size() == 12);

	CHECK(device->listFrequencies(SOAPY_SDR_RX, 0) == std::vector<std::string>{ "RF" });
	device->setFrequency(SOAPY_SDR_RX, 0, 433920000.4);
	CHECK(is("out_altvoltage0_RX_LO_frequency", "433920000") && is("out_altvoltage1_TX_LO_frequency", "2450000000"));
	CHECK(device->getFrequency(SOAPY_SDR_RX, 0) == 433920000);
	SoapySDR::RangeList ranges = device->getFrequencyRange(SOAPY_SDR_RX, 0, "RF");
	CHECK(ranges.size() == 1 && ranges[0].minimum() == 70e6 && ranges[0].maximum() == 6e9 && ranges[0].step() == 1);

	CHECK(device->getGain(SOAPY_SDR_RX, 0) == 71);
	device->setGain(SOAPY_SDR_RX, 0, -0.5);
	CHECK(is("in_voltage0_hardwaregain", "-0.5") && device->getGain(SOAPY_SDR_RX, 0, "hardwaregain") == -0.5);
	SoapySDR::Range range = device->getGainRange(SOAPY_SDR_RX, 0);
	CHECK(range.minimum() == -3 && range.maximum() == 71 && range.step() == 1);
	CHECK(device->hasGainMode(SOAPY_SDR_RX, 0) && device->getGainMode(SOAPY_SDR_RX, 0));
	device->setGainMode(SOAPY_SDR_RX, 0, false);
	CHECK(is("in_voltage0_gain_control_mode", "manual") && !device->getGainMode(SOAPY_SDR_RX, 0));

	device->setBandwidth(SOAPY_SDR_RX, 0, 0);
	CHECK(device->getBandwidth(SOAPY_SDR_RX, 0) == 18e6);
	device->setBandwidth(SOAPY_SDR_RX, 0, 5e6);
	CHECK(is("in_voltage_rf_bandwidth", "5000000"));
	CHECK(device->getBandwidthRange(SOAPY_SDR_RX, 0).back().maximum() == 56e6);

	/* The converter, which had decimated, has the same rate. */
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 3840000);
	device->setSampleRate(SOAPY_SDR_RX, 0, 4e6);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 4e6);
	/* Below the least rate of the transceiver, the converter decimates. */
	device->setSampleRate(SOAPY_SDR_RX, 0, 1e6);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 0) == 1e6 && is("in_voltage_sampling_frequency", "1000000"));
	/* An attribute that both have. */
	CHECK(is("ad9361-phy/in_voltage_sampling_frequency", "8000000"));
	CHECK(has(error([&] { device->readSetting("ad9361-phy/x"); }), "getSettingInfo"));
	/* A list of rates. */
	ranges = device->getSampleRateRange(SOAPY_SDR_RX, 0);
	CHECK(ranges.size() == 2 && ranges[0].minimum() == 4e6 && ranges[1].maximum() == 61.44e6);
	CHECK(device->listSampleRates(SOAPY_SDR_RX, 0) == std::vector<double>({ 4e6, 61.44e6 }));
	/* Round numbers of a range, and the present one. */
	std::vector<double> widths = device->listBandwidths(SOAPY_SDR_RX, 0);
	CHECK(widths.front() == 250e3 && widths.back() == 50e6);
	device->setBandwidth(SOAPY_SDR_RX, 0, 56e6);
	CHECK(device->listBandwidths(SOAPY_SDR_RX, 0).back() == 56e6);
	/* The server does not tell the value of this one. */
	CHECK(device->readSetting("out_altvoltage1_TX_LO_frequency_available") == "");
	CHECK(has(error([&] { make("uri=iio:cf-ad9361-lpc@ip:" + host + ",control=x"); }), "ad9361-phy"));
	CHECK(make("uri=iio:cf-ad9361-lpc@ip:" + host + ",control=iio:device1")->listFrequencies(SOAPY_SDR_RX, 0).empty());
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	SoapySDR::setLogLevel(SOAPY_SDR_FATAL);
	counts_in_copies();
	counts_in_place();
	keeps_handles_apart();
	converts();
	tells_losses();
	keeps_time_limits();
	ends_a_burst();
	sets_a_rate();
	transmits();
	records(argv[1]);
	takes_a_rate(argv[1]);
	has_no_time(argv[1]);
	goes_over_the_network();
	refuses();
	if (argc > 3) {
		receives_from(argv[2]);
		finds_radios(argv[3]);
		sets_a_transceiver(argv[3]);
	}
	std::puts("done");
	return 0;
}
