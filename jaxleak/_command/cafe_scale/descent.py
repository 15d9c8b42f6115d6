"""CAFE at scale as the paper runs it: gradient descent in nested loops (Algorithm 3) or a single one (Algorithm 4)."""

from typing import Any

import jax
import numpy as np

from jaxleak import attacks, audit, metrics
from jaxleak._command.cafe_scale.options import Config
from jaxleak.attacks import aggregated
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import Progress, RunFolder, peak_memory_gb, sheets
from jaxleak.study._data_names import data_in_short
from jaxleak.study.rounds import (
    forward_features,
    image_psnr,
    reconstruction_metrics,
    relative_errors,
    sources_of_rounds,
    step_three,
    steps_one_and_two,
    vertical_problem,
)


def run(args: Config, folder: RunFolder, config: dict[str, Any]) -> dict[str, float]:
    """Run the paper's solvers with Table 9's hyper-parameters: nested loops (Algorithm 3) or one (Algorithm 4)."""
    key = jax.random.key(args.seed)
    identity = {k: v for k, v in config.items() if k not in ("preset", "out", "images")}
    tables_at = Checkpoints(folder.checkpoints / "tables", identity, fresh=args.fresh)
    data_at = Checkpoints(folder.checkpoints / "data", identity, fresh=args.fresh)
    problem = vertical_problem(
        args.data, num_samples=args.num_samples, parties=args.parties, seed=args.seed, key=key, network=args.network
    )
    folder.sources.bind(sources_of_rounds(problem, args.data, args.seed))
    options = aggregated.published_hyperparameters(args.data if args.data in aggregated.TABLE9 else "mnist")._asdict()
    options["batch_size"] = args.batch_size
    if problem.dataset.x.ndim != 4:
        options["beta"] = 0.0
    with folder.phase("simulator_features"):
        features = jax.block_until_ready(forward_features(problem))
    tables, rounds = None, 3 * args.iterations
    with Progress() as progress:
        if args.solver == "nested":
            with folder.phase("steps_1_2"):
                tables = steps_one_and_two(
                    problem,
                    features,
                    iterations=10 * args.iterations,
                    batch_size=args.batch_size,
                    key=key,
                    options=options,
                    callbacks=[lambda done, *_: progress.update("Steps I and II", done, 20 * args.iterations)],
                    checkpoints=tables_at,
                )
            options.update(loops="nested", iterations=1)
            rounds = args.iterations
        else:
            options.update(loops="single", switch=False)

        def report(done: int, state: audit.RunState, infos: dict[str, np.ndarray]) -> None:
            psnr = image_psnr(problem, np.asarray(state.attack.data.x), np.arange(args.num_samples)).mean()
            folder.log(round=done, F3=float(infos["F3"][-1]), psnr_truth_side_mean=float(psnr))
            progress.update("Step III", done, rounds, f"PSNR so far (truth-side) {psnr:.1f} dB")

        with folder.phase("step_3"):
            reconstruction, _ = step_three(
                problem,
                lambda model, share: attacks.cafe(
                    model, share, num_samples=args.num_samples, options=aggregated.CafeOptions(**options)
                ),
                rounds=rounds,
                batch_size=args.batch_size,
                key=key,
                tables=tables,
                callbacks=[report],
                checkpoints=data_at,
                on_resume=lambda done: folder.keep_log_before(round=done),
            )
    results = reconstruction_metrics(problem, reconstruction)
    shown = np.arange(args.images)
    images = problem.assemble(np.asarray(reconstruction.x)[shown])
    if problem.dataset.x.ndim == 4:
        truth = problem.dataset.x[shown]
        captions = [f"{value:.1f} dB" for value in metrics.psnr(truth, images)]
        mean = f"{results['psnr_mean']:.1f} dB on average"
        title = f"CAFE by descent on {data_in_short(args.data)}: PSNR of each image below it, {mean}"
        sheets.contact_sheet(folder.figure("contact_sheet.png"), truth, images, captions=captions, title=title)
    if tables is not None:
        truth_v = aggregated.true_output_gradients(
            problem.model, problem.params, np.asarray(features), np.asarray(problem.private.y), args.batch_size
        )
        for name, truth, found in (("output_gradient", truth_v, tables.V), ("feature", features, tables.H)):
            rows = np.linalg.norm(truth, axis=-1) > 0
            results[f"{name}_relative_error"] = float(np.median(relative_errors(truth, found, rows)))
    return {
        **results,
        "answered_fraction": float(np.mean(reconstruction.answered)),
        "seconds_steps_1_2": folder.seconds.get("steps_1_2", 0.0),
        "seconds_step_3": folder.seconds["step_3"],
        "samples_per_second": args.num_samples / folder.seconds["step_3"],
        "peak_memory_gb": peak_memory_gb(),
    }
