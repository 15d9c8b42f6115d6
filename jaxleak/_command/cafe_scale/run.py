"""CAFE at scale as a command: checks of the options, the run folder, and the printed results."""

import dataclasses
from pathlib import Path

from jaxleak import _validate
from jaxleak._command.cafe_scale import descent, exact, report, sizes
from jaxleak._command.cafe_scale.options import Args
from jaxleak.study import RunFolder, distributed
from jaxleak.study.reports import print_measures
from jaxleak.study.rounds import require_memory_of_rounds


def main(options: Args) -> dict[str, float]:
    """Run the study; returns the metrics."""
    sweep = options.preset == "scale" and options.num_samples is None
    args = options.resolved()
    _validate.seeds(seed=args.seed)
    _validate.count(num_samples=args.num_samples, batch_size=args.batch_size, parties=args.parties)
    _validate.in_range(1, args.num_samples, images=args.images)
    # A batch size out of range is refused before the data are loaded; K = N is refused later, with its reason.
    _validate.in_range(1, args.num_samples, batch_size=args.batch_size)
    _validate.count(iterations=args.iterations)
    if options.where != distributed.Devices() and (sweep or args.solver != "exact"):
        raise ValueError("several devices share one run of --solver exact; a sweep, or the paper's solvers, use one")
    mesh = distributed.join_devices(options.where)
    if mesh is not None and args.linear_solver == "auto":
        args = dataclasses.replace(args, linear_solver="matrix_free")
    if args.solver == "exact" and not sweep:
        require_memory_of_rounds(args.num_samples, args.linear_solver)
    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(args).items() if k != "fresh"}
    folder = distributed.together(lambda: RunFolder(args.out, "cafe_scale", config, fresh=args.fresh))
    if sweep:
        return sizes.run(options, args, folder)
    results = exact.run(args, folder, config, mesh) if args.solver == "exact" else descent.run(args, folder, config)
    report.write(folder, options, args, results)
    folder.finish(results)
    print_measures(report.MEASURES, results)
    print(folder.contents())
    return results
