"""Comments, docstrings and help texts stand alone: none begins in the middle of a sentence."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted(path for folder in ("jaxleak", "experiments") for path in (ROOT / folder).rglob("*.py"))

#: A first word that refers to something outside of the text: "Of the pixels, one per channel" instead of "The mean".
DANGLING = re.compile(r'^\s*(?:r?"""|#: )(?:Of|Its|That|Those|Who) .*$', re.MULTILINE)


def test_no_text_begins_with_a_reference_to_what_stands_before_it():
    found = {str(path.relative_to(ROOT)): texts for path in FILES if (texts := DANGLING.findall(path.read_text()))}
    assert not found, "begin with a subject"


def test_the_rule_itself():
    assert len(FILES) > 100
    assert DANGLING.search('    """Of the pixels, one per channel."""')
    assert DANGLING.search("#: Its largest deviation.")
    assert not DANGLING.search('    """Often seen: its mean is zero, that of others is not."""')
