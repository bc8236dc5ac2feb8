"""What SageMaker says of a call that is over, as it lies in the queue: read tolerantly, and no I/O.

The form is from public code that logged real messages; where the service's documents and that code differ, both are
taken. What names no call of ours is told apart from what cannot be read.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import cast

CANARY = "pointsmanCheck"  # names a message with which `pointsman check` tries the way to the queue
LONGEST_REASON = 500  # characters
_ID = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{25})\.(\d{1,4})\.([0-9a-f]{8})")


class Ending(StrEnum):
    """How a call ended there."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"  # it waited longer than its time to live and was never run


@dataclass(frozen=True, slots=True)
class CallName:
    """A call's `InferenceId`: the job, its attempt, and a mark of its tenant, as the id alone does not tell it."""

    job_id: str
    attempt: int
    tenant_mark: str

    @classmethod
    def of(cls, tenant: str, job_id: str, attempt: int) -> "CallName":
        """The name of an attempt."""
        return cls(job_id, attempt, mark(tenant))

    @classmethod
    def parse(cls, text: str) -> "CallName | None":
        """None for one that is not ours."""
        found = _ID.fullmatch(text)
        return cls(found[1], int(found[2]), found[3]) if found else None

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}.{self.tenant_mark}"


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a call of ours. Places are `s3://...`, '' where it names none; `waited_s` is queue and run.

    `ended_at` is on AWS' clock, `answer` is there where the message carries it.
    """

    call: CallName
    endpoint: str
    ending: Ending
    output_at: str
    failure_at: str
    reason: str
    waited_s: float | None
    answer: bytes | None
    ended_at: float | None = None
    is_message: bool = True  # else its result was found by looking


def mark(tenant: str) -> str:
    """What stands for a tenant in a call's name: 8 hexadecimal digits."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:8]


def read(text: str) -> Told | None:
    """None for what is not about a call of ours: a test message, another service's, another's call."""
    message = _object(text)
    if isinstance(message.get("Message"), str) and "TopicArn" in message:  # not delivered raw
        message = _object(cast(str, message["Message"]))
    call = CallName.parse(str(message.get("inferenceId", "")))
    if call is None:
        return None
    asked, places = message.get("requestParameters"), message.get("responseParameters")
    places = places if isinstance(places, dict) else {}
    status = str(message.get("invocationStatus", "")).lower()
    return Told(
        call=call,
        endpoint=_text(asked.get("endpointName")) if isinstance(asked, dict) else "",
        ending=Ending(status) if status in set(Ending) else Ending.FAILED,
        output_at=_text(places.get("outputLocation")),
        failure_at=_text(places.get("failureLocation") or message.get("failureLocation")),
        reason=_text(message.get("failureReason"))[:LONGEST_REASON],
        waited_s=_between(message.get("receivedTime"), message.get("eventTime")),
        answer=_carried(message.get("responseBody")),
        ended_at=_seconds(message.get("eventTime")),
    )


def is_canary(text: str) -> bool:
    """Whether `pointsman check` waits for this message."""
    return f'"{CANARY}"' in text.replace("\\", "")


def _object(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _between(began: object, ended: object) -> float | None:
    try:
        seconds = (_moment(ended) - _moment(began)).total_seconds()
    except (TypeError, ValueError):
        return None
    return max(0.0, seconds)


def _seconds(moment: object) -> float | None:
    try:
        return _moment(moment).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _moment(value: object) -> datetime:
    if not isinstance(value, str):
        raise TypeError("not a moment")
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _carried(body: object) -> bytes | None:
    if not isinstance(body, dict) or not isinstance(body.get("content"), str):
        return None
    if str(body.get("encoding", "")).upper() != "BASE64":
        return cast(str, body["content"]).encode()
    try:
        return base64.b64decode(body["content"], validate=True)
    except (ValueError, binascii.Error):
        return None
