/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the arguments of a device name: where its samples come from and go to, and what they are. */
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <SoapySDR/Types.hpp>

#include "Busbar.hpp"
#include "Layout.hpp"

namespace soapy_busbar {

/* The attributes of one IIO device. */
class Attributes {
public:
	/* Of none. */
	Attributes() = default;
	/* Of a device of a machine: its number, how the library finds it, and how it is called; names separated by commas. */
	Attributes(Context context, std::string id, std::string device, std::string title, const std::string &names);

	const std::string &device() const { return where; }
	const std::string &title() const { return called; }
	const std::set<std::string> &names() const { return all; }
	bool has(const std::string &name) const { return all.count(name) > 0; }
	/* These throw the error of the library. */
	std::string get(const std::string &name) const;
	void set(const std::string &name, const std::string &value) const;

private:
	Context machine;
	std::string number, where, called;
	std::set<std::string> all;
};

/* One direction of a device. */
struct End {
	/* A source or a sink as libbusbar names it. */
	std::string name;
	std::vector<Channel> channels;
	/* All values that a sample can have, a count and a time as well. */
	std::vector<Value> values;
	/* Of the device, if it is one. */
	Attributes attributes;
	/* Bytes of a sample with all values, for an end whose channels cannot be chosen; else 0. */
	size_t sampleLen = 0;
	/* Samples per second; 0 if it is not known or the attributes tell. */
	double rate = 0;
	/* A source that is open already, since only that tells what its samples are. */
	Source open;

	bool isSynth() const;
	bool isRecording() const;
	/* Whether it is an IIO device. */
	bool isDevice() const;
};

/* Both directions, and the device that has their settings, if that is another one. */
struct Ends {
	std::optional<End> rx, tx;
	Attributes control;

	/* Finds what the arguments name. Throws an error that says what is wrong with them. */
	explicit Ends(const SoapySDR::Kwargs &args);
};

/* A number as attributes and names have it, whatever the program's locale is. */
std::string textOf(double number);

/* An argument, or "". */
std::string argument(const SoapySDR::Kwargs &args, const std::string &key);

/* A number of bytes or of things, which may end in K or M; 0 if the argument is not there. Throws. */
size_t number(const SoapySDR::Kwargs &args, const std::string &key);

/*
 * The arguments that open each IIO device with a buffer, of this machine or of host. Without all, only those that may be a
 * radio: the sensors of a laptop are IIO devices, too.
 */
SoapySDR::KwargsList listed(const std::string &host, bool all);

} /* namespace soapy_busbar */
