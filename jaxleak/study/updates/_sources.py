"""The files that a gradient inversion reads: the client's data, the model, weights, own code, and public images."""

from jaxleak import data
from jaxleak.attacks import presets
from jaxleak.study.sources import Arrays, contents, drawn, form_of, own_code
from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case
from jaxleak.study.updates._own_model import files_of_own_model
from jaxleak.study.updates._public_data import public_images


def sources_of_update(case: Case, seed: int) -> Arrays:
    """Return the arrays from which the results of one case and seed come, without those drawn from the seed alone."""
    found = {**drawn(case.data, case.taken, seed), **sources_of_client(case), **sources_of_attack(case)}
    if case.attack in presets.GENERATIVE and case.public_data != SYNTHETIC:
        source = case.data if case.public_data == HELD_OUT else case.public_data

        def load() -> dict[str, object]:
            return {"x": public_images(case, seed, data.load(case.data, 1, seed).x.shape[1:])}

        found[f"the public images {source} (at most {case.public_samples}, drawn with seed {seed})"] = load
    return found


def sources_of_client(case: Case) -> Arrays:
    """Return the client's files: the weights, and the files of model and defense if they are a user's own.

    Args:
        case: case that names the model, the weights, the defense, and the data for which the model is.
    """
    found = {} if case.weights is None else dict(contents(f"the weights {case.weights}", case.weights))
    if case.defense is not None and case.own_defense:
        found |= own_code("defense", case.defense)
    if case.own_model:
        found |= files_of_own_model(case, *form_of(case.data))
    return found


def sources_of_attack(case: Case) -> Arrays:
    """Return the file of the case's attack if it is a user's own, and the files that it imports from its folder."""
    return own_code("attack", case.attack) if case.own_attack else {}
