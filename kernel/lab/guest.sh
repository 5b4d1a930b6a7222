#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The guest's side of `busbar lab run`: runs one command with the host's
# standard streams.
#
# The host writes these files next to this one:
#   setup.sh     folders to share, stdin, terminal, loglevel
#   command.sh   environment, folder and command
#   firmware/    files for request_firmware(), copied to /lib/firmware
#
# A virtio port can be opened only once at a time. So the command gets pipes,
# and pumps copy between pipes and ports. The bytes copied are counted, because
# the host waits for the last byte.
#
# Lines to the host, on the control port:
#   up            the command starts now
#   fail TEXT     the command cannot be started
#   exit CODE     the command has ended
#   taint MASK    the kernel's taint flags
#   leak TEXT     a line of kmemleak's report
#   done OUT ERR  the last line; number of bytes written to stdout and stderr

here=/run/busbar

# port NAME: prints the device of a port. udev's links may not exist yet.
port() {
	for folder in /sys/class/virtio-ports/*; do
		read -r name <"$folder/name"
		[ "$name" != "busbar.$1" ] || echo "/dev/${folder##*/}"
	done
}

exec 3>"$(port control)"

fail() {
	echo "fail $*" >&3
	sleep 60
	exit 1
}

# share TAG FOLDER: mounts a folder of the host for reading and writing. With
# cache=mmap reads and writes go to the host at once, and shared mappings work.
share() {
	mkdir -p -- "$2" &&
		mount -t 9p -o trans=virtio,version=9p2000.L,access=any,msize=512000,cache=mmap \
			"$1" "$2" || fail "cannot share $2"
}

. "$here/setup.sh"
# Replaces virtme-ng's links, which refer to its own ports.
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
mkdir /run/busbar.pipes && cd /run/busbar.pipes && mkfifo in out err || fail "cannot make pipes"
echo "$loglevel" >/proc/sys/kernel/printk

# Copies firmware to the usual folder, so that a test can replace a file there. If that folder is not
# writable, the kernel also searches ours.
if ! refusal=$({ mkdir -p /lib/firmware && cp "$here"/firmware/* /lib/firmware; } 2>&1); then
	echo "lab: the firmware stays in $here/firmware: $refusal" >/dev/kmsg
	printf %s "$here/firmware" >/sys/module/firmware_class/parameters/path
fi

# As systemd does it; in Debian's kernel it is a module.
config=/sys/kernel/config
[ -d $config ] || modprobe -q configfs
if [ -d $config ] && ! mountpoint -q $config; then mount -t configfs configfs $config; fi

# By default the kernel reports only the first DMA mapping error, so a known one would hide others.
dma=/sys/kernel/debug/dma-api/num_errors
[ ! -e "$dma" ] || echo 1000000 >"$dma"

pump() {
	LC_ALL=C exec dd bs=64k 2>"$1.count"
}

carried() {
	[ -e "$1.count" ] || echo 0
	sed -n 's/^\([0-9]*\) bytes.*/\1/p' "$1.count" 2>/dev/null
}

if [ -n "$terminal" ]; then
	# shellcheck disable=SC2086  # rows R cols C
	stty $terminal </dev/hvc0
	echo up >&3
	setsid --ctty env -i /bin/sh "$here/command.sh" <>/dev/hvc0 >&0 2>&1 3>&-
	code=$?
	pumps=
else
	pump out <out >"$(port stdout)" 3>&- &
	pumps=$!
	pump err <err >"$(port stderr)" 3>&- &
	pumps="$pumps $!"
	# /dev/null is not pumped: a command may ask what its stdin is.
	[ "$stdin" = /dev/null ] || cat <"$(port stdin)" >in 3>&- &
	echo up >&3
	setsid env -i /bin/sh "$here/command.sh" <"$stdin" >out 2>err 3>&-
	code=$?
fi
echo "exit $code" >&3

# Processes that the command has left would keep the pipes open.
for process in /proc/[0-9]*; do
	process=${process#/proc/}
	case " 1 $$ $pumps " in
	*" $process "*) ;;
	*) kill -KILL "$process" ;;
	esac
done 2>/dev/null
# shellcheck disable=SC2086  # one or more processes
[ -z "$pumps" ] || wait $pumps

# kmemleak reports an object that was unreferenced in two scans and is older than 5 s.
leaks=/sys/kernel/debug/kmemleak
if [ -e "$leaks" ]; then
	if echo scan >"$leaks" && sleep 6 && echo scan >"$leaks"; then
		sed 's/^/leak /' "$leaks" >&3
	else
		echo "leak kmemleak has switched itself off: it found nothing because it looked for nothing" >&3
	fi
fi
echo "taint $(cat /proc/sys/kernel/tainted)" >&3
sync
echo "done $(carried out) $(carried err)" >&3
# The host terminates the virtual machine.
sleep 600
