# Two commands do everything on a fresh Debian 12, as root: make demo, make test.

BUSBAR := target/release/busbar
# Where modules come from and go to: an installed kernel's build directory.
KDIR ?= /lib/modules/$(shell uname -r)/build

.PHONY: demo test test-host test-kernel-style test-lab test-lab-itself test-full test-dkms bench deps build fuzz clean

demo: build
	$(BUSBAR) lab run -- demo/coprocessor.sh

test: test-host test-kernel-style test-dkms test-lab test-lab-itself

# The same, all of it in the debug kernel, more rounds, and all of the lab's own tests: 90 minutes.
test-full: LAB_TESTS :=
test-full: LAB_FULL := --full
test-full: test

# What needs no kernel of our own.
test-host: deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo test --workspace --all-features --locked
	mandoc -T lint -W style docs/man/*

# checkpatch, as a maintainer would run it, with the lab kernel's sources.
test-kernel-style: build
	$(BUSBAR) lab build --debug
	tools/checkpatch

# Everything that needs the kernel, in one boot of the debug and one of the release kernel.
test-lab: build
	tests/lab.sh $(LAB_FULL)

# The lab's own tests boot guests, on the host, one after another: some of its promises, or all.
LAB_TESTS ?= exit_codes_are a_timeout_is output_is_exact a_signal_ends_all the_release_kernel_reports
test-lab-itself: build
	$(BUSBAR) lab build
	cargo test -p busbar-cli --test lab --locked -- --ignored --test-threads=1 $(LAB_TESTS)

# The modules as a board builds them.
test-dkms: build
	tests/dkms.sh

bench: build
	$(BUSBAR) lab run -- $(BUSBAR) bench endpoint

build: deps
	cargo build --release --locked

deps:
	@tools/deps

# Needs a nightly toolchain and cargo-fuzz. Seconds for each target:
FUZZ_SECONDS ?= 60
fuzz:
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
		cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean:
	cargo clean
