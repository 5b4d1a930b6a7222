"""python-zeroconf: prints a line for each server that is announced or withdrawn. Usage: with_zeroconf.py SECONDS"""

import sys
import time

from zeroconf import IPVersion, ServiceBrowser, Zeroconf

KIND = "_iio._tcp.local."


def heard(zeroconf, service_type, name, state_change):
    line = [state_change.name, name.removesuffix("." + KIND)]
    if state_change.name == "Added":
        info = zeroconf.get_service_info(service_type, name, 10_000)
        line += [str(info.port), info.server, *sorted(info.parsed_addresses(IPVersion.V4Only))]
    print("\t".join(line), flush=True)


zeroconf = Zeroconf(ip_version=IPVersion.All)
browser = ServiceBrowser(zeroconf, KIND, handlers=[heard])
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
