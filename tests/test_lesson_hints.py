"""The hints of every exercise are graded, and no cell shows the answer of another exercise."""

from __future__ import annotations

import io
import keyword
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache

import pytest

from convlab.lessons import source
from convlab.lessons.source import LEARNER, Cell, Lesson, read

SOURCES = source.sources()
NAMES = [path.stem for path in SOURCES]
lesson_of = cache(read)
same = pytest.mark.same_in_cudasim
each_lesson = pytest.mark.parametrize("path", SOURCES, ids=NAMES)

TIPS = re.compile(r"(?:<details><summary>Tip:.*?</details>\s*)+", re.DOTALL)
TIP = re.compile(r"<summary>Tip: (.*?)</summary>(.*?)</details>", re.DOTALL)


def tips_of(lesson: Lesson) -> list[list[tuple[str, str]]]:
    """Titles and texts of tips in groups. Tips that follow each other, also over the end of a cell,
    belong to one exercise; a cell of code ends a group."""
    text = "\n".join(cell.text if cell.type == "markdown" else "(code)" for cell in lesson.cells)
    return [TIP.findall(group[0]) for group in TIPS.finditer(text)]


def tips_by_exercise(lesson: Lesson) -> Iterator[tuple[Cell, list[tuple[str, str]]]]:
    """Exercises with the tips before them. A hunt's tips may follow it."""
    before: list[tuple[str, str]] = []
    text = ""
    for cell in lesson.cells:
        if cell.type == "markdown":
            text += cell.text
        else:
            groups = [TIP.findall(group[0]) for group in TIPS.finditer(text)]
            before, text = (groups[-1] if groups else before), ""
            if cell.role in ("exercise", "capstone"):
                yield cell, before
                before = []


@same
@each_lesson
def test_every_exercise_has_a_question_a_plan_and_a_piece_of_code_as_tips(path):
    lesson = lesson_of(path)
    exercises = list(tips_by_exercise(lesson))
    assert {cell.role for cell, _ in exercises} | {"capstone"} == {"exercise", "capstone"}
    for exercise, tips in exercises:
        titles = [title for title, _ in tips]
        assert titles[0].endswith("?"), (exercise.name, titles)
        assert titles[1].startswith("the plan"), (exercise.name, titles)
        assert len(titles) > 2, exercise.name
        assert all(title.startswith("the code") for title in titles[2:]), (exercise.name, titles)
        assert not _code_lines(tips[0][1]), f"{exercise.name}: a question is not answered in code"
    for group in tips_of(lesson):  # those of hunts, too
        kinds = [title if title.endswith("?") else title[:8] for title, _ in group]
        assert kinds[0].endswith("?"), kinds
        assert kinds[1:2] in ([], ["the plan"]), kinds
        assert set(kinds[2:]) <= {"the code"}, kinds


GIVEN = 0.6  # of an answer's tokens, which the last tip may tell at most


@same
@each_lesson
def test_no_tip_is_the_whole_answer(path):
    for exercise, tips in tips_by_exercise(lesson_of(path)):
        pieces = [_tokens(line) for _, text in tips for line in _code_lines(text)]
        answer = [line for region in regions(exercise) for line in region]
        told = sum(len(line) for line in answer if any(_within(line, one) for one in pieces))
        assert told <= GIVEN * sum(map(len, answer)), exercise.name


def _code_lines(text: str) -> list[str]:
    """The statements in a tip: what stands between backquotes and assigns, calls or loops."""
    spans = [*re.findall(r"```\w*\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`]+)`", text)]
    return [span for span in spans if re.search(r"[^=!<>]=[^=]|^(for|if|while) ", span)]


def _within(line: Sequence[str], piece: Sequence[str]) -> bool:
    """Return whether a tip's piece of code has the tokens of a line, one after the other."""
    return "\0".join(line).strip(":\0") in "\0".join(piece)


# No cell shows the answer of another exercise


NEAR = 0.82  # similarity from which a piece of code is the same answer written a little differently
SHORT = 2  # lines: of such answers too little is left without their names, so names count
# Names of the language, not of a kernel: these are compared as they are.
OF_CUDA = {
    *("cuda", "syncthreads", "atomic", "add", "threadIdx", "blockIdx", "blockDim", "x", "y"),
    *("range", "min", "max", "float32", "uint32", "shape", "size", "load4", "store4"),
    *("mma_tf32", "split_tf32", "wait_copies", "commit_copies"),
}


def _tokens(code: str) -> list[str]:
    return [token for line in statements(code) for token in line]


def statements(code: str) -> list[list[str]]:
    """The tokens of each logical line, without comments and indentation."""
    skipped = tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    lines: list[list[str]] = [[]]
    try:
        for token in tokenize.generate_tokens(io.StringIO(textwrap.dedent(code)).readline):
            if token.type == tokenize.NEWLINE:
                lines.append([])
            elif token.type not in skipped:
                lines[-1].append(token.string)
    except (tokenize.TokenError, IndentationError):  # a piece of a text is not always a statement
        pass
    return [line for line in lines if line]


def without_names(lines: Iterable[Sequence[str]]) -> list[str]:
    """Tokens in which the first name is v0, the next one v1, and so on."""
    names: dict[str, str] = {}
    found = []
    for line in lines:
        for token in line:
            own = token.isidentifier() and not keyword.iskeyword(token) and token not in OF_CUDA
            found.append(names.setdefault(token, f"v{len(names)}") if own else token)
        found.append("\n")
    return found


def with_names(lines: Iterable[Sequence[str]]) -> list[str]:
    return [token for line in lines for token in [*line, "\n"]]


def regions(exercise: Cell) -> list[list[list[str]]]:
    """The statements of each place that the learner fills in."""
    return [statements(one["inside"]) for one in source.REGION.finditer(exercise.text)]


def similarity(answer: list[list[str]], shown: list[list[str]]) -> float:
    """Return how similar the most similar piece of a shown cell is to an answer, from 0 to 1."""
    told = without_names if len(answer) > SHORT else with_names
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(told(answer))
    best = 0.0
    for size in {max(1, len(answer) - 1), len(answer), len(answer) + 1}:
        for start in range(max(1, len(shown) - size + 1)):
            matcher.set_seq1(told(shown[start : start + size]))
            # upper bounds, which take less time
            if matcher.real_quick_ratio() > best and matcher.quick_ratio() > max(best, NEAR - 0.1):
                best = max(best, matcher.ratio())
    return best


@cache
def shown_cells() -> list[tuple[str, Cell, list[list[str]]]]:
    """All code that learners are shown: cells, and code between text."""
    found = []
    for path in SOURCES:
        for cell in lesson_of(path).cells:
            texts = [cell.of(LEARNER)]
            if cell.type == "markdown":
                texts = re.findall(r"```python\n(.*?)```", cell.text, re.DOTALL)
            found += [(path.stem, cell, statements(text)) for text in texts]
    return found


@pytest.mark.slow
@same
@each_lesson
def test_no_cell_shows_an_answer_of_another_exercise_or_one_much_like_it(path):
    """The cells are those of learners' notebooks. An answer is the lines of one place; names are
    made alike, so that the same lines with other names, and lines with one small change, count as
    the answer."""
    for exercise in lesson_of(path).exercises():
        if exercise.role == "hunt":
            continue
        for answer in regions(exercise):
            for lesson, cell, shown in shown_cells():
                if cell is not exercise:
                    near = (
                        float(answer[0] in shown) if len(answer) == 1 else similarity(answer, shown)
                    )
                    where = f"{exercise.name} in {lesson}, {cell.role} {cell.name}"
                    assert near < NEAR, f"{where}: {near:.2f}"


@same
def test_a_variant_of_an_answer_is_told_from_another_kernel():
    answer = statements(
        "for k in range(K):\n    a = S[k, p]\n    for i in range(M):\n        R[i] += F[i, k] * a"
    )
    variant = (
        "for t in range(T):\n    b = P[t, q]\n    for j in range(N):\n        Q[j] += G[j, t] * b"
    )
    other = (
        "for i in range(M):\n    R[i] = 0\nfor k in range(K):\n    load(k)\n    cuda.syncthreads()"
    )
    changed = variant.replace("P[t, q]", "P[q, t]")
    assert similarity(answer, statements(variant)) == 1
    assert similarity(answer, statements(f"x = 1\n{changed}\ny = 2")) > NEAR
    assert similarity(answer, statements(other)) < NEAR
