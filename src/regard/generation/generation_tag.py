"""The tag ``{% generation %}`` of chat templates, which marks the text of the model, for training on it alone."""

from __future__ import annotations

from typing import final

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


@final
class GenerationTag(Extension):
    """Keeps the text between ``{% generation %}`` and ``{% endgeneration %}``, in which variables are local."""

    tags = {"generation"}  # noqa: RUF012 (an attribute of Jinja's)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse from the tag to its end. Raises TemplateSyntaxError if there is none."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)
