"""Hosts of a simulated internet on this machine, as network namespaces; some are behind a router with NAT."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

# the addresses on the internet, and the address of the only host in each private network
PUBLIC, PRIVATE, GATEWAY = "10.77.0.{}", "192.168.1.2", "192.168.1.1"


class Internet:
    """Namespaces joined by a bridge, which has its own namespace.

    Attributes:
        addresses: Address of each public host, and of the router in front of each private host.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._names: list[str] = []
        self._bridge = self._add("bridge")
        self._ip("-n", self._bridge, "link", "add", "name", "bridge", "type", "bridge")
        self._ip("-n", self._bridge, "link", "set", "bridge", "up")

    def add_public(self, host: str) -> str:
        """Add a host that all other hosts can connect to; return its address."""
        space, number = self._add(host), len(self.addresses) + 10
        self._join(space, self._bridge, f"port{number}", f"{PUBLIC.format(number)}/24")
        self._ip("-n", self._bridge, "link", "set", f"port{number}", "master", "bridge")
        self.addresses[host] = PUBLIC.format(number)
        return self.addresses[host]

    def add_private(self, host: str) -> None:
        """Add a host in a private network, whose router lets connections out under its own address, and none in."""
        self.add_public(f"{host}-router")
        space, router = self._add(host), self.space(f"{host}-router")
        self._join(space, router, "inside", f"{PRIVATE}/24")
        self._ip("-n", router, "addr", "add", f"{GATEWAY}/24", "dev", "inside")
        self._ip("-n", space, "route", "add", "default", "via", GATEWAY)
        self._run(*self.prefix(f"{host}-router"), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for rule in (
            "-t nat -A POSTROUTING -o outside -j MASQUERADE",
            "-A FORWARD -i inside -o outside -j ACCEPT",
            "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-P FORWARD DROP",
        ):
            self._run(*self.prefix(f"{host}-router"), "iptables", *rule.split())

    def space(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"fl{os.getpid()}-{host}"

    def prefix(self, host: str) -> list[str]:
        """Return the words before a command that run it at a host."""
        return ["ip", "netns", "exec", self.space(host)]

    def has_route(self, host: str, address: str) -> bool:
        """Return whether a host has a route to an address."""
        asked = ["ip", "-n", self.space(host), "route", "get", address]
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0

    def remove(self) -> None:
        """Remove all namespaces, including their devices and rules."""
        for name in self._names:
            self._ip("netns", "del", name)

    def _add(self, host: str) -> str:
        name = self.space(host)
        self._ip("netns", "add", name)
        self._names.append(name)
        self._ip("-n", name, "link", "set", "lo", "up")
        return name

    def _join(self, space: str, other: str, device: str, address: str) -> None:
        """Connect a namespace's device ``outside``, with an address, to a device of another namespace."""
        cable = ("link", "add", "name", "outside", "type", "veth", "peer", "name", device, "netns", other)
        self._ip("-n", space, *cable)
        self._ip("-n", space, "addr", "add", address, "dev", "outside")
        self._ip("-n", space, "link", "set", "outside", "up")
        self._ip("-n", other, "link", "set", device, "up")

    def _ip(self, *arguments: str) -> None:
        self._run("ip", *arguments)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def internet() -> Iterator[Internet]:
    """Yield an internet without hosts, and remove it afterwards."""
    made = Internet()
    try:
        yield made
    finally:
        made.remove()


def why_not() -> str:
    """Return the reason why this machine cannot run such hosts; "" if it can."""
    if os.geteuid():
        return "only root makes network namespaces"
    if missing := [name for name in ("ip", "iptables", "sysctl") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    try:
        with internet() as made:
            made.add_private("trial")
    except OSError as error:
        return str(error)
    return ""
