"""What a gradient inversion reads from files: the client's data, its model and weights, and public images."""

from jaxleak import data
from jaxleak.attacks import presets
from jaxleak.study.sources import Arrays, contents, drawn, form_of
from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case
from jaxleak.study.updates._own_model import files_of_own_model
from jaxleak.study.updates._public_data import public_images


def sources_of_update(case: Case, seed: int) -> Arrays:
    """Arrays that the results of one case and seed come from; what is drawn from the seed alone is not among them."""
    found = {**drawn(case.data, case.taken, seed), **sources_of_model(case)}
    if case.attack in presets.GENERATIVE and case.public_data != SYNTHETIC:
        source = case.data if case.public_data == HELD_OUT else case.public_data

        def load() -> dict[str, object]:
            return {"x": public_images(case, seed, data.load(case.data, 1, seed).x.shape[1:])}

        found[f"the public images {source} (at most {case.public_samples}, drawn with seed {seed})"] = load
    return found


def sources_of_model(case: Case) -> Arrays:
    """What the case's model is read from: its file if it is somebody's own, and weights that do not depend on a seed.

    Args:
        case: names the model, its weights and the data that the model is for.
    """
    found = {} if case.weights is None else contents(f"the weights {case.weights}", case.weights)
    if not case.own_model:
        return found
    return {**found, **files_of_own_model(case, *form_of(case.data))}
