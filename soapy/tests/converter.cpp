/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The module over the virtual converter vconv0: blocks in place, exact losses, attributes, and its transmitter. */
#include <climits>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>

#include "check.hpp"

static std::string read(const std::string &path)
{
	std::string text;

	std::getline(std::ifstream(path), text);
	return text;
}

/* The folder of the device of this name below another one. */
static std::string folderOf(const std::string &name, const std::string &root)
{
	for (int i = 0; i < 100; i++) {
		std::string id = "iio:device" + std::to_string(i);

		if (read("/sys/bus/iio/devices/" + id + "/name") == name)
			return root + "/" + id + "/";
	}
	CHECK(!"the device is there");
}

static void is_found()
{
	SoapySDR::KwargsList found = SoapySDR::Device::enumerate("driver=busbar");
	int receivers = 0;

	for (const SoapySDR::Kwargs &one : found)
		receivers += one.at("uri") == "iio:vconv0" && has(one.at("label"), "receives");
	CHECK(receivers == 1);
	CHECK(has(error([] { make("uri=iio:none"); }), "vconv0"));
	CHECK(has(error([] { make("tx=iio:vconv0"); }), "no buffer for that"));
}

static void has_settings(const Device &device)
{
	const std::string sys = folderOf("vconv0", "/sys/bus/iio/devices");

	CHECK(device->getNumChannels(SOAPY_SDR_RX) == 2 && device->getNumChannels(SOAPY_SDR_TX) == 2);
	CHECK(device->getFullDuplex(SOAPY_SDR_RX, 0));
	CHECK(device->listGains(SOAPY_SDR_RX, 1) == std::vector<std::string>{ "hardwaregain" });
	/* Others have used the converter before. */
	for (size_t channel : { 0, 1 })
		device->setGain(SOAPY_SDR_RX, channel, 1);
	device->writeSetting("loopback", "0");
	device->writeSetting("pattern", "counter");
	device->setGain(SOAPY_SDR_RX, 1, 0.5);
	CHECK(device->getGain(SOAPY_SDR_RX, 1) == 0.5 && device->getGain(SOAPY_SDR_RX, 0) == 1);
	/* Of both values of the channel. */
	CHECK(std::stod(read(sys + "in_voltage1_i_hardwaregain")) == 0.5);
	CHECK(std::stod(read(sys + "in_voltage1_q_hardwaregain")) == 0.5);
	CHECK(has(error([&] { device->setGain(SOAPY_SDR_RX, 1, 7); }), "in_voltage1_i_hardwaregain"));
	device->setGain(SOAPY_SDR_RX, 1, 1);
	CHECK(device->listGains(SOAPY_SDR_TX, 0).empty());
	device->setSampleRate(SOAPY_SDR_RX, 0, 2e6);
	CHECK(device->getSampleRate(SOAPY_SDR_RX, 1) == 2e6 && read(sys + "sampling_frequency") == "2000000");
	CHECK(device->readSetting("pattern") == "counter");
	device->writeSetting("pattern", "sine");
	CHECK(read(sys + "pattern") == "sine");
	device->writeSetting("pattern", "counter");
	CHECK(has(error([&] { device->writeSetting("pattern", "x"); }), "pattern"));
}

/* Samples that a fault of the converter loses are told as many as they are. */
static void receives(const Device &device, const char *args)
{
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 0, 1 }, args);
	std::vector<uint32_t> low(4096), high(4096);
	void *buffs[] = { low.data(), high.data() };
	uint64_t next = 0;
	int overflows = 0;

	device->setSampleRate(SOAPY_SDR_RX, 0, 1e6);
	CHECK(device->activateStream(rx.stream) == 0);
	CHECK(device->readSensor("rx_interface") == "dmabuf");
	CHECK(has(error([&] { device->setSampleRate(SOAPY_SDR_RX, 0, 2e6); }), "sampling_frequency"));
	for (int i = 0; i < 100; i++) {
		long before = lost(device);
		long long time;
		int flags, count = device->readStream(rx.stream, buffs, low.size(), flags, time, PATIENCE);

		if (i == 20)
			std::ofstream(folderOf("vconv0", "/sys/kernel/debug/iio") + "lose_samples") << 12345;
		if (count == SOAPY_SDR_OVERFLOW) {
			next += lost(device) - before;
			overflows++;
			continue;
		}
		CHECK(count > 0 && (flags & SOAPY_SDR_HAS_TIME));
		for (int at = 0; at < count; at++, next++)
			CHECK((uint64_t(high[at]) << 32 | low[at]) == next);
	}
	CHECK(overflows > 0 && lost(device) >= 12345 && device->readSensor("rx_unknown") == "0");
}

static void receives_in_place()
{
	Device device = make("uri=iio:vconv0");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 1 }, "blocks=8");
	const void *buff;
	size_t handle;
	long long time;
	int flags;

	CHECK(device->getNumDirectAccessBuffers(rx.stream) == 8);
	CHECK(device->activateStream(rx.stream) == 0);
	for (int i = 0; i < 50; i++) {
		int count = device->acquireReadBuffer(rx.stream, handle, &buff, flags, time, PATIENCE);

		/* The upper half of the counter is 0. */
		if (count == SOAPY_SDR_OVERFLOW)
			continue;
		CHECK(count == 16384 && static_cast<const uint32_t *>(buff)[i] == 0);
		device->releaseReadBuffer(rx.stream, handle);
	}
	/* The driver tells nothing of losses, and a channel of 0 neither. */
	CHECK(std::stol(device->readSensor("rx_unknown")) > 0 && lost(device) == 0);
}

/* What the transmitter sends comes back; what it has not got in time is told. */
static void transmits(const Device &device)
{
	Open tx(device, SOAPY_SDR_TX, SOAPY_SDR_CF32, { 0 }, "block_len=4096,blocks=4");
	Open rx(device, SOAPY_SDR_RX, SOAPY_SDR_CS16, { 0 }, "block_len=4096,blocks=4");
	std::vector<float> samples(2 * 1024, 0.25);
	const void *buff = samples.data();
	uint32_t got[1024];
	void *to = got;
	size_t mask;
	long long time;
	int flags = 0;

	device->writeSetting("loopback", "1");
	device->setSampleRate(SOAPY_SDR_TX, 0, 1e6);
	/* From the start on, a slow machine may have an underrun to tell. */
	CHECK(device->readStreamStatus(tx.stream, mask, flags, time, 1000) == SOAPY_SDR_TIMEOUT);
	CHECK(device->activateStream(tx.stream) == 0 && device->activateStream(rx.stream) == 0);
	for (int i = 0; i < 4; i++) {
		flags = 0;
		CHECK(device->writeStream(tx.stream, &buff, 1024, flags, 0, PATIENCE) == 1024);
	}
	CHECK(device->readStream(rx.stream, &to, 1024, flags, time, PATIENCE) == 1024);
	CHECK(got[0] == 0x20002000 && got[1023] == 0x20002000);
	CHECK(device->readStreamStatus(tx.stream, mask, flags, time, LONG_MAX) == SOAPY_SDR_UNDERFLOW && mask == 1);
	CHECK(device->deactivateStream(rx.stream) == 0 && device->deactivateStream(tx.stream) == 0);
	device->writeSetting("loopback", "0");
}

int main()
{
	SoapySDR::setLogLevel(SOAPY_SDR_FATAL);
	is_found();

	Device device = make("uri=iio:vconv0,tx=iio:vconv0-tx");

	has_settings(device);
	receives(device, "");
	receives(device, "loss=count0");
	device.reset();
	receives_in_place();
	device = make("uri=iio:vconv0,tx=iio:vconv0-tx");
	transmits(device);
	std::puts("done");
	return 0;
}
