"""The price book: a versioned YAML file of what models cost, read into exact prices."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.resources import files

import yaml

from policies.pricing import Meter, Price

LARGEST_FILE = 1_000_000  # bytes
MOST_ENTRIES = 10_000
LONGEST_TEXT = 200
LONGEST_NUMBER = 9  # digits
DOLLARS = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)
EACH = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?", re.ASCII)
EXPECTED = 'dollars per million as text with at most six decimals, such as "0.15"'
EXPECTED_EACH = 'dollars for one as text with at most twelve decimals, such as "0.04"'
# Vendors price these so; all else by the million.
ONE_BY_ONE = frozenset({Meter.IMAGES, Meter.AUDIO_SECONDS, Meter.VIDEO_SECONDS})


class PriceBookError(ValueError):
    """A price book cannot be used; the message says where and why, and is meant for the operator."""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by name. A name that is not here has no price: that is None, never 0."""

    prices: Mapping[str, Price] = field(default_factory=dict)

    def find(self, name: str) -> Price | None:
        """The price of exactly this name; a similar name is another model."""
        return self.prices.get(name)

    def overlaid(self, other: "PriceBook") -> "PriceBook":
        """This book with the entries of `other`, which win whole."""
        return PriceBook({**self.prices, **other.prices})


def builtin() -> PriceBook:
    """The book that Pointsman ships."""
    text = files("policies").joinpath("prices.yaml").read_text(encoding="utf-8")
    return parse(text, name="prices.yaml")


def parse(text: str, *, name: str) -> PriceBook:
    """The book in `text`; `name` is the file, for the message of a `PriceBookError`."""
    if len(text) > LARGEST_FILE:
        raise PriceBookError(f"{name}: larger than {LARGEST_FILE} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PriceBookError(f"{name}:{line}: not YAML") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PriceBookError(f"{name}: not YAML") from error
    book = dict(_items(root, name, "the price book"))
    unknown = sorted(set(book) - {"version", "prices"})
    if unknown:
        raise PriceBookError(f"{_at(name, book[unknown[0]])}: unknown key {unknown[0]!r}; there are version and prices")
    if "version" not in book or "prices" not in book:
        raise PriceBookError(f"{name}: a price book has a version and prices")
    version = _text(book["version"], name, "version")
    prices = {entry: _price(node, name, entry, version) for entry, node in _items(book["prices"], name, "prices")}
    if len(prices) > MOST_ENTRIES:
        raise PriceBookError(f"{name}: more than {MOST_ENTRIES} prices")
    return PriceBook(prices)


def dollars(value: object) -> Decimal:
    """Dollars per million from text or a whole number; exact. Raises ValueError saying what is expected."""
    return _exact(value, DOLLARS, EXPECTED)


def dollars_each(value: object) -> Decimal:
    """Dollars for one from text or a whole number, as dollars per million; exact. Raises as `dollars` does."""
    return value if isinstance(value, Decimal) else _exact(value, EACH, EXPECTED_EACH).scaleb(6)


def _exact(value: object, form: re.Pattern[str], expected: str) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float):
        raise ValueError(f"write it as a string, in quotes: {expected}")
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError(f"must be {expected}")
    return Decimal(text)


def _price(node: yaml.Node, name: str, entry: str, version: str) -> Price:
    fields = dict(_items(node, name, entry))
    source = fields.pop("source", None)
    if source is None:
        raise PriceBookError(f"{_at(name, node)}: {entry} does not say its source")
    said = f"{_text(source, name, f'{entry}.source')} ({version})"
    above = fields.pop("above", None)
    bands = {} if above is None else dict(_items(above, name, f"{entry}.above"))
    return _whole(fields, node, name, entry, said, {_prompt(most, at, name, entry): at for most, at in bands.items()})


def _whole(
    fields: dict[str, yaml.Node], node: yaml.Node, name: str, entry: str, source: str, bands: Mapping[int, yaml.Node]
) -> Price:
    tiers = fields.pop("tiers", None)
    others = {} if tiers is None else dict(_items(tiers, name, f"{entry}.tiers"))
    return Price(
        _rates(fields, node, name, entry),
        source,
        {tier: _rates(dict(_items(at, name, tier)), at, name, f"{entry}.tiers.{tier}") for tier, at in others.items()},
        {
            most: _whole(
                dict(_items(at, name, entry)), at, name, f"{entry}.above.{most}", f"{source}, above {most} tokens", {}
            )
            for most, at in bands.items()
        },
    )


def _prompt(text: str, node: yaml.Node, name: str, entry: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) <= LONGEST_NUMBER or int(text) == 0:
        raise PriceBookError(f"{_at(name, node)}: {entry}.above: {text[:LONGEST_NUMBER]!r} is no number of tokens")
    return int(text)


def _rates(fields: Mapping[str, yaml.Node], node: yaml.Node, name: str, entry: str) -> dict[Meter, Decimal]:
    rates = {}
    for key, value in fields.items():
        if key not in set(Meter):
            known = ", ".join([*Meter, "source", "tiers", "above"])
            raise PriceBookError(f"{_at(name, value)}: {entry} has an unknown key {key!r}; there are {known}")
        rates[Meter(key)] = _rate(value, name, f"{entry}.{key}", Meter(key))
    if not rates:
        raise PriceBookError(f"{_at(name, node)}: {entry} has no price")
    return rates


def _rate(node: yaml.Node, name: str, key: str, meter: Meter) -> Decimal:
    # An unquoted 0.15 is exact here, as the node holds its text; but other readers of YAML make it a float.
    read, expected = (dollars_each, EXPECTED_EACH) if meter in ONE_BY_ONE else (dollars, EXPECTED)
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
        raise PriceBookError(f"{_at(name, node)}: {key} must be {expected}, in quotes")
    try:
        return read(node.value)
    except ValueError as error:
        raise PriceBookError(f"{_at(name, node)}: {key} {error}") from error


def _text(node: yaml.Node, name: str, key: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or not 0 < len(node.value) <= LONGEST_TEXT:
        raise PriceBookError(f"{_at(name, node)}: {key} must be text of at most {LONGEST_TEXT} characters")
    return str(node.value)


def _items(node: yaml.Node | None, name: str, what: str) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise PriceBookError(f"{_at(name, node) if node else name}: {what} must be a mapping")
    seen = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or not 0 < len(key.value) <= LONGEST_TEXT:
            raise PriceBookError(f"{_at(name, key)}: a key of {what} is not a name")
        if key.value in seen:
            raise PriceBookError(f"{_at(name, key)}: {key.value!r} is there twice in {what}")
        seen.add(key.value)
        yield key.value, value


def _at(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}"
