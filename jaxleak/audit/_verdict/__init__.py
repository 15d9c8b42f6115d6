"""The verdict on one update: checks, attacks in the order of cost, and what they show."""

from jaxleak.audit._verdict.update import update
from jaxleak.audit._verdict.verdict import AGREE_ABOVE, EXIT_STATUS, Answer, Verdict

__all__ = ["AGREE_ABOVE", "EXIT_STATUS", "Answer", "Verdict", "update"]
