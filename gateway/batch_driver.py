"""Drives the batches of all tenants. Any number of processes may: each batch is leased to one of them."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from functools import partial
from traceback import extract_tb
from typing import Protocol

import structlog
from ulid import ULID

from gateway.batch_course import Course, Tools
from policies.scripts import BoardUnavailableError
from router.batches import batch_key, created_key
from router.log import LogUnavailableError
from router.payloads import PayloadUnavailableError
from router.wakeups import Wakeups

log = structlog.get_logger(__name__)

LEASE_S = 15.0
LOOK_S = 1.0  # the second way to learn of anything; the first is to be woken
GATHER_S = 0.02  # for more lines to end, where many are open
MANY = 32
AWAY_S = 1.0
PER_TENANT = 8  # batches of a tenant that a process drives at once; the others wait for their turn
STEPS_AT_ONCE = 6  # of all batches: each holds some megabytes

AWAY = (BoardUnavailableError, LogUnavailableError, PayloadUnavailableError)


class Followed(Protocol):
    """What keeps itself up to date."""

    async def follow(self) -> None: ...


class Driver:
    """Takes batches that nobody drives, and drives each in a task of its own until it has ended."""

    def __init__(
        self,
        tools: Tools,
        wakeups: Wakeups,
        created: Wakeups,
        tenants: Collection[str],
        *,
        beside: Sequence[Followed] = (),
        lease_s: float = LEASE_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`created` is on the channel of that name, which all drivers share. `beside` is followed while it runs."""
        self._tools = tools
        self._wakeups = wakeups
        self._created = created
        self._followed: Sequence[Followed] = (wakeups, created, *beside)
        self._tenants = tenants
        self._lease_s = lease_s
        self._look_s = look_s
        self._driven: dict[str, set[str]] = {tenant: set() for tenant in tenants}
        self._stepping = asyncio.Semaphore(STEPS_AT_ONCE)
        self._due = set(tenants)
        self._woken = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Drive until `stop`; what is under way then goes on in another process."""
        async with asyncio.TaskGroup() as tasks:
            followers = [tasks.create_task(each.follow()) for each in self._followed]
            driving: set[asyncio.Task[None]] = set()
            with contextlib.ExitStack() as woken:
                for tenant in self._tenants:
                    woken.enter_context(self._created.on(created_key(tenant), partial(self._call, tenant)))
                while not stop.is_set():
                    for tenant, batch_id, owner in await self._claim():
                        task = tasks.create_task(self._drive(tenant, batch_id, owner))
                        driving.add(task)
                        task.add_done_callback(driving.discard)
                    if not await _is_set(self._woken, stop, 2 * self._look_s):
                        self._due.update(self._tenants)
            for task in (*driving, *followers):
                task.cancel()

    def _call(self, tenant: str) -> None:
        """This tenant has a new batch, or room for another one."""
        self._due.add(tenant)
        self._woken.set()

    async def _claim(self) -> list[tuple[str, str, str]]:
        """Tenant, id and owner of batches that are ours now."""
        owner = f"{self._wakeups.channel}|{ULID()}"
        self._woken.clear()
        asked, self._due = [each for each in self._due if len(self._driven[each]) < PER_TENANT], set()
        rooms = [PER_TENANT - len(self._driven[each]) for each in asked]
        claim = partial(self._tools.batches.claim, owner=owner, lease_s=self._lease_s)
        try:
            found = await asyncio.gather(*(claim(each, most=room) for each, room in zip(asked, rooms, strict=True)))
        except BoardUnavailableError:
            return []
        taken = [(tenant, batch_id) for tenant, ids in zip(asked, found, strict=True) for batch_id in ids]
        for tenant, batch_id in taken:
            self._driven[tenant].add(batch_id)
        return [(tenant, batch_id, owner) for tenant, batch_id in taken]

    async def _drive(self, tenant: str, batch_id: str, owner: str) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(self._keep(tenant, batch_id, owner))
                try:
                    await self._follow(tenant, batch_id, owner)
                except Exception as error:  # a bug, or a segment is gone; another try comes when the lease runs out
                    at = [f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-8:]]
                    log.error("batch_stuck", batch=batch_id, tenant=tenant, error=type(error).__name__, at=at)
                keeping.cancel()
        except asyncio.CancelledError:
            with contextlib.suppress(BoardUnavailableError):
                await self._tools.batches.renew(tenant, batch_id, owner, lease_s=0)
            raise
        finally:
            self._driven[tenant].discard(batch_id)
            self._call(tenant)

    async def _follow(self, tenant: str, batch_id: str, owner: str) -> None:
        course, woken = Course(self._tools, owner), asyncio.Event()
        with self._wakeups.on(batch_key(tenant, batch_id), woken.set):
            while True:
                woken.clear()
                try:
                    batch = await self._tools.batches.look(tenant, batch_id, owner)
                    if batch is None:
                        return  # another has it
                    if batch.state.is_terminal:
                        await course.tidy(batch)
                        return
                    # To read an input holds nothing, and may take long.
                    async with self._stepping if batch.total is not None else contextlib.nullcontext():
                        is_done = await course.step(batch)
                except AWAY as error:
                    log.warning("batch_put_off", batch=batch_id, tenant=tenant, error=type(error).__name__)
                    await asyncio.sleep(AWAY_S)
                    continue
                if not is_done:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._look_s):
                            await woken.wait()
                    if batch.open > MANY:
                        await asyncio.sleep(GATHER_S)

    async def _keep(self, tenant: str, batch_id: str, owner: str) -> None:
        """Renew the lease."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            with contextlib.suppress(BoardUnavailableError):
                if not await self._tools.batches.renew(tenant, batch_id, owner, lease_s=self._lease_s):
                    return


async def _is_set(woken: asyncio.Event, stop: asyncio.Event, seconds: float) -> bool:
    """Wait for either; False when the time was over before."""
    waits = [asyncio.create_task(woken.wait()), asyncio.create_task(stop.wait())]
    done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return bool(done)
