"""What an operator can set about the replicas of a deployment."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.settings_section import Section
from gateway.settings_values import Dollars, Listed, Number, ServerUrl, Whole
from policies.fleets import MOST_REPLICAS, Engine, Fleet, Folder, Named, Served, Source, Waker
from policies.fleets import Listed as Urls


class WakeSettings(Section):
    """What to call when jobs wait and no replica runs: `url`, or the scale of a Kubernetes deployment at that API."""

    url: ServerUrl = Field(max_length=2000)
    again_s: Number = Field(default=300.0, ge=10, le=86_400)
    namespace: str = Field(default="", max_length=63)
    deployment: str = Field(default="", max_length=253)
    replicas: Whole = Field(default=1, ge=1, le=1000)

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if bool(self.namespace) != bool(self.deployment):
            raise ValueError("namespace and deployment go together: they name what is scaled")
        return self

    def waker(self) -> Waker:
        """The domain's value."""
        scale = (self.namespace, self.deployment, self.replicas) if self.deployment else None
        return Waker(self.url, self.again_s, scale)


class ReplicaSettings(Section):
    """Where the replicas are, one way of four, and how they are used."""

    urls: Annotated[tuple[ServerUrl, ...], Listed] | None = Field(default=None, max_length=MOST_REPLICAS)
    dns: ServerUrl = Field(default="", max_length=2000)
    srv: ServerUrl = Field(default="", max_length=2000)
    folder: Path | None = None
    resolver: str = Field(default="", max_length=100, pattern=r"^(\d{1,3}(\.\d{1,3}){3}:\d{1,5})?$")
    engine: Engine | None = None
    cap: Whole = Field(default=32, ge=1, le=100_000)
    queue: Whole = Field(default=0, ge=0, le=1000)
    affinity: bool = True
    probe_s: Number = Field(default=1.0, ge=0.1, le=60)
    slow_start_s: Number = Field(default=30.0, ge=0, le=3600)
    usd_per_hour: Dollars | None = None
    wake: WakeSettings | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(map(bool, (self.urls, self.dns, self.srv, self.folder))) != 1:
            raise ValueError("must name its servers in one of these ways: urls, dns, srv or folder")
        if self.urls and len(set(self.urls)) != len(self.urls):
            raise ValueError("urls names a server twice")
        return self

    def fleet(self) -> Fleet:
        """The domain's value."""
        host, _, port = self.resolver.rpartition(":")
        return Fleet(
            source=self._source(),
            engine=self.engine,
            cap=self.cap,
            queue=self.queue,
            affinity=self.affinity,
            probe_s=self.probe_s,
            slow_start_s=self.slow_start_s,
            resolver=(host, int(port)) if host else None,
            usd_per_hour=self.usd_per_hour,
            waker=None if self.wake is None else self.wake.waker(),
        )

    def _source(self) -> Source:
        if self.urls:
            return Urls(self.urls)
        if self.folder is not None:
            return Folder(str(self.folder))
        return Named(self.dns) if self.dns else Served(self.srv)
