/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libbusbar: data between a coprocessor (rpmsg), a converter (IIO) and the network, with few or no copies.
 * docs/c.md has an introduction. This file is made from crates/c/src: do not edit it.
 *
 * Results: a function returns 0 or more, or a negative error number of errno.h. busbar_error() then has the text:
 * what was tried, on what, why it failed, and what to do about it. -EINVAL is also for arguments: a NULL that is not
 * allowed, a handle that was freed, a handle of another kind, a text that is not UTF-8, a structure without its size.
 * -ENOTRECOVERABLE means a fault in the library; the object can still be freed.
 *
 * Handles: busbar_THING_open, _new, _create and the like return a handle by their last argument, or NULL there after
 * an error. Each is freed once, by busbar_THING_free. A freed handle is detected, until many others were made.
 *
 * Structures: set their field size to sizeof before a call, also if the call fills the rest. A program runs with a
 * newer library without a new build. With an older one, fields that it does not know are 0; a setup in which such a
 * field is not 0 is an error.
 *
 * Waiting: a function that may wait has a timeout in nanoseconds: 0 does not wait, BUSBAR_FOREVER waits as long as it
 * takes. If nothing came in time, the result is -EAGAIN. Everything that can be waited for has a descriptor for
 * poll(), epoll and the loops that are made of them. These wait without a timeout:
 *  - As long as a device uses the memory, if it is a DMABUF: busbar_block_from_fd, busbar_block_read, busbar_block_write,
 *    busbar_samples_read, busbar_samples_values, busbar_view_read, busbar_space_write. A block that a source, a sink or
 *    a connection has handed out is done, unless the program has passed it to another device. For other blocks call
 *    busbar_block_wait_filled or busbar_block_wait_unused before.
 *  - For another machine, "NAME@ip:HOST": as long as it takes to find its address, and then 10 s at most, 5 s for each
 *    answer: busbar_source_open, busbar_sink_open, busbar_devices_open, busbar_device_get, busbar_device_set.
 *    busbar_context_open and its kind have a timeout, but not for the address. busbar_cancel_by ends all of these. Pipelines
 *    and "tcp:HOST:PORT" have threads for that, and do not wait.
 *  - For the first sender to "tcp-listen:", for 30 s at most: busbar_source_open; busbar_cancel_by ends it.
 *  - For a disk that has to have a recording, and for up to 1 s until the receiver of "tcp:" knows of the end, if it has all
 *    blocks: busbar_sink_stop. busbar_sink_free does not wait.
 *
 * Signals: writing to a socket or pipe that nobody reads any more raises no SIGPIPE; the call returns -EPIPE, or the
 * pipeline reports trouble. A thread that is cancelled (pthread_cancel) during a call ends after the call. No function
 * may be called in a signal handler: set a flag there, or use a signalfd. Threads of the library block all signals.
 *
 * Processes: after fork(), only exec and _exit are allowed in the child; descriptors are closed on exec. The library
 * installs no signal handlers. If memory for small things is exhausted, it aborts.
 *
 * Bytes and texts that are passed to a call must not change during it. Enumerations grow: have a default in a switch.
 *
 * Threads: written at each function. "any" means that any threads may call it at the same time, also with the same
 * handle. "one at a time" means that a second one gets -EBUSY. A handle must not be freed while another thread may
 * still begin a call with it. Addresses that were returned are valid as long as it is written; the library does not
 * know whether a thread still uses them.
 */


#ifndef BUSBAR_H
#define BUSBAR_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version of this header. busbar_version has that of the library.
 */
#define BUSBAR_VERSION_MAJOR 0

/**
 * The minor version: until version 1, another one may break programs.
 */
#define BUSBAR_VERSION_MINOR 1

/**
 * The patch version.
 */
#define BUSBAR_VERSION_PATCH 0

/**
 * A time limit: wait as long as it takes. Every other limit is in nanoseconds; 0 means not to wait.
 */
#define BUSBAR_FOREVER -1

/**
 * It is not known how many samples are missing.
 */
#define BUSBAR_LOST_UNKNOWN UINT64_MAX

/**
 * Maximum length of a message on the virtio bus, in bytes.
 */
#define BUSBAR_MAX_MESSAGE 496

/**
 * No address: an endpoint with this destination only receives.
 */
#define BUSBAR_ADDR_ANY 4294967295

/**
 * busbar_endpoint_setup.source is given.
 */
#define BUSBAR_ENDPOINT_SOURCE 1

/**
 * busbar_endpoint_setup.destination is given.
 */
#define BUSBAR_ENDPOINT_DESTINATION 2

/**
 * The file is in non-blocking mode, for code that reads and writes the descriptor itself. Whether a function of
 * this library waits does not depend on it.
 */
#define BUSBAR_ENDPOINT_NONBLOCKING 4

/**
 * Only a descriptor, no device node.
 */
#define BUSBAR_ENDPOINT_FD 8

/**
 * Only a device node.
 */
#define BUSBAR_ENDPOINT_NODE 16

/**
 * The coprocessor reads the block.
 */
#define BUSBAR_TO_REMOTE 1

/**
 * The coprocessor fills the block.
 */
#define BUSBAR_FROM_REMOTE 2

/**
 * The driver does not count how often memory was short.
 */
#define BUSBAR_SHORTAGES_UNKNOWN UINT64_MAX

/**
 * Why a call has failed, by which a program decides what to do. It is the same for every part of the library
 * and each of its interfaces to the kernel, where an error number is not.
 */
enum busbar_reason {
        /**
         * No call has failed in this thread.
         */
        BUSBAR_REASON_NONE = 0,
        /**
         * A value is not allowed.
         */
        BUSBAR_REASON_INVALID,
        /**
         * There is no such device, service, file or kernel part.
         */
        BUSBAR_REASON_NOT_FOUND,
        /**
         * It exists already.
         */
        BUSBAR_REASON_EXISTS,
        /**
         * This user or process is not permitted to do it.
         */
        BUSBAR_REASON_DENIED,
        /**
         * Another process or thread uses it. It may be free later.
         */
        BUSBAR_REASON_BUSY,
        /**
         * This kernel, driver or device cannot do it.
         */
        BUSBAR_REASON_UNSUPPORTED,
        /**
         * The time limit was reached.
         */
        BUSBAR_REASON_TIMED_OUT,
        /**
         * A signal, or the descriptor of busbar_cancel_by, ended a wait.
         */
        BUSBAR_REASON_INTERRUPTED,
        /**
         * A message or a block is longer than the receiver accepts.
         */
        BUSBAR_REASON_TOO_LONG,
        /**
         * Earlier data was lost, because it was not read in time. What comes next can be read.
         */
        BUSBAR_REASON_LOST,
        /**
         * The peer is gone: the coprocessor, the converter or the other end of a connection.
         */
        BUSBAR_REASON_ENDED,
        /**
         * The peer cannot be reached. It may be later.
         */
        BUSBAR_REASON_UNREACHABLE,
        /**
         * The peer has refused the data, and would refuse it again.
         */
        BUSBAR_REASON_REFUSED,
        /**
         * Data is invalid: changed on its way, or wrong from the start.
         */
        BUSBAR_REASON_CORRUPTED,
        /**
         * Memory, descriptors or space are used up.
         */
        BUSBAR_REASON_EXHAUSTED,
        /**
         * None of these; the error number may say more.
         */
        BUSBAR_REASON_OTHER,
};

/**
 * The state of a pipeline.
 */
enum busbar_state {
        /**
         * Samples pass through.
         */
        BUSBAR_STATE_RUNNING = 0,
        /**
         * No more samples come, and some are under way.
         */
        BUSBAR_STATE_DRAINING,
        /**
         * Nothing is left to do.
         */
        BUSBAR_STATE_FINISHED,
};

/**
 * Memory that devices, programs and coprocessors share: a DMABUF, or a memfd.
 */
struct busbar_block;

/**
 * A TCP connection whose data comes in views.
 */
struct busbar_connection;

/**
 * The IIO devices of this machine or of another one, and the connection to it.
 */
struct busbar_context;

/**
 * The control device of one coprocessor.
 */
struct busbar_controller;

/**
 * A list of IIO devices.
 */
struct busbar_devices;

/**
 * An rpmsg endpoint on Linux's side.
 */
struct busbar_endpoint;

/**
 * Accepts connections whose data goes into the block of its receiver.
 */
struct busbar_listener;

/**
 * Sources, stages and sinks that are joined in one loop.
 */
struct busbar_pipeline;

/**
 * Receives into a block.
 */
struct busbar_receiver;

/**
 * A block of samples that a source has handed out.
 */
struct busbar_samples;

/**
 * A stream of samples to a converter.
 */
struct busbar_sink;

/**
 * A stream of samples from a converter.
 */
struct busbar_source;

/**
 * A free block of a sink, to fill.
 */
struct busbar_space;

/**
 * A piece of a stream: a part of the block, or bytes that a device did not write into it.
 */
struct busbar_view;

/**
 * What is known of a block.
 */
struct busbar_block_info {
        /**
         * sizeof(struct busbar_block_info), set by the caller.
         */
        size_t size;
        /**
         * Its length in bytes: a multiple of its page size, unless its descriptor was made elsewhere.
         */
        size_t len;
        /**
         * Where its memory comes from, in words. Valid as long as the block.
         */
        const char *memory;
        /**
         * 1 if a device can use it, 0 if not.
         */
        uint8_t is_dmabuf;
        /**
         * 0.
         */
        uint8_t reserved[7];
};

/**
 * How a stream is opened. A field that is 0 or NULL has its default.
 */
struct busbar_stream_setup {
        /**
         * sizeof(struct busbar_stream_setup).
         */
        size_t size;
        /**
         * Number of blocks, 1 to 1024; by default as many as have 1 MiB together, from 4 to 64.
         */
        size_t blocks;
        /**
         * Bytes of a block, up to 1 GiB, rounded down to whole samples; 65536 by default.
         */
        size_t block_len;
        /**
         * The memory of the blocks: "heap:NAME", "pages", "huge" or "memfd"; by default the best that the host has.
         */
        const char *memory;
        /**
         * The interface to the driver: "dmabuf" or "fileio"; by default the best that the driver and the host offer. For
         * a converter of another machine only "iiod", and for what is no converter only busbar_stream_info.interface.
         */
        const char *interface;
        /**
         * Names of channels, without "in_" or "out_", separated by commas; at least one, none empty. By default all
         * voltages, or if there are none, all but "timestamp".
         */
        const char *channels;
        /**
         * Samples per second of a sink that is no device, such as "file:"; 0 if the rate is not known.
         */
        double rate;
};

/**
 * What is known of a stream.
 */
struct busbar_stream_info {
        /**
         * sizeof(struct busbar_stream_info), set by the caller.
         */
        size_t size;
        /**
         * Number of blocks that the stream has.
         */
        size_t blocks;
        /**
         * Bytes of samples that a block holds.
         */
        size_t block_len;
        /**
         * Bytes of a sample, padding included.
         */
        size_t sample_len;
        /**
         * Number of channels.
         */
        size_t channels;
        /**
         * Blocks of a sink that the device has not transmitted yet, as far as is known; 0 for a source.
         */
        size_t queued;
        /**
         * Samples per second; 0 if the rate is not known, or the converter runs as fast as it can.
         */
        double rate;
        /**
         * Bytes that were copied in memory.
         */
        uint64_t copied;
        /**
         * The interface to the driver: "dmabuf", "fileio", "synth", "iiod" or "library". Valid as long as the stream.
         */
        const char *interface;
        /**
         * The memory of the blocks, in words. Valid as long as the stream.
         */
        const char *memory;
};

/**
 * One value of a sample, as IIO describes it (Documentation/ABI/testing/sysfs-bus-iio, _type).
 */
struct busbar_channel {
        /**
         * sizeof(struct busbar_channel), set by the caller.
         */
        size_t size;
        /**
         * Its name, such as "voltage0_i". Valid as long as the stream.
         */
        const char *name;
        /**
         * Offset of its first byte in the sample.
         */
        size_t offset;
        /**
         * Valid bits.
         */
        uint8_t bits;
        /**
         * Bits that the value takes up: 8, 16, 32 or 64 and more.
         */
        uint8_t storage_bits;
        /**
         * How many bits the value is to be shifted to the right.
         */
        uint8_t shift;
        /**
         * Number of values in a row: 1 for all but vectors.
         */
        uint8_t repeat;
        /**
         * 1 if the value is a two's complement, 0 if it has no sign.
         */
        uint8_t is_signed;
        /**
         * 1 if the first byte is the most significant one, 0 if it is the least significant one.
         */
        uint8_t big_endian;
        /**
         * 0.
         */
        uint8_t reserved[2];
};

/**
 * What is known of a block of samples.
 */
struct busbar_meta {
        /**
         * sizeof(struct busbar_meta), set by the caller.
         */
        size_t size;
        /**
         * Bytes of the samples: a multiple of the length of a sample.
         */
        size_t len;
        /**
         * Number of the block, from 0. Failed blocks count, too.
         */
        uint64_t sequence;
        /**
         * Samples that are missing between the end of the block before and the end of this one; BUSBAR_LOST_UNKNOWN
         * if neither the driver nor the data tells.
         */
        uint64_t lost;
        /**
         * When the block was complete, in nanoseconds since 1970 (CLOCK_REALTIME).
         */
        int64_t time;
};

/**
 * An IIO device.
 */
struct busbar_device {
        /**
         * sizeof(struct busbar_device), set by the caller.
         */
        size_t size;
        /**
         * Its number, "iio:deviceN". Valid as long as the list, as are the other texts.
         */
        const char *id;
        /**
         * Its name; "" if it has none.
         */
        const char *name;
        /**
         * Number of channels to receive from; 0 if it has no buffer for that.
         */
        size_t inputs;
        /**
         * Number of channels to transmit to; 0 if it has no buffer for that.
         */
        size_t outputs;
        /**
         * Names of its attributes and those of its channels, separated by commas, as for busbar_device_get.
         */
        const char *attributes;
        /**
         * Samples per second; 0 if the device does not tell.
         */
        double rate;
        /**
         * Its label; "" if it has none.
         */
        const char *label;
        /**
         * Names of the attributes of its buffer, separated by commas, as for busbar_context_get behind "buffer/".
         */
        const char *buffer_attributes;
        /**
         * Names of its attributes in debugfs, separated by commas, as for busbar_context_get behind "debug/".
         */
        const char *debug_attributes;
        /**
         * 0.
         */
        size_t reserved;
};

/**
 * How an endpoint is made. A field that is 0 has its default.
 */
struct busbar_endpoint_setup {
        /**
         * sizeof(struct busbar_endpoint_setup).
         */
        size_t size;
        /**
         * BUSBAR_ENDPOINT_ flags.
         */
        size_t flags;
        /**
         * The local address, 0 to 0x7fffffff, if the flag says so; by default a free one.
         */
        uint32_t source;
        /**
         * The address that messages are sent to, if the flag says so; by default that of the announced service.
         */
        uint32_t destination;
        /**
         * How long to wait until a device node exists and may be opened, in nanoseconds; 0: 5 s. BUSBAR_FOREVER is not
         * allowed.
         */
        int64_t timeout;
};

/**
 * The coprocessor's answer to a block that it was given.
 */
struct busbar_answer {
        /**
         * sizeof(struct busbar_answer), set by the caller.
         */
        size_t size;
        /**
         * Bytes of the part that were used, as the coprocessor says: compare it with the length of the part.
         */
        size_t len;
        /**
         * Which use of a block it answers: that of busbar_endpoint_give.
         */
        uint64_t cookie;
        /**
         * 0, or why the coprocessor has refused the block: an error number of Linux.
         */
        uint32_t status;
        /**
         * 0.
         */
        uint32_t reserved;
};

/**
 * How a device is used. A field that is NULL has its default.
 */
struct busbar_receive_setup {
        /**
         * sizeof(struct busbar_receive_setup).
         */
        size_t size;
        /**
         * Queues that receive into the block: a number of queues, or a list such as "8,9" or "8-15"; by default one.
         */
        const char *queues;
        /**
         * Who records tokens: "default", "index" or "autorelease".
         */
        const char *tokens;
};

/**
 * Counters of a receiver.
 */
struct busbar_statistics {
        /**
         * sizeof(struct busbar_statistics), set by the caller.
         */
        size_t size;
        /**
         * Views that exist.
         */
        size_t views;
        /**
         * Bytes of the block that views hold, in whole pages.
         */
        size_t held;
        /**
         * Length of the block in bytes.
         */
        size_t memory;
        /**
         * Bytes that were received.
         */
        uint64_t bytes;
        /**
         * Bytes of these that a processor has copied: all without a device, else those outside the block.
         */
        uint64_t copied;
        /**
         * How often memory was short; BUSBAR_SHORTAGES_UNKNOWN if the driver does not count.
         */
        uint64_t shortages;
        /**
         * Calls in which tokens were returned.
         */
        uint64_t returns;
        /**
         * Tokens that the kernel has refused to take back.
         */
        uint64_t refused;
};

/**
 * What is known of a view.
 */
struct busbar_view_info {
        /**
         * sizeof(struct busbar_view_info), set by the caller.
         */
        size_t size;
        /**
         * Number of bytes, at least 1.
         */
        size_t len;
        /**
         * Where they begin in the block.
         */
        size_t offset;
        /**
         * 1 if they are in the block, 0 if not.
         */
        uint8_t in_block;
        /**
         * 0.
         */
        uint8_t reserved[7];
};

/**
 * Counters of a pipeline: totals since it was opened.
 */
struct busbar_counters {
        /**
         * sizeof(struct busbar_counters), set by the caller.
         */
        size_t size;
        /**
         * Number of sources.
         */
        size_t sources;
        /**
         * Number of stages.
         */
        size_t stages;
        /**
         * Number of sinks.
         */
        size_t sinks;
        /**
         * Number of controls.
         */
        size_t controls;
        /**
         * 0.
         */
        size_t reserved;
        /**
         * Bytes that were copied in all nodes, each time they were.
         */
        uint64_t copied;
};

/**
 * Counters of a source.
 */
struct busbar_source_counters {
        /**
         * sizeof(struct busbar_source_counters), set by the caller.
         */
        size_t size;
        /**
         * Its name.
         */
        const char *name;
        /**
         * "off", "down", "open" or "ended".
         */
        const char *state;
        /**
         * Its interface, if it is a converter: "dmabuf", "fileio", "synth", "iiod"; else NULL.
         */
        const char *interface;
        /**
         * The memory of its blocks, if it is a converter; else NULL.
         */
        const char *memory;
        /**
         * 0.
         */
        size_t reserved;
        /**
         * Blocks received.
         */
        uint64_t blocks;
        /**
         * Samples in them.
         */
        uint64_t samples;
        /**
         * Bytes of them.
         */
        uint64_t bytes;
        /**
         * Samples that are known to be missing.
         */
        uint64_t lost;
        /**
         * Blocks of which it is not known whether samples are missing before them.
         */
        uint64_t unknown;
        /**
         * Blocks that a converter failed to fill.
         */
        uint64_t failed;
        /**
         * How often it was opened again after a failure.
         */
        uint64_t restarts;
        /**
         * How often a sender came back.
         */
        uint64_t reconnects;
        /**
         * Invalid frames.
         */
        uint64_t corrupted;
        /**
         * Bytes copied.
         */
        uint64_t copied;
};

/**
 * Counters of a stage.
 */
struct busbar_stage_counters {
        /**
         * sizeof(struct busbar_stage_counters), set by the caller.
         */
        size_t size;
        /**
         * Its name.
         */
        const char *name;
        /**
         * Blocks that wait for it.
         */
        size_t waiting;
        /**
         * 0.
         */
        size_t reserved;
        /**
         * Blocks that came out of it.
         */
        uint64_t blocks;
        /**
         * Samples in them.
         */
        uint64_t samples;
        /**
         * Blocks that its edge has dropped.
         */
        uint64_t dropped_blocks;
        /**
         * Samples in those.
         */
        uint64_t dropped_samples;
        /**
         * Samples that a gate has kept back.
         */
        uint64_t kept_back;
        /**
         * How often a gate was opened.
         */
        uint64_t opened;
        /**
         * Bytes copied.
         */
        uint64_t copied;
};

/**
 * Counters of a sink.
 */
struct busbar_sink_counters {
        /**
         * sizeof(struct busbar_sink_counters), set by the caller.
         */
        size_t size;
        /**
         * Its name.
         */
        const char *name;
        /**
         * "new" (no samples yet), "down", "open" or "finished".
         */
        const char *state;
        /**
         * Blocks that wait.
         */
        size_t waiting;
        /**
         * Blocks that are under way.
         */
        size_t under_way;
        /**
         * 0.
         */
        size_t reserved;
        /**
         * Blocks that were delivered.
         */
        uint64_t blocks;
        /**
         * Samples in them.
         */
        uint64_t samples;
        /**
         * Bytes of them.
         */
        uint64_t bytes;
        /**
         * Samples that are known to be missing in what was delivered.
         */
        uint64_t lost;
        /**
         * Blocks of which it is not known whether samples are missing before them.
         */
        uint64_t unknown;
        /**
         * Blocks that its edge has dropped.
         */
        uint64_t dropped_blocks;
        /**
         * Samples in those.
         */
        uint64_t dropped_samples;
        /**
         * Blocks that were lost when the sink failed.
         */
        uint64_t failed;
        /**
         * How often it was opened again after a failure.
         */
        uint64_t restarts;
        /**
         * How often a connection was made again.
         */
        uint64_t reconnects;
        /**
         * Blocks that were sent again.
         */
        uint64_t resent;
        /**
         * Samples that were verified.
         */
        uint64_t verified;
        /**
         * Bytes copied.
         */
        uint64_t copied;
        /**
         * Median latency in microseconds, from the completion of a block to its delivery.
         */
        uint64_t latency_p50;
        /**
         * 99th percentile of the latency.
         */
        uint64_t latency_p99;
        /**
         * Maximum of the latency.
         */
        uint64_t latency_max;
};

/**
 * Counters of a control.
 */
struct busbar_control_counters {
        /**
         * sizeof(struct busbar_control_counters), set by the caller.
         */
        size_t size;
        /**
         * Its name.
         */
        const char *name;
        /**
         * "down" or "up".
         */
        const char *state;
        /**
         * 0.
         */
        size_t reserved;
        /**
         * Commands that were carried out.
         */
        uint64_t commands;
        /**
         * Commands that were refused.
         */
        uint64_t refused;
        /**
         * Events received.
         */
        uint64_t events;
        /**
         * Invalid messages.
         */
        uint64_t malformed;
        /**
         * Reactions that took longer than the deadline.
         */
        uint64_t late;
        /**
         * The slowest reaction, in microseconds.
         */
        uint64_t slowest;
        /**
         * How often it came back.
         */
        uint64_t restarts;
};

/**
 * An event of a pipeline.
 */
struct busbar_event {
        /**
         * sizeof(struct busbar_event), set by the caller.
         */
        size_t size;
        /**
         * The name of the node.
         */
        const char *node;
        /**
         * What happened: "trouble", "restarted", "came", "event", "refused".
         */
        const char *what;
        /**
         * Details: the text of an error, or the name of a coprocessor's event and its value.
         */
        const char *text;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library, such as "0.1.0".
 *
 * Errors: none.
 *
 * Threads: any.
 */
const char *busbar_version(void);

/**
 * The text of the last error of this thread: what was tried, on what, why it failed, and what to do about it.
 * Empty if no call has failed. It is valid until two more calls of this thread have failed. Call first,
 * and print afterwards: as arguments of one printf, C evaluates them in any order.
 *
 * Errors: none.
 *
 * Threads: each has its own text.
 */
const char *busbar_error(void);

/**
 * The reason of the last error of this thread.
 *
 * Errors: none.
 *
 * Threads: each has its own reason.
 */
enum busbar_reason busbar_error_reason(void);

/**
 * From now on, a call of this thread that opens something or talks to another machine ends with -ECANCELED as soon as a
 * descriptor is readable, or its other end is closed: an eventfd or a pipe, which another thread or a signal handler writes
 * to, or a signalfd. With -1, none does any more. These calls are busbar_source_open, busbar_sink_open,
 * busbar_pipeline_open, busbar_servers, busbar_devices_open, busbar_device_get, busbar_device_set, busbar_context_open, _get,
 * _set, _trigger and _set_trigger. They are made in a thread of their own, which goes on until it notices that it has ended, for
 * its time limit at most, and closes what it has opened. A value that was to be written may be written.
 *
 * The library has a copy of the descriptor, and reads nothing from it: no such call is made while it is readable.
 *
 * Errors: -EBADF if it is not open; -EINVAL for a negative one other than -1; -EMFILE.
 *
 * Threads: each has its own descriptor.
 */
int busbar_cancel_by(int fd);

/**
 * A block of at least len bytes, zeroed. memory is "heap:NAME", "pages", "huge" or "memfd"; NULL chooses the best
 * for devices that the host has. The block is to be freed by busbar_block_free.
 *
 * Errors: -ENOENT where the kernel has no such memory, -ENOMEM, -EACCES; -EINVAL for a length of 0, or one that no
 * address space has.
 *
 * Threads: any.
 */
int busbar_block_new(size_t len,
                     const char *memory,
                     struct busbar_block **block);

/**
 * A block of a descriptor that was made elsewhere: a DMABUF, or a memfd that is sealed against shrinking. The
 * descriptor is duplicated; the caller keeps his own. This waits until no device writes to the DMABUF.
 *
 * Errors: -EBADF, -EPERM for a memfd that can shrink, or another error if it is neither.
 *
 * Threads: any.
 */
int busbar_block_from_fd(int fd,
                         struct busbar_block **block);

/**
 * The descriptor of the block, for other devices and processes. It belongs to the block: do not close it.
 *
 * It can be polled: POLLIN when no device writes to the block any more, POLLOUT when no device uses it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_block_fd(struct busbar_block *block);

/**
 * What is known of the block.
 *
 * Errors: -EINVAL for what is no such handle, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_block_info(struct busbar_block *block, struct busbar_block_info *info);

/**
 * Begins to read the block: waits until no device writes to it, and makes caches coherent until busbar_block_end.
 * data is valid until then. Anyone who has a descriptor of the memory can write to it at the same time.
 *
 * Errors: -ENOMEM if the block cannot be mapped; -EACCES if it comes from a descriptor that does not allow to read; -EBUSY if it
 * is accessed already, also by a call that waits in another thread.
 *
 * Threads: any; one access at a time.
 */
int busbar_block_read(struct busbar_block *block,
                      const void **data,
                      size_t *len);

/**
 * Begins to write to the block, and to read it: waits until no device uses it. As busbar_block_read otherwise.
 *
 * Errors: as busbar_block_read; -EACCES also if the descriptor does not allow to write; -EBUSY also if another thread waits in
 * busbar_block_wait_filled or busbar_block_wait_unused.
 *
 * Threads: any; one access at a time.
 */
int busbar_block_write(struct busbar_block *block,
                       void **data,
                       size_t *len);

/**
 * Ends the access that busbar_block_read or busbar_block_write has begun.
 *
 * Errors: -EINVAL if there is none.
 *
 * Threads: any.
 */
int busbar_block_end(struct busbar_block *block);

/**
 * Waits until no device writes to the block.
 *
 * Errors: -EAGAIN if that took longer than timeout nanoseconds; -EBUSY if the block is accessed.
 *
 * Threads: any. Meanwhile the block cannot be written to, nor given to a coprocessor: -EBUSY.
 */
int busbar_block_wait_filled(struct busbar_block *block, int64_t timeout);

/**
 * Waits until no device uses the block.
 *
 * Errors: -EAGAIN if that took longer than timeout nanoseconds; -EBUSY if the block is accessed.
 *
 * Threads: any. Meanwhile the block cannot be written to, nor given to a coprocessor: -EBUSY.
 */
int busbar_block_wait_unused(struct busbar_block *block, int64_t timeout);

/**
 * Frees the block. The kernel frees the memory when nothing uses it any more.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any.
 */
int busbar_block_free(struct busbar_block *block);

/**
 * Opens a source and starts it: "iio:NAME" for a converter, by its name or number ("iio:deviceN");
 * "iio:NAME@ip:HOST" or "iio:NAME@ip:HOST:PORT" for one of another machine, where iiod or busbar serve runs
 * (docs/remote.md); "synth:counter", "synth:sine" or "synth:noise" for samples that the library makes (docs/stream.md has
 * their settings); "file:NAME" for a recording (SigMF), which is played as fast as its blocks are taken;
 * "tcp-listen:PORT" or "tcp-listen:HOST:PORT" for what busbar stream or a sink sends to "tcp:", where this waits for the
 * first sender. That one is answered only within busbar_source_next and its kind: it gives up if there is none for 10 s.
 *
 * setup may be NULL. The source is to be freed by busbar_source_free.
 *
 * Errors: -ENOENT if there is no such device, -EBUSY if another program uses it, -EACCES; -EINVAL for a name,
 * channel or number that is not allowed; -EPERM or -ENOTTY if the setup names an interface that the driver does
 * not offer. For another machine also -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -EIO if its address is not found, and
 * -EBADMSG if what answers has another protocol. For a recording -EINVAL if it is none; for the network -EADDRINUSE, and
 * -ETIMEDOUT if no sender connects within 30 s.
 *
 * Threads: any.
 */
int busbar_source_open(const char *name,
                       const struct busbar_stream_setup *setup,
                       struct busbar_source **source);

/**
 * The descriptor of the source, which is readable while busbar_source_next would return a block or an error at
 * once. It may be readable without either. It belongs to the source: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_source_fd(struct busbar_source *source);

/**
 * What is known of the source.
 *
 * Errors: -EINVAL for what is no such handle, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_source_info(struct busbar_source *source, struct busbar_stream_info *info);

/**
 * A channel of the source, by its place in the sample: 0 to busbar_stream_info.channels - 1.
 *
 * Errors: -EINVAL if there are not so many.
 *
 * Threads: any.
 */
int busbar_source_channel(struct busbar_source *source,
                          size_t index,
                          struct busbar_channel *channel);

/**
 * How to convert the values of a channel into a unit: (value + offset) * scale, as in IIO. A voltage is in
 * millivolts. Setting a gain may change them.
 *
 * Errors: -EINVAL for a channel that is not received.
 *
 * Threads: any.
 */
int busbar_source_scale(struct busbar_source *source,
                        const char *channel,
                        double *scale,
                        double *offset);

/**
 * The next block, which goes back to the driver by busbar_samples_free. While all blocks are handed out, no block
 * comes until one is given back. A signal does not end the wait.
 *
 * Errors: -EAGAIN if no block was complete within timeout nanoseconds. The driver's error if it has failed with a
 * block; the next call takes the next block. -EIO if the driver has completed a block without samples. -EPIPE once
 * the stream has ended: by busbar_source_stop, with the last sample of a recording or a sender, or because the device
 * was disabled or has gone, or its server has.
 *
 * Threads: any; each block goes to one of them.
 */
int busbar_source_next(struct busbar_source *source,
                       int64_t timeout,
                       struct busbar_samples **samples);

/**
 * Stops the device and restores its settings. Threads that wait in busbar_source_next get -EPIPE.
 *
 * Errors: the error of a setting that could not be restored.
 *
 * Threads: any.
 */
int busbar_source_stop(struct busbar_source *source);

/**
 * Stops the source and frees it. Blocks that were handed out stay valid.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. Threads that wait in busbar_source_next get -EPIPE; the last of them frees the source.
 */
int busbar_source_free(struct busbar_source *source);

/**
 * What is known of the block.
 *
 * Errors: -EINVAL for what is no such handle, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_samples_meta(struct busbar_samples *samples, struct busbar_meta *meta);

/**
 * The bytes of the samples, where the converter has put them. They are not copied. Access to them ends when the
 * samples are freed, or passed on by busbar_sink_forward; data is not valid afterwards.
 *
 * Do not write to them: other owners of the block read them, too.
 *
 * Errors: -ENOMEM if the block cannot be mapped.
 *
 * Threads: any.
 */
int busbar_samples_read(struct busbar_samples *samples,
                        const void **data,
                        size_t *len);

/**
 * The values of one channel as numbers: (value + offset) * scale, with the scale and offset of busbar_source_scale
 * for the unit of the channel, or 1 and 0 for what the converter has measured. Returns how many values there are:
 * the samples of the block, or room if that is less.
 *
 * Errors: -EINVAL for a channel that is not received, or that has not one number of 8, 16, 32 or 64 bits.
 *
 * Threads: any.
 */
int busbar_samples_values(struct busbar_samples *samples,
                          const char *channel,
                          double scale,
                          double offset,
                          float *values,
                          size_t room);

/**
 * The descriptor of the block, a DMABUF or a memfd, to pass it to another device or process. The samples are its
 * first busbar_meta.len bytes. It belongs to the samples: do not close it.
 *
 * Errors: -EINVAL if the samples are not in one block.
 *
 * Threads: any.
 */
int busbar_samples_fd(struct busbar_samples *samples);

/**
 * Gives the block back to its driver.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any, and in any order.
 */
int busbar_samples_free(struct busbar_samples *samples);

/**
 * Opens a sink and returns its handle: "iio:NAME" for a converter of this machine, which starts with the first block;
 * "iio:NAME@ip:HOST" or "iio:NAME@ip:HOST:PORT" for one of another machine, where iiod or busbar serve runs, which
 * starts at once; "file:NAME" for a new recording (SigMF), which is complete when the sink is stopped or freed;
 * "tcp:HOST:PORT" for a receiver of another machine, such as a source "tcp-listen:PORT"; "verify:counter" to verify the
 * samples of "synth:counter", where busbar_space_send fails with the first wrong one; "null:" to discard samples. All
 * but a converter take little-endian values of 16 bits, for the channels of the setup, by default
 * "voltage0_i,voltage0_q".
 *
 * setup may be NULL. The sink is to be freed by busbar_sink_free.
 *
 * Errors: as busbar_source_open; -EEXIST if the recording exists; -EINVAL for channels that cannot be recorded or
 * verified.
 *
 * Threads: any.
 */
int busbar_sink_open(const char *name,
                     const struct busbar_stream_setup *setup,
                     struct busbar_sink **sink);

/**
 * The descriptor of the sink, which is readable while busbar_sink_space would return a block or an error at once,
 * and when a forwarded block can go back to its source: call busbar_sink_space or busbar_sink_reap then. It
 * belongs to the sink: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_sink_fd(struct busbar_sink *sink);

/**
 * What is known of the sink.
 *
 * Errors: -EINVAL for what is no such handle, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_sink_info(struct busbar_sink *sink, struct busbar_stream_info *info);

/**
 * A channel of the sink, by its place in the sample.
 *
 * Errors: -EINVAL if there are not so many.
 *
 * Threads: any.
 */
int busbar_sink_channel(struct busbar_sink *sink, size_t index, struct busbar_channel *channel);

/**
 * A block to fill, which is to be sent by busbar_space_send, or freed by busbar_space_free. While all blocks are
 * handed out, none becomes free before one is sent or freed: a thread that holds them all and waits for another one
 * waits for ever. A signal does not end the wait.
 *
 * Errors: -EAGAIN if no block was free within timeout nanoseconds. The driver's error if it has failed with a
 * block. -EBUSY while a block is repeated. -EPIPE once the stream has ended.
 *
 * Threads: any.
 */
int busbar_sink_space(struct busbar_sink *sink,
                      int64_t timeout,
                      struct busbar_space **space);

/**
 * The bytes to fill. Until they are written, they are those that were sent with this block before. data is not
 * valid once the block was sent or freed.
 *
 * Errors: -ENOMEM if the block cannot be mapped.
 *
 * Threads: any.
 */
int busbar_space_write(struct busbar_space *space,
                       void **data,
                       size_t *len);

/**
 * Transmits the first len bytes: whole samples, at least one. Returns before they are transmitted. The handle is
 * freed, also after an error, which gives the block back unsent.
 *
 * Errors: -EINVAL for such a length, for NULL, and if it was freed; -EBUSY if another thread uses it at the same
 * time, and it is neither sent nor freed; -EPIPE once the stream has ended.
 *
 * Threads: one at a time.
 */
int busbar_space_send(struct busbar_space *space,
                      size_t len);

/**
 * Gives the block back unsent.
 *
 * Errors: -EINVAL for NULL, and if it was freed or sent.
 *
 * Threads: any.
 */
int busbar_space_free(struct busbar_space *space);

/**
 * Transmits a received block: by reference if the sink takes DMABUFs, the block is one, the device can use its
 * memory, the source has another block to receive into, and the sink does not have this one already; otherwise it
 * is copied. Access to the samples ends (busbar_samples_read). They are still to be freed; the block goes back to
 * its source when they are, and it was transmitted: after the last one, call busbar_sink_reap.
 *
 * Errors: -EAGAIN if there was no room within timeout nanoseconds; as busbar_sink_space; -EINVAL if the length is
 * not a multiple of a sample of this sink, or if the samples have to be copied and do not fit into a block.
 *
 * Threads: any.
 */
int busbar_sink_forward(struct busbar_sink *sink,
                        struct busbar_samples *samples,
                        int64_t timeout);

/**
 * Takes transmitted blocks back from the driver. Does not wait.
 *
 * Errors: as busbar_sink_space.
 *
 * Threads: any.
 */
int busbar_sink_reap(struct busbar_sink *sink);

/**
 * Waits until everything was transmitted. With "fileio", a driver may transmit only full blocks: then the last one
 * is filled up with zeros.
 *
 * Errors: -EAGAIN if that took longer than timeout nanoseconds; as busbar_sink_space.
 *
 * Threads: any.
 */
int busbar_sink_drain(struct busbar_sink *sink,
                      int64_t timeout);

/**
 * Transmits samples again and again, until busbar_sink_stop or the next call of this. Blocks that were sent before
 * and are not transmitted yet are dropped. The samples are copied.
 *
 * Errors: -EOPNOTSUPP with "fileio"; -EINVAL if they are not whole samples or do not fit into a block.
 *
 * Threads: any.
 */
int busbar_sink_cyclic(struct busbar_sink *sink,
                       const void *samples,
                       size_t len);

/**
 * Stops the device at once and restores its settings. A recording is complete and on the disk when this returns. The
 * receiver of "tcp:", if it has all blocks, knows of the end, for which this waits for up to 1 s.
 *
 * Errors: as write(2) for a recording; the error of a setting that could not be restored.
 *
 * Threads: any.
 */
int busbar_sink_stop(struct busbar_sink *sink);

/**
 * Frees the sink, and does not wait: threads end a recording, and tell a receiver of the end. Call busbar_sink_drain
 * before to have everything transmitted, and busbar_sink_stop to know that it is on the disk.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. Threads that wait for the sink get -EPIPE; the last of them frees it.
 */
int busbar_sink_free(struct busbar_sink *sink);

/**
 * Lists the IIO devices of this machine, or of another one, "HOST" or "HOST:PORT", where iiod or busbar serve runs;
 * host is NULL for this machine. Devices without a buffer are listed, too. The list is to be freed by
 * busbar_devices_free.
 *
 * Errors: -EACCES; for another machine as busbar_source_open.
 *
 * Threads: any.
 */
int busbar_devices_open(const char *host,
                        struct busbar_devices **devices);

/**
 * The number of devices in the list.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_devices_count(struct busbar_devices *devices);

/**
 * A device of the list, by its place in it.
 *
 * Errors: -EINVAL if there are not so many, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_devices_device(struct busbar_devices *devices,
                          size_t index,
                          struct busbar_device *device);

/**
 * A channel to receive from, by its place in the sample: 0 to busbar_device.inputs - 1. Its offset is that in a sample
 * of all these channels.
 *
 * Errors: -EINVAL if there are not so many.
 *
 * Threads: any.
 */
int busbar_devices_input(struct busbar_devices *devices,
                         size_t device,
                         size_t index,
                         struct busbar_channel *input);

/**
 * As busbar_devices_input, for a channel to transmit to: 0 to busbar_device.outputs - 1.
 *
 * Errors: -EINVAL if there are not so many.
 *
 * Threads: any.
 */
int busbar_devices_output(struct busbar_devices *devices,
                          size_t device,
                          size_t index,
                          struct busbar_channel *output);

/**
 * Frees the list.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any.
 */
int busbar_devices_free(struct busbar_devices *devices);

/**
 * Reads an attribute of a device, by its name or number. "NAME@ip:HOST" is a device of another machine, as for
 * busbar_source_open. Returns the length of the value, without the newline at its end. As much of it as has room is
 * written to value, with a NUL behind it.
 *
 * Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns; -EINVAL for no room; for
 * another machine also as busbar_source_open.
 *
 * Threads: any.
 */
int busbar_device_get(const char *device,
                      const char *attribute,
                      char *value,
                      size_t room);

/**
 * Writes a value to an attribute of a device, by its name or number, also one that the attribute has already: a driver may
 * calibrate anew. "NAME@ip:HOST" is a device of another machine, as for busbar_source_open.
 *
 * Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns, such as -EINVAL, or
 * -EBUSY while the device is used, unless the attribute has the value already; for another machine also as
 * busbar_source_open.
 *
 * Threads: any.
 */
int busbar_device_set(const char *device,
                      const char *attribute,
                      const char *value);

/**
 * Searches the local network for IIO servers (DNS-SD), for timeout nanoseconds. Returns the length of a text, of which as much as
 * has room is written, with a NUL behind it: for each server a line of its address, as busbar_context_open takes it, a space and
 * the name that it is announced with. Names and addresses are what any neighbour says. At most 1024 are listed, by their names.
 *
 * Errors: -EINVAL for a timeout of 0, BUSBAR_FOREVER, or no room; -ECANCELED by busbar_cancel_by; those of the network
 * interfaces.
 *
 * Threads: any.
 */
int busbar_servers(int64_t timeout,
                   char *text,
                   size_t room);

/**
 * Opens the IIO devices of this machine, or of another one, "HOST" or "HOST:PORT", where iiod or busbar serve runs; host is
 * NULL for this machine. Another one is connected to once: each later call is a round trip. If the server closes the
 * connection, or a call fails by it, the next call connects anew; nothing is sent twice. timeout is how many nanoseconds this
 * and each later call may take on the network, without the time that a name server takes; 5 s without an answer are always
 * the end. The devices are those that there were at first. The context is to be freed by busbar_context_free.
 *
 * Errors: -EACCES; -EINVAL for a timeout of 0; -ECANCELED by busbar_cancel_by; for another machine as busbar_source_open.
 *
 * Threads: any.
 */
int busbar_context_open(const char *host,
                        int64_t timeout,
                        struct busbar_context **context);

/**
 * Lists the devices of the context, without asking the machine again. The list is to be freed by busbar_devices_free, and
 * stays valid without the context.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_context_devices(struct busbar_context *context,
                           struct busbar_devices **devices);

/**
 * Reads an attribute of a device, which is given by its number "iio:deviceN", its label or its name. attribute is the name of
 * its file in Linux, such as "in_voltage0_scale", for one of the device or its channels; "buffer/NAME" for one of its
 * buffer; "debug/NAME" for one in debugfs, such as "debug/direct_reg_access", by which registers are read: write the address
 * of the register to it before. Returns the length of the value, without the newline at its end. As much of it as has room
 * is written to value, with a NUL behind it.
 *
 * Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns; -EINVAL for no room;
 * -ECANCELED by busbar_cancel_by; for another machine also -ETIMEDOUT, and as busbar_source_open.
 *
 * Threads: any; calls of one context to another machine are made one after the other, so one may wait for those before it.
 */
int busbar_context_get(struct busbar_context *context,
                       const char *device,
                       const char *attribute,
                       char *value,
                       size_t room);

/**
 * Writes a value to an attribute, as busbar_context_get names it, also one that the attribute has already.
 *
 * Errors: as busbar_context_get; -EINVAL and others of the driver; -EBUSY while the device is used, unless the attribute has the
 * value already. After -ECANCELED, and errors of the network, it is not known whether it was written.
 *
 * Threads: as busbar_context_get.
 */
int busbar_context_set(struct busbar_context *context,
                       const char *device,
                       const char *attribute,
                       const char *value);

/**
 * The names of all triggers of the machine, separated by commas, as busbar_context_get returns a value.
 *
 * Errors: -EINVAL for no room.
 *
 * Threads: any.
 */
int busbar_context_triggers(struct busbar_context *context,
                            char *names,
                            size_t room);

/**
 * The name of the trigger of a device, as busbar_context_get returns a value; 0 if it has none now.
 *
 * Errors: as busbar_context_get; -ENOENT also if the device knows no triggers.
 *
 * Threads: as busbar_context_get.
 */
int busbar_context_trigger(struct busbar_context *context,
                           const char *device,
                           char *name,
                           size_t room);

/**
 * Sets the trigger of a device, one of busbar_context_triggers; NULL for none.
 *
 * Errors: as busbar_context_trigger; -EINVAL for another name; -EBUSY while the device is used.
 *
 * Threads: as busbar_context_get.
 */
int busbar_context_set_trigger(struct busbar_context *context,
                               const char *device,
                               const char *name);

/**
 * Frees the context, and closes its connection.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. Calls that use it go on to their end.
 */
int busbar_context_free(struct busbar_context *context);

/**
 * Opens a control device, "/dev/rpmsg_ctrlN". It is to be freed by busbar_controller_free.
 *
 * Errors: -ENOENT if there is none; -EACCES; -EINVAL for what is not a character device.
 *
 * Threads: any.
 */
int busbar_controller_open(const char *path, struct busbar_controller **controller);

/**
 * Finds the coprocessor that has announced a service, and opens its control device: the one with the lowest number
 * if there are several.
 *
 * Errors: -ENOENT if no coprocessor has announced it; as busbar_controller_open.
 *
 * Threads: any.
 */
int busbar_controller_find(const char *service,
                           struct busbar_controller **controller);

/**
 * The path of the control device. Valid as long as the controller; NULL after an error.
 *
 * Errors: NULL for what is no such handle.
 *
 * Threads: any.
 */
const char *busbar_controller_path(struct busbar_controller *controller);

/**
 * The address of an announced service, the lowest if there are several.
 *
 * Errors: -ENOENT if it is not announced; -EPIPE once the coprocessor has stopped.
 *
 * Threads: any.
 */
int busbar_controller_address(struct busbar_controller *controller,
                              const char *service,
                              uint32_t *address);

/**
 * Frees the controller. Endpoints that it has made stay.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any.
 */
int busbar_controller_free(struct busbar_controller *controller);

/**
 * Makes an endpoint. name is its name in the kernel, 1 to 31 bytes, and the service that it sends to unless a
 * destination is given. setup may be NULL. The endpoint is to be freed by busbar_endpoint_free.
 *
 * Errors: -EINVAL for a name, source or flag that is not allowed; -ENOENT if no such service is announced;
 * -EADDRINUSE if another endpoint has the source address; -EOPNOTSUPP if only a descriptor is allowed, and the
 * controller makes none; -ETIMEDOUT if the device node has not appeared in time; -EACCES if it could not be opened
 * in time; -EPIPE if the coprocessor is gone.
 *
 * Threads: any.
 */
int busbar_endpoint_create(struct busbar_controller *controller,
                           const char *name,
                           const struct busbar_endpoint_setup *setup,
                           struct busbar_endpoint **endpoint);

/**
 * An endpoint of a descriptor that was made elsewhere, for example an inherited one. The descriptor is duplicated;
 * the caller keeps his own.
 *
 * Errors: -EBADF.
 *
 * Threads: any.
 */
int busbar_endpoint_from_fd(int fd,
                            struct busbar_endpoint **endpoint);

/**
 * The descriptor of the endpoint: readable when there is a message, writable when there is a free buffer. It
 * belongs to the endpoint: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_endpoint_fd(struct busbar_endpoint *endpoint);

/**
 * Sends one message of len bytes, which may be 0. A signal does not end the wait.
 *
 * Errors: -EAGAIN if no buffer became free within timeout nanoseconds; -EMSGSIZE for a message that does not fit;
 * -EPIPE once the coprocessor is gone; -EINVAL if the destination is BUSBAR_ADDR_ANY; -EOPNOTSUPP with a time limit on a
 * device node of busbar_endpoint_from_fd that is not in non-blocking mode.
 *
 * Threads: any.
 */
int busbar_endpoint_send(struct busbar_endpoint *endpoint,
                         const void *message,
                         size_t len,
                         int64_t timeout);

/**
 * Takes one message, and returns its length in bytes, which may be 0. BUSBAR_MAX_MESSAGE bytes of room are always
 * enough on the virtio bus. A signal does not end the wait.
 *
 * Errors: -EAGAIN if none came within timeout nanoseconds; -EMSGSIZE if the message is longer than room, which loses
 * it; -ENOBUFS once after messages were lost because they were not read in time; -EPIPE once the coprocessor is
 * gone; -EINVAL for no room.
 *
 * Threads: any; each message goes to one of them.
 */
int busbar_endpoint_recv(struct busbar_endpoint *endpoint,
                         void *message,
                         size_t room,
                         int64_t timeout);

/**
 * Ends the endpoint for all that share it, in this and in other processes. The handle is still to be freed.
 *
 * Errors: -ENOTTY if the descriptor of busbar_endpoint_from_fd is no endpoint; -EINVAL if it is the one that a channel
 * has by itself.
 *
 * Threads: any.
 */
int busbar_endpoint_destroy(struct busbar_endpoint *endpoint);

/**
 * Attaches a block to the endpoint, so that it can be given: maps it for the coprocessor's device.
 *
 * Errors: -ENOTTY if the driver cannot share blocks; -EBUSY if the block is attached already, or accessed;
 * -EOPNOTSUPP if the device cannot see the block as one piece; -EPIPE once the coprocessor is gone.
 *
 * Threads: any.
 */
int busbar_endpoint_attach(struct busbar_endpoint *endpoint,
                           struct busbar_block *block);

/**
 * Undoes busbar_endpoint_attach. Parts that the coprocessor still uses are released when it is done.
 *
 * Errors: -EPERM if the block is not attached; -EBUSY if it is accessed.
 *
 * Threads: any.
 */
int busbar_endpoint_detach(struct busbar_endpoint *endpoint,
                           struct busbar_block *block);

/**
 * Gives len bytes from offset on of an attached block to the coprocessor: to read them (BUSBAR_TO_REMOTE), or to
 * fill them (BUSBAR_FROM_REMOTE). The answer comes as a message with the same cookie: see busbar_answer_read. The
 * block can be waited for, too: busbar_block_wait_filled, busbar_block_wait_unused.
 *
 * Errors: -EPERM if the block is not attached; -EINVAL if the part is not in it; -EBUSY if bytes of it are in use
 * already, the block is accessed, or another thread waits for it; -EPIPE once the coprocessor is gone.
 *
 * Threads: any.
 */
int busbar_endpoint_give(struct busbar_endpoint *endpoint,
                         struct busbar_block *block,
                         size_t offset,
                         size_t len,
                         uint32_t direction,
                         uint64_t *cookie);

/**
 * Reads the coprocessor's answer to a block that it was given. Returns 1 if the message is one, 0 if it is another
 * message.
 *
 * Errors: -EINVAL for a NULL that is not allowed, or a structure without its size.
 *
 * Threads: any.
 */
int busbar_answer_read(const void *message,
                       size_t len,
                       struct busbar_answer *answer);

/**
 * Frees the endpoint, and closes its descriptor. A device node that busbar_endpoint_create has made is destroyed, even if
 * others have it open.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. If another thread is in a call with the endpoint, the endpoint is ended as by busbar_endpoint_destroy,
 * also for other processes that have its descriptor: threads that wait get -EPIPE, and the last of them frees it. If
 * others are to keep the endpoint, have no thread in a call. Threads that wait for one of busbar_endpoint_from_fd are not
 * woken, and it is not ended.
 */
int busbar_endpoint_free(struct busbar_endpoint *endpoint);

/**
 * Receives from any network device, on any host and without privilege, with one copy into the block. The receiver
 * has a descriptor of its own of the memory; the caller still frees his block. The receiver is to be freed by
 * busbar_receiver_free.
 *
 * Errors: -EINVAL for a block of less than a page; -EBUSY if the block is accessed; -EMFILE.
 *
 * Threads: any.
 */
int busbar_receiver_host(struct busbar_block *block,
                         struct busbar_receiver **receiver);

/**
 * Makes queues of a network device receive into the block, which has to be a DMABUF, preferably of "pages". setup
 * may be NULL. As busbar_receiver_host otherwise.
 *
 * Settings of the device are undone when the receiver is freed. A program that is killed leaves them: have SIGINT and
 * SIGTERM set a flag, or wait for them by a signalfd, and free the receiver outside of the handler.
 *
 * Errors: -ENODEV; -EPERM without CAP_NET_ADMIN; -EOPNOTSUPP if kernel or driver do not support it; -EBUSY if queues
 * are bound to other memory, or the block is accessed; -EINVAL for queues and tokens that are not available.
 *
 * Threads: any.
 */
int busbar_receiver_open(const char *device,
                         struct busbar_block *block,
                         const struct busbar_receive_setup *setup,
                         struct busbar_receiver **receiver);

/**
 * The counters of all connections of the receiver together.
 *
 * Errors: -ENODEV if the device is gone.
 *
 * Threads: any.
 */
int busbar_receiver_statistics(struct busbar_receiver *receiver,
                               struct busbar_statistics *statistics);

/**
 * Frees the receiver, and undoes all settings of its device. Connections continue without the device; views stay
 * valid.
 *
 * Errors: the first setting that could not be undone; the others are undone, and the handle is freed. -EINVAL for
 * NULL, and if it was freed. -EBUSY if a call in another thread uses it: nothing is undone then, nor freed.
 *
 * Threads: any.
 */
int busbar_receiver_free(struct busbar_receiver *receiver);

/**
 * Listens on an address, such as "0.0.0.0:5201", or one of IPv6 in brackets; port 0 chooses a free one. The listener is to be
 * freed by busbar_listener_free.
 *
 * Errors: -EADDRINUSE, -EADDRNOTAVAIL, -EACCES; -ENOSPC if the device has no room for a rule; -EINVAL for what is no
 * address.
 *
 * Threads: any.
 */
int busbar_receiver_listen(struct busbar_receiver *receiver,
                           const char *local,
                           struct busbar_listener **listener);

/**
 * Connects to an address. The connection is to be freed by busbar_connection_free.
 *
 * Errors: -ETIMEDOUT after timeout nanoseconds, or if TCP gives up; -ECONNREFUSED, -EHOSTUNREACH; -ENOSPC if the
 * device has no room for a rule; -EINVAL for what is no address, and for a timeout of 0.
 *
 * Threads: any.
 */
int busbar_receiver_connect(struct busbar_receiver *receiver,
                            const char *remote,
                            int64_t timeout,
                            struct busbar_connection **connection);

/**
 * The descriptor of the listener, which is readable when a connection can be accepted. It belongs to the listener:
 * do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_listener_fd(struct busbar_listener *listener);

/**
 * The port on which it listens, from 1 to 65535.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any.
 */
int busbar_listener_port(struct busbar_listener *listener);

/**
 * Waits for a connection, which is to be freed by busbar_connection_free.
 *
 * Errors: -EAGAIN if none came within timeout nanoseconds; -EMFILE, -ENOMEM.
 *
 * Threads: any; each connection goes to one of them.
 */
int busbar_listener_accept(struct busbar_listener *listener,
                           int64_t timeout,
                           struct busbar_connection **connection);

/**
 * Frees the listener. Its connections stay.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. Threads that wait in busbar_listener_accept get -EINVAL; the last of them frees the listener.
 */
int busbar_listener_free(struct busbar_listener *listener);

/**
 * The descriptor of the connection, which is readable when there may be something new: then take views with a
 * timeout of 0 until there is none. It belongs to the connection: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_connection_fd(struct busbar_connection *connection);

/**
 * The socket of the connection: to send, to ask for addresses, to set options. Data that is read from it directly is
 * missing in the views. It belongs to the connection: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_connection_socket(struct busbar_connection *connection);

/**
 * The next piece of the stream, whose memory is free for other data by busbar_view_free. Without a device, this also
 * waits for memory that views hold.
 *
 * Errors: -EAGAIN if nothing came within timeout nanoseconds; -ENODATA at the end, when the peer has stopped
 * sending; -ECONNRESET and -ETIMEDOUT if the peer has disappeared; -EBADMSG if data came into other memory than the
 * block; -EBUSY if another thread uses the connection.
 *
 * Threads: one at a time.
 */
int busbar_connection_next(struct busbar_connection *connection,
                           int64_t timeout,
                           struct busbar_view **view);

/**
 * Returns the memory of freed views to the device now. Call it before you stop calling busbar_connection_next for a
 * while, unless that has returned -EAGAIN.
 *
 * Errors: those of the kernel; -EBUSY if another thread uses the connection.
 *
 * Threads: one at a time.
 */
int busbar_connection_flush(struct busbar_connection *connection);

/**
 * Closes the connection and frees it. Views stay valid.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. A thread that waits in busbar_connection_next gets -ENODATA, and frees it then. One that waits for
 * memory that views hold is not woken before a view is freed.
 */
int busbar_connection_free(struct busbar_connection *connection);

/**
 * What is known of the view.
 *
 * Errors: -EINVAL for what is no such handle, and for a size that no version has.
 *
 * Threads: any.
 */
int busbar_view_info(struct busbar_view *view, struct busbar_view_info *info);

/**
 * The bytes of the view, where they are. They are not copied. data is valid until the view is freed.
 *
 * Errors: -ENOMEM if the block cannot be mapped.
 *
 * Threads: any.
 */
int busbar_view_read(struct busbar_view *view,
                     const void **data,
                     size_t *len);

/**
 * Frees the view: its memory is free for other data.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any, and in any order.
 */
int busbar_view_free(struct busbar_view *view);

/**
 * Opens a pipeline that a text in TOML describes (docs/pipeline.md). name is what errors call the text, such as the
 * name of its file. The pipeline is to be freed by busbar_pipeline_free.
 *
 * Errors: -EINVAL for a text that is not allowed; the error of a source that cannot be opened.
 *
 * Threads: any.
 */
int busbar_pipeline_open(const char *name,
                         const char *toml,
                         struct busbar_pipeline **pipeline);

/**
 * The descriptor of the pipeline, readable while busbar_pipeline_turn has something to do, and possibly without.
 * A loop of its own has to call busbar_pipeline_turn at least every 100 ms, even without an event. The descriptor
 * belongs to the pipeline: do not close it.
 *
 * Errors: -EINVAL for what is no such handle.
 *
 * Threads: any.
 */
int busbar_pipeline_fd(struct busbar_pipeline *pipeline);

/**
 * Ends the wait of a turn when a descriptor of the caller is readable, such as a signalfd or an eventfd. No turn
 * waits while it is readable. To stop a pipeline from another thread, make such a descriptor readable. It has to
 * stay open until the pipeline is freed.
 *
 * Errors: -EEXIST if it was named before; -EPERM for a file that cannot be polled; -EBADF if it is not open; -EINVAL for
 * a negative one; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_wake_for(struct busbar_pipeline *pipeline,
                             int fd);

/**
 * Does what can be done now; if there is nothing, waits for the next event, for timeout nanoseconds and for 100 ms at
 * most. A signal with a handler ends the wait, without an error. state may be NULL.
 *
 * Errors: permanent failures, such as a file that cannot be written, or samples that are wrong. -ETIMEDOUT if not
 * all blocks could be delivered in time at the end. -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_turn(struct busbar_pipeline *pipeline,
                         int64_t timeout,
                         enum busbar_state *state);

/**
 * Ends the sources. Turns then deliver what is under way; the pipeline is finished after that.
 *
 * Errors: -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_stop(struct busbar_pipeline *pipeline);

/**
 * Takes a snapshot of all counters, of which the other calls then return the parts.
 *
 * Errors: -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_counters(struct busbar_pipeline *pipeline, struct busbar_counters *counters);

/**
 * Counters of a source, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
 *
 * Errors: -EINVAL if there are not so many sources; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_source(struct busbar_pipeline *pipeline,
                           size_t index,
                           struct busbar_source_counters *counters);

/**
 * Counters of a stage, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
 *
 * Errors: -EINVAL if there are not so many stages; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_stage(struct busbar_pipeline *pipeline,
                          size_t index,
                          struct busbar_stage_counters *counters);

/**
 * Counters of a sink, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
 *
 * Errors: -EINVAL if there are not so many sinks; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_sink(struct busbar_pipeline *pipeline,
                         size_t index,
                         struct busbar_sink_counters *counters);

/**
 * Counters of a control, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
 *
 * Errors: -EINVAL if there are not so many controls; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_control(struct busbar_pipeline *pipeline,
                            size_t index,
                            struct busbar_control_counters *counters);

/**
 * The next event since the pipeline was opened. Its texts are valid until the next call of this.
 *
 * Errors: -EAGAIN if there is none; -EBUSY if another thread uses the pipeline.
 *
 * Threads: one at a time.
 */
int busbar_pipeline_event(struct busbar_pipeline *pipeline, struct busbar_event *event);

/**
 * Ends the pipeline at once, drops blocks under way, and frees it. Call busbar_pipeline_stop before, and turn until
 * it is finished, to have them delivered.
 *
 * Errors: -EINVAL for NULL, and if it was freed.
 *
 * Threads: any. While a call in another thread uses the pipeline, this returns at once, and the pipeline is freed when
 * that call ends.
 */
int busbar_pipeline_free(struct busbar_pipeline *pipeline);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BUSBAR_H */
