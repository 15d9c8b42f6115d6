"""From a printed cell of FedLeak's tables to what has to run for it, or to the reason why nothing can.

Cells that come from the same run share it: equal jobs run once.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from experiments import _paper
from experiments._fedleak.jobs import DATASETS, Job, Sizes
from jaxleak import _validate, metrics
from jaxleak.study.cells import Cell, Results, score_named
from jaxleak.study.updates import Case
from jaxleak.study.updates.diagnostics import settled_after

METHODS = {"iDLG": "idlg", "IG": "inverting_gradients", "GI": "gradinversion", "BayesAttack": "bayes"}
#: Methods that train a generator on public data.
GENERATIVE = {"GGL": "ggl", "ROGS": "rog"}

MODELS = {
    "ResNet10": "resnet10",
    "ResNet18": "resnet18",
    "ResNet34": "resnet34",
    "ResNet10_x3": "resnet10_x3",
    "ResNet10_x5": "resnet10_x5",
    "DenseNet121": "densenet121",
    "MobileNetV2": "mobilenet_v2",
    "ViT": "vit_tiny",
    "three-layer fully connected network with ReLU": "mlp",
    "three-hidden-layer network with ReLU": "mlp",
}

#: Iterations of FedLeak, and of the attacks beside it, where a table does not say (section 5.1).
PRINTED_ITERATIONS = 10_000
#: Presets of FedLeak that a row may run, each with its description; Tables 15 to 19 change one setting of it.
PRESETS = {
    "fedleak": "our preset (relative L1 + cosine, all entries, no blend, smoothing, Adam at 0.05 with cosine decay)",
    "fedleak_paper": "the printed preset",
    "fedleak_upstream": "the published code's preset",
}

#: Names on the command line that stand for several printed tables or none; every other name is that of one table.
GROUPS = {
    "table10": ("table10-ssim", "table10-lpips", "table10-asr"),
    "table11": ("table11-gd", "table11-psnr"),
    "table14": ("table14-label-accuracy", "table14-psnr-with", "table14-psnr-without"),
    "fig1": ("text-fig1-distance", "text-fig1-element", "text-fig1-psnr"),
    "fig6": ("text-convergence",),
    "fig9": ("text-pearson",),
    "fig10": (),
}

#: Tables with results that no run of this module gives, each with the reason.
NOT_MEASURED = {
    "table10-asr": "attack success is the verdict of three human judges; see the contact sheets",
    "text-fig4-accuracy": "a defense: belongs to the study of defenses",
    "text-fig4-psnr": "a defense: belongs to the study of defenses",
    "text-combined-defence": "a defense: belongs to the study of defenses",
    "text-attack-cost": "minutes on one printed GPU do not compare with another device; seconds stand beside every run",
    "text-convergence": "read by eye off a figure; our curves are stored beside the figures",
    "text-secure-aggregation-cost": "cost of a cryptographic protocol, not of the attack",
    "text-secure-aggregation-clients": "read by eye off a figure without numbers",
    "text-encrypt-top": "a projection, not a measurement",
}

_NO_PUBLIC_DATA = "needs a generator trained on public data, which the table does not describe: --public-data"

#: What a reader does not see in the sizes of a run, by its method, its strategy or its table.
_UNNAMED = {
    "gradinversion": "no normalisation statistics granted",
    "multiple start": "four starts, a number that the paper does not print",
    "cosine annealing": "steps from 0.05 for the attack's own",
    "table10-ssim": "images matched one to one for the most similar one",
}

#: Differences per direction in Table 17's 32x32 colour images: the factor between a sum over an image and our mean.
_TV_DIFFERENCES = 32 * 31 * 3


def names() -> tuple[str, ...]:
    """What `--table` accepts, in the paper's order."""
    printed = list(_paper.tables("fedleak"))
    grouped = {member: group for group, members in GROUPS.items() for member in members}
    return tuple(dict.fromkeys([*(grouped.get(name, name) for name in printed), *GROUPS]))


def cells(table: str, sizes: Sizes) -> Iterator[Cell]:
    """The cells of one table (or group of tables), in print order.

    Raises:
        ValueError: on an unknown table.
    """
    _validate.one_of(names(), table=table)
    printed = _paper.tables("fedleak")
    for name in GROUPS.get(table, (table,)):
        for cell in printed[name]["cell"]:
            yield _cell(name, printed[name]["setting"], cell, sizes)
    if table == "fig1":
        yield from _paths(sizes)
    elif table == "table14":
        yield from _label_rules(sizes)
    elif table == "fig6":
        yield _convergence(printed["text-convergence"]["setting"], sizes)
    elif table == "fig10":
        yield from _parabolas()


def _cell(table: str, setting: dict[str, Any], cell: dict[str, Any], sizes: Sizes) -> Cell:
    base = Cell(cell["id"], float(cell["value"]), cell["unit"])
    if table in NOT_MEASURED:
        return replace(base, reason=NOT_MEASURED[table])
    if table == "table10-lpips":
        if why := _no_lpips():
            return replace(base, reason=why)
        base = replace(base, read=_lpips)
    if table == "text-overdetermination":
        case = Case(model="resnet10", data="mnist")
        unknowns = float(cell["input_dimension"])
        return replace(base, jobs=(Job(case, kind="parameters"),), read=score_named("parameters", 1 / unknowns))
    if cell["method"] in GENERATIVE and sizes.public_data is None:
        return replace(base, reason=_NO_PUBLIC_DATA)
    if table.startswith("text-fig1"):
        return _fig1(base, table, cell, sizes)
    spec, data_note = _data(setting.get("dataset", cell["dataset"]), cell["dataset"], sizes)
    if spec is None:
        return replace(base, reason=data_note)
    if table == "text-pearson":
        jobs = (Job(Case(model="resnet10", width=sizes.width, data=spec, pool=setting["samples"]), kind="fig9"),)
        note = "" if sizes.width is None else f"width {sizes.width} for 64"
        return replace(base, jobs=jobs, read=score_named("pearson"), note=_join(note, "random weights for pretrained"))
    if table == "text-capacity-gain":
        ends = cell["change"].split(" to ")
        jobs, notes = zip(*(_inversion(setting, {**cell, "model": end}, spec, sizes) for end in ends), strict=True)
        if sizes.model is not None:
            return replace(base, reason="compares two models; --model would make them one")
        return replace(base, jobs=jobs, read=_gain, note=_join(data_note, notes[0]))
    if table == "table8" and sizes.model is not None:
        return replace(base, reason="compares models; --model would make them one")
    if table == "table7" and cell["weights"] == "pretrained" and sizes.warm is None and sizes.pretrained is None:
        return replace(base, reason="compares random with pretrained weights: --weights warm or a safetensors file")
    if table == "table14-label-accuracy":  # this table always has random weights
        sizes = replace(sizes, attack_round=None, warm=None, pretrained=None)
    job, note = _inversion(setting, cell, spec, sizes)
    if table == "table14-label-accuracy":
        # The case has only what the gradient depends on, so that a change of the attack runs nothing again.
        c = job.case
        case = Case(model=c.model, width=c.width, activation=c.activation, data=c.data, batch_size=c.batch_size)
        job = Job(case, kind="labels")
        return replace(base, jobs=(job,), read=score_named("fedleak", 100), note=_join(data_note, note))
    reads = {"table10-ssim": score_named("ssim"), "table11-gd": score_named(_distance(cell["method"]))}
    return replace(base, jobs=(job,), read=reads.get(table, base.read), note=_join(data_note, note))


def _lpips(results: Results) -> float:
    return float(np.mean(metrics.lpips(results[0].arrays["truth"], results[0].arrays["estimate"])))


def _gain(results: Results) -> float:
    first, second = (result.scores["psnr_best_match"] for result in results)
    return second - first


def _inversion(setting: dict[str, Any], cell: dict[str, Any], spec: str, sizes: Sizes) -> tuple[Job, str]:
    """The run behind a PSNR, and a note on how it differs from the printed one."""
    printed_attack = setting.get("attack", {})
    batch = sizes.batch_size or cell.get("batch_size", setting.get("batch_size", 32))
    steps = cell.get("local_steps", setting.get("local_steps", 1))
    printed_model = MODELS[cell.get("model") or setting["model"]]
    model = sizes.model or printed_model
    iterations = sizes.iterations or printed_attack.get("iterations", PRINTED_ITERATIONS)
    skew, partition_note = _partition(cell)
    method = {**METHODS, **GENERATIVE}.get(cell["method"], sizes.fedleak)
    case = Case(
        attack=method,
        iterations=iterations,
        model=model,
        activation=sizes.activation,
        width=sizes.width if model.startswith("resnet") else None,
        weights=sizes.pretrained if _is_pretrained(setting, cell) else None,
        data=spec,
        pool=sizes.pools.get(spec, batch * steps),
        partition=skew,
        federation=sizes.federation,
        batch_size=batch,
        local_steps=steps,
        learning_rate=sizes.client_learning_rate,
        estimate=sizes.estimate and steps > 1,
        labels=sizes.labels,
        optimizer=sizes.idlg_optimizer if method == "idlg" else None,
    )
    if cell["method"] in GENERATIVE and sizes.public_data is not None:
        case = replace(case, public_data=sizes.public_data)
    case = _strategy(_swept(case, cell, sizes), cell)
    if sizes.microbatch is not None and case.restarts > 1:
        case = replace(case, microbatch=min(sizes.microbatch, case.restarts))
    training = sizes.warm if _is_pretrained(setting, cell) and sizes.pretrained is None else None
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
    if cell["method"] in GENERATIVE:
        notes.append(f"generator trained on {case.public_data}")
    notes += [
        note
        for cause, note in _UNNAMED.items()
        if cause in (method, cell.get("strategy"), cell["id"].partition("/")[0])
    ]
    notes += ["iDLG by Adam at 0.05 for L-BFGS"] if case.optimizer == "adam" and method == "idlg" else []
    if method in PRESETS:
        notes.append(PRESETS[method])
    if method in ("fedleak", "fedleak_upstream") and case.tv is not None:
        notes.append(f"mean TV weight {case.tv:g}")
    return Job(case, sizes.attack_round or training), _join(*notes)


def _swept(case: Case, cell: dict[str, Any], sizes: Sizes) -> Case:
    """Tables 15 to 19 change one setting of FedLeak; Table 14 withholds its labels."""
    if case.attack in ("fedleak", "fedleak_paper", "fedleak_upstream"):
        smooth: dict[str, Any] = {"homotopy": sizes.homotopy, "exact_kinks": sizes.exact_kinks}
        case = replace(case, **smooth)
    scale = "l1" if case.attack == "fedleak_paper" else "relative_l1"
    if "R" in cell:
        return replace(case, matched_percent=float(cell["R"]))
    if "lambda_prime" in cell:
        return replace(case, blend=float(cell["lambda_prime"]))
    if "alpha" in cell:
        # The printed TV is a sum over the batch, as in fedleak_paper. Other presets take a mean, so that the weight is
        # multiplied by the number of differences. The printed activation penalty is also a sum, but the paper does not
        # say over how many layers: in presets other than fedleak_paper it stays a mean.
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


def _fig1(base: Cell, table: str, cell: dict[str, Any], sizes: Sizes) -> Cell:
    iterations = sizes.iterations or 1000
    case = Case(attack="idlg", model="mlp", iterations=iterations, pool=100, optimizer=sizes.idlg_optimizer)
    cases = [replace(case, data=sizes.specs[name]) for name in ("MNIST", "CIFAR-10") if name in sizes.specs]
    what = {"text-fig1-element": "element", "text-fig1-psnr": "psnr"}.get(table, "distance")
    if cell["id"].endswith("noise16"):
        what = "noise16"
    end = max if cell["id"].endswith("high") else min if cell["id"].endswith("low") else (lambda v: sum(v) / len(v))
    return replace(
        base,
        jobs=tuple(Job(case, kind="fig1") for case in cases),
        read=lambda results: float(end([result.scores[what] for result in results])),
        note=f"{iterations} iterations; random weights; MNIST and CIFAR-10; 3 images, 4 clipped draws of noise for 100",
    )


def _paths(sizes: Sizes) -> Iterator[Cell]:
    """Fig. 1c and d have no printed numbers: 2mu/L along the paths of an old attack and of FedLeak's ingredients."""
    common = Case(
        attack="fedleak", exact_kinks=True, model=sizes.model or "mlp", iterations=sizes.iterations or 1000,
        data=sizes.specs["CIFAR-10"], pool=100, labels=sizes.labels,
    )  # fmt: skip
    cases = {
        "idlg": replace(common, attack="idlg", optimizer="adam"),
        "ig": replace(common, attack="inverting_gradients"),
        "fedleak": common,
        "fedleak-r50": replace(common, matched_percent=50.0),
        "fedleak-r50-blend": replace(common, matched_percent=50.0, blend=0.7),
        "fedleak-r50-blend-descent": replace(common, matched_percent=50.0, blend=0.7, probe="descent"),
    }
    for name, case in cases.items():
        note = f"median along the path; {case.model}; B 1; {case.iterations} iterations; random weights"
        yield Cell(f"fig1-path/{name}", None, "2mu/L", (Job(case, kind="path"),), score_named("median"), note)


def _convergence(setting: dict[str, Any], sizes: Sizes) -> Cell:
    """Fig. 6 has no printed numbers: the curve is drawn, and the cell says when it has nearly ended."""
    base = Cell("fig6/fedleak", None, "iterations")
    spec, note = _data(setting["dataset"], setting["dataset"], sizes)
    if spec is None:
        return replace(base, reason=note)
    job, how = _inversion(setting, {"id": base.id, "method": "FedLeak"}, spec, sizes)
    read = lambda results: settled_after(results[0].arrays["curve"])  # noqa: E731
    note = _join(note, how, "until the attacker's distance is within 5 % of its fall above its last value")
    return replace(base, jobs=(job,), read=read, note=note)


def _parabolas() -> Iterator[Cell]:
    """Fig. 10: what is left of x = 0.5 after 20 steps on x^2, without the regularization and with both readings."""
    plain = Case(iterations=20)
    variants = {
        "plain": plain,
        "toward-the-next-point": replace(plain, blend=0.3, probe="step"),  # the paper's example, the code
        "along-the-gradient": replace(plain, blend=0.3, probe="ascent"),  # the paper's Equation 13
    }
    for rate in (1.0, 0.9):
        for name, case in variants.items():
            jobs = (Job(replace(case, step_size=rate), kind="fig10"),)
            yield Cell(
                f"fig10/step{rate:g}/{name}", None, "1", jobs, score_named("left"), "|x| after 20 steps from 0.5"
            )


def _label_rules(sizes: Sizes) -> Iterator[Cell]:
    """Label inference on data with more samples than the ImageNet sample has; the report shows all rules."""
    model = sizes.model or "resnet10"
    # No data set at hand has 1,000 classes and batches with repeated labels, so that labels are drawn.
    for name, drawn in (("CIFAR-10", None), ("CIFAR-100", None), ("CIFAR-100", 1000)):
        if name not in sizes.specs:
            continue
        for batch in (4, 16, 32, 64, 128):
            case = Case(
                model=model,
                width=sizes.width if model.startswith("resnet") else None,
                activation=sizes.activation,
                data=sizes.specs[name],
                batch_size=batch,
            )
            jobs = (Job(case, kind="labels", drawn_classes=drawn),)
            note = "FedLeak's rule; all rules below; random weights"
            classes = f"-{drawn}-classes" if drawn else ""
            yield Cell(f"labels/{case.data}{classes}/b{batch}", None, "%", jobs, score_named("fedleak", 100), note)


def _data(of_table: str, of_cell: str, sizes: Sizes) -> tuple[str | None, str]:
    """The data specification of a cell and a note, or None and the reason."""
    name = of_cell if of_cell in sizes.specs else of_table
    if name in sizes.specs and (sizes.specs[name] != sizes.substitute or DATASETS.get(name) == sizes.substitute):
        return sizes.specs[name], ""
    if sizes.substitute is not None:
        return sizes.substitute, f"{sizes.substitute} in place of {name}"
    return None, f"no data: {name}; name it with --svhn or --lungcolon, or take --substitute"


def _is_pretrained(setting: dict[str, Any], cell: dict[str, Any]) -> bool:
    return "pretrained" in cell.get("weights", setting.get("weights", "random"))


def _weights_note(setting: dict[str, Any], cell: dict[str, Any], sizes: Sizes) -> str:
    if not _is_pretrained(setting, cell) or sizes.pretrained is not None:
        return ""
    return f"{'warm' if sizes.warm else 'random'} weights for pretrained"


def _no_lpips() -> str:
    """Why LPIPS cannot be computed here, or ""; asked before hours of attack and not after them."""
    black = np.zeros((1, 32, 32, 3))
    try:
        metrics.lpips(black, black)
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return ""


def _distance(method: str) -> str:
    return "cosine_distance" if method == "IG" else "l2_distance"


def _changed(ours: str, printed: str) -> str:
    return "" if ours == printed else f"{ours} for {printed}"


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
