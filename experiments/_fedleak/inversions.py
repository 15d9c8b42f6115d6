"""The inversion behind a cell of FedLeak's tables, and a note on how it differs from the printed one."""

from dataclasses import replace
from typing import Any

from experiments._fedleak.jobs import DATASETS, Job, Sizes
from jaxleak.study.cells import joined
from jaxleak.study.updates import Case

METHODS = {"iDLG": "idlg", "IG": "inverting_gradients", "GI": "gradinversion", "BayesAttack": "bayes"}
#: Methods that train a generator on public data.
GENERATIVE = {"GGL": "ggl", "ROGS": "rog"}

MODELS = {
    **{name: name.lower() for name in ("ResNet10", "ResNet18", "ResNet34", "ResNet10_x3", "ResNet10_x5")},
    **{"DenseNet121": "densenet121", "MobileNetV2": "mobilenet_v2", "ViT": "vit_tiny"},
    "three-layer fully connected network with ReLU": "mlp3",  # in section 3, three hidden layers
    "three-hidden-layer network with ReLU": "mlp3",
}

#: Iterations of FedLeak and of the other attacks where a table does not print them (section 5.1).
PRINTED_ITERATIONS = 10_000
#: Presets of FedLeak that a row may run, each with its description. Tables 15 to 19 change one setting of the preset.
PRESETS = {
    "fedleak": "our preset (relative L1 + cosine, all entries, no blend, smoothing, Adam at 0.05 with cosine decay)",
    "fedleak_paper": (
        "the printed preset, whose sums are taken literally; labels are {labels}, and the better of the best "
        "and the last iterate answers"
    ),
    "fedleak_upstream": "the published code's preset",
}

#: Differences from the paper that the sizes of a run do not show, by method, strategy or table.
UNNAMED = {
    "gradinversion": "no normalisation statistics granted, no registration, noise or warm-up; four candidates",
    "inverting_gradients": "steps and variation in pixels of [0, 1]",
    "bayes": "noise of 0.01 and a mean variation of 0.1",
    "multiple start": "four starts, a number that the paper does not print",
    "cosine annealing": "steps from 0.05 for the attack's own",
    "table10-ssim": "images matched one to one for the most similar one",
    "table10-lpips": "images matched one to one for the most similar one; LPIPS on AlexNet, which is not printed",
}

#: Pixel differences per direction in a 32x32 colour image of Table 17: the ratio of a summed TV to our mean TV.
_TV_DIFFERENCES = 32 * 31 * 3


def data_of(of_table: str, of_cell: str, sizes: Sizes) -> tuple[str | None, str]:
    """The data specification of a cell and a note, or None and the reason."""
    name = of_cell if of_cell in sizes.specs else of_table
    if name in sizes.specs and (sizes.specs[name] != sizes.substitute or DATASETS.get(name) == sizes.substitute):
        return sizes.specs[name], ""
    if sizes.substitute is not None:
        return sizes.substitute, f"{sizes.substitute} in place of {name}"
    return None, f"no data: {name}; name it with --svhn or --lungcolon, or take --substitute"


def is_pretrained(setting: dict[str, Any], cell: dict[str, Any]) -> bool:
    return "pretrained" in cell.get("weights", setting.get("weights", "random"))


def _weights_note(setting: dict[str, Any], cell: dict[str, Any], sizes: Sizes) -> str:
    if not is_pretrained(setting, cell) or sizes.pretrained is not None:
        return ""
    return f"{'warm' if sizes.warm else 'random'} weights for pretrained"


def inversion(setting: dict[str, Any], cell: dict[str, Any], spec: str, sizes: Sizes) -> tuple[Job, str]:
    """The job that gives a PSNR, and a note on how it differs from the printed settings."""
    printed_attack = setting.get("attack", {})
    batch = sizes.batch_size or cell.get("batch_size", setting.get("batch_size", 32))
    steps = cell.get("local_steps", setting.get("local_steps", 1))
    printed_model = MODELS[cell.get("model") or setting["model"]]
    model = sizes.model or printed_model
    iterations = sizes.iterations or printed_attack.get("iterations", PRINTED_ITERATIONS)
    skew, partition_note = _partition(cell)
    method = {**METHODS, **GENERATIVE}.get(cell["method"], sizes.fedleak)
    case = Case(
        attack=method, iterations=iterations, model=model, activation=sizes.activation,
        width=sizes.width if model.startswith("resnet") else None,
        weights=sizes.pretrained if is_pretrained(setting, cell) else None,
        data=spec, pool=sizes.pools.get(spec, batch * steps), partition=skew, federation=sizes.federation,
        batch_size=batch, local_steps=steps, learning_rate=sizes.client_learning_rate,
        estimate=sizes.estimate and steps > 1, labels=sizes.labels,
        optimizer=sizes.idlg_optimizer if method == "idlg" else None,
    )  # fmt: skip
    if cell["method"] in GENERATIVE and sizes.public_data is not None:
        case = replace(case, public_data=sizes.public_data)
    case = _strategy(_swept(case, cell, sizes), cell)
    if sizes.microbatch is not None and case.restarts > 1:
        case = replace(case, microbatch=min(sizes.microbatch, case.restarts))
    training = sizes.warm if is_pretrained(setting, cell) and sizes.pretrained is None else None
    notes = [
        _changed(model, printed_model),
        f"width {case.width} for 64" if case.width else "",
        f"{sizes.activation} activations" if sizes.activation else "",
        _changed(f"B {batch}", f"B {cell.get('batch_size', setting.get('batch_size', batch))}"),
        _changed(f"{iterations} iterations", f"{printed_attack.get('iterations', iterations)} iterations"),
        _changed(f"client rate {sizes.client_learning_rate:g}", "client rate 0.0001"),
        ("averaged-gradient estimate" if sizes.estimate else "unrolled") if steps > 1 else "",
        partition_note,
        _weights_note(setting, cell, sizes),
        f"round {sizes.attack_round.rounds}" if sizes.attack_round else "first round",
    ]
    notes += [f"generator trained on {case.public_data}"] if cell["method"] in GENERATIVE else []
    causes = method, cell.get("strategy"), cell["id"].partition("/")[0]
    notes += [note for cause, note in UNNAMED.items() if cause in causes]
    notes += ["iDLG by Adam at 0.05 for L-BFGS"] if case.optimizer == "adam" and method == "idlg" else []
    labels = "a variable of the search" if case.labels == "joint" else "inferred and held"
    notes += [PRESETS[method].format(labels=labels)] if method in PRESETS else []
    if method in ("fedleak", "fedleak_upstream") and case.tv is not None:
        notes.append(f"mean TV weight {case.tv:g}")
    if method == "fedleak" and causes[2] in ("table15", "table16", "table18", "table19"):
        notes.append("the preset changed in what the table varies, with a mean over activations")
    return Job(case, sizes.attack_round or training), joined(*notes)


def _swept(case: Case, cell: dict[str, Any], sizes: Sizes) -> Case:
    """The case with the one setting of FedLeak that Tables 15 to 19 change; Table 14 withholds the labels."""
    if case.attack in ("fedleak", "fedleak_paper", "fedleak_upstream"):
        case = replace(case, homotopy=sizes.homotopy, exact_kinks=sizes.exact_kinks)
    scale = "l1" if case.attack == "fedleak_paper" else "relative_l1"
    if "R" in cell:
        return replace(case, matched_percent=float(cell["R"]))
    if "lambda_prime" in cell:
        return replace(case, blend=float(cell["lambda_prime"]))
    if "alpha" in cell:
        # The printed TV is a sum over the batch, as in fedleak_paper. Other presets take a mean, so the weight is
        # multiplied by the number of differences. The printed activation penalty is also a sum, but the paper does not
        # say over how many layers, so presets other than fedleak_paper keep a mean.
        summed = case.attack == "fedleak_paper"
        return replace(case, tv=float(cell["alpha"]) * (1 if summed else _TV_DIFFERENCES * case.batch_size))
    if "beta" in cell:
        return replace(case, activation_penalty=float(cell["beta"]))
    if cell["id"].startswith("table19"):
        terms = {"without-cos": (scale,), "without-l1": ("cosine",), "both": None}
        return replace(case, terms=terms[cell["id"].split("/")[1]])
    if cell["id"].startswith("table14-psnr-without"):
        return replace(case, labels="joint")
    return case


def _strategy(case: Case, cell: dict[str, Any]) -> Case:
    strategy = cell.get("strategy", "none")
    if strategy == "multiple start":
        return replace(case, restarts=4)
    return replace(case, optimizer="annealed") if strategy == "cosine annealing" else case


def _partition(cell: dict[str, Any]) -> tuple[str, str]:
    if "dirichlet_alpha" in cell:
        return f"dirichlet:{cell['dirichlet_alpha']:g}", ""
    if "classes_per_client" in cell:
        return f"label_skew:{cell['classes_per_client']}", ""
    if "samples_per_client" in cell:
        return f"quantity_skew:{cell['samples_per_client']}", ""
    if "tv_percentile" in cell:
        return f"feature_skew:{int(cell['tv_percentile'].split('-')[0]) // 20}", ""
    return "iid", ""


def _changed(ours: str, printed: str) -> str:
    return "" if ours == printed else f"{ours} for {printed}"
