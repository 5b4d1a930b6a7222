/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device of SoapySDR over sources and sinks of libbusbar. docs/soapy.md is its documentation. */
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <SoapySDR/Device.hpp>

#include "Ends.hpp"
#include "Stream.hpp"

namespace soapy_busbar {

class Device : public SoapySDR::Device {
public:
	explicit Device(const SoapySDR::Kwargs &args);

	/* Identification: Device.cpp */
	std::string getDriverKey() const override;
	std::string getHardwareKey() const override;
	SoapySDR::Kwargs getHardwareInfo() const override;
	size_t getNumChannels(int direction) const override;
	SoapySDR::Kwargs getChannelInfo(int direction, size_t channel) const override;
	bool getFullDuplex(int direction, size_t channel) const override;
	std::vector<std::string> listAntennas(int direction, size_t channel) const override;
	std::string getAntenna(int direction, size_t channel) const override;
	bool hasHardwareTime(const std::string &what) const override;
	long long getHardwareTime(const std::string &what) const override;

	/* Streams: Device.cpp */
	std::vector<std::string> getStreamFormats(int direction, size_t channel) const override;
	std::string getNativeStreamFormat(int direction, size_t channel, double &fullScale) const override;
	SoapySDR::ArgInfoList getStreamArgsInfo(int direction, size_t channel) const override;
	SoapySDR::Stream *setupStream(int direction, const std::string &format, const std::vector<size_t> &channels,
				      const SoapySDR::Kwargs &args) override;
	void closeStream(SoapySDR::Stream *stream) override;
	size_t getStreamMTU(SoapySDR::Stream *stream) const override;
	int activateStream(SoapySDR::Stream *stream, int flags, long long timeNs, size_t numElems) override;
	int deactivateStream(SoapySDR::Stream *stream, int flags, long long timeNs) override;
	int readStream(SoapySDR::Stream *stream, void *const *buffs, size_t numElems, int &flags, long long &timeNs,
		       long timeoutUs) override;
	int writeStream(SoapySDR::Stream *stream, const void *const *buffs, size_t numElems, int &flags,
			long long timeNs, long timeoutUs) override;
	int readStreamStatus(SoapySDR::Stream *stream, size_t &chanMask, int &flags, long long &timeNs,
			     long timeoutUs) override;
	size_t getNumDirectAccessBuffers(SoapySDR::Stream *stream) override;
	int getDirectAccessBufferAddrs(SoapySDR::Stream *stream, size_t handle, void **buffs) override;
	int acquireReadBuffer(SoapySDR::Stream *stream, size_t &handle, const void **buffs, int &flags, long long &timeNs,
			      long timeoutUs) override;
	void releaseReadBuffer(SoapySDR::Stream *stream, size_t handle) override;
	int acquireWriteBuffer(SoapySDR::Stream *stream, size_t &handle, void **buffs, long timeoutUs) override;
	void releaseWriteBuffer(SoapySDR::Stream *stream, size_t handle, size_t numElems, int &flags,
				long long timeNs) override;

	/* Rate, gain, frequency, bandwidth, other attributes and sensors: Settings.cpp */
	void setSampleRate(int direction, size_t channel, double rate) override;
	double getSampleRate(int direction, size_t channel) const override;
	SoapySDR::RangeList getSampleRateRange(int direction, size_t channel) const override;
	std::vector<double> listSampleRates(int direction, size_t channel) const override;
	std::vector<std::string> listGains(int direction, size_t channel) const override;
	bool hasGainMode(int direction, size_t channel) const override;
	void setGainMode(int direction, size_t channel, bool automatic) override;
	bool getGainMode(int direction, size_t channel) const override;
	void setGain(int direction, size_t channel, double value) override;
	void setGain(int direction, size_t channel, const std::string &name, double value) override;
	double getGain(int direction, size_t channel) const override;
	double getGain(int direction, size_t channel, const std::string &name) const override;
	SoapySDR::Range getGainRange(int direction, size_t channel) const override;
	SoapySDR::Range getGainRange(int direction, size_t channel, const std::string &name) const override;
	std::vector<std::string> listFrequencies(int direction, size_t channel) const override;
	void setFrequency(int direction, size_t channel, const std::string &name, double frequency,
			  const SoapySDR::Kwargs &args) override;
	double getFrequency(int direction, size_t channel, const std::string &name) const override;
	SoapySDR::RangeList getFrequencyRange(int direction, size_t channel, const std::string &name) const override;
	void setBandwidth(int direction, size_t channel, double bandwidth) override;
	double getBandwidth(int direction, size_t channel) const override;
	SoapySDR::RangeList getBandwidthRange(int direction, size_t channel) const override;
	std::vector<double> listBandwidths(int direction, size_t channel) const override;
	SoapySDR::ArgInfoList getSettingInfo() const override;
	void writeSetting(const std::string &key, const std::string &value) override;
	std::string readSetting(const std::string &key) const override;
	std::vector<std::string> listSensors() const override;
	SoapySDR::ArgInfo getSensorInfo(const std::string &key) const override;
	std::string readSensor(const std::string &key) const override;

private:
	/* An attribute of a device. */
	struct Place {
		const Attributes *attributes;
		std::string name;
	};

	/* Throws if there is none. */
	const End &end(int direction) const;
	const Channel &channelAt(int direction, size_t channel) const;
	/* A stream lives as long as a call uses it. */
	std::shared_ptr<RxStream> receiving(SoapySDR::Stream *stream) const;
	std::shared_ptr<TxStream> transmitting(SoapySDR::Stream *stream) const;
	std::shared_ptr<Stream> either(SoapySDR::Stream *stream) const;

	/* Where a property of a channel is: in the device that has the settings, or else with each of the channel's values,
	 * or where they share it. Empty if it is nowhere. */
	std::vector<Place> places(int direction, size_t channel, const std::string &property) const;
	std::vector<Place> ownPlaces(int direction, size_t channel, const std::string &property) const;
	static void addPlace(std::vector<Place> &found, const Attributes &of, int direction, const std::string &channel,
			     const std::string &property);
	std::vector<Place> frequencyPlaces(int direction) const;
	std::vector<Place> bandwidthPlaces(int direction, size_t channel) const;
	std::vector<const Attributes *> owners() const;
	/* Throws if there is no such setting. */
	Place settingAt(const std::string &key) const;
	static double numberAt(const std::vector<Place> &places);
	static void setAt(const std::vector<Place> &places, const std::string &value);
	static void setRateAt(const std::vector<Place> &places, double rate);
	static void setRateBehind(const std::vector<Place> &control, const std::vector<Place> &own, double rate);
	static SoapySDR::RangeList rangesAt(const std::vector<Place> &places);

	/* Forgets the numbers below when a setting was changed, or that has failed. */
	struct Forget {
		Device &device;

		explicit Forget(Device &device) : device(device) {}
		~Forget();
	};
	/* The number at places; while the stream of that direction is active, as it was before. */
	double remembered(int direction, const std::vector<Place> &places) const;
	/* Learns the numbers that are asked for while a stream is active. */
	void remember(int direction) const;

	const SoapySDR::Kwargs args;
	Ends ends;
	/* Where no attribute tells it. */
	std::atomic<double> rxRate{ 0 }, txRate{ 0 };
	Losses losses;
	/* Guards what follows: sensors are read while streams are set up and closed. */
	mutable std::mutex mutex;
	/* Numbers of attributes, by device and name, and how often a setting was changed. */
	mutable std::map<std::string, double> numbers;
	unsigned settings = 0;
	std::shared_ptr<RxStream> rx;
	std::shared_ptr<TxStream> tx;
};

} /* namespace soapy_busbar */
