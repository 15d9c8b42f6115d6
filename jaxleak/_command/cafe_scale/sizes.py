"""CAFE at several sizes of the private set: time, memory and PSNR against N."""

import subprocess
import sys

from jaxleak._command.cafe_scale import report
from jaxleak._command.cafe_scale.options import Args, Config
from jaxleak.study import RunFolder, plots, print_metrics
from jaxleak.study.files import read_numbers

SIZES = (1_000, 3_000, 10_000)


def run(options: Args, args: Config, folder: RunFolder) -> dict[str, float]:
    """Run each size in a process of its own, so that peak memory is separate; draw and return the measurements.

    Args:
        options: the command's options, as they were given.
        args: the options with every value filled in.
        folder: the sweep's folder; the run of size N goes to its subfolder `nN`.

    Raises:
        SystemExit: with the status of the first run that failed; that run has printed the reason.
    """
    results = {}
    folder.begin()  # work begins here, since the runs of all sizes write below this folder
    for size in SIZES:
        out = folder.path / f"n{size}"
        command = [sys.executable, "-m", "jaxleak", "demo", "--preset", "scale", "--num-samples", str(size)]
        command += ["--data", args.data, "--batch-size", str(args.batch_size), "--images", str(args.images)]
        command += ["--parties", str(args.parties), "--seed", str(args.seed), "--out", str(out)]
        status = subprocess.run(command + (["--fresh"] if args.fresh else []), check=False).returncode
        if status != 0:
            sys.exit(status)
        results[size] = read_numbers(out / "results.json", lambda found: found["metrics"])
    sizes = list(results)
    column = {
        name: [results[size][name] for size in sizes] for name in ("seconds_steps_1_2", "peak_memory_gb", "psnr_mean")
    }
    plots.scaling(
        folder.figure("scaling.png"), sizes, column["seconds_steps_1_2"], column["peak_memory_gb"], column["psnr_mean"]
    )
    merged = {f"{name}_n{size}": results[size][name] for size in sizes for name in sorted(results[size])}
    report.write_sizes(folder, options, args, results)
    folder.finish(merged)
    for size in sizes:
        print(f"N = {size}:")
        print_metrics({name: results[size][name] for name in (*column, "feature_relative_error", "answered_fraction")})
    print(folder.contents())
    return merged
