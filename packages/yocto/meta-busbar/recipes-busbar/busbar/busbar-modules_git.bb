SUMMARY = "Kernel modules of Busbar"
DESCRIPTION = "Endpoints that are file descriptors (rpmsg_eptfd), blocks over netlink (rpmsg_netlink), and a virtual \
coprocessor, converter and NIC pair (vcoproc, vconv, vnic), each in a package kernel-module-NAME, for Linux 6.12 and newer."
SECTION = "kernel/modules"
LICENSE = "GPL-2.0-only"
LIC_FILES_CHKSUM = "file://COPYING;md5=b234ee4d69f5fce4486a80fdaf4a4263"

require busbar-source.inc
S = "${UNPACKDIR}/${BP}/kernel"

inherit module

# The modules to build. Those that the kernel's configuration does not allow are left out.
BUSBAR_MODULES ?= "rpmsg_eptfd rpmsg_netlink vcoproc vconv vnic"
# If set, rpmsg_eptfd does not replace rpmsg_ctrl and rpmsg_char.
BUSBAR_BESIDE ?= ""

EXTRA_OEMAKE += "KDIR=${STAGING_KERNEL_DIR} 'MODULES=${BUSBAR_MODULES}'"
MAKE_TARGETS = "modules"

# The class puts this file into the module's package.
do_install:append() {
    if [ -z "${BUSBAR_BESIDE}" ] && [ -e ${B}/modules/rpmsg_eptfd/rpmsg_eptfd.ko ]; then
        install -D -m 0644 ${S}/modules/rpmsg_eptfd/modprobe.conf ${D}${modprobedir}/rpmsg_eptfd.conf
    fi
}
