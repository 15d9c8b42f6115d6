"""What a gradient inversion reads from files: the client's data, its model and weights, and public images."""

from jaxleak import data
from jaxleak.attacks import presets
from jaxleak.study.sources import Arrays, contents, drawn, form_of, own_code
from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case
from jaxleak.study.updates._own_model import files_of_own_model
from jaxleak.study.updates._public_data import public_images


def sources_of_update(case: Case, seed: int) -> Arrays:
    """Arrays that the results of one case and seed come from; what is drawn from the seed alone is not among them."""
    found = {**drawn(case.data, case.taken, seed), **sources_of_client(case), **sources_of_attack(case)}
    if case.attack in presets.GENERATIVE and case.public_data != SYNTHETIC:
        source = case.data if case.public_data == HELD_OUT else case.public_data

        def load() -> dict[str, object]:
            return {"x": public_images(case, seed, data.load(case.data, 1, seed).x.shape[1:])}

        found[f"the public images {source} (at most {case.public_samples}, drawn with seed {seed})"] = load
    return found


def sources_of_client(case: Case) -> Arrays:
    """What the case's client is read from: files of its model and its defense if they are somebody's own, and weights.

    Args:
        case: names the model, its weights, the defense, and the data that the model is for.
    """
    found = {} if case.weights is None else dict(contents(f"the weights {case.weights}", case.weights))
    if case.defense is not None and case.own_defense:
        found |= own_code("defense", case.defense)
    if case.own_model:
        found |= files_of_own_model(case, *form_of(case.data))
    return found


def sources_of_attack(case: Case) -> Arrays:
    """The file of the case's attack if it is somebody's own, and what it imports from its folder."""
    return own_code("attack", case.attack) if case.own_attack else {}
