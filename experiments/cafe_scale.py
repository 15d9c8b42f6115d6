"""CAFE at scale: recover hundreds of private samples of a vertical federation from its aggregated gradients.

    python -m experiments.cafe_scale                      # 100 embedded photographs of faces, a few minutes
    python -m experiments.cafe_scale --preset mnist       # N = 800, K = 40; needs JAXLEAK_DATA_DIR
    python -m experiments.cafe_scale --preset cifar10     # N = 800, K = 40; needs JAXLEAK_DATA_DIR
    python -m experiments.cafe_scale --preset scale       # Steps I and II at N = 1,000, 3,000 and 10,000
    python -m experiments.cafe_scale --preset paper       # the paper's gradient descent instead of the exact solver
    python -m experiments.cafe_scale --devices 4          # tables and images shared out among four devices

Prints and stores the metrics, a contact sheet (private images above their reconstructions; framed grey tiles where the
attack says that it has no answer) and the attacker's certificate against the true PSNR. `demo` should print psnr_mean
above 100 dB, answered_fraction above 0.95 and label_accuracy 1.0. Killed at any moment, the same command continues and
ends with the same reconstruction; `--fresh` starts over. SIGTERM and Ctrl-C save first. Several processes share a run
with `--distributed` (Slurm, Open MPI, Kubernetes) or `--coordinator`; --out is then on a file system that all of them
see.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from jax.sharding import Mesh

from experiments._cafe import descent as cafe_descent
from experiments._cafe import scaling
from experiments._cafe.exact import observe_and_recover, require_memory
from experiments._cafe.problem import (
    Problem,
    forward_features,
    image_psnr,
    relative_errors,
    sources_of,
    vertical_problem,
)
from jaxleak import _validate, attacks, audit, metrics
from jaxleak.attacks import aggregated
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import (
    Progress,
    RunFolder,
    default_out,
    distributed,
    peak_memory_gb,
    plots,
    print_metrics,
    run_command,
    sheets,
)

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"data": "lfw_faces", "num_samples": 100, "batch_size": 20, "images": 100},
    "mnist": {"data": "mnist", "num_samples": 800, "batch_size": 40, "images": 128},
    "cifar10": {"data": "cifar10", "num_samples": 800, "batch_size": 40, "images": 64},
    "paper": {"data": "mnist", "num_samples": 800, "batch_size": 40, "images": 800, "solver": "nested"},
    "scale": {"data": "natural_patches", "num_samples": 10_000, "batch_size": 100, "images": 16},
}

#: Samples whose slices are inverted between two checkpoints.
STEP_THREE_CHUNK = 8


@dataclass(frozen=True)
class Args:
    """Options; those left out come from the preset."""

    preset: Literal["demo", "mnist", "cifar10", "paper", "scale"] = "demo"
    data: str | None = None
    """Data specification: lfw_faces, natural_patches, digits, breast_cancer, mnist, tfds:NAME, folder:DIR, npz:FILE."""
    num_samples: int | None = None
    """N, size of the private set."""
    batch_size: int | None = None
    """K, samples per round."""
    parties: int = 4
    """M, a square number for images."""
    solver: Literal["exact", "nested", "single"] | None = None
    """The exact solver, or the paper's Algorithm 3 or 4."""
    linear_solver: Literal["auto", "direct", "matrix_free"] = "auto"
    """How Steps I and II are solved: direct factorises, matrix_free iterates; auto factorises up to N = 20,000 on one
    device."""
    images: int | None = None
    """How many samples Step III inverts (the first of the private set)."""
    iterations: int = 800
    """Gradient steps of the paper's Step III (nested; Steps I and II take ten times as many) or a third of the single
    loop's."""
    network: Literal["cafe", "cafe-relu", "dense", "logistic"] = "cafe"
    seed: int = 0
    out: Path | None = None
    """Run folder; default runs/cafe_scale/<preset>."""
    fresh: bool = False
    """Start over instead of continuing."""
    where: tyro.conf.OmitArgPrefixes[distributed.Devices] = field(default_factory=distributed.Devices)

    def resolved(self) -> "Config":
        """With the preset's values where none was given."""
        given = {name: value for name, value in vars(self).items() if name != "where" and value is not None}
        defaults = {"solver": "exact", "out": default_out("cafe_scale", self.preset), **PRESETS[self.preset]}
        chosen = {**defaults, **given}
        if self.images is None:
            chosen["images"] = min(chosen["images"], chosen["num_samples"])
        return Config(**chosen)


@dataclass(frozen=True)
class Config:
    """`Args` with every value settled."""

    preset: str
    data: str
    num_samples: int
    batch_size: int
    parties: int
    solver: str
    linear_solver: Literal["auto", "direct", "matrix_free"]
    images: int
    iterations: int
    network: str
    seed: int
    out: Path
    fresh: bool


def main(options: Args) -> dict[str, float]:
    """Run the study; returns the metrics."""
    sweep = options.preset == "scale" and options.num_samples is None
    args = options.resolved()
    _validate.seeds(seed=args.seed)
    _validate.count(num_samples=args.num_samples, batch_size=args.batch_size, parties=args.parties)
    _validate.in_range(1, args.num_samples, images=args.images)
    # K = N is refused later with its reason; what is out of any range should not wait for the data.
    _validate.in_range(1, args.num_samples, batch_size=args.batch_size)
    _validate.count(iterations=args.iterations)
    if options.where != distributed.Devices() and (sweep or args.solver != "exact"):
        raise ValueError("several devices share one run of --solver exact; a sweep, or the paper's solvers, use one")
    mesh = distributed.join_devices(options.where)
    if mesh is not None and args.linear_solver == "auto":
        args = dataclasses.replace(args, linear_solver="matrix_free")
    if args.solver == "exact" and not sweep:
        require_memory(args.num_samples, args.linear_solver)
    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(args).items() if k != "fresh"}
    folder = distributed.together(lambda: RunFolder(args.out, "cafe_scale", config, fresh=args.fresh))
    if sweep:
        return scaling.run(args, folder)
    results = _exact(args, folder, config, mesh) if args.solver == "exact" else _descent(args, folder, config)
    path = folder.finish(results)
    print_metrics(results)
    print(f"stored in {path}")
    return results


def _exact(args: Config, folder: RunFolder, config: dict[str, Any], mesh: Mesh | None) -> dict[str, float]:
    key = jax.random.key(args.seed)
    # A preset's name and the number of images change nothing in Steps I and II.
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
    distributed.together(lambda: folder.sources.bind(sources_of(problem, args.data, args.seed)))
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
    inverter = aggregated.SliceInverter(problem.model, problem.params, seed=seed, mesh=mesh)
    chunk_size = STEP_THREE_CHUNK * (1 if mesh is None else mesh.size)
    while done < len(wanted):
        # The last chunk is padded with repeats, so that one compiled program serves all of them.
        rows = np.minimum(np.arange(done, done + chunk_size), len(wanted) - 1)
        chunk = inverter(recovery.H[wanted[rows]], wanted[rows])
        for column, new in zip(table, chunk, strict=True):
            column[rows] = new
        done = int(rows[-1]) + 1
        psnr = image_psnr(problem, table.x[:done], wanted[:done])
        residual = table.residual[:done].max(axis=1)
        # Logged first: on resuming, lines beyond the checkpoint are dropped, while missing ones would stay missing.
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
    """Compare with the truth; the only place where the study reads it, besides the progress line."""
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
    finite_psnr = np.minimum(psnr, 200.0)  # an exact image would make the mean infinite
    if problem.dataset.x.ndim == 4:
        if folder.writes:
            captions = np.full(args.images, "no answer", object)
            captions[wanted] = [f"{value:.0f} dB" for value in finite_psnr]
            sheets.contact_sheet(
                folder.figure("contact_sheet.png"), problem.dataset.x[shown], images, unanswered=unanswered,
                captions=list(captions), title=f"CAFE on {args.data}: PSNR of each image below it",
            )  # fmt: skip
        ssim = float(np.mean(metrics.ssim(problem.dataset.x[wanted], images[wanted])))
    else:
        ssim = float("nan")
    if folder.writes:
        path = folder.figure("residual_psnr.png")
        plots.residual_scatter(path, residual, psnr, unanswered=int(unanswered.sum()))
    seconds = folder.seconds
    return {
        "output_gradient_relative_error": float(np.median(relative_errors(truth_v, recovery.V, recovery.live))),
        "feature_relative_error": float(np.median(relative_errors(features, recovery.H, recovery.live))),
        "answered_fraction": float(recovery.answered.mean()),
        "certified_fraction": float((residual < 1e-4).sum() / args.images),
        "psnr_mean": float(finite_psnr.mean()),
        "psnr_median": float(np.median(psnr)),
        "psnr_min": float(psnr.min()),
        "ssim_mean": ssim,
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


def _descent(args: Config, folder: RunFolder, config: dict[str, Any]) -> dict[str, float]:
    """The paper's own solvers: Table 9's hyper-parameters, nested (Algorithm 3) or single loop (Algorithm 4)."""
    key = jax.random.key(args.seed)
    identity = {k: v for k, v in config.items() if k not in ("preset", "out", "images")}
    tables_at = Checkpoints(folder.checkpoints / "tables", identity, fresh=args.fresh)
    data_at = Checkpoints(folder.checkpoints / "data", identity, fresh=args.fresh)
    problem = vertical_problem(
        args.data, num_samples=args.num_samples, parties=args.parties, seed=args.seed, key=key, network=args.network
    )
    folder.sources.bind(sources_of(problem, args.data, args.seed))
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
                tables = cafe_descent.steps_one_and_two(
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
            reconstruction, _ = cafe_descent.step_three(
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
    results = cafe_descent.reconstruction_metrics(problem, reconstruction)
    shown = np.arange(args.images)
    images = problem.assemble(np.asarray(reconstruction.x)[shown])
    if problem.dataset.x.ndim == 4:
        truth = problem.dataset.x[shown]
        title = f"CAFE by descent on {args.data}: {results['psnr_mean']:.1f} dB on average"
        sheets.contact_sheet(folder.figure("contact_sheet.png"), truth, images, title=title)
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


if __name__ == "__main__":
    run_command(main, Args, __doc__)
