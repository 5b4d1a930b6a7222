#!/bin/sh
# Builds the modules with DKMS, as a board would, against the lab's kernel tree. Nothing is installed.
set -eu
cd "$(dirname "$0")/.."
built=$(target/release/busbar lab build --debug --json)
build=$(echo "$built" | jq -r .build)
release=$(echo "$built" | jq -r .release)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root/tree"
make --silent -C kernel dkms DESTDIR="$root"
for source in "$root"/usr/src/*; do
    package=$(basename "$source")
    name=${package%-*}
    version=${package##*-}
    dkms build -m "$name" -v "$version" -k "$release" --kernelsourcedir "$build" \
        --sourcetree "$root/usr/src" --dkmstree "$root/tree" --no-depmod >"$root/log" 2>&1 ||
        { cat "$root/log"; find "$root/tree" -name make.log -exec cat {} +; exit 1; }
    find "$root/tree/$name" -name '*.ko*' | grep -q . || { echo "$name: no module"; exit 1; }
    echo "dkms: $name $version builds for $release"
done
