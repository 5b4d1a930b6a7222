SUMMARY = "Short paths between coprocessor, converter, program and network"
DESCRIPTION = "Moves data between a coprocessor (rpmsg), an ADC or DAC (IIO) and TCP with few or no copies: the command, \
and libbusbar for C programs."
SECTION = "console/utils"
# In the syntax that all series of the layer know; blacksail warns that it is the old one. The headers of the kernel modules
# are GPL-2.0, with the note that programs may include them.
LICENSE = "(MIT | Apache-2.0) & GPL-2.0-with-Linux-syscall-note"
LICENSE:${PN} = "MIT | Apache-2.0"
LICENSE:libbusbar = "MIT | Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE-MIT;md5=28f9cd60f5d90bc3b4413be92b612518 \
                    file://LICENSE-APACHE;md5=3b83ef96387f14655fc854ddc3c6bd57 \
                    file://kernel/COPYING;md5=b234ee4d69f5fce4486a80fdaf4a4263 \
                   "

require busbar-source.inc
require ${BPN}-crates.inc

inherit cargo bash-completion systemd useradd

# busbar-native writes manual pages and completions.
DEPENDS:append:class-target = " busbar-native"

CARGO_BUILD_FLAGS:append:class-target = " -p busbar-cli -p busbar-c"
CARGO_BUILD_FLAGS:append:class-native = " -p busbar-cli -p busbar-dev"

# The profile `board` of Cargo.toml, by another name: older classes know only `release`. The build system strips, and keeps
# what it strips for the package with debugging symbols.
do_compile:prepend:class-target() {
    export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_STRIP=none
}

built = "${B}/target/${CARGO_TARGET_SUBDIR}"

do_install() {
    oe_runmake -C ${S} install BUSBAR=${built}/busbar GENERATE=${STAGING_BINDIR_NATIVE}/busbar \
        DESTDIR=${D} PREFIX=${prefix} LIBDIR=${baselib}
    install -D -m 0644 ${S}/packages/debian/busbar.udev ${D}${nonarch_base_libdir}/udev/rules.d/70-busbar.rules
    install -D -m 0644 ${S}/packages/debian/busbar.busbar-serve.service ${D}${systemd_system_unitdir}/busbar-serve.service
    sed -i 's,/usr/bin,${bindir},' ${D}${systemd_system_unitdir}/busbar-serve.service
    install -D -m 0644 ${S}/packages/debian/busbar-serve.default ${D}${sysconfdir}/default/busbar-serve
}

do_install:class-native() {
    install -D -m 0755 -t ${D}${bindir} ${built}/busbar ${built}/busbar-dev
}

# The class leaves it out where there is no systemd. It is for `systemctl enable`.
SYSTEMD_SERVICE:${PN} = "busbar-serve.service"
SYSTEMD_AUTO_ENABLE = "disable"
CONFFILES:${PN} = "${sysconfdir}/default/busbar-serve"

# The rules for udev give the devices to this group.
USERADD_PACKAGES = "${PN}"
GROUPADD_PARAM:${PN} = "--system busbar"

PACKAGE_BEFORE_PN += "libbusbar ${PN}-zsh-completion ${PN}-fish-completion"
FILES:libbusbar = "${libdir}/libbusbar.so.*"
FILES:${PN}-zsh-completion = "${datadir}/zsh"
FILES:${PN}-fish-completion = "${datadir}/fish"
FILES:${PN} += "${nonarch_base_libdir}/udev/rules.d"
RDEPENDS:${PN}-dev += "libbusbar (= ${EXTENDPKGV})"

BBCLASSEXTEND = "native"
