"""The pages of the documentation and their blocks of code.

```python    run, one namespace per page; its `# ->` comments are the expected output, line by line
```sh        run by bash, one folder per page; a ```text block right below is its expected output
```console   set-up for a reader's own machine, not run
```shell     the same in README.zh-CN.md alone
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_OPENING = re.compile(r"```\w+")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: its language, text, first line on the page, and the text block right below, if any."""

    language: str
    text: str
    line: int
    expected_output: str | None

    @property
    def expected_lines(self) -> list[str]:
        """The expected output of a Python block, from its `# ->` comments."""
        return re.findall(r"# -> ?(.*)$", self.text, re.MULTILINE)


def blocks(page: Path, language: str) -> list[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    all_blocks = []
    for number, fence in enumerate(fences):
        after = fences[number + 1] if number + 1 < len(fences) else None
        adjacent = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        all_blocks.append(
            CodeBlock(
                language=fence[1],
                text=fence[2],
                line=text.count("\n", 0, fence.start(2)) + 1,
                expected_output=after[2] if adjacent and after is not None else None,
            )
        )
    return [block for block in all_blocks if block.language == language]


def fence_problems(text: str) -> list[str]:
    """The fences of a page that do not open or close a block, by line; an opening one names its language."""
    problems, opened = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("```"):
            continue
        if opened is None and _OPENING.fullmatch(line):
            opened = number
        elif opened is not None and line == "```":
            opened = None
        else:
            problems.append(f"line {number}: {line}")
    return problems + ([] if opened is None else [f"line {opened}: not closed"])


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))
