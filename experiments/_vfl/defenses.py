"""Defenses of the VFLRecon study by name, each with one number that says how strong it is."""

import math

from experiments._vfl.case import DefenseName
from jaxleak import _validate, defenses

#: The paper gives neither; C is about the median norm of an example's gradient at the start of training.
DP_CLIP, DP_DELTA = 1.0, 1e-5

#: Gaussian noise by name: where it is added.
NOISE_PLACES: dict[str, str] = {
    "noise": "top_output",
    "noise_gradient": "top_output_gradient",
    "noise_cut": "cut_gradient",
    "noise_embedding": "bottom_output",
}

#: Strengths where the command line gives none.
DEFAULT_STRENGTH: dict[DefenseName, float] = {
    "noise": 0.01,
    "noise_gradient": 0.01,
    "noise_cut": 0.01,
    "noise_embedding": 0.01,
    "dp_sgd": 10.0,
    "label_dp": 10.0,
    "marvell": 1.0,
    "vfl_defender": 1.0,
    "vfl_defender_paper": 1.0,
    "vfl_defender_batch": 4.0,
}


def build_defense(
    name: DefenseName, strength: float, *, num_classes: int, batch_size: int, num_samples: int, epochs: int
) -> tuple[defenses.Defense, ...]:
    """The defense, or none.

    | name | strength |
    |---|---|
    | noise, noise_gradient, noise_cut, noise_embedding | variance of Gaussian noise on the top's output, on its \
gradient, on the gradients that leave for the parties, or on the embeddings that the parties send |
    | dp_sgd | epsilon of all training as for Poisson sampling, delta 1e-5, clipping norm 1 |
    | label_dp | epsilon of all labels in any party's view, delta 1e-5: noise on the top's output gradient |
    | marvell | power |
    | vfl_defender, vfl_defender_paper, vfl_defender_batch | t_max = -t_min, in units of 1 / batch size, the largest \
size of an entry |

    Args:
        name: as above.
        strength: > 0; 0 means `DEFAULT_STRENGTH`.
        num_classes: C.
        batch_size: B.
        num_samples: N of the defended run.
        epochs: of the defended run, which epsilon covers.

    Raises:
        ValueError: on an unknown name or a strength < 0.
        ImportError: if epsilon has to be computed and dp-accounting is missing.
    """
    _validate.one_of(("none", *DEFAULT_STRENGTH), defense=name)
    if name == "none":
        return ()
    _validate.non_negative(strength=strength)
    value = strength or DEFAULT_STRENGTH[name]
    if name in NOISE_PLACES:
        return (defenses.gaussian_noise(math.sqrt(value), place=NOISE_PLACES[name]),)
    if name == "dp_sgd":
        steps = num_samples // batch_size * epochs
        # As the literature accounts for it: as if batches were Poisson samples, which a shuffled epoch's are not. By
        # the bound that holds for those, epsilon 10 is 51 and 100 is 158 (N = 954, 20 epochs).
        sigma = defenses.noise_multiplier_of(
            epsilon=value, delta=DP_DELTA, sampling_rate=batch_size / num_samples, steps=steps
        )
        return (defenses.dp_sgd(DP_CLIP, sigma),)
    if name == "label_dp":
        scale = defenses.label_dp_scale(value, delta=DP_DELTA, epochs=epochs, batch_size=batch_size)
        return (defenses.gaussian_noise(scale, place="top_output_gradient"),)
    if name == "marvell":
        return (defenses.marvell(num_classes=num_classes, power=value),)
    readings: dict[str, defenses.Reading] = {"vfl_defender_paper": "paper", "vfl_defender_batch": "batch"}
    reading: defenses.Reading = readings.get(name, "direction")
    threshold = value / batch_size
    return (defenses.vfl_defender(threshold, -threshold, reading=reading),)
