"""Pages of prompts and written texts, kept for later prompts that begin with the same tokens: a tree of pages.

    root -> page of tokens 0 .. 15 -> page of tokens 16 .. 31 -> ..          one path for each different beginning

The keys and values of a token depend on the tokens before it alone, so a page can serve every prompt that has the same
tokens up to its end. Zheng et al. 2024 (SGLang), section 3, call such a tree a radix cache. Whole pages are shared;
pages that no running request uses are dropped, the one used least recently first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from regard.mechanisms.ragged_pages import Column


@final
class PrefixPage:
    """A page in the tree, in each group of layers: its ``tokens``, after the tokens of its ``parent``.

    ``num_users`` counts the requests that read it. ``is_owned`` says that one of them has counted the page as its own.
    """

    __slots__ = ("children", "column", "is_owned", "num_users", "parent", "tokens")

    def __init__(self, tokens: tuple[int, ...], column: Column | None, parent: PrefixPage | None) -> None:
        self.tokens, self.column, self.parent = tokens, column, parent
        self.children: dict[tuple[int, ...], PrefixPage] = {}
        self.num_users, self.is_owned = 0, False


@final
class PrefixCache:
    """A tree of at most ``max_pages`` pages of ``page_size`` tokens, beside those that running requests own."""

    def __init__(self, page_size: int, max_pages: int) -> None:
        self.page_size, self.max_pages = page_size, max_pages
        self._root = PrefixPage((), None, None)
        # Least recently used first. A page is released before its parent, so the first one never has children.
        self._idle: OrderedDict[PrefixPage, None] = OrderedDict()
        self._num_shared = 0  # pages that no request owns, idle ones included
        self._num_owned = 0

    @property
    def num_pages(self) -> int:
        """The number of pages that no running request counts as its own."""
        return self._num_shared

    @property
    def is_full(self) -> bool:
        """Whether it has as many pages as it may keep, with those that running requests own."""
        return self._num_shared + self._num_owned >= self.max_pages

    @property
    def num_idle(self) -> int:
        """The number of pages that could be dropped now."""
        return len(self._idle)

    def find(self, ids: Sequence[int]) -> list[PrefixPage]:
        """Return the longest path of pages with the first tokens of ``ids``."""
        path, node = [], self._root
        for start in range(0, len(ids) - self.page_size + 1, self.page_size):
            child = node.children.get(tuple(ids[start : start + self.page_size]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def use(self, path: Sequence[PrefixPage]) -> None:
        """Keep the pages of a path until ``release``."""
        for node in path:
            node.num_users += 1
            self._idle.pop(node, None)

    def add(self, path: list[PrefixPage], tokens: Sequence[int], column: Column) -> bool:
        """Append a page, which the caller owns and uses, to a path in use; False if the tree has these tokens there."""
        parent, key = path[-1] if path else self._root, tuple(tokens)
        if key in parent.children:
            return False
        node = PrefixPage(key, column, parent)
        node.num_users, node.is_owned = 1, True
        self._num_owned += 1
        parent.children[key] = node
        path.append(node)
        return True

    def release(self, path: Sequence[PrefixPage], owned: int) -> None:
        """End the use of a path, the last ``owned`` pages of which the caller owned until now."""
        for number, node in reversed(list(enumerate(path))):
            node.num_users -= 1
            if number >= len(path) - owned:
                node.is_owned = False
                self._num_owned -= 1
                self._num_shared += 1
            if node.num_users == 0 and not node.is_owned:
                self._idle[node] = None
        self.drop(len(self._idle) - max(self.max_pages - (self._num_shared - len(self._idle)), 0))

    def drop(self, count: int) -> None:
        """Drop up to ``count`` idle pages, those used least recently first."""
        for _ in range(min(count, len(self._idle))):
            node, _ = self._idle.popitem(last=False)
            assert node.parent is not None
            del node.parent.children[node.tokens]
            node.column = None  # whoever holds the node does not hold the page
            self._num_shared -= 1
