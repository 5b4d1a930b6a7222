#!/bin/sh
# Parses the recipes of the Yocto layer by the modules of bitbake, from PyPI, and checks their checksums. OECORE=FOLDER, a
# checkout of openembedded-core, parses them with its classes, and needs what Yocto needs of a host; else they are parsed
# with empty classes, which finds mistakes of the recipes themselves.
set -eu
cd "$(dirname "$0")/.."
environment=$PWD/target/yocto
[ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
# Where it is there, this asks no server.
"$environment/bin/pip" install -q --disable-pip-version-check -c crates/python/tests/constraints.txt bitbake-setup
exec "$environment/bin/python" tests/yocto.py
