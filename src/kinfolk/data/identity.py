"""What rows are known by over the years and from table to table, as their owner declares it.

>>> label("  Graz 0"), label("3.0"), label("ＧＲＡＺ  0")
('graz 0', '3', 'graz 0')
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

ROWS_PER_PERSON = 10
"""Of one person, unless its owner declares another number."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?")


@dataclass(frozen=True)
class Identity:
    """Declared identities of a federation's rows."""

    kind: str
    """`row`: a value belongs to one record. `person`: all rows with a value are one person's."""
    column: str
    """What the owner calls it."""
    values: tuple[np.ndarray, ...] = field(repr=False)
    """For each client, in the federation's order, the values of its rows as text: training rows, then test rows."""
    rows_per_person: int = ROWS_PER_PERSON
    """How many rows of a person count, where people are the units (`data/people.py`); public."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each client has."""
        return tuple(map(len, self.values))


def label(text: str) -> str:
    """A name as everybody would say it: whatever its case, its spaces, its form of Unicode; 3.0 is 3."""
    if text.isascii():
        folded = text.lower()
    else:
        shown = (sign for sign in unicodedata.normalize("NFKC", text) if unicodedata.category(sign) != "Cf")
        folded = "".join(shown).casefold()
    plain = " ".join(folded.split())
    if (plain[:1] in "0123456789+-." and not plain.isdecimal()) or plain[:1] == "0":
        return _number(plain)
    return plain


def _number(text: str) -> str:
    """A number in its one form: 7, 7.0, 007, +7 and 7e0 are all "7"; other text stays."""
    if not NUMBER.fullmatch(text):
        return text
    value = Decimal(text)
    return f"{value.normalize():f}" if value and abs(value.adjusted()) < 400 else "0" if not value else text
