"""What a check of an update says."""

from typing import Literal, NamedTuple

#: "failed": no client of the stated kind could have sent this. "suspicious": hardly any could.
Status = Literal["passed", "failed", "suspicious", "not applicable"]


class Finding(NamedTuple):
    """The answer of one check.

    Attributes:
        name: what the check is called.
        status: "passed"; "failed", the update cannot come from the stated client; "suspicious", it hardly can; or "not
            applicable", and the evidence then says why.
        evidence: a sentence with the numbers that were compared.
        cause: the likeliest mistake, where the check did not pass.
        option: the argument that mends it, where there is one.
    """

    name: str
    status: Status
    evidence: str
    cause: str = ""
    option: str = ""

    def __str__(self) -> str:
        """One line for a terminal."""
        parts = [f"{self.name}: {self.status}. {self.evidence}"]
        parts += [f"Likeliest cause: {self.cause}."] if self.cause else []
        return " ".join(parts + ([f"Option: {self.option}."] if self.option else []))


def failed(findings: list[Finding]) -> list[Finding]:
    """The checks that no client of the stated kind could fail."""
    return [finding for finding in findings if finding.status == "failed"]
