"""Reads POINTSMAN_* variables, and finds the nearest known name for one that is not known."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.settings_file import Fault, KeyPath, clip, dotted

PREFIX = "POINTSMAN_"
NOT_SETTINGS = re.compile(r"POINTSMAN_(CONFIG|API_KEY|UPSTREAM_KEY|TEST_.*)", re.DOTALL)
# What Kubernetes tells every pod about a Service whose name begins with "pointsman".
SERVICE_HOST = re.compile(r"POINTSMAN(_[A-Z0-9]+)*_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)")
SERVICE_LINK = re.compile(r"POINTSMAN(_[A-Z0-9]+)*_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
LINK_PART = re.compile(r"_PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)$")
MOST_NAMES = 1000  # looked through for a near one

Model = type[BaseModel]


@dataclass(frozen=True, slots=True)
class Entries:
    """A section whose keys are the operator's own names; each value is a section, or plain when `of` is None."""

    of: Model | None


Node = Model | Entries | FieldInfo


@dataclass(frozen=True, slots=True)
class Variables:
    """Values by path, the variable that each came from, and what is wrong with the others."""

    values: Mapping[KeyPath, str] = field(default_factory=dict)
    names: Mapping[KeyPath, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def read(environ: Mapping[str, str], model: Model, written: Mapping[str, object]) -> Variables:
    """The settings among the variables. An empty variable counts as not set.

    Parts are separated by two underscores. They change what the model and the file, whose values
    are `written`, name; they add no tenant or deployment, as a misspelt name would then go unseen.
    """
    values: dict[KeyPath, str] = {}
    names: dict[KeyPath, str] = {}
    faults = []
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or not value or _is_foreign(name, value):
            continue
        match _find(name.removeprefix(PREFIX).split("__"), model, written):
            case Fault() as fault:
                faults.append(Fault(clip(name), fault.key, fault.problem))
            case path if path in values:
                faults.append(Fault(clip(name), "", f"means the same as {clip(names[path])}; keep one"))
            case path:
                values[path] = value
                names[path] = name
    return Variables(values, names, tuple(faults))


def known_at(model: Model, path: KeyPath) -> tuple[str, ...]:
    """The names that the section at `path` knows; none where they are the operator's own."""
    node = _node_at(model, path)
    return tuple(node.model_fields) if isinstance(node, type) else ()


def field_at(model: Model, path: KeyPath) -> FieldInfo | None:
    """The field at `path`, when it is one."""
    section = _node_at(model, path[:-1])
    return section.model_fields.get(str(path[-1])) if isinstance(section, type) and path else None


def suggestion(name: str, known: tuple[str, ...], model: Model) -> str:
    """What an unknown name may have meant: a near name of its section, or the same name elsewhere."""
    near = get_close_matches(name.lower(), known[:MOST_NAMES], n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = [path for path in _plain_paths(model) if path[-1] == name.lower()]
    if elsewhere:
        return f"did you mean {dotted(elsewhere[0])}?"
    return f"known here: {', '.join(known[:30])}" if known else "nothing is known here"


def _find(parts: list[str], model: Model, written: Mapping[str, object]) -> KeyPath | Fault:
    """The path that the parts of a variable's name stand for."""
    node: Node = model
    path: KeyPath = ()
    for part in parts:
        match node:
            case Entries(of):
                here = _written_at(written, path)
                same = [name for name in here if _as_variable(name) == part]
                if len(same) != 1:
                    return Fault("", "", _unknown_entry(part, path, here, same))
                path = (*path, same[0])
                node = of if of is not None else FieldInfo(annotation=str)
            case FieldInfo():
                return Fault("", "", f"{dotted(path)} has nothing below it")
            case section:
                key = part.lower()
                if key not in section.model_fields:
                    return Fault("", "", f"unknown variable; {_near_variable(parts, model, path, section)}")
                path = (*path, key)
                node = node_of(section.model_fields[key])
    if isinstance(node, FieldInfo):
        return path
    example = next(iter(known_at(model, path)), "NAME")
    return Fault("", "", f"{dotted(path)} is a section; name one of its settings, as in {_variable((*path, example))}")


def _unknown_entry(part: str, path: KeyPath, here: list[str], same: list[str]) -> str:
    if len(same) > 1:
        return f"{dotted(path)} has several names that this could mean: {', '.join(map(clip, same))}"
    near = get_close_matches(part, [_as_variable(name) for name in here[:MOST_NAMES]], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "a variable only changes what the file names"
    return f"{dotted(path)} has no {clip(part)}; {hint}"


def _near_variable(parts: list[str], model: Model, path: KeyPath, section: Model) -> str:
    here = [_variable((*path, name)) for name in section.model_fields]
    names = {name.removeprefix(PREFIX): name for name in [*here, *map(_variable, _plain_paths(model))]}
    near = get_close_matches("__".join(parts), list(names), n=1, cutoff=0.6)
    elsewhere = [_variable(other) for other in _plain_paths(model) if _as_variable(str(other[-1])) == parts[-1]]
    likely = [*(names[name] for name in near), *elsewhere]
    return f"did you mean {likely[0]}?" if likely else f"known here: {', '.join(here)}"


def _node_at(model: Model, path: KeyPath) -> Node | None:
    node: Node | None = model
    for part in path:
        match node:
            case Entries(of):
                node = of
            case type() as section:
                known = section.model_fields.get(str(part))
                node = None if known is None else node_of(known)
            case _:
                return None
    return node


def node_of(known: FieldInfo) -> Node:
    """What a field holds: a section, entries under the operator's own names, or itself, a value."""
    annotation = _plain(known.annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not Mapping:
        return known
    value = _plain(get_args(annotation)[1])
    return Entries(value if isinstance(value, type) and issubclass(value, BaseModel) else None)


def _plain(annotation: object) -> object:
    """Without `Annotated` and `| None`."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def _plain_paths(model: Model, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The settings that lie in no section of the operator's own names."""
    for name, known in model.model_fields.items():
        node = node_of(known)
        if isinstance(node, FieldInfo):
            yield (*path, name)
        elif isinstance(node, type):
            yield from _plain_paths(node, (*path, name))


def _written_at(written: Mapping[str, object], path: KeyPath) -> list[str]:
    here: object = written
    for part in path:
        here = here.get(str(part)) if isinstance(here, Mapping) else None
    return list(here) if isinstance(here, Mapping) else []


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(_as_variable(str(part)) for part in path)


def _as_variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", name.upper())


def _is_foreign(name: str, value: str) -> bool:
    """Whether this is not meant as a setting at all."""
    if NOT_SETTINGS.fullmatch(name) or SERVICE_HOST.fullmatch(name):
        return True
    points_somewhere = value.startswith(("tcp://", "udp://", "sctp://")) or LINK_PART.search(name) is not None
    return points_somewhere and SERVICE_LINK.fullmatch(name) is not None
