# The two main commands, on a fresh Debian 12 as root: make demo, make test.

BUSBAR := target/release/busbar
# The developers' command, which `busbar lab`, `bench` and `report` execute.
BUSBAR_DEV = $(dir $(BUSBAR))busbar-dev
# The build directory of the kernel that modules are built for.
KDIR ?= /lib/modules/$(shell uname -r)/build

# The directories of `make install`, and the program that generates manual pages and completions: BUSBAR,
# unless that is built for another machine.
PREFIX ?= /usr/local
DESTDIR ?=
GENERATE ?= $(BUSBAR)

.PHONY: demo test test-host test-python test-clients wheel test-wheels test-cargo-c test-c32 test-armv7 test-features test-targets \
	test-checkpatch test-kernel-style test-pairs test-lab test-lab-itself test-arm64 test-kvm test-race test-rest test-full test-dkms \
	test-builds test-boards test-install test-packages test-yocto test-demo bench figures report deps build \
	install install-c install-dev soapy soapy-module install-soapy uninstall install-modules uninstall-modules packages soak fuzz fuzz-kernel \
	miri upstream clean

# The script says at the start how long it takes. It runs on Debian's own kernel; DEMO_KERNEL= for the release kernel.
export DEMO_KERNEL ?= --stock
demo:
	@tools/deps demo
	@demo/run

# How long each has taken is said at the end, also if that comes early.
test: deps
	@mkdir -p target && >target/times; \
	trap 'cat target/times >&2' EXIT; \
	trap 'exit 143' TERM; \
	$(MAKE) test-pairs && begun=$$(date +%s) && $(MAKE) test-lab && \
	echo "test-lab: passed after $$(($$(date +%s) - begun)) s" >>target/times

# What needs no lab, or little of it: two at a time, as most of them keep one processor busy.
test-pairs: deps
	tests/pairs.sh test-host test-checkpatch test-builds test-arm64 test-python test-dkms test-install test-yocto \
		test-lab-itself test-demo test-clients

# What `make test` has no time for: the library with each feature alone, 32 bit, more checks of kernel code, and in the lab
# the attacks in the debug kernel, an IOMMU, bounce buffers, programs of others and benchmarks.
test-rest: test-features test-c32 test-kernel-style
	$(MAKE) test-lab-itself LAB_TESTS="output_is_exact a_signal_ends_all debians_own_kernel"
	$(MAKE) test-lab LAB=--rest

# Every test in the debug kernel, with more rounds, all of the lab's own tests, and 32 bit: two hours or more.
test-full: export LAB_TESTS :=
test-full: export LAB := --full
test-full: FUZZ_SECONDS := 600
test-full: test test-features test-c32 test-kernel-style fuzz-kernel

# Tests that do not need the lab's kernel.
test-host: deps test-targets
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo test --workspace --all-features --locked
	mandoc -T lint -W style docs/man/*

# The library and the C programs on 32 bit, where rustup can add the target.
I686 := i686-unknown-linux-gnu
test-c32: deps
	if ! command -v rustup >/dev/null; then \
		echo "test-c32: skipped: there is no rustup"; \
	else \
		rustup -q target add $(I686) && \
		export CARGO_TARGET_I686_UNKNOWN_LINUX_GNU_LINKER=gcc && \
		cargo test -p busbar -p busbar-uapi --locked --target $(I686) && \
		cargo build -p busbar-c --locked --target $(I686) && \
		BUSBAR_C_LIBRARY=$(CURDIR)/target/$(I686)/debug/libbusbar_c.so BUSBAR_C_FLAGS=-m32 \
			cargo test -p busbar-c --test c --test c_examples --locked -- --skip valgrind; \
	fi

# The Python package: the part of its tests that needs no kernel of Busbar's. The other part runs in the lab.
test-python: deps
	tests/python.sh host

# Programs of others as clients of `busbar serve`: pylibiio, pyadi-iio, GNU Radio. The lab runs these tests as well.
test-clients: deps
	tests/python.sh install
	cargo test --workspace --all-features --test clients --locked -- --ignored --skip lab::

# The Python package as wheels in target/wheels: one for each of these machines serves CPython 3.11 and later.
WHEELS ?= x86_64 aarch64 armv7
wheel: deps
	tests/python.sh wheel $(WHEELS)

# The wheels for other processors, on these, which QEMU emulates.
test-wheels: wheel
	tests/wheels.sh $(filter-out x86_64,$(WHEELS))

# The library for C by cargo-c, which takes minutes to build and is no part of make test.
test-cargo-c: build
	tests/cargo_c.sh

# The library with each of its features alone, and with none.
FEATURES := block bulk dns-sd endpoint pipeline iiod receive stream wait picture tokio usb
test-features: deps
	cargo clippy -q -p busbar --locked --no-default-features -- -D warnings
	for feature in $(FEATURES); do \
		cargo clippy -q -p busbar --locked --no-default-features --features $$feature -- -D warnings || exit 1; \
	done

# The library's tests, and the unit tests of the other crates, as programs for armv7 in emulation, as root: seven minutes.
test-armv7: deps
	tests/armv7.sh

# What a board gets compiles for other processors, where rustup can add a target.
TARGETS := armv7-unknown-linux-gnueabihf aarch64-unknown-linux-gnu
test-targets: deps
	@command -v rustup >/dev/null || echo "test-targets: skipped: there is no rustup"
	for target in $(TARGETS); do \
		command -v rustup >/dev/null || break; \
		rustup -q target add $$target && \
		cargo check -q -p busbar -p busbar-coprocessor -p busbar-cli --locked --target $$target || exit 1; \
	done

# checkpatch, and the generated code, with the lab kernel's sources.
test-checkpatch: build
	$(BUSBAR) lab build
	cargo test --workspace --all-features --test rpmsg_netlink_spec --locked -- --ignored what_is_generated
	tools/checkpatch

# Also sparse, W=1 and Coccinelle, and a check of the patches as they would be mailed.
test-kernel-style: test-checkpatch
	tools/kernel-style
	tools/upstream --check

# Writes the patches as they would be mailed, by series, to target/upstream.
upstream: build
	tools/upstream

# Tests that need the lab's kernels, in as few boots as possible.
LAB ?= --short
test-lab: build
	tests/lab.sh $(LAB)

# The lab's own tests run on the host and boot one guest after another: a selection, or with LAB_TESTS= all.
LAB_TESTS ?= exit_codes_are a_timeout_is the_release_kernel_reports
test-lab-itself: build
	$(BUSBAR) lab build
	cargo test --workspace --all-features --test lab --locked -- --ignored --test-threads=1 $(LAB_TESTS)

# Debian's own kernel for arm64, emulated: loads each module. `make test-boards BOARDS=debian-arm64` also uses them.
test-arm64: build
	tests/arm64.sh --modules

# The lab with KVM, in a guest to which QEMU gives one, and with a KVM that hangs, if there is /dev/kvm: five minutes.
test-kvm:
	$(MAKE) test-lab-itself LAB_TESTS=a_kvm_that$(if $(wildcard /dev/kvm),,_works)

# The tests of the modules in the race kernel (KCSAN).
test-race: build
	tests/lab.sh --race

# Builds and installs the modules as on a board, with DKMS.
test-dkms: build
	tests/dkms.sh

# Builds the modules for the oldest and the newest of Debian's kernels of each series from 6.12 on, for amd64, arm64 and
# armhf, as root: it changes the root directory. BUILDS=--all for each of these kernels.
BUILDS ?=
test-builds: deps
	tests/builds.sh $(BUILDS)

# What the targets above leave out for boards, into a table of docs/board.md, as root. BOARDS="--again kvm" for this part
# in any case.
BOARDS ?=
test-boards: deps
	@tools/deps boards
	tests/boards.sh $(BOARDS)

# Installs and uninstalls the command and all files that belong to it.
test-install: soapy
	tests/install.sh

# Ten minutes of crashes, links that go down and clocks that are set. SOAK_KERNEL=--debug uses the debug
# kernel. For these reports see tests/known-reports; no allocation is made to fail.
SOAK_SECONDS ?= 600
SOAK_KERNEL ?=
soak: build
	$(BUSBAR) lab run $(SOAK_KERNEL) --timeout $$(($(SOAK_SECONDS) * 3 + 900)) \
		--known 'rpmsg_eptdev_poll+' --known 'virtio_rpmsg_announce_create+' \
		--known 'add_dma_entry+' -- tests/soak.sh $(SOAK_SECONDS) $(SEED)

# The same as `make demo`, as a test.
test-demo: deps
	demo/run

bench: build
	$(BUSBAR) lab run -- $(BUSBAR) bench endpoint

# Measures all figures and updates the tables of the documentation. It takes an hour in which nothing else
# should run. FIGURES=icount measures only those that other work does not affect. Before that, it compares with the commit
# that the figures are of.
FIGURES ?= all
figures: build
	-tools/compare
	tools/figures $(FIGURES)

report: build
	$(BUSBAR) report --output target/report.html

build: deps
	cargo build --release --locked --workspace --exclude busbar-python

deps:
	@tools/deps

# Installs the command of a board, its manual pages and completions, the library and the headers for C. It does not build, so
# that root does not have to.
install_to := $(DESTDIR)$(PREFIX)
install:
	@test -x $(BUSBAR) || { echo "there is no $(BUSBAR) yet: make build" >&2; exit 1; }
	install -D -m 755 $(BUSBAR) $(install_to)/bin/busbar
	$(GENERATE) generate man $(install_to)/share/man/man1
	install -D -m 644 -t $(install_to)/share/man/man2 docs/man/*.2
	mkdir -p $(addprefix $(install_to)/share/,$(dir $(completions)))
	$(GENERATE) generate completions bash >$(install_to)/share/$(word 1,$(completions))
	$(GENERATE) generate completions zsh >$(install_to)/share/$(word 2,$(completions))
	$(GENERATE) generate completions fish >$(install_to)/share/$(word 3,$(completions))
	install -D -m 644 -t $(install_to)/include/busbar/linux kernel/uapi/linux/*.h
	install -D -m 644 -t $(install_to)/include/busbar crates/c/include/busbar/epoll_calls.h
	@test -e $(library).so || echo "$(library).so was not built, so libbusbar is not installed"
	test ! -e $(library).so || $(MAKE) --no-print-directory install-c

# libbusbar for C programs, which Cargo has built beside the command. LIBDIR is relative to PREFIX. The library tells its
# soname (crates/c/build.rs).
LIBDIR ?= lib
library = $(dir $(BUSBAR))libbusbar_c
lib_version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
lib_to := $(install_to)/$(LIBDIR)
soname = $(shell LC_ALL=C readelf -d $(library).so | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
install-c:
	@test -n "$(soname)" || { echo "readelf, of binutils, finds no soname in $(library).so" >&2; exit 1; }
	install -D -m 755 $(library).so $(lib_to)/libbusbar.so.$(lib_version)
	ln -sf libbusbar.so.$(lib_version) $(lib_to)/$(soname)
	ln -sf $(soname) $(lib_to)/libbusbar.so
	install -D -m 644 $(library).a $(lib_to)/libbusbar.a
	install -D -m 644 -t $(install_to)/include crates/c/include/busbar.h
	mkdir -p $(lib_to)/pkgconfig
	sed 's|@prefix@|$(PREFIX)|; s|@libdir@|$(LIBDIR)|; s|@version@|$(lib_version)|' crates/c/busbar.pc.in \
		>$(lib_to)/pkgconfig/busbar.pc
	$(ldconfig)

# The module by which programs of SoapySDR use libbusbar (docs/soapy.md).
soapy_build := $(CURDIR)/target/soapy
soapy_module = $(lib_to)/SoapySDR/modules0.8/libbusbarSupport.so
soapy: build
	@$(MAKE) --no-print-directory soapy-module

# The same of what is built, for another processor with its compiler (tools/packages).
soapy-module:
	mkdir -p $(soapy_build)
	ln -sf $(abspath $(library)).so $(soapy_build)/$(soname)
	$(MAKE) -C soapy BUILD=$(soapy_build) BUSBAR_CFLAGS=-I$(CURDIR)/crates/c/include \
		BUSBAR_LIBS="$(soapy_build)/$(soname) -Wl,-rpath-link,$(soapy_build)"

install-soapy:
	@test -e $(soapy_build)/$(notdir $(soapy_module)) || { echo "there is no module yet: make soapy" >&2; exit 1; }
	$(MAKE) -C soapy install BUILD=$(soapy_build) PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR)

# The list by which programs find libraries. A package, which has a DESTDIR, makes it where it is installed.
ldconfig = @test -n "$(DESTDIR)" || PATH=$$PATH:/sbin:/usr/sbin ldconfig 2>/dev/null || \
	echo "ldconfig, by which programs find libbusbar, needs root"

# Installs the developers' command too, for `busbar lab`, `bench` and `report`.
install-dev: install
	@test -x $(BUSBAR_DEV) || { echo "there is no $(BUSBAR_DEV) yet: make build" >&2; exit 1; }
	install -D -m 755 $(BUSBAR_DEV) $(install_to)/bin/busbar-dev

completions := bash-completion/completions/busbar zsh/site-functions/_busbar \
	fish/vendor_completions.d/busbar.fish

uninstall:
	rm -f $(install_to)/bin/busbar $(install_to)/bin/busbar-dev
	rm -f $(install_to)/share/man/man1/busbar.1 $(install_to)/share/man/man1/busbar-*.1
	rm -f $(addprefix $(install_to)/share/man/man2/,$(notdir $(wildcard docs/man/*.2)))
	rm -f $(addprefix $(install_to)/share/,$(completions))
	rm -rf $(install_to)/include/busbar
	rm -f $(soapy_module)
	rm -f $(install_to)/include/busbar.h $(lib_to)/pkgconfig/busbar.pc $(lib_to)/libbusbar.a $(lib_to)/libbusbar.so*
	$(ldconfig)

# Debian packages of the command, libbusbar, the module for SoapySDR and the sources of the kernel modules, in
# target/packages: for amd64, arm64 and armhf as root where there is rustup, else for this machine's processor.
PACKAGES ?=
packages: soapy
	tools/packages $(PACKAGES)

# Installs, uses and purges them in a fresh Debian 12, and in one for arm64 in the lab, as root.
test-packages: packages
	tests/packages.sh $(PACKAGES)

# Parses the recipes for Yocto, with OECORE=FOLDER by the classes of openembedded-core in that folder.
test-yocto: deps
	tests/yocto.sh

# Installs the kernel modules with DKMS. MODULES="rpmsg_eptfd rpmsg_netlink" selects some of them.
install-modules uninstall-modules:
	$(MAKE) -C kernel $@

# The code of shared memory and the codecs over it under Miri; tests with system calls are left out. Needs a nightly
# toolchain with the component miri.
miri:
	PROPTEST_CASES=4 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p busbar --lib --locked -- \
		block::bytes stream::loss stream::verify pipeline::stage::tests::samples_are_picked

# Needs a nightly toolchain and cargo-fuzz. FUZZ_SECONDS is per target.
FUZZ_SECONDS ?= 60
fuzz:
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
		cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# Runs sequences of system calls in the debug kernel (kernel/fuzz), starting from the corpus of earlier runs.
# rpmsg_char warns, too, if an allocation fails while it makes an endpoint (kernel/patches/README.md).
FUZZ_SEED ?=
FUZZ_KNOWN = $(addprefix --known ,$(shell sed '/^\#/d' tests/known-reports) rpmsg_chrdev_eptdev_add+)
fuzz-kernel: build
	BUSBAR_PROGRAM=$(abspath $(BUSBAR)) $(BUSBAR) lab run --debug --timeout $$(($(FUZZ_SECONDS) + 600)) $(FUZZ_KNOWN) -- \
		target/release/fuzz-kernel run target/fuzz-kernel --seconds $(FUZZ_SECONDS) \
		$(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) $(FUZZ_KNOWN)

clean:
	cargo clean
