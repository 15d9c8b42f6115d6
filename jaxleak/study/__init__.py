"""What a command needs around an attack: a run folder that survives being killed, a progress line, and provenance.

The command `jaxleak` and the studies in `experiments/` are built on this package. A study makes a `RunFolder`, does
its work in phases inside a `Progress`, and ends with `RunFolder.finish`; `run_command` turns a study into a command.
The submodules have the rest: `files` (files that are written whole or not at all), `sources` (which data the results
come from), `plots` and `sheets` (charts, and images side by side), `reports` (a report for a colleague), and
`distributed` (several devices and processes). A study of many runs describes them as `cells`: a cell is one number of
a table, with the jobs that give it. A `runner` runs every job once and reads its result back afterwards; `rows` prints
the table and `cell_reports` writes its report. A `ledger` keeps what was measured beside the numbers that a paper
prints. Every name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from jaxleak._lazy import lazy

if TYPE_CHECKING:
    from jaxleak.study import (
        cell_reports,
        cells,
        distributed,
        files,
        ledger,
        plots,
        reports,
        rows,
        runner,
        sheets,
        sources,
    )
    from jaxleak.study._command import print_metrics, run_command
    from jaxleak.study._folder import RunFolder, has_run
    from jaxleak.study._out import default_out, require_own_folder
    from jaxleak.study._programs import forget_when_many
    from jaxleak.study._progress import Progress, StoppedBySignal, stopped_message
    from jaxleak.study._provenance import digest, peak_memory_gb, provenance
    from jaxleak.study._weights import read_weights, read_weights_and_counters

_MODULE_OF = {
    **dict.fromkeys(("print_metrics", "run_command"), "_command"),
    **dict.fromkeys(("RunFolder", "has_run"), "_folder"),
    **dict.fromkeys(("default_out", "require_own_folder"), "_out"),
    "forget_when_many": "_programs",
    **dict.fromkeys(("Progress", "StoppedBySignal", "stopped_message"), "_progress"),
    **dict.fromkeys(("digest", "peak_memory_gb", "provenance"), "_provenance"),
    **dict.fromkeys(("read_weights", "read_weights_and_counters"), "_weights"),
    **{
        name: name
        for name in (
            "cell_reports",
            "cells",
            "distributed",
            "files",
            "ledger",
            "plots",
            "reports",
            "rows",
            "runner",
            "sheets",
            "sources",
        )
    },
}
__all__ = [
    "Progress",
    "RunFolder",
    "StoppedBySignal",
    "cell_reports",
    "cells",
    "default_out",
    "digest",
    "distributed",
    "files",
    "forget_when_many",
    "has_run",
    "ledger",
    "peak_memory_gb",
    "plots",
    "print_metrics",
    "provenance",
    "read_weights",
    "read_weights_and_counters",
    "reports",
    "require_own_folder",
    "rows",
    "run_command",
    "runner",
    "sheets",
    "sources",
    "stopped_message",
]


__getattr__ = lazy(__name__, _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
