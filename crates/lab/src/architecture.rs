//! The processors that guests have: the host's own, or another one that QEMU emulates.

use serde::Serialize;

use crate::tools;

/// The processor of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Architecture {
    /// 64-bit PCs.
    #[serde(rename = "x86-64")]
    X86_64,
    /// 64-bit ARM.
    #[serde(rename = "arm64")]
    Arm64,
    /// 32-bit ARM, version 7.
    #[serde(rename = "armv7")]
    Armv7,
}

/// An IOMMU that QEMU emulates.
pub(crate) struct Iommu {
    /// QEMU's arguments.
    pub machine: &'static [&'static str],
    /// The option of the kernel that switches it on.
    pub option: Option<&'static str>,
}

impl Default for Architecture {
    /// That of the host.
    fn default() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 }
    }
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86_64, Self::Arm64, Self::Armv7];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Arm64 => "arm64",
            Self::Armv7 => "armv7",
        }
    }

    /// Whether the host cannot execute its programs. Then the guest has a root file system of its own.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self != Self::default()
    }

    /// The name that QEMU and virtme-ng have for it.
    pub(crate) fn machine(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
            Self::Armv7 => "arm",
        }
    }

    /// The name that Debian has for it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
            Self::Armv7 => "armhf",
        }
    }

    /// The name that its compilers and folders of libraries have.
    pub(crate) fn gnu(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
            Self::Armv7 => "arm-linux-gnueabihf",
        }
    }

    /// QEMU, with its Debian package.
    pub(crate) fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
            Self::Armv7 => ("qemu-system-arm", "qemu-system-arm"),
        }
    }

    /// The image that QEMU boots: the target of `make`, and where it lies in the build directory.
    pub(crate) fn image(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("bzImage", "arch/x86/boot/bzImage"),
            Self::Arm64 => ("Image", "arch/arm64/boot/Image"),
            Self::Armv7 => ("zImage", "arch/arm/boot/zImage"),
        }
    }

    /// The compiler of kernel and modules. clang compiles for each architecture. Debian's cross compilers
    /// conflict with its gcc-multilib.
    pub(crate) fn compiler(self) -> &'static str {
        if self.is_foreign() { "clang" } else { "gcc" }
    }

    /// Tools for building, with their Debian packages.
    pub(crate) fn tools(self) -> &'static [(&'static str, &'static str)] {
        if self.is_foreign() { tools::FOREIGN } else { tools::NATIVE }
    }

    /// Arguments of the kernel's `make`.
    pub(crate) fn make(self) -> &'static [&'static str] {
        match (self.is_foreign(), self) {
            (false, _) => &[],
            (true, Self::X86_64) => &["ARCH=x86_64", "LLVM=1"],
            (true, Self::Arm64) => &["ARCH=arm64", "LLVM=1"],
            (true, Self::Armv7) => &["ARCH=arm", "LLVM=1"],
        }
    }

    /// The IOMMU that a guest can have.
    pub(crate) fn iommu(self) -> Option<Iommu> {
        match self {
            // It does not translate interrupts, as KVM would need a setting for that.
            Self::X86_64 => Some(Iommu {
                machine: &["-machine", "q35", "-device", "intel-iommu,intremap=off"],
                option: Some("intel_iommu=on"),
            }),
            Self::Arm64 => Some(Iommu { machine: &["-machine", "iommu=smmuv3"], option: None }),
            Self::Armv7 => None,
        }
    }

    /// The start of names in the cache.
    pub(crate) fn prefix(self) -> String {
        if self.is_foreign() { format!("{}-", self.name()) } else { String::new() }
    }
}
