"""Comments, docstrings and help texts stand alone: none begins in the middle of a sentence."""

import argparse
import re
import tokenize
from pathlib import Path

from jaxleak.__main__ import parser

ROOT = Path(__file__).parent.parent
FILES = sorted(path for folder in ("jaxleak", "experiments") for path in (ROOT / folder).rglob("*.py"))

#: A first word that refers to something outside of the text: "Of the pixels, one per channel" instead of "The mean".
WORDS = "of|its|that|those|who|whose"
DANGLING = re.compile(r'^\s*(?:r?"""|#: )(?:Of|Its|That|Those|Who)\b.*$', re.MULTILINE)
COMMENT = re.compile(rf"#:? (?:{WORDS})\b", re.IGNORECASE)
#: An entry of "Args:" or "Attributes:" reads "key: of the draw" where it should read "key: random key of the draw".
ENTRY = re.compile(rf"^ {{8,}}\w+: (?:{WORDS}|over|where[.;])\b.*$", re.MULTILINE)
HELP = re.compile(rf"(?:{WORDS}|per|by)\b", re.IGNORECASE)


def comments(path):
    """Yield the comments of a file; a line that continues the comment above it does not count separately."""
    with path.open("rb") as file:
        last = -1
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                alone = token.line.lstrip().startswith("#")
                if not (alone and token.start[0] == last + 1):
                    yield token.string
                last = token.start[0] if alone else last


def options(parsed):
    """All options of a parser and of its subcommands."""
    for action in parsed._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action._choices_actions
            for sub in action.choices.values():
                yield from options(sub)
        else:
            yield action


def broken(paths, read):
    found = {str(path.relative_to(ROOT)): read(path) for path in paths}
    return {path: texts for path, texts in found.items() if texts}


def test_no_text_begins_with_a_reference_to_what_stands_before_it():
    assert not broken(FILES, lambda path: DANGLING.findall(path.read_text())), "begin with a subject"


def test_no_comment_begins_with_a_reference_to_what_stands_before_it():
    assert not broken(FILES, lambda path: list(filter(COMMENT.match, comments(path)))), "begin with a subject"


def test_every_argument_is_described_by_words_that_stand_alone():
    assert not broken(FILES, lambda path: ENTRY.findall(path.read_text())), "begin with a subject"


def test_every_option_of_the_command_has_a_text_that_stands_alone():
    found = {action.metavar or action.dest: action.help for action in options(parser())}
    assert {"audit", "reduction", "RATE", "NAME=VALUE"} <= found.keys()
    assert [name for name, text in found.items() if not text] == []
    assert [text for text in found.values() if HELP.match(text)] == []


def test_the_rule_itself():
    assert len(FILES) > 100
    assert DANGLING.search('    """Of the pixels, one per channel."""')
    assert DANGLING.search("#: Its largest deviation.")
    assert not DANGLING.search('    """Often seen: its mean is zero, that of others is not."""')
    assert ENTRY.search("        key: of the draw.")
    assert not ENTRY.search("        key: random key of the draw.")
    assert not ENTRY.search("        key: offset of the draw.")
    assert COMMENT.match("# whose steps take long")
    assert not COMMENT.match("# steps whose time is long")


def test_a_comment_of_several_lines_is_one(tmp_path):
    (tmp_path / "some.py").write_text(
        "# a long one, whose second line begins with\n# of\nx = 1  # of the draw\n# of y\n"
    )
    assert list(comments(tmp_path / "some.py")) == [
        "# a long one, whose second line begins with",
        "# of the draw",
        "# of y",
    ]
