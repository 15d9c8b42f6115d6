"""Two loops: over the rounds of a protocol (`run`), and over one recorded round (`invert`). Jitted in chunks."""

from jaxleak.audit._chunks import EXECUTORS, Executor
from jaxleak.audit._invert import InversionRun, frozen_trials, invert
from jaxleak.audit._memory import require_bytes
from jaxleak.audit._recorded import replay, watch
from jaxleak.audit._restarts import best_restart
from jaxleak.audit._rounds import Callback, RunState, init_key, run, start, template_of

__all__ = [
    "EXECUTORS",
    "Callback",
    "Executor",
    "InversionRun",
    "RunState",
    "best_restart",
    "frozen_trials",
    "init_key",
    "invert",
    "replay",
    "require_bytes",
    "run",
    "start",
    "template_of",
    "watch",
]
