"""What the subcommands of `jaxleak` do."""

from jaxleak._command.audit import audit
from jaxleak._command.models import models

__all__ = ["audit", "models"]
