"""What every request for a job says, whatever its endpoint: read once, and handed to the desk."""

import re
from collections.abc import Mapping
from dataclasses import field
from decimal import Decimal

from gateway.body import InvalidRequestError
from gateway.fields import MAX_NAME, Values, a_choice, a_text, an_object, flag, invalid, number, required, wrong_type
from policies.values import dataclass
from router.job import JobClass

MAX_SECONDS = 30 * 86_400
MAX_USD = 1_000_000
MAX_URL = 2000  # characters of a webhook's
WISHES = ("deadline_s", "result_ttl_s", "max_usd", "webhook_url")
LONGEST_KEY = 255  # characters of an idempotency key
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512

DOLLARS = "[0-9]{1,7}(\\.[0-9]{1,12})?"  # as text
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

CLASSES: Mapping[str, JobClass] = {
    "priority": JobClass.INTERACTIVE,
    "default": JobClass.STANDARD,
    "auto": JobClass.STANDARD,
    "flex": JobClass.BULK,
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What stands under `pointsman`: limits of this one job, in seconds and dollars."""

    deadline_s: float | None = None
    result_ttl_s: float | None = None
    max_usd: Decimal | None = None
    webhook_url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request, without its content. `store`: the job goes on when its waiting caller leaves.

    `job_class` is None where it was not said: who waits is then served before who does not.

    `include_usage`: the caller's stream is to end with what it used. `background`: the caller does not wait, and gets
    the endpoint's own object instead of the job.
    """

    model: str
    job_class: JobClass | None = None
    stream: bool = False
    include_usage: bool = False
    is_async: bool = False
    background: bool = False
    store: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)

    @classmethod
    def read(
        cls, values: Values, *, prefers_async: bool = False, stream: bool = False, include_usage: bool = False
    ) -> "Asked":
        """From a request's body. Raises `InvalidRequestError`, which names the parameter.

        `prefers_async`: the header asked for it. `stream` is for endpoints that have streams.
        """
        is_async = flag(values, "async") or prefers_async
        if stream and is_async:
            raise invalid("stream", "an async job cannot be streamed; read it at /v1/jobs/{id} when it is done")
        return cls(
            model=a_text(required(values, "model"), "model", most=MAX_NAME),
            job_class=_job_class(values),
            stream=stream,
            include_usage=include_usage,
            is_async=is_async,
            store=flag(values, "store"),
            metadata=metadata_of(values),
            wishes=_wishes(values),
        )

    @property
    def waits(self) -> bool:
        """Whether the caller waits in the open, so that a limit is told now."""
        return not (self.is_async or self.background)


def idempotency_key(text: str | None) -> str | None:
    """The header of that name, checked. Raises `InvalidRequestError`."""
    if text is not None and not (0 < len(text) <= LONGEST_KEY and text.isascii() and text.isprintable()):
        raise InvalidRequestError(
            f"Invalid 'Idempotency-Key': expected 1 to {LONGEST_KEY} visible ASCII characters.",
            "Idempotency-Key",
            "invalid_value",
        )
    return text


def trace(text: str) -> str | None:
    """The caller's trace, when it is one (W3C Trace Context)."""
    return text if _TRACEPARENT.fullmatch(text) else None


def _job_class(values: Values) -> JobClass | None:
    tier = values.get("service_tier")
    return None if tier is None else CLASSES[a_choice(tier, "service_tier", CLASSES)]


def metadata_of(values: Values) -> dict[str, str]:
    """The pairs of a request, as OpenAI bounds them. Raises `InvalidRequestError`."""
    if (given := values.get("metadata")) is None:
        return {}
    pairs = an_object(given, "metadata")
    if len(pairs) > METADATA_PAIRS:
        raise invalid("metadata", f"at most {METADATA_PAIRS} pairs, but got {len(pairs)}")
    metadata = {}
    for key, value in pairs.items():
        if len(key) > METADATA_KEY:
            raise invalid("metadata", f"a key has at most {METADATA_KEY} characters")
        if type(value) is not str:
            raise wrong_type("metadata", "an object of strings", value)
        if len(value) > METADATA_VALUE:
            raise invalid("metadata", f"a value has at most {METADATA_VALUE} characters")
        metadata[key] = value
    return metadata


def _wishes(values: Values) -> Wishes:
    if (given := values.get("pointsman")) is None:
        return Wishes()
    wishes = an_object(given, "pointsman")
    for key in wishes:
        if key not in WISHES:
            shown = "".join(c if c.isalnum() or c in "_-." else "?" for c in key[:MAX_NAME])
            raise InvalidRequestError(
                f"Unknown parameter: 'pointsman.{shown}'. Known: {', '.join(WISHES)}.",
                f"pointsman.{shown}",
                "unknown_parameter",
            )
    return Wishes(
        deadline_s=number(wishes, "deadline_s", 1, MAX_SECONDS, "pointsman"),
        result_ttl_s=number(wishes, "result_ttl_s", 1, MAX_SECONDS, "pointsman"),
        max_usd=_dollars(wishes.get("max_usd")),
        webhook_url=_webhook_url(wishes.get("webhook_url")),
    )


def _webhook_url(value: object) -> str:
    path = "pointsman.webhook_url"
    if value is None:
        return ""
    url = a_text(value, path, most=MAX_URL)
    if (
        not (url.isascii() and url.isprintable())
        or set(url) & set(" \\#")
        or "@" in url.partition("//")[2].partition("/")[0]
    ):
        raise invalid(path, "expected an https URL, without user, password and fragment")
    return url


def _dollars(value: object) -> Decimal | None:
    path = "pointsman.max_usd"
    if value is None:
        return None
    if type(value) not in (int, float, str):
        raise wrong_type(path, "a decimal string or a number", value)
    if type(value) is str and not re.fullmatch(DOLLARS, value):
        raise invalid(path, 'expected dollars as a decimal string, such as "0.05"')
    usd = Decimal(str(value))
    if not (usd.is_finite() and 0 < usd <= MAX_USD and usd == round(usd, 12)):
        raise invalid(path, f"expected more than 0 and at most {MAX_USD} dollars, with at most 12 decimals")
    return usd
