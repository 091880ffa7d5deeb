"""The pages of the documentation, and the blocks of code on them.

```python    run, one namespace a page; what it prints is what its `# ->` comments say, line by line
```sh        run by bash, one folder a page; a ```text block right below is what it prints
```console   for a reader's own machine: set-up, not run
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: its language, its text, the line of the page it starts at, and the text block right below."""

    language: str
    text: str
    line: int
    expected_output: str | None

    @property
    def expected_lines(self) -> list[str]:
        """What the comments of a Python block say that it prints."""
        return re.findall(r"# -> ?(.*)$", self.text, re.MULTILINE)


def blocks(page: Path, language: str) -> list[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for number, fence in enumerate(fences):
        after = fences[number + 1] if number + 1 < len(fences) else None
        adjacent = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        found.append(
            CodeBlock(
                language=fence[1],
                text=fence[2],
                line=text.count("\n", 0, fence.start(2)) + 1,
                expected_output=after[2] if adjacent and after is not None else None,
            )
        )
    return [block for block in found if block.language == language]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))
