"""A user's own defense in a study: a Python file makes it from one number, the strength, like a built-in defense."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from jaxleak import defenses
from jaxleak._own_files import is_own, made_of, require_named
from jaxleak.defenses._base import dense
from jaxleak.study._own_defenses import own_defense
from jaxleak.study.updates._case import Case


def kind_of_defense(name: str) -> defenses.ClientDefense:
    """Return the `ClientDefense` of a client's defense: how it is made from a strength, and what is known about it.

    Args:
        name: a key of `defenses.CLIENT_DEFENSES`, or FILE.py:NAME. NAME is a function that makes a `defenses.Defense`
            from its strength, a float, or a `defenses.ClientDefense`, which says more about the defense. The file is
            run once in a process.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the name is unknown, if the file cannot be imported or has no such name, or if the name stands
            for something else. The returned `build` raises it if the function makes no defense from a strength.
    """
    require_named(defenses.CLIENT_DEFENSES, defense=name)
    return _loaded(name) if is_own(name) else defenses.CLIENT_DEFENSES[name]


def about_defenses(cases: Sequence[Case], *, adaptive: bool = True) -> list[str]:
    """Write sentences for a report on users' own defenses: what an informed attacker can use, and odd strengths.

    Args:
        cases: cases of a study; each is checked, and equal sentences are written once.
        adaptive: whether attackers who know the defenses attacked as well.
    """
    said = dict[str, None]()
    for case in cases:
        if case.defense is None or not case.own_defense:
            continue
        name, made = case.defense, kind_of_defense(case.defense).build(case.strength)
        if not adaptive:
            text = f"No attacker knew {name}: what leaks through it may be more."
        elif made.mechanism is None:
            text = f"{name} declares no mechanism, so no attacker knew it: what leaks through it may be more."
        else:
            text = believed_mechanism(case)
        said[text] = None
        if made.encode is dense:
            said[f"{name} states no encoding, so that its bits per entry are those of 32-bit numbers."] = None
        if keeps_state(made):
            text = (
                f"{name} keeps a state: clients who train remember their uploads, and the attacked one is their first."
            )
            said[text] = None
    return list(said) + _deaf_to_strength(cases)


def believed_mechanism(case: Case) -> str:
    """Write a sentence on what an attacker who knows a user's own defense believes, and on how far to trust it.

    Args:
        case: case that names a defense of the user's own, which declares a mechanism.

    Raises:
        ValueError: if the defense does not do what it declares.
    """
    knows, compared = f"The attacker who knows {case.defense}", compared_with_mechanism(case)
    if compared.blind:
        return (
            f"{knows} runs it on candidates of its own and learns next to nothing: {compared.blind}. The leak to this "
            "attacker says nothing about the defense: attack by a distance that the defense does not change."
        )
    if compared:
        return f"{knows} believes its mechanism, which was compared with what the defense does."
    return (
        f"{knows} believes its mechanism, not all of which could be compared: {compared.uncompared}. If it is wrong, "
        "more leaks than the numbers say."
    )


def nobody_knew(case: Case) -> bool:
    """Whether even an attacker who is told a user's own defense can make nothing of it."""
    if case.defense is None or not case.own_defense:
        return False
    mechanism = kind_of_defense(case.defense).build(case.strength).mechanism
    return mechanism is not None and bool(compared_with_mechanism(case).blind)


def keeps_state(defense: defenses.Defense) -> bool:
    """Whether a client's upload depends on its earlier uploads."""
    try:
        state = defense.init({"kernel": np.zeros((64, 32), np.float32), "bias": np.zeros(32, np.float32)})
    except Exception:  # a defense may be made for one network's upload
        return True
    return bool(jax.tree.leaves(state))


def compared_with_mechanism(case: Case) -> defenses.MechanismComparison:
    """Compare a user's own defense with its mechanism, on normal numbers in place of an upload.

    Args:
        case: case that names the defense and its strength.

    Raises:
        ValueError: if the defense does not do what it declares.
    """
    assert case.defense is not None
    made = kind_of_defense(case.defense).build(case.strength)
    if _of_an_upload(made) is None:
        return defenses.MechanismComparison("the defense fails on an upload of random numbers")
    try:
        return defenses.check_mechanism(made, _upload(), key=jax.random.key(0))
    except ValueError as error:
        raise ValueError(f"{case.defense} of strength {case.strength:g}: {error}") from error


def _deaf_to_strength(cases: Sequence[Case]) -> list[str]:
    """Write a question about each defense that changes an upload in the same way at several strengths."""
    strengths: dict[str, dict[float, None]] = {}
    for case in cases:
        if case.defense is not None and case.own_defense:
            strengths.setdefault(case.defense, {})[case.strength] = None
    said = []
    for name, chosen in strengths.items():
        changed: dict[bytes, list[str]] = {}
        for strength in chosen:
            sent = _of_an_upload(kind_of_defense(name).build(strength))
            if sent is not None and any(sent) and sent != _bytes(_upload()):
                changed.setdefault(sent, []).append(f"{strength:g}")
        said += [
            f"{name} changes an upload of random numbers in the same way at the strengths {' and '.join(alike)}. "
            "Does its function use the strength?"
            for alike in changed.values()
            if len(alike) > 1
        ]
    return said


def _upload() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "kernel": rng.standard_normal((64, 32)).astype(np.float32),
        "bias": rng.standard_normal(32).astype(np.float32),
    }


def _of_an_upload(defense: defenses.Defense) -> bytes | None:
    """Apply a defense to normal numbers in place of an upload; None if the defense does not take them."""
    try:
        return _bytes(defense.apply(jax.random.key(0), _upload()))
    except Exception:  # a defense may be made for one network's upload
        return None


def _bytes(upload: object) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(upload))


@functools.lru_cache(maxsize=32)
def _loaded(name: str) -> defenses.ClientDefense:
    found = own_defense(name, defenses.ClientDefense)
    known = found if isinstance(found, defenses.ClientDefense) else defenses.ClientDefense(found, (), "strength")
    makes = known.build

    def build(strength: float) -> defenses.Defense:
        made = made_of(name, makes, strength, f"defense of strength {strength:g}")
        if not isinstance(made, defenses.Defense):
            raise ValueError(
                f"{name} must return a jaxleak.defenses.Defense for a strength, got {type(made).__name__} for "
                f"{strength:g}"
            )
        return made

    return known._replace(build=build)
