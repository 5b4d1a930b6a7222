# The two main commands, on a fresh Debian 12: make demo, make test.

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

.PHONY: docs demo test test-kernel test-all features test-builds test-packages bench figures report deps build \
	install install-c install-dev soapy soapy-module install-soapy uninstall install-modules uninstall-modules packages wheel soak \
	fuzz fuzz-kernel miri upstream clean

# The script says at the start how long it takes. It runs on Debian's own kernel; DEMO_KERNEL= for the release kernel.
export DEMO_KERNEL ?= --stock
demo:
	@tools/deps $(if $(DEMO_KERNEL),demo,kernel)
	@demo/run

# Each installs the packages that it lacks, as root; `tests/run --list` has the parts. A part that has passed with the same
# inputs is not run again: RUN=--again runs it. test is a newcomer's; test-kernel is for modules and patches; test-all is
# every part, for a night.
RUN ?=
test:
	@tools/deps tests && tests/run $(RUN) test

test-kernel:
	@tools/deps tests && tests/run $(RUN) kernel

test-all:
	@tools/deps tests && tests/run $(RUN) all

# The library with each of its features alone, and with none.
FEATURES := block bulk dns-sd endpoint pipeline iiod receive stream wait picture tokio usb
features:
	cargo clippy -q -p busbar --locked --no-default-features -- -D warnings
	for feature in $(FEATURES); do \
		cargo clippy -q -p busbar --locked --no-default-features --features $$feature -- -D warnings || exit 1; \
	done

# The documentation as a site in target/docs, with a search. Links that lead nowhere are errors.
docs:
	@tools/docs

# The Python package as wheels in target/wheels: one for each of these machines serves CPython 3.11 and later.
WHEELS ?= x86_64 aarch64 armv7
wheel:
	tests/python.sh wheel $(WHEELS)

# Writes the patches as they would be mailed, by series, to target/upstream.
upstream: build
	tools/upstream

# Builds the modules for the kernels of Debian's that tests/versions names, as root. BUILDS=--newest tells of those that are
# not in it, BUILDS=--all builds each that Debian offers.
BUILDS ?=
test-builds:
	@tools/deps builds
	tests/builds.sh $(BUILDS)

# Ten minutes of crashes, links that go down and clocks that are set. SOAK_KERNEL=--debug uses the debug
# kernel. For these reports see tests/known-reports; no allocation is made to fail.
SOAK_SECONDS ?= 600
SOAK_KERNEL ?=
soak: build
	$(BUSBAR) lab run $(SOAK_KERNEL) --timeout $$(($(SOAK_SECONDS) * 3 + 900)) \
		--known 'rpmsg_eptdev_poll+' --known 'virtio_rpmsg_announce_create+' \
		--known 'add_dma_entry+' -- tests/soak.sh $(SOAK_SECONDS) $(SEED)

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

# It installs nothing: it says what is missing.
build:
	@tools/deps --check build
	cargo build --release --locked --workspace --exclude busbar-python

# Installs what the build and the demonstration need, as root.
deps:
	@tools/deps demo

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
	install -D -m 644 -t $(install_to)/share/doc/busbar packages/notices.txt packages/busbar.cdx.json
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
soapy:
	@tools/deps --check soapy
	@$(MAKE) --no-print-directory build
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
	rm -rf $(install_to)/include/busbar $(install_to)/share/doc/busbar
	rm -f $(soapy_module)
	rm -f $(install_to)/include/busbar.h $(lib_to)/pkgconfig/busbar.pc $(lib_to)/libbusbar.a $(lib_to)/libbusbar.so*
	$(ldconfig)

# Debian packages of the command, libbusbar, the module for SoapySDR and the sources of the kernel modules, in
# target/packages: for amd64, arm64 and armhf as root where there is rustup, else for this machine's processor.
PACKAGES ?=
packages:
	@tools/deps packages
	@$(MAKE) --no-print-directory soapy
	tools/packages $(PACKAGES)

# Installs, uses and purges them in a fresh Debian 12, and in one for arm64 in the lab, as root.
test-packages: packages
	tests/packages.sh $(PACKAGES)

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
