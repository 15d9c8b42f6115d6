"""Make every mistake, run the checks, attack if no check fails, and count the verdicts."""

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from experiments._mistakes.clients import IMAGES, LARGEST_SEED, MOST_DRAWS, build_models, draw_client
from experiments._mistakes.options import Args
from jaxleak import Batch, _validate, audit, protocols
from jaxleak.audit.mistakes import MISTAKES, Claim, false_claims
from jaxleak.study import Progress, RunFolder, default_out, forget_when_many
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.files import read_lines
from jaxleak.study.reports import markdown_table
from jaxleak.study.sources import drawn

#: Outcomes of a mistake: by the checks, then by the verdict of an attack. "suspicious" alone means: not attacked.
_STATUSES = (
    "failed", "suspicious", "suspicious_leaks", "suspicious_not_shown", "leaks", "warned", "silent", "not_attacked",
)  # fmt: skip
#: Counts of certified images and proven labels that are not the client's: `mistakes.FalseClaims`.
_FALSE = ("false_images", "false_labels")
_FIELDS = ("made", *_STATUSES, *_FALSE)
#: Translation of names to keys of metrics: no dots, since dots separate keys.
_AS_KEY = str.maketrans({",": None, ".": None, " ": "_"})


def main(args: Args) -> dict[str, Any]:
    """Make and check all mistakes; returns the metrics.

    Raises:
        ValueError: on options out of range, such as a seed so large that JAX would draw another seed's clients.
        ConfigMismatchError: if the results in the folder come from other contents of the data.
    """
    _validate.count(draws=args.draws)
    _validate.in_range(1, MOST_DRAWS, draws=args.draws)
    _validate.non_negative(minutes=args.minutes)
    _validate.seeds(seed=args.seed)
    _validate.in_range(0, LARGEST_SEED, seed=args.seed)
    config = {name: value for name, value in asdict(args).items() if name not in ("out", "fresh")}
    out, program = args.out or default_out("mistakes", args.data), "python -m experiments.mistakes"
    folder = RunFolder(out, "mistakes", config, fresh=args.fresh, program=program)
    folder.sources.bind(drawn(args.data, IMAGES, 0))
    known = _finished(folder, args)
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_FIELDS, 0))
    by_model: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_FIELDS, 0))
    with Progress() as progress, folder.phase("checks"):
        chosen = build_models()
        for number, (name, (model, mode)) in enumerate(chosen.items()):
            share = protocols.ClientShare(model, batch_norm=mode)
            for draw in range(args.draws):
                client = draw_client(share, args, number, draw)
                for mistake, make in MISTAKES.items():
                    claim = make(client)
                    if claim is None:
                        continue
                    what: dict[str, Any] = {"model": name, "draw": draw, "mistake": mistake}
                    line = known.get(tuple(what.values()))
                    if line is None:
                        forget_when_many()  # every mistake compiles programs of its own
                        line = what | _outcome(claim, client.batch, 0.0 if mistake == "none" else args.minutes)
                        run = {"seed": args.seed, "minutes": args.minutes, "data": args.data}
                        folder.log(**line, batch_size=client.size, **run)
                    for row in (counts[mistake], by_model[name if mistake != "none" else f"{name}, no mistake"]):
                        for field in ("made", line["status"], *(field for field in _FALSE if line[field])):
                            row[field] += 1
                progress.update(name, draw + 1, args.draws)
    mistakes = {name: row for name, row in counts.items() if name != "none"}
    total, right = {field: sum(row[field] for row in mistakes.values()) for field in _FIELDS}, counts["none"]
    metrics: dict[str, Any] = total | {
        "right": right["made"], "false_alarms": right["failed"], "false_suspicions": right["suspicious"],
        "by_mistake": {name.translate(_AS_KEY): row for name, row in mistakes.items()},
    }  # fmt: skip
    print(table(mistakes))
    print(f"right updates: {right['made']}, false alarms: {right['failed']}, suspicious: {right['suspicious']}")
    cells = [{"model": name} | row for name, row in by_model.items()]
    write_rows(folder, "How many mistaken inputs an audit catches", args, cells, seeds=(args.seed,))
    folder.finish(metrics, cells=cells)
    print(folder.contents())
    return metrics


def _finished(folder: RunFolder, args: Args) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Lines that earlier sessions of this run logged, by model, draw and mistake."""
    log = folder.path / "metrics.jsonl"
    if args.fresh or not log.exists():
        return {}
    lines = [line for _, line in read_lines(log, dict)]
    wanted = {"seed": args.seed, "minutes": args.minutes, "data": args.data}
    return {
        (line["model"], line["draw"], line["mistake"]): line
        for line in lines
        if wanted.items() <= line.items() and line["status"] in _STATUSES and line.keys() >= set(_FALSE)
    }


def _outcome(claim: Claim, batch: Batch | None, minutes: float) -> dict[str, Any]:
    """The status (one of `_STATUSES`, by the checks and, if none fails, the verdict) and the counts of false claims."""
    statuses = {finding.status for finding in audit.check_update(**claim)}
    found = next((status for status in ("failed", "suspicious") if status in statuses), "")
    if found == "failed" or not minutes:
        return {"status": found or "not_attacked"} | dict.fromkeys(_FALSE, 0)
    share = claim["share"]
    verdict = audit.update(
        share.model, claim["variables"], claim["payload"], batch_size=claim["batch_size"],
        batch_norm=share.batch_norm, minutes=minutes,
    )  # fmt: skip
    if verdict.verdict == "leaks":
        status = "suspicious_leaks" if found else "leaks"
    elif not any(reason.startswith("Warning") for reason in verdict.reasons):
        status = "silent"
    else:
        status = "suspicious_not_shown" if found else "warned"
    assert batch is not None  # every client of the study has one
    return {"status": status} | dict(zip(_FALSE, false_claims(verdict, batch), strict=True))


def table(rows: dict[str, dict[str, int]]) -> str:
    """The counts as a table in Markdown, one row per mistake."""
    header = ["mistake", *(field.replace("_", " ") for field in _FIELDS)]
    return "\n".join(
        markdown_table(header, [[name, *(str(row[field]) for field in _FIELDS)] for name, row in rows.items()])
    )
