"""Calls whose end nobody has heard of yet, on the board: what is paid for is looked for after its job is over, too."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from consumers.aws.sagemaker_notices import CallName
from consumers.aws.sagemaker_reference import Reference
from policies.quota import tenant_slot
from policies.scripts import Script, Scripts, Value

LEFT_S = 60.0  # to whoever looks for it; then it is another's


@dataclass(frozen=True, slots=True)
class Unheard:
    """A call at the endpoint of a deployment, as it was known when it was noted last."""

    name: CallName
    deployment: str
    reference: Reference


class UnheardCalls:
    """Every method raises `BoardUnavailableError`, and may run twice with the same effect."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._note, self._due, self._heard = _script("note"), _script("due"), _script("heard")

    async def note(self, tenant: str, deployment: str, reference: Reference, *, look_in_s: float) -> None:
        """Look for its result in so many seconds, unless it is `heard` of before."""
        known = json.dumps([deployment, str(reference)], separators=(",", ":"))
        await self._run(self._note, tenant, reference.call, int(look_in_s * 1000), known)

    async def due(self, tenant: str, most: int) -> Sequence[Unheard]:
        """Those that are to be looked for now. They are left to whoever asks for a minute."""
        answer = cast("list[bytes]", await self._run(self._due, tenant, int(LEFT_S * 1000), most))
        found = []
        for call, known in zip(answer[::2], answer[1::2], strict=True):
            name = CallName.parse(call.decode())
            deployment, reference = json.loads(known)
            assert name is not None
            found.append(Unheard(name, deployment, Reference.parse(reference)))
        return found

    async def heard(self, tenant: str, call: str) -> None:
        """How it ended is known and written down, or it cannot end any more."""
        await self._run(self._heard, tenant, call)

    async def _run(self, script: Script, tenant: str, *args: Value) -> object:
        key = f"{tenant_slot(tenant)}:unheard"
        return await self._scripts.run(script, [key, f"{key}:known"], args)


def _script(name: str) -> Script:
    return Script.load("consumers.aws", "unheard_functions", f"unheard_{name}")
