"""The kinds of values that settings have: what is taken, and what is said about everything else.

A ValueError's text says what is expected and never repeats what is there, which might be a secret.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr, ValidationInfo
from pydantic_core import PydanticCustomError

from policies import webhooks
from policies.pricebook import dollars, dollars_each

MOST_DOLLARS = 9_000_000  # above it a budget in nano-dollars is no longer exact in a Redis script
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}", re.ASCII)
_KEY = re.compile(r"[\x20-\x7e]{1,100}", re.ASCII)
_ALIAS = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
_SERVER = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", re.ASCII)
_ENDPOINT = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_BUCKET = re.compile(r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._/-]*)?", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12}) ?([kmg]?i?b)?", re.ASCII | re.IGNORECASE)


def _no_bool(value: object) -> object:
    # pydantic takes `true` for 1, and YAML takes `on` for `true`.
    if isinstance(value, bool):
        raise PydanticCustomError("number", "not a number")
    return value


def _size(value: object) -> object:
    if not isinstance(value, str):
        return _no_bool(value)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError('must be a number of bytes, or text such as "32 MiB"')
    return int(match[1]) * UNITS[(match[2] or "").lower()]


def _listed(value: object) -> object:
    """Names in a list, or in one text with commas, as a variable has them."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _filled(value: object, info: ValidationInfo) -> object:
    """With each ${NAME} replaced by that environment variable."""
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda match: _lookup(match[1], info), value)


def _filled_url(value: object, info: ValidationInfo) -> object:
    """The same, for a URL: what stands for a part of it, such as a password, is quoted."""
    if not isinstance(value, str) or _VARIABLE.fullmatch(value):
        return _filled(value, info)
    return _VARIABLE.sub(lambda match: quote(_lookup(match[1], info), safe=""), value)


def _lookup(name: str, info: ValidationInfo) -> str:
    environ: Mapping[str, str] = (info.context or {}).get("environ", {})
    if not environ.get(name):
        raise ValueError(f"names the environment variable {name}, which is not set")
    return environ[name]


def _budget(value: object) -> Decimal | None:
    if value is None:
        return None
    try:
        amount = dollars(value)
    except ValueError as error:
        raise ValueError('must be dollars as text with at most six decimals, in quotes, such as "250.00"') from error
    if amount > MOST_DOLLARS:
        raise ValueError(f"must be at most {MOST_DOLLARS} dollars")
    return amount


def _log_url(value: str) -> str:
    if value in ("streams", "streams:"):
        return "streams:"
    if value.startswith("kafka://") and all(map(_is_server, value.removeprefix("kafka://").split(","))):
        return value
    raise ValueError("must be streams: or kafka://host:port[,host:port]; the rest of Kafka is in the section kafka")


def _is_server(text: str) -> bool:
    match = _SERVER.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 65536


def _redis_url(value: str) -> str:
    if value == "embedded":
        return value
    try:
        parts = urlsplit(value)
        usable = (parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0) or (
            parts.scheme == "unix" and parts.path
        )
    except ValueError:  # its message would repeat the URL, password and all
        usable = False
    if not usable:
        raise ValueError("must be embedded, or redis://, rediss:// or unix:// with a host (or a path)")
    return value


def _object_url(value: str) -> str:
    if value == "file:" or (value.startswith("file:///") and len(value) > len("file:///")) or _BUCKET.fullmatch(value):
        return value
    raise ValueError("must be file: (a folder below data), file:///path, s3://bucket, gs://bucket or az://container")


def _server_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if value and not usable:
        raise ValueError("must be http://host or https://host, with the path up to and with /v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must have no user, password, query or fragment; a key goes into api_key")
    return value.rstrip("/")


def _webhook_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and value.isascii()
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable or "@" in parts.netloc or parts.fragment:
        raise ValueError("must be https://host/path, without user, password and fragment")
    return value


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError("must be the name or address of a host, without port or path")
    return value.lower()


def _origin(value: str) -> str:
    scheme, _, place = value.lower().partition("://")
    host, _, port = place.partition(":")
    is_one = scheme in ("http", "https") and _HOST.fullmatch(host) and place.count(":") <= 1
    if value != "*" and not (is_one and (port.isdecimal() or ":" not in place)):
        raise ValueError("must be the origin of a page, such as https://app.example or http://localhost:3000, or *")
    return value.lower()


def _event_pattern(value: str) -> str:
    if not any(fnmatchcase(known, value) for known in webhooks.EVENTS):
        raise ValueError("must be an event, such as job.failed, or several, such as batch.* or *")
    return value


def _endpoint_name(value: str) -> str:
    if not _ENDPOINT.fullmatch(value):
        raise ValueError("is no name for a webhook: letters, digits, '_' and '-', at most 40")
    return value


def _topic_name(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value.startswith(("jobs.", "ledger.", "keys.")):
        raise ValueError("must be a topic of its own: letters, digits, '.', '_' and '-', not jobs., ledger. or keys.")
    return value


def _durability(value: str) -> str:
    if value in ("fsync", "none") or re.fullmatch(r"replicas:[1-5]", value):
        return value
    raise ValueError("must be fsync, none, or replicas:N with N from 1 to 5")


def _tenant_name(value: str) -> str:
    if not _TENANT.fullmatch(value):
        raise ValueError("is no name for a tenant: lower-case letters, digits, '.', '_' and '-', at most 63")
    return value


def _deployment_name(value: str) -> str:
    if not _DEPLOYMENT.fullmatch(value):
        raise ValueError("is no name for a deployment: letters, digits, '.', '_', ':' and '-', at most 100")
    return _not_auto(value)


def _key_name(value: str) -> str:
    if not _KEY.fullmatch(value):
        raise ValueError("is no name for a key: visible ASCII, at most 100")
    return value


def _alias_name(value: str) -> str:
    if not _ALIAS.fullmatch(value):
        raise ValueError("is no model name: visible ASCII without spaces, at most 200")
    return _not_auto(value)


def _not_auto(value: str) -> str:
    if value == "auto" or value.startswith("auto:"):
        raise ValueError("is taken: auto, auto:light and auto:heavy are the router's")
    return value


def _prefix(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,60}", value, re.ASCII):
        raise ValueError("must be letters, digits, '.', '_' and '-', at most 60")
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Size = Annotated[int, BeforeValidator(_size)]
Dollars = Annotated[Decimal, BeforeValidator(dollars)]
DollarsEach = Annotated[Decimal, BeforeValidator(dollars_each)]
Budget = Annotated[Decimal | None, BeforeValidator(_budget)]
Secret = Annotated[SecretStr, BeforeValidator(_filled)]
Listed = BeforeValidator(_listed)
LogUrl = Annotated[str, AfterValidator(_log_url)]
RedisUrl = Annotated[str, BeforeValidator(_filled_url), AfterValidator(_redis_url)]
ObjectUrl = Annotated[str, AfterValidator(_object_url)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
Durability = Annotated[str, AfterValidator(_durability)]
TenantName = Annotated[str, AfterValidator(_tenant_name)]
DeploymentName = Annotated[str, AfterValidator(_deployment_name)]
KeyName = Annotated[str, AfterValidator(_key_name)]
AliasName = Annotated[str, AfterValidator(_alias_name)]
WebhookUrl = Annotated[str, AfterValidator(_webhook_url)]
HostName = Annotated[str, AfterValidator(_host)]
Origin = Annotated[str, AfterValidator(_origin)]
EventPattern = Annotated[str, AfterValidator(_event_pattern)]
EndpointName = Annotated[str, AfterValidator(_endpoint_name)]
TopicName = Annotated[str, AfterValidator(_topic_name)]
TopicPrefix = Annotated[str, AfterValidator(_prefix)]
