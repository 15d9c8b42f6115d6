"""Audit an update: `update` reaches a verdict on a recorded update; `check_update` and `check_client` check its inputs.

`invert` runs one attack on one recorded round, and `run` runs an attack along the rounds of a simulated protocol. Both
are jitted in chunks, can be resumed from checkpoints, and take several independent starts. `agreement`, `rival` and
`indistinct` say, without the truth, whether an answer can be believed.
"""

from jaxleak._memory import require_bytes
from jaxleak.audit._agreement import Agreement, agreement
from jaxleak.audit._checks import Finding, check_client, check_update
from jaxleak.audit._chunks import EXECUTORS, Executor
from jaxleak.audit._indistinct import indistinct
from jaxleak.audit._invert import InversionRun, all_starts, frozen_trials, invert
from jaxleak.audit._recorded import replay, watch
from jaxleak.audit._report import write_report
from jaxleak.audit._restarts import best_restart
from jaxleak.audit._rival import Rival, rival
from jaxleak.audit._rounds import Callback, RunState, init_key, run, start, template_of
from jaxleak.audit._verdict import AGREE_ABOVE, EXIT_STATUS, Answer, Verdict, update

__all__ = [
    "AGREE_ABOVE",
    "EXECUTORS",
    "EXIT_STATUS",
    "Agreement",
    "Answer",
    "Callback",
    "Executor",
    "Finding",
    "InversionRun",
    "Rival",
    "RunState",
    "Verdict",
    "agreement",
    "all_starts",
    "best_restart",
    "check_client",
    "check_update",
    "frozen_trials",
    "indistinct",
    "init_key",
    "invert",
    "replay",
    "require_bytes",
    "rival",
    "run",
    "start",
    "template_of",
    "update",
    "watch",
    "write_report",
]
