#!/bin/sh
# Builds the Python package into a virtual environment of its own, and tests it.
#
# Usage: tests/python.sh install | build | host [ARGUMENT…] | lab [ARGUMENT…] | wheel MACHINE…
#   install  only the packages that tests need
#   host     the tests that need no kernel of Busbar's, and a fresh installation; with arguments, which are pytest's, only
#            those tests
#   lab      the others: in the guest, from the root of the tree; tests/lab.sh calls it
#   wheel    wheels in target/wheels, for x86_64, aarch64, armv7; Zig links them, so that no other packages are needed
set -eu
# Otherwise dash runs no EXIT trap when a signal ends it.
trap 'exit 143' TERM
case ${1-lab} in
install | build | host | wheel) cd "$(dirname "$0")/.." ;;
esac
environment=$PWD/target/python
# Of what is installed, and of what builds it.
export PIP_CONSTRAINT="$PWD/crates/python/tests/constraints.txt"
export PIP_BUILD_CONSTRAINT="$PIP_CONSTRAINT"

# One at a time: more than one part of the tests installs.
install() {
    mkdir -p target
    exec 9>"$environment.lock"
    flock 9
    [ -x "$environment/bin/pip" ] || python3 -m venv "$environment"
    # Where all of it is there, this asks no server.
    "$environment/bin/pip" install -q --disable-pip-version-check "$@"
    exec 9>&-
}

maturin() {
    PATH=$environment/bin:$PATH VIRTUAL_ENV=$environment "$environment/bin/maturin" "$@"
}

packages() {
    install -r crates/python/tests/requirements.txt
}

build() {
    packages
    maturin develop --release --locked --quiet
    # What the tests in the guest import, as one file: each file of the host takes the guest a while to open.
    (
        cd "$environment"/lib/python3*/site-packages
        tar -cf "$environment/lab.tar" --exclude=tests numpy numpy.libs pytest _pytest pluggy iniconfig packaging \
            py.py pygments pytest_asyncio typing_extensions.py pluggy-*.dist-info pytest*.dist-info
    )
    tar -rf "$environment/lab.tar" pyproject.toml
    tar -C crates/python -rf "$environment/lab.tar" --exclude=__pycache__ tests/conftest.py tests/test_lab.py \
        tests/test_orders.py tests/test_source.py
    tar -C crates/python/python -rf "$environment/lab.tar" --exclude=__pycache__ busbar
}

# `pip install .` into a new virtual environment, as the documentation says. What is compiled is used again.
fresh() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m venv "$folder/env"
    CARGO_TARGET_DIR=$PWD/target "$folder/env/bin/pip" install -q --disable-pip-version-check .
    # -I: nothing of the tree is imported.
    "$folder/env/bin/python" -I - <<'END'
import pathlib, sys
import busbar, numpy
folder = pathlib.Path(busbar.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert {"_busbar.pyi", "py.typed"} <= {it.name for it in folder.iterdir()}
with busbar.Source("synth:counter", block_len=800) as source:
    assert numpy.asarray(source.next())["voltage0_i"].tolist() == list(range(100))
print("pip install: the package works in a new virtual environment")
END
    rm -rf "$folder"
}

case ${1-lab} in
install) packages ;;
build) build ;;
host)
    shift
    build
    [ $# != 0 ] || fresh
    log=$(mktemp)
    trap 'rm -f "$log" "$log.code"' EXIT
    python() { "$environment/bin/python" -m pytest -q -p no:cacheprovider -rfE -m "not lab" "$@"; }
    { python "$@" && echo 0 >"$log.code" || echo $? >"$log.code"; } | tee "$log"
    # 1: some tests have failed. Each runs once more, alone.
    case $(cat "$log.code") in
    0) ;;
    1)
        failed=$(sed -n 's/^\(FAILED\|ERROR\) \([^ ]*\).*/\2/p' "$log" | sort -u)
        [ -n "$failed" ] || exit 1
        for test in $failed; do
            python "$test"
            echo "unstable: $test"
        done
        ;;
    *) exit 1 ;;
    esac
    ;;
lab)
    [ $# = 0 ] || shift
    export BUSBAR_EXAMPLES="$PWD/examples/python"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    tar -C "$folder" -xf "$environment/lab.tar"
    cd "$folder"
    # -S: without the packages of the host.
    BUSBAR_LAB=1 PYTHONPATH=$folder:$folder/tests "$environment/bin/python" -S -u -m pytest -v -p no:cacheprovider \
        --assert=plain -o faulthandler_timeout=300 tests/test_lab.py "$@"
    ;;
wheel)
    shift
    install 'maturin[zig]' auditwheel
    # Debian's Rust has no library for other processors, so a Rust of its own is installed into the environment.
    if ! command -v rustup >/dev/null; then
        install puccinialin
        "$environment/bin/python" -m puccinialin --location "$environment/rust" >/dev/null
        export CARGO_HOME="$environment/rust/cargo" RUSTUP_HOME="$environment/rust/rustup"
        PATH=$CARGO_HOME/bin:$PATH
    fi
    for machine in "$@"; do
        case $machine in
        armv7) target=armv7-unknown-linux-gnueabihf linux=armv7l ;;
        *) target=$machine-unknown-linux-gnu linux=$machine ;;
        esac
        rustup -q target add "$target"
        # For the C library of 2018 and later.
        maturin build --release --locked --zig --target "$target" --compatibility manylinux_2_28 --out target/wheels
        "$environment/bin/auditwheel" show target/wheels/busbar-*-cp311-abi3-manylinux_2_28_"$linux".whl
    done
    ;;
*)
    sed -n '/^# Usage/,/^set/s/^#//p' "$0" >&2
    exit 2
    ;;
esac
