"""Parses the recipes of the Yocto layer: tests/yocto.sh."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import types

# Of PyPI's bitbake. It lacks the server of hashes, which parsing does not use.
for name in ["hashserv", "hashserv.client"]:
    sys.modules[name] = types.ModuleType(name)
import bb.cookerdata

TOP = pathlib.Path(__file__).resolve().parent.parent
LAYER = TOP / "packages/yocto/meta-busbar"
# What the recipes inherit, and the variables of oe-core's bitbake.conf that they use.
CLASSES = ["base", "bash-completion", "cargo", "module", "systemd", "useradd"]
VARIABLES = {
    "PN": "${@bb.parse.vars_from_file(d.getVar('FILE', False), d)[0] or 'defaultpkgname'}",
    "BPN": "${PN}", "BP": "${BPN}-${PV}", "WORKDIR": "${TMPDIR}/${PN}", "TMPDIR": "${TOPDIR}/tmp", "T": "${WORKDIR}/temp",
    "DL_DIR": "${TOPDIR}/downloads", "PERSISTENT_DIR": "${TOPDIR}/cache", "CACHE": "${TOPDIR}/cache",
    "UNPACKDIR": "${WORKDIR}/sources", "S": "${UNPACKDIR}/${BP}", "B": "${S}", "D": "${WORKDIR}/image",
    "prefix": "/usr", "bindir": "/usr/bin", "libdir": "/usr/lib", "datadir": "/usr/share", "baselib": "lib",
    "nonarch_base_libdir": "/lib", "modprobedir": "/etc/modprobe.d", "CARGO_TARGET_SUBDIR": "target/release",
    "STAGING_BINDIR_NATIVE": "/usr/bin", "STAGING_KERNEL_DIR": "/usr/src/linux", "EXTENDPKGV": "${PV}-r0",
    "OVERRIDES": "class-target",
}
CORE = """BBPATH .= ":${LAYERDIR}"
BBFILE_COLLECTIONS += "core"
BBFILE_PATTERN_core = "^${LAYERDIR}/"
LAYERSERIES_CORENAMES = "wrynose"
LAYERSERIES_COMPAT_core = "wrynose"
"""


def stand_in(folder):
    """A layer with empty classes, in place of oe-core."""
    (folder / "conf").mkdir()
    (folder / "classes").mkdir()
    for name in CLASSES:
        (folder / f"classes/{name}.bbclass").touch()
    (folder / "classes/native.bbclass").write_text('OVERRIDES = "class-native"\n')
    tasks = "".join(f"do_{name}() {{\n    :\n}}\n" for name in ["build", "compile", "install"])
    (folder / "classes/base.bbclass").write_text(f"addtask build\n{tasks}")
    (folder / "conf/layer.conf").write_text(CORE)
    (folder / "conf/bitbake.conf").write_text("".join(f'{name} ?= "{value}"\n' for name, value in VARIABLES.items()))
    return folder


def configuration(folder, core):
    """The configuration of a build folder with both layers."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf/bblayers.conf").write_text(f'BBPATH = "${{TOPDIR}}"\nBBFILES ?= ""\nBBLAYERS = "{core} {LAYER}"\n')
    (folder / "conf/local.conf").write_text('MACHINE = "qemuarm64"\nINHERIT:remove = "sanity"\n')
    os.chdir(folder)
    settings = bb.cookerdata.CookerConfiguration()
    settings.env = {**os.environ, "BBPATH": str(folder)}
    builder = bb.cookerdata.CookerDataBuilder(settings, False)
    builder.parseBaseConfiguration()
    return builder


def check(recipe, data):
    """What no parser looks at: checksums of crates and licences, and the shell functions."""
    sums = data.getVarFlags("SRC_URI") or {}
    crates = [uri.split("/")[-2:] for uri in data.getVar("SRC_URI").split() if uri.startswith("crate:")]
    missing = [crate for crate in crates if f"{'-'.join(crate)}.sha256sum" not in sums]
    assert not missing, f"{recipe}: crates without a checksum: {missing}"
    source = TOP / os.path.relpath(data.getVar("S"), f"{data.getVar('UNPACKDIR')}/{data.getVar('BP')}")
    for uri in data.getVar("LIC_FILES_CHKSUM").split():
        file, md5 = uri.removeprefix("file://").split(";md5=")
        real = hashlib.md5((source / file).read_bytes()).hexdigest()
        assert real == md5, f"{recipe}: {file} has the checksum {real}"
    for name in data.keys():
        if data.getVarFlag(name, "func", False) and not data.getVarFlag(name, "python", False):
            shell = subprocess.run(["sh", "-n"], input=data.getVar(name) or "", text=True)
            assert shell.returncode == 0, f"{recipe}: {name} is no shell function"
    return len(crates)


def main():
    core = os.environ.get("OECORE")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        layer = pathlib.Path(core).resolve() / "meta" if core else stand_in(folder)
        builder = configuration(folder / "build", layer)
        recipes = sorted(LAYER.glob("recipes-*/*/*.bb"))
        for recipe in recipes:
            for variant, data in builder.parseRecipeVariants(str(recipe), [], layername="busbar").items():
                crates = check(recipe.name, data)
                print(f"yocto: {recipe.name} {variant or 'target'}: parsed, {crates} crates")
        assert recipes, "no recipes"
    print(f"yocto: with {core or 'stand-ins for the classes of oe-core'}")


if __name__ == "__main__":
    sys.exit(main())
