"""The price book is exact, has versions, and is refused with its line when it is wrong."""

from decimal import Decimal

import pytest

from policies import pricebook
from policies.pricebook import PriceBookError
from policies.pricing import Meter, Usage, charge, picodollars


def a_book(entry: str, version: str = 'version: "1"') -> str:
    return f"{version}\nprices:\n  some-model: {entry}\n"


def test_the_shipped_book_prices_the_demo_and_says_version_and_source() -> None:
    book = pricebook.builtin()

    for name in ("demo-light", "demo-heavy"):
        price = book.find(name)
        assert price is not None
        assert {Meter.INPUT, Meter.OUTPUT} <= set(price.per_million)
        assert "(2026-" in price.source


def test_every_shipped_price_is_exact_in_picodollars() -> None:
    usage = Usage(input=1, cache_read=1, cache_write=1, output=1)

    for price in pricebook.builtin().prices.values():
        for line in charge(price, usage, job="job_1", attempt=1, outcome="completed"):
            if line.usd is not None:
                assert Decimal(picodollars(line.usd)).scaleb(-12) == line.usd


def test_a_name_that_is_not_there_has_no_price_however_near_it_is() -> None:
    book = pricebook.builtin()

    assert book.find("gpt-4o") is not None
    assert book.find("gpt-4o-2031-01-01") is None
    assert book.find("GPT-4o") is None


def test_an_operators_entry_wins_whole_and_the_rest_stays() -> None:
    own = pricebook.parse('version: "7"\nprices:\n  gpt-4o: {input: "1", source: "contract"}\n', name="own.yaml")

    book = pricebook.builtin().overlaid(own)

    price = book.find("gpt-4o")
    assert price is not None
    assert price.per_million == {Meter.INPUT: Decimal(1)}
    assert price.source == "contract (7)"
    assert book.find("gpt-4o-mini") == pricebook.builtin().find("gpt-4o-mini")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (a_book('{input: 0.15, source: "x"}'), "own.yaml:3: some-model.input must be dollars"),
        (a_book('{input: "0.1234567", source: "x"}'), "at most six decimals"),
        (a_book('{input: "-1", source: "x"}'), "own.yaml:3: some-model.input must be dollars"),
        (a_book('{input: "NaN", source: "x"}'), "own.yaml:3: some-model.input must be dollars"),
        (a_book('{input: "1e3", source: "x"}'), "own.yaml:3: some-model.input must be dollars"),
        (a_book('{input: "٣", source: "x"}'), "own.yaml:3: some-model.input must be dollars"),
        (a_book('{inputs: "1", source: "x"}'), "own.yaml:3: some-model has an unknown key 'inputs'"),
        (a_book('{input: "1"}'), "own.yaml:3: some-model does not say its source"),
        (a_book('{source: "x"}'), "own.yaml:3: some-model has no price"),
        (a_book('{input: "1", input: "2", source: "x"}'), "own.yaml:3: 'input' is there twice in some-model"),
        (a_book('{input: "1", source: "x"}', version="# none"), "own.yaml: a price book has a version and prices"),
        (a_book('"0.15"'), "own.yaml:3: some-model must be a mapping"),
        (a_book("[" * 5000), "own.yaml"),
        ('version: "1"\nprice: {}\n', "own.yaml:2: unknown key 'price'"),
        ('version: "1"\nprices: [\n', "own.yaml:3: not YAML"),
        ("", "own.yaml: the price book must be a mapping"),
    ],
)
def test_a_fault_is_named_with_file_line_and_key(text: str, said: str) -> None:
    with pytest.raises(PriceBookError) as raised:
        pricebook.parse(text, name="own.yaml")

    assert said in str(raised.value)


@pytest.mark.parametrize("value", ["0", "0.15", "10.000001", 3, Decimal("0.5")])
def test_dollars_are_text_or_whole_numbers(value: object) -> None:
    assert pricebook.dollars(value) == Decimal(str(value))


@pytest.mark.parametrize("value", [0.15, True, None, "", "1,5", " 1", "1\n", "0x1", "1_0", "Infinity", -1, 10**9])
def test_dollars_are_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"string|must be dollars"):
        pricebook.dollars(value)


def test_a_book_has_whole_prices_of_other_tiers() -> None:
    book = pricebook.parse(a_book('{input: "1", output: "2", source: "x", tiers: {flex: {input: "0.5"}}}'), name="own")

    price = book.find("some-model")
    assert price is not None
    assert price.served("flex") == {Meter.INPUT: Decimal("0.5")}
    with pytest.raises(PriceBookError, match=r"some-model\.tiers\.flex has an unknown key"):
        pricebook.parse(a_book('{input: "1", source: "x", tiers: {flex: {inputs: "1"}}}'), name="own")


def test_a_book_has_whole_prices_of_long_prompts() -> None:
    book = pricebook.parse(
        a_book('{input: "1", source: "x", above: {200000: {input: "2", tiers: {flex: {input: "0.9"}}}}}'), name="own"
    )

    [price] = book.prices.values()
    band = price.bands[200_000]
    assert band.per_million == {Meter.INPUT: Decimal(2)}
    assert band.tiers == {"flex": {Meter.INPUT: Decimal("0.9")}}
    assert band.source == f"{price.source}, above 200000 tokens"


@pytest.mark.parametrize("above", ['{many: {input: "2"}}', '{0: {input: "2"}}', '{-1: {input: "2"}}', "{200000: {}}"])
def test_a_band_is_a_number_of_tokens_with_a_price(above: str) -> None:
    with pytest.raises(PriceBookError, match="some-model"):
        pricebook.parse(a_book(f'{{input: "1", source: "x", above: {above}}}'), name="own")


def test_the_book_that_comes_along_charges_long_prompts_of_sonnet_twice() -> None:
    price = pricebook.builtin().find("us.anthropic.claude-sonnet-4-5-20250929-v1:0")
    assert price is not None

    assert price.of(Usage(input=250_000)).per_million[Meter.INPUT] == 2 * price.per_million[Meter.INPUT]
