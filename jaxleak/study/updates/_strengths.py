"""Strengths of defenses as a user writes them, and the points of a trade-off that they define."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxleak import _validate
from jaxleak._own_files import is_own, short_name
from jaxleak.defenses import CLIENT_DEFENSES, client_defense
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._own_defense import kind_of_defense
from jaxleak.study.updates._trade_offs import TradeOffPoint


def parse_strengths(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Parse strengths: `("soteria=0.1,0.9",)` becomes `{"soteria": (0.1, 0.9)}`.

    Args:
        texts: defenses with their strengths: keys of `CLIENT_DEFENSES`, FILE.py:NAME, or `secure_aggregation`.

    Raises:
        FileNotFoundError: if the file of a user's own defense does not exist.
        ValueError: if a defense is unknown, if it does not allow a strength, or if a text has another form.
    """
    parsed = {}
    for text in texts:
        name, equals, values = text.rpartition("=") if "=" in text else (text, "", "")
        if not is_own(name):
            _validate.one_of((*CLIENT_DEFENSES, "secure_aggregation"), defense=name)
        try:
            numbers = tuple(float(value) for value in values.split(","))
        except ValueError:
            numbers = ()
        if not equals or not numbers:
            raise ValueError(f"strengths must be NAME=NUMBER,NUMBER,... such as soteria=0.1,0.9, got {text!r}")
        for number in numbers:
            if name != "secure_aggregation":
                client_defense(kind_of_defense(name), number)
            if not math.isfinite(number) or number == 0:
                raise ValueError(f"strengths of {name} must be finite numbers other than 0, got {number:g}")
        parsed[name] = numbers
    return parsed


def swept_points(base: Case, names: Sequence[str], strengths: Mapping[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Make a point for every strength of every named defense.

    Args:
        base: the case without a defense.
        names: keys of `CLIENT_DEFENSES`, or FILE.py:NAME.
        strengths: maps a defense to strengths, in the defense's unit and range. A defense that is missing here gets the
            strengths that its `ClientDefense` lists.

    Raises:
        FileNotFoundError, ValueError: as in `kind_of_defense`; and `ValueError` if a defense has no strengths.
    """
    points = []
    for name in names:
        known = kind_of_defense(name)
        chosen = strengths.get(name, known.strengths)
        if not chosen:
            raise ValueError(f"strengths of {name} must be given, as --strengths {name}=NUMBER,NUMBER")
        for strength in chosen:
            own = replace(base, learning_rate=strength) if known.of_rate else base
            points.append(TradeOffPoint(replace(own, defense=name, strength=strength), short_name(name), strength))
    return points
