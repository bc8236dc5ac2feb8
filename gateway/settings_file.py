"""Reads a settings file: plain values, and the line that each of them stands on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

LARGEST_FILE = 2_000_000  # characters
DEEPEST = 20
LONGEST_KEY = 200

KeyPath = tuple[str | int, ...]
"""Keys and positions from the top, such as ("tenants", "acme", "limits")."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,24})", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][-+]?[0-9]{1,3})?|[-+]?\.inf|\.nan", re.ASCII)
_TAGS = {"null", "bool", "int", "float", "str", "timestamp", "map", "seq", "merge", "value"}
_BOOL = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with the settings: where (a file and line, or a variable), which key, and what is expected.

    Never holds a value: it might be a secret.
    """

    where: str
    key: str
    problem: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.problem) if part)


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says. `lines` counts from 1 and has every key and every item of a list."""

    name: str
    values: dict[str, object] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def parse(text: str, *, name: str) -> Document:
    """The document in `text`, with whatever is wrong with it as YAML among its `faults`. Never raises.

    This is YAML without tags, anchors and aliases. Keys are text, whatever they look like.
    """
    if len(text) > LARGEST_FILE:
        return Document(name, faults=(Fault(name, "", f"is larger than {LARGEST_FILE} characters"),))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        return Document(name, faults=(_syntax(error, name),))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        return Document(name, faults=(Fault(f"{name}:{line}", "", "has a character that YAML does not allow"),))
    except RecursionError:
        return Document(name, faults=(Fault(name, "", f"is nested deeper than {DEEPEST} levels"),))
    if root is None or _is_null(root):
        return Document(name)
    if not isinstance(root, yaml.MappingNode):
        return Document(name, faults=(Fault(f"{name}:{_line(root)}", "", "must hold `name: value` pairs"),))
    reading = _Reading(name)
    values = reading.mapping(root, ())
    return Document(name, values, reading.lines, tuple(reading.faults))


def dotted(path: KeyPath) -> str:
    """The path as people write it: `tenants.acme.aliases`, `deployments.light.modalities[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{clip(part)}"
    return text.removeprefix(".")


def clip(name: str) -> str:
    """A name from outside, fit for one line of a message."""
    shown = name if len(name) <= LONGEST_KEY else f"{name[:LONGEST_KEY]}..."
    return shown if shown.isprintable() else ascii(shown)


class _Reading:
    """One walk over the nodes, gathering lines and faults."""

    def __init__(self, name: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[Fault] = []
        self._name = name
        self._seen: set[int] = set()

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or len(key.value) > LONGEST_KEY:
                self._fault(key, path, f"has a key that is no name of at most {LONGEST_KEY} characters")
                continue
            here = (*path, str(key.value))
            if key.value in values:
                self._fault(key, here, f"is there twice, first in line {self.lines[here]}; keep one")
                continue
            self.lines[here] = _line(key)
            values[key.value] = self._value(value, here)
        return values

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        if id(node) in self._seen:
            self._fault(node, path, "is an alias (*name); write it out, or put a text that starts with * in quotes")
            return None
        self._seen.add(id(node))
        if len(path) > DEEPEST:
            self._fault(node, path[:3], f"is nested deeper than {DEEPEST} levels")
            return None
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            self._fault(node, path, "has a tag (!name); put a text that starts with ! in quotes")
            return None
        match node:
            case yaml.MappingNode():
                return self.mapping(node, path)
            case yaml.SequenceNode():
                return self._items(node, path)
            case _:
                return _scalar(node)

    def _items(self, node: yaml.SequenceNode, path: KeyPath) -> list[object]:
        items = []
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = _line(item)
            items.append(self._value(item, (*path, index)))
        return items

    def _fault(self, node: yaml.Node, path: KeyPath, problem: str) -> None:
        self.faults.append(Fault(f"{self._name}:{_line(node)}", dotted(path), problem))


def _scalar(node: yaml.Node) -> object:
    """Text unless it plainly is something else: no dates, no octals, no `1:30` that means 90."""
    text = str(node.value)
    match node.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool" if text.lower() in _BOOL:
            return _BOOL[text.lower()]
        case "int" if _INT.fullmatch(text):
            return int(text)
        case "float" if _FLOAT.fullmatch(text.lower()):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        case _:
            return text


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _syntax(error: yaml.MarkedYAMLError, name: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    # Longer quoted parts are the file's own words, which may be a secret.
    problem = re.sub(r"'(?!<)[^']{2,}'|\"[^\"]{2,}\"", "...", error.problem or "cannot be read")
    return Fault(f"{name}:{line}", "", f"is not YAML: {clip(problem)}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
