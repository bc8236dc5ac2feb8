"""The jobs of a benchmark: bodies of about 1 KB, easy and hard ones, no two the same."""

import json

EASY = (
    "What is the capital of the country that this postcard was sent from?",
    "Translate this sentence into French, and keep the tone.",
    "Say in one line what the following paragraph is about.",
)
HARD = (
    "Design a schema for it, compare two indexes, and prove that the second one is never slower. Explain each step.",
    "He had 12 boxes and she had 7 more than him before they gave away half of theirs; how many are left in total?",
)
FILLER = (
    "The parcel had been on its way for nine days when the clerk at the counter found that its label was wet. "
    "She wrote the number down, looked it up, and put the box on the shelf beside the window. Nobody asked for it "
    "until the following week, when a man in a grey coat came in and described it so well that she believed him. "
)


def body(number: int) -> bytes:
    """An async chat completion."""
    asks = EASY if number % 4 else HARD
    text = f"{asks[number % len(asks)]}\n\n{FILLER * 2}\nReference {number}."
    return json.dumps(
        {
            "model": "auto",
            "messages": [
                {"role": "system", "content": "You answer briefly and in plain words."},
                {"role": "user", "content": text},
            ],
            "max_tokens": 64,
            "temperature": 0.2,
            "metadata": {"number": str(number)},
            "async": True,
        }
    ).encode()
