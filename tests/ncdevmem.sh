#!/bin/sh
# Builds target/selftests/ncdevmem, the kernel's ncdevmem, which a test of vnic and drvnet's devmem.py run, and
# ncdevmem-path, a folder with programs that it needs in PATH. Besides ynl/, with what such programs need of the
# kernel's YNL. Where the files lie depends on the series.
set -eu
cd "$(dirname "$0")/.."
# It runs in the release kernel.
SOURCES_KERNEL=
. tests/sources.sh

specs=$source/Documentation/netlink/specs
ynl=$source/tools/net/ynl
generator=$(find "$ynl" -name 'ynl?gen?c.py')
program=$(find "$selftests" -name ncdevmem.c)
include="$include -I$ynl/lib -I$out/ynl"
rm -rf "$out/ynl"
mkdir "$out/ynl"
{
    for family in $(sed -n 's/^#include "\(.*\)-user.h"/\1/p' "$program"); do
        # As in the kernel's Makefile.
        options=""
        [ "$family" != ethtool ] || options="--user-header linux/ethtool_netlink.h --exclude-op stats-get"
        for part in header:h source:c; do
            # shellcheck disable=SC2086
            python3 "$generator" --mode user "--${part%:*}" --spec "$specs/$family.yaml" $options \
                -o "$out/ynl/$family-user.${part#*:}"
        done
    done
    # shellcheck disable=SC2086
    (cd "$out/ynl" && gcc -O2 -w $include -c "$ynl/lib/ynl.c" ./*-user.c)
    # shellcheck disable=SC2086
    gcc -O2 -w $include "$program" "$out/ynl"/*.o -o "$out/ncdevmem"
} >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }

# In Linux 6.12 it runs "sudo ethtool -G DEVICE tcp-data-split on", which ethtool of Debian 12 does not support. The
# replacement sends the request with the kernel's YNL.
mkdir -p "$out/ncdevmem-path"
printf '#!/bin/sh\nexec "$@"\n' >"$out/ncdevmem-path/sudo"
cat >"$out/ncdevmem-path/ethtool" <<EOF
#!/bin/sh
[ "\$1 \$3" = "-G tcp-data-split" ] || exec /usr/sbin/ethtool "\$@"
case \$4 in on) split=2 ;; *) split=1 ;; esac
exec python3 "$(find "$ynl" -name cli.py)" --spec "$specs/ethtool.yaml" --no-schema --do rings-set \\
    --json "{\"header\": {\"dev-name\": \"\$2\"}, \"tcp-data-split\": \$split}"
EOF
chmod +x "$out/ncdevmem-path/"*
