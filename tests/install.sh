#!/bin/sh
# Installs the command and all files that belong to it into a temporary folder, checks each part, adds
# the developers' command, and uninstalls. No file may be left.
set -eu
cd "$(dirname "$0")/.."
busbar=${BUSBAR:-target/release/busbar}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 143' TERM
to=$root/opt/busbar
# Tells whether the list of libraries was made anew.
mkdir "$root/bin"
printf '#!/bin/sh\necho list >>"%s/ldconfig"\n' "$root" >"$root/bin/ldconfig"
chmod +x "$root/bin/ldconfig"
run() {
    PATH="$root/bin:$PATH" make --silent "$1" BUSBAR="$busbar" DESTDIR="${2-$root}" PREFIX="${3-/opt/busbar}" \
        >"$root/log" 2>&1 || { cat "$root/log"; exit 1; }
    rm "$root/log"
}
# Without DESTDIR, the list has the library, and no longer has it when it is gone.
run install "" "$to"
[ "$(cat "$root/ldconfig")" = list ]
run uninstall "" "$to"
[ "$(wc -l <"$root/ldconfig")" = 2 ]
# A package makes the list where it is installed.
run install
[ "$(wc -l <"$root/ldconfig")" = 2 ]
rm -r "$root/ldconfig" "$root/bin"

"$to/bin/busbar" --version | grep -q '^busbar [0-9]'
"$to/bin/busbar" doctor >/dev/null
for page in busbar.1 busbar-doctor.1 busbar-endpoint-ping.1 busbar-stream-picture.1; do
    mandoc "$to/share/man/man1/$page" | grep -q 'Example'
done
mandoc -T lint -W error "$to"/share/man/man1/*.1
mandoc -T lint -W style "$to"/share/man/man2/*.2
# Each verb of the help has a manual page.
for verb in $("$to/bin/busbar" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    [ "$verb" = help ] || [ -f "$to/share/man/man1/busbar-$verb.1" ] || { echo "$verb: no manual page"; exit 1; }
done
bash -n "$to/share/bash-completion/completions/busbar"
zsh -n "$to/share/zsh/site-functions/_busbar"
fish -n "$to/share/fish/vendor_completions.d/busbar.fish"
for header in "$to"/include/busbar/linux/*.h; do
    echo "#include <linux/$(basename "$header")>"
done | gcc -std=gnu11 -Wall -Wextra -Werror -I"$to/include/busbar" -fsyntax-only -x c -
gcc -O2 -Wall -Wextra -Werror -I"$to/include" -o "$root/server" demo/wait/server_epoll.c
rm "$root/server"

# A C program is built with the installed library, shared and static, and runs.
export PKG_CONFIG_PATH="$to/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
[ "$(pkg-config --modversion busbar)" = "$("$to/bin/busbar" --version | cut -d' ' -f2)" ]
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -o "$root/stream" examples/c/stream.c $(pkg-config --cflags --libs busbar) -lm
# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -o "$root/stream.static" examples/c/stream.c $(pkg-config --cflags busbar) \
    "$to/lib/libbusbar.a" $(pkg-config --static --libs-only-l busbar | sed 's/-lbusbar//') -lm
for stream in stream stream.static; do
    { sleep 1; echo; } | LD_LIBRARY_PATH="$to/lib" "$root/$stream" 'synth:sine?rate=1M' voltage0_i |
        grep -q 'block 1: 32768 samples, rms '
    rm "$root/$stream"
done

# SoapySDR finds the module, and that the installed library.
run install-soapy
LD_LIBRARY_PATH="$to/lib" SOAPY_SDR_PLUGIN_PATH="$to/lib/SoapySDR/modules0.8" \
    SoapySDRUtil --probe=driver=busbar,uri=synth:sine | grep -q 'Native format: CS16'

# The developers' verbs are not installed, and the command prints what to install.
[ ! -e "$to/bin/busbar-dev" ]
for verb in lab bench report; do
    "$to/bin/busbar" --help | grep -q "^  $verb "
    # shellcheck disable=SC2123
    said=$(PATH=/usr/bin:/bin "$to/bin/busbar" $verb --help 2>&1) && { echo "$verb: is installed"; exit 1; }
    echo "$said" | grep -q 'cannot find busbar-dev.*make build install-dev'
done
echo "install: $(find "$root" -type f | wc -l) files"
run install-dev
for verb in lab bench report; do
    "$to/bin/busbar" $verb --help | grep -q "^Usage: busbar $verb"
    "$to/bin/busbar" help $verb | grep -q "^Usage: busbar $verb"
done
code=0
"$to/bin/busbar" lab run --timeout soon -- true 2>/dev/null || code=$?
[ $code = 2 ]
run uninstall
left=$(find "$root" ! -type d)
[ -z "$left" ] || { echo "left: $left"; exit 1; }
echo "install: no files after uninstall"
