"""Which party holds which features, and the padded slices that vertical protocols train on."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxleak import _validate

FeaturePartition = Literal["random", "gaussian", "gibbs"]
_SWEEPS = 20


def partition_features(
    num_features: int,
    parties: int,
    *,
    share: float | None = None,
    adversary: int = 0,
    kind: FeaturePartition = "random",
    x: np.ndarray | None = None,
    beta: float = 4.0,
    seed: int = 0,
) -> tuple[np.ndarray, ...]:
    """Deal features to parties in one of the three ways that the VFLRecon paper names.

    The paper lists the three ways (Table IV) without defining them. They are defined here as

    - "random": a uniform permutation, cut into the parties' sizes.
    - "gaussian": parties hold neighbouring features with blurred borders. Feature j of the original order gets the
      position j + s Z_j with independent standard normal Z_j and s = F / (2 P); features are cut in the order of their
      positions, and parties take the pieces in random order.
    - "gibbs": correlated features go to the same party. A partition with the given sizes has probability proportional
      to exp(beta * sum of |corr(i, j)| over pairs held by one party), a Gibbs measure. It is sampled from a uniform
      start by 20 F proposals of Metropolis swaps between two features of different parties. The adversary then has
      fewer features that correlate with the victims' features, so this is the hardest way for the adversary.

    Args:
        num_features: F.
        parties: P, 2 <= P <= F.
        share: the adversary's share of the features in (0, 1). The adversary gets round(share F) features, but at
            least one, and leaves at least one to every other party. None gives every party the same share.
        adversary: number of the party that gets the share.
        kind: one of the three ways above.
        x: (n, F) samples in any unit, public or the attacker's own; "gibbs" uses their correlations.
        beta: inverse temperature of "gibbs", >= 0; 0 is "random".
        seed: in [0, 2^32).

    Returns:
        Per party the sorted indices (F_p,) of the features that it holds: disjoint, none empty, all F together.

    Raises:
        ValueError: if there are more parties than features, or an argument is out of range.
    """
    _validate.one_of(("random", "gaussian", "gibbs"), kind=kind)
    _validate.seeds(seed=seed)
    _validate.non_negative(beta=beta)
    if parties < 2 or parties > num_features:
        raise ValueError(f"parties must be from 2 to the number of features, {num_features}, got {parties}")
    _validate.in_range(0, parties - 1, adversary=adversary)
    rng = np.random.default_rng(seed)
    sizes = _sizes(num_features, parties, share, adversary)
    owners = np.repeat(np.arange(parties), sizes)
    if kind == "gaussian":
        order = rng.permutation(parties)
        positions = np.arange(num_features) + num_features / (2 * parties) * rng.standard_normal(num_features)
        owner = np.empty(num_features, np.int64)
        owner[np.argsort(positions)] = np.repeat(order, np.asarray(sizes)[order])
    else:
        owner = rng.permutation(owners)
    if kind == "gibbs":
        if x is None or x.ndim != 2 or x.shape[1] != num_features:
            raise ValueError(f"kind='gibbs' needs x of shape (n, {num_features})")
        owner = _gibbs(owner, _absolute_correlations(x), beta, rng)
    return tuple(np.flatnonzero(owner == party) for party in range(parties))


def party_slices(x: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
    """Cut an encoded table (N, width) into slices (N, P, w) in the table's unit, zero-padded to the largest width w.

    A model of the slices has the widths `[len(own) for own in columns]`: `models.bottom_top(widths, num_classes)`.

    Args:
        x: (N, width) finite numbers, in any unit.
        columns: for each party, the numbers (F_p,) of the columns that it holds, in [0, width); no column occurs twice.
            Columns that no party holds are left out.

    Raises:
        ValueError: if x is not a table of finite numbers, if there is no party or a party without columns, or if the
            columns are not whole numbers in [0, width), all different.
    """
    table = _finite_table(x)
    if not len(columns):
        raise ValueError("columns must be those of at least one party, got none")
    parties = [_own_columns(party, own, table.shape[1]) for party, own in enumerate(columns)]
    _require_disjoint(parties)
    slices = np.zeros((len(table), len(parties), max(map(len, parties))), np.float32)
    for party, numbers in enumerate(parties):
        slices[:, party, : len(numbers)] = table[:, numbers]
    return slices


def _finite_table(x: np.ndarray) -> np.ndarray:
    table = np.asarray(x)
    if table.ndim != 2:
        raise ValueError(f"x must be a table (N, width), got shape {table.shape}")
    if table.dtype.kind not in "biuf":
        raise ValueError(
            f"x must hold numbers, got dtype {table.dtype}: encode text columns as codes, then x.astype(float)"
        )
    wrong = np.argwhere(~np.isfinite(table))
    if len(wrong):
        row, column = wrong[0]
        # If one value of a column is NaN, the column's mean is NaN, and standardising makes all its values NaN.
        hint = ""
        if np.isnan(table[:, column]).all():
            hint = (
                f": all values of column {column} are NaN, as one was missing before the columns were standardised or "
                "a constant column has no deviation to divide by"
            )
        elif np.isnan(table[row, column]):
            missing = np.isnan(table[:, column]).sum()
            hint = f": {missing} of {len(table)} values of column {column} are missing, which must be filled in first"
        raise ValueError(f"x must be finite, got {table[row, column]} in row {row}, column {column}{hint}")
    return table


def _own_columns(party: int, own: np.ndarray, width: int) -> np.ndarray:
    numbers = np.asarray(own)
    if numbers.size == 0:
        raise ValueError(f"party {party} has no features")
    # A boolean mask is refused: its length is not the number of columns, which decides the widths of the model.
    hint = ": of a mask take np.flatnonzero(mask)" if numbers.dtype == bool else ""
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ValueError(
            f"columns of party {party} must be whole numbers (F_p,), got dtype {numbers.dtype} of shape "
            f"{numbers.shape}{hint}"
        )
    wrong = numbers[(numbers < 0) | (numbers >= width)]
    if wrong.size:
        raise ValueError(f"columns of party {party} must be in [0, {width}), got {wrong[0]}")
    return numbers


def _require_disjoint(parties: Sequence[np.ndarray]) -> None:
    # If two parties shared a column, an attacker among them would count as having reconstructed its own column.
    holder: dict[int, int] = {}
    for party, numbers in enumerate(parties):
        for column in numbers.tolist():
            if column in holder:
                raise ValueError(
                    f"columns must have one party each, got column {column} for parties {holder[column]} and {party}"
                    if holder[column] != party
                    else f"columns of party {party} must differ, got column {column} twice"
                )
            holder[column] = party


def _sizes(num_features: int, parties: int, share: float | None, adversary: int) -> list[int]:
    if share is None:
        return [len(part) for part in np.array_split(np.arange(num_features), parties)]
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), got {share}")
    own = min(max(round(share * num_features), 1), num_features - parties + 1)
    sizes = [len(part) for part in np.array_split(np.arange(num_features - own), parties - 1)]
    sizes.insert(adversary, own)
    return sizes


def _absolute_correlations(x: np.ndarray) -> np.ndarray:
    centred = x.astype(np.float64) - x.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    unit = centred / np.where(norms > 0, norms, 1.0)
    return np.abs(unit.T @ unit)


def _gibbs(owner: np.ndarray, correlation: np.ndarray, beta: float, rng: np.random.Generator) -> np.ndarray:
    owner = owner.copy()
    count = len(owner)
    for i, j, u in zip(
        rng.integers(count, size=_SWEEPS * count),
        rng.integers(count, size=_SWEEPS * count),
        rng.random(_SWEEPS * count),
        strict=True,
    ):
        if owner[i] == owner[j]:
            continue
        with_i, with_j = owner == owner[i], owner == owner[j]
        with_i[i] = with_j[j] = False
        # Swapping moves i to j's party without j, and j to i's party without i.
        gain = correlation[i] @ with_j + correlation[j] @ with_i - correlation[i] @ with_i - correlation[j] @ with_j
        if np.log(u) < beta * gain:
            owner[i], owner[j] = owner[j], owner[i]
    return owner
