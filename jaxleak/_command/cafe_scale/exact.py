"""CAFE at scale with the exact engine: observe the rounds, solve, invert the slices, and compare with the truth."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxleak import attacks, audit, metrics
from jaxleak._command.cafe_scale.options import Config
from jaxleak.attacks import aggregated
from jaxleak.checkpoint import Checkpoints
from jaxleak.metrics._images import MOST_DB
from jaxleak.study import Progress, RunFolder, distributed, peak_memory_gb, plots, sheets
from jaxleak.study._data_names import data_in_short
from jaxleak.study.rounds import (
    Problem,
    forward_features,
    image_psnr,
    observe_and_recover,
    relative_errors,
    sources_of_rounds,
    table_r2,
    vertical_problem,
)

#: Number of samples that are inverted between two checkpoints.
STEP_THREE_CHUNK = 8
#: Relative residual of a sample's worst slice below which the attacker trusts it.
CERTIFIED_BELOW = 1e-4


def run(args: Config, folder: RunFolder, config: dict[str, Any], mesh: Mesh | None) -> dict[str, float]:
    key = jax.random.key(args.seed)
    # The name of a preset and the number of images do not change Steps I and II.
    identity = {k: v for k, v in config.items() if k not in ("preset", "out", "images", "iterations", "solver")}
    if args.linear_solver == "auto":
        del identity["linear_solver"]
    rounds_at = Checkpoints(folder.checkpoints / "rounds", identity, fresh=args.fresh)
    slices_at = Checkpoints(folder.checkpoints / "slices", {**identity, "images": args.images}, fresh=args.fresh)
    problem = vertical_problem(
        args.data,
        num_samples=args.num_samples,
        parties=args.parties,
        seed=args.seed,
        key=key,
        network=args.network,
    )
    distributed.together(lambda: folder.sources.bind(sources_of_rounds(problem, args.data, args.seed)))
    plan = attacks.plan_cafe_exact(
        problem.model, num_samples=args.num_samples, batch_size=args.batch_size, solver=args.linear_solver
    )
    print(
        f"{problem.dataset.name}: N = {plan.num_samples}, K = {plan.batch_size}, M = {args.parties}; watching "
        f"{plan.output_rounds} + {plan.feature_rounds} rounds"
    )
    with folder.phase("simulator_features"):
        features = jax.block_until_ready(forward_features(problem))
    with Progress() as progress:

        def report(done: int, _: audit.RunState, infos: dict[str, np.ndarray]) -> None:
            phase = "I" if done <= plan.output_rounds else "II"
            folder.log(round=done, phase=phase, bias_gradient_norm=float(infos["bias_gradient_norm"].mean()))
            progress.update(f"Step {phase}", done, plan.rounds)

        progress.begin("Step I")
        with folder.phase("steps_1_2"):
            recovery = observe_and_recover(
                problem,
                features,
                plan,
                key=key,
                callbacks=[report],
                checkpoints=rounds_at,
                mesh=mesh,
                on_resume=lambda done: folder.keep_log_before(round=done),
            )
        wanted = np.flatnonzero(recovery.answered[: args.images])
        if not len(wanted):
            raise ValueError(
                f"the attack has no answer for any of the first {args.images} samples (median inconsistency "
                f"{np.median(recovery.consistency):.1e}, Step II condition {recovery.feature_condition:.1e}); "
                "nothing is left to invert"
            )
        with folder.phase("step_3"):
            result = _step_three(problem, recovery, wanted, args.seed, slices_at, folder, progress, mesh)
    return _score(args, folder, problem, np.asarray(features), plan, recovery, wanted, result)


def _step_three(
    problem: Problem,
    recovery: aggregated.Recovery,
    wanted: np.ndarray,
    seed: int,
    checkpoints: Checkpoints,
    folder: RunFolder,
    progress: Progress,
    mesh: Mesh | None,
) -> aggregated.FeatureInversionResult:
    parties, shape = problem.model.parties, problem.model.slice_shape
    table = aggregated.FeatureInversionResult(
        x=np.zeros((len(wanted), parties, *shape), np.float32),
        residual=np.full((len(wanted), parties), np.inf, np.float32),
        steps=np.zeros((len(wanted), parties), np.int32),
        restarts=np.zeros((len(wanted), parties), np.int32),
    )
    saved = checkpoints.restore_latest({"done": np.zeros((), np.int32), "table": table._asdict()})
    done, table = (
        int(saved["done"]),
        aggregated.FeatureInversionResult(**{k: np.array(v) for k, v in saved["table"].items()}),
    )
    folder.keep_log_before(samples=done)
    if done == len(wanted):
        return table
    progress.begin("Step III")
    options = aggregated.FeatureInversionOptions(bounds=(0.0, 1.0))  # data sets of a study are in [0, 1], tables too
    inverter = aggregated.SliceInverter(problem.model, problem.params, options=options, seed=seed, mesh=mesh)
    chunk_size = STEP_THREE_CHUNK * (1 if mesh is None else mesh.size)
    while done < len(wanted):
        # The last chunk is padded with repeated samples, so that one compiled program serves all chunks.
        rows = np.minimum(np.arange(done, done + chunk_size), len(wanted) - 1)
        chunk = inverter(recovery.H[wanted[rows]], wanted[rows])
        for column, new in zip(table, chunk, strict=True):
            column[rows] = new
        done = int(rows[-1]) + 1
        psnr = image_psnr(problem, table.x[:done], wanted[:done])
        residual = table.residual[:done].max(axis=1)
        # The line is logged before the checkpoint is saved: a resumed run drops lines beyond its checkpoint, while a
        # missing line would stay missing.
        folder.log(samples=done, residual_median=float(np.median(residual)), psnr_truth_side_mean=float(psnr.mean()))
        checkpoints.save(done, {"done": np.asarray(done, np.int32), "table": table._asdict()})
        progress.update(
            "Step III", done, len(wanted), f"PSNR so far (truth-side) {np.minimum(psnr, 200).mean():.1f} dB"
        )
    return table


def _score(
    args: Config,
    folder: RunFolder,
    problem: Problem,
    features: np.ndarray,
    plan: aggregated.CafeExactPlan,
    recovery: aggregated.Recovery,
    wanted: np.ndarray,
    result: aggregated.FeatureInversionResult,
) -> dict[str, float]:
    """Compare with the truth, which the study reads nowhere else except for the progress line."""
    truth_v = aggregated.true_output_gradients(
        problem.model, problem.params, features, np.asarray(problem.private.y), plan.batch_size
    )
    shown = np.arange(args.images)
    unanswered = ~recovery.answered[shown]
    estimate = np.zeros((args.images, *result.x.shape[1:]), np.float32)
    estimate[wanted] = result.x
    images = problem.assemble(estimate)
    residual = result.residual.max(axis=1)
    psnr = image_psnr(problem, result.x, wanted)
    finite_psnr = np.minimum(psnr, MOST_DB)  # an exact image would make the mean infinite
    if problem.dataset.x.ndim == 4:
        if folder.writes:
            captions = np.full(args.images, "no answer", object)
            captions[wanted] = [f"{value:.0f} dB" for value in finite_psnr]
            sheets.contact_sheet(
                folder.figure("contact_sheet.png"), problem.dataset.x[shown], images, unanswered=unanswered,
                captions=list(captions), title=f"CAFE on {data_in_short(args.data)}: PSNR of each image below it",
            )  # fmt: skip
        seen = {"ssim_mean": float(np.mean(metrics.ssim(problem.dataset.x[wanted], images[wanted])))}
    else:
        seen = {"feature_r2": table_r2(problem, images, wanted)}
    if folder.writes:
        path = folder.figure("residual_psnr.png")
        plots.residual_scatter(path, residual, psnr, certified_below=CERTIFIED_BELOW, unanswered=int(unanswered.sum()))
    seconds = folder.seconds
    return {
        "output_gradient_relative_error": float(np.median(relative_errors(truth_v, recovery.V, recovery.live))),
        "feature_relative_error": float(np.median(relative_errors(features, recovery.H, recovery.live))),
        "answered_fraction": float(recovery.answered.mean()),
        "certified_fraction": float((residual < CERTIFIED_BELOW).sum() / args.images),
        "psnr_mean": float(finite_psnr.mean()),
        "psnr_median": float(np.median(psnr)),
        "psnr_min": float(psnr.min()),
        **seen,
        "mse_mean": float(np.mean((images[wanted] - problem.dataset.x[wanted]) ** 2)),
        "images_inverted": float(len(wanted)),
        "label_accuracy": metrics.label_accuracy(problem.dataset.y, recovery.labels),
        "label_margin_min": float(recovery.label_margin.min()),
        "output_rank": float(recovery.output_rank),
        "output_condition": recovery.output_condition,
        "feature_rank": float(recovery.feature_rank),
        "feature_condition": recovery.feature_condition,
        "rounds_observed": float(plan.rounds),
        "seconds_simulator_features": seconds["simulator_features"],
        "seconds_steps_1_2": seconds["steps_1_2"],
        "seconds_step_3": seconds["step_3"],
        "samples_per_second": len(wanted) / seconds["step_3"],
        "peak_memory_gb": peak_memory_gb(),
        "simulator_features_gb": features.nbytes / 1e9,
    }
