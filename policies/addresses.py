"""Which addresses a request may go to that a client asked for: the public internet, and never our own network."""

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

# What Python takes for global, or what leads elsewhere than it says.
_NOT_FOR_US_4 = tuple(
    map(
        IPv4Network,
        (
            "168.63.129.16/32",  # public by its number, and Azure's own services to every machine in it
            "192.0.0.0/24",  # protocol assignments; a metadata service among them
            "192.88.99.0/24",  # relays into IPv6
            "224.0.0.0/3",  # multicast and reserved
        ),
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")  # all of IPv6 that is routed
_NOT_FOR_US_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # Teredo and other tunnels that carry an IPv4 address
            "2001:db8::/32",
            "2002::/16",  # 6to4: the same
            "3fff::/20",
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_NUMERIC = re.compile(r"(?:\d+|0x[0-9a-f]*)\Z", re.IGNORECASE)


def may_be_asked(url: str, allowed_hosts: Collection[str]) -> bool:
    """Whether a request to this URL is worth trying: https, and to no host that plainly is inside.

    A host of `allowed_hosts` (lower case) may be anywhere and may speak http. Where any other name leads to is
    known only once it is connected to.
    """
    host = host_of(url)
    scheme = url.partition(":")[0].lower()
    if host in allowed_hosts:
        return scheme in ("http", "https")
    return scheme == "https" and bool(host) and not leads_inside(host)


def host_of(url: str) -> str:
    """Its name in lower case, without the port; empty when this is no URL with a host."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def leads_inside(host: str) -> bool:
    """Whether a host's name or address says of itself that it is not on the public internet."""
    last = host.rpartition(".")[2]
    if ":" in host or _NUMERIC.match(last):  # by the URL standard such a host is an address, however it is written
        return not is_public(host)
    return last in ("localhost", "internal", "local")


def is_public(text: str) -> bool:
    """Whether this IP address is one of the public internet's, also when it carries another inside."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        inner = _carried(address)
        if inner is None:
            return address in _GLOBAL_6 and address.is_global and not any(address in net for net in _NOT_FOR_US_6)
        address = inner
    return address.is_global and not any(address in net for net in _NOT_FOR_US_4)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this one reach in the end, where networks make such a way."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
