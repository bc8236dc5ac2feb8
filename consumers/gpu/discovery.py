"""Finds the replicas of a deployment: in the settings, in DNS as its records age, or in a folder of files."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import structlog
import yaml
from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.resolver import NXDOMAIN, Answer, NoAnswer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.fleets import MOST_REPLICAS, Fleet, Folder, Listed, Named, Served

log = structlog.get_logger(__name__)

LOOKUP_S = 5.0
LEAST_TTL_S = 1.0  # a record that may not be kept is looked up so often
LONGEST_TTL_S = 300.0
RETRY_S = 2.0  # after a lookup that failed
LARGEST_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Replica:
    """One server. `name` tells it from the others of its deployment; `host` is whom its certificate is for.

    `cap` and `usd_per_hour` are its own, in place of the fleet's. `drains`: it gets no more calls.
    """

    name: str
    url: str
    host: str | None = None
    cap: int | None = None
    usd_per_hour: Decimal | None = None
    drains: bool = False


class Discovery(Protocol):
    """Says which replicas there are."""

    async def find(self, now: float) -> Sequence[Replica]:
        """All of them, the last ones known when it cannot look; `now` is on a steady clock. Never raises."""
        ...


def discovery(fleet: Fleet, *, lookup_s: float = LOOKUP_S) -> Discovery:
    """The way to find this fleet's replicas. A name server has `lookup_s`."""
    match fleet.source:
        case Listed(urls):
            return _Written([Replica(_name(url), url) for url in urls])
        case Named(url):
            return _Looked(url, fleet.resolver, _addresses, lookup_s)
        case Served(url):
            return _Looked(url, fleet.resolver, _services, lookup_s)
        case Folder(path):
            return _Files(Path(path))


@dataclass(frozen=True, slots=True)
class _Written:
    replicas: Sequence[Replica]

    async def find(self, now: float) -> Sequence[Replica]:
        return self.replicas


@dataclass(slots=True)
class _Looked:
    """What DNS says, looked up again when the records are too old.

    A name that has no records any more has no replicas; a server that does not answer changes nothing.
    """

    url: str
    resolver: tuple[str, int] | None
    look: "Callable[[Resolver, str], Any]"
    lookup_s: float
    _known: Sequence[Replica] = ()
    _until: float = 0.0
    _resolver: Resolver | None = None

    async def find(self, now: float) -> Sequence[Replica]:
        if now < self._until:
            return self._known
        try:
            async with asyncio.timeout(self.lookup_s):
                self._known, ttl = await self.look(self._asked(), self.url)
            self._until = now + min(LONGEST_TTL_S, max(LEAST_TTL_S, ttl))
        except (NXDOMAIN, NoAnswer):
            self._known, self._until = (), now + RETRY_S
        except (DNSException, OSError, TimeoutError) as error:
            log.warning("replicas_not_looked_up", host=urlsplit(self.url).hostname, error=type(error).__name__)
            self._until = now + RETRY_S
        return self._known

    def _asked(self) -> Resolver:
        if self._resolver is None:
            self._resolver = Resolver(configure=self.resolver is None)
            if self.resolver is not None:
                self._resolver.nameservers, self._resolver.port = [self.resolver[0]], self.resolver[1]
            self._resolver.lifetime = self.lookup_s
        return self._resolver


async def _addresses(resolver: Resolver, url: str) -> tuple[Sequence[Replica], float]:
    answer: Answer = await resolver.resolve(_host(url), "A", search=True)
    found = sorted(record.address for record in answer)[:MOST_REPLICAS]
    return [_at(url, address, urlsplit(url).port) for address in found], float(answer.rrset.ttl if answer.rrset else 0)


async def _services(resolver: Resolver, url: str) -> tuple[Sequence[Replica], float]:
    answer: Answer = await resolver.resolve(_host(url), "SRV", search=True)
    found = sorted((record.target.to_text(omit_final_dot=True), record.port) for record in answer)[:MOST_REPLICAS]
    return [_at(url, host, port) for host, port in found], float(answer.rrset.ttl if answer.rrset else 0)


@dataclass(slots=True)
class _Files:
    """Each `*.yaml` and `*.json` is a replica. One that cannot be read stays what it was, if it was anything."""

    path: Path
    _known: dict[str, tuple[int, Replica | None]] = field(default_factory=dict)

    async def find(self, now: float) -> Sequence[Replica]:
        try:
            await asyncio.to_thread(self._read)
        except OSError as error:
            log.warning("replicas_not_read", error=type(error).__name__)
        return [replica for _, replica in self._known.values() if replica is not None]

    def _read(self) -> None:
        paths = sorted(path for path in self.path.iterdir() if path.suffix in (".yaml", ".yml", ".json"))
        seen = {path.stem: path for path in paths[:MOST_REPLICAS]}
        known = {}
        for name, path in seen.items():
            changed = path.stat().st_mtime_ns
            before, replica = self._known.get(name, (0, None))
            known[name] = (changed, replica if before == changed else _written_in(path, name) or replica)
        self._known = known


class _File(BaseModel):
    """What a file of the folder says."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(pattern=r"^https?://[^/\s@]+", max_length=2000)
    cap: int | None = Field(default=None, ge=1, le=100_000)
    usd_per_hour: Decimal | None = Field(default=None, ge=0, le=100_000, decimal_places=6)
    drain: bool = False


def _written_in(path: Path, name: str) -> Replica | None:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError("it is too large")
        said = _File.model_validate(yaml.safe_load(text))
    except (ValidationError, yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        log.warning("replica_file_refused", file=path.name, error=_fault(error))
        return None
    return Replica(name, said.url, cap=said.cap, usd_per_hour=said.usd_per_hour, drains=said.drain)


def _fault(error: Exception) -> str:
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)[:300]
    return type(error).__name__


def _name(url: str) -> str:
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path.rstrip("/").removesuffix("/v1")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _at(url: str, host: str, port: int | None) -> Replica:
    parts = urlsplit(url)
    netloc = host if port is None else f"{host}:{port}"
    at = urlunsplit((parts.scheme, netloc, parts.path, parts.query, ""))
    return Replica(_name(at), at, host=parts.hostname if parts.scheme == "https" else None)
