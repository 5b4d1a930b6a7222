#!/bin/sh
# Builds target/selftests/ncdevmem, the kernel's ncdevmem, which a test of vnic and drvnet's devmem.py run, and
# ncdevmem-path, a folder with programs that it needs in PATH.
set -eu
cd "$(dirname "$0")/.."
build=$(target/release/busbar lab build --json | jq -r .build)
source=$(readlink -f "$build/source")
out=$PWD/target/selftests
mkdir -p "$out"
make --silent -C "$source" O="$out/headers" headers >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }

# ncdevmem runs "sudo ethtool -G DEVICE tcp-data-split on", which ethtool of Debian 12 does not support. The
# replacement sends the request with the kernel's YNL.
specs=$source/Documentation/netlink/specs
ynl=$source/tools/net/ynl
for part in header:h source:c; do
    python3 "$ynl/ynl-gen-c.py" --mode user "--${part%:*}" --spec "$specs/netdev.yaml" \
        -o "$out/netdev-user.${part#*:}"
done
gcc -O2 -w -isystem "$out/headers/usr/include" -I"$ynl/lib" -I"$out" "$ynl/lib/ynl.c" \
    "$out/netdev-user.c" "$source/tools/testing/selftests/net/ncdevmem.c" -o "$out/ncdevmem" \
    >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
mkdir -p "$out/ncdevmem-path"
printf '#!/bin/sh\nexec "$@"\n' >"$out/ncdevmem-path/sudo"
cat >"$out/ncdevmem-path/ethtool" <<EOF
#!/bin/sh
[ "\$1 \$3" = "-G tcp-data-split" ] || exec /usr/sbin/ethtool "\$@"
case \$4 in on) split=2 ;; *) split=1 ;; esac
exec python3 "$ynl/cli.py" --spec "$specs/ethtool.yaml" --no-schema --do rings-set \\
    --json "{\"header\": {\"dev-name\": \"\$2\"}, \"tcp-data-split\": \$split}"
EOF
chmod +x "$out/ncdevmem-path/"*
