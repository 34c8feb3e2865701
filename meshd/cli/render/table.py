"""Tables that stay readable on a narrow terminal: words stay whole, and the least important columns are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshd.runtime.terminal import clean_line

GAP = 2
PROSE_MIN = 24
"""The last column keeps at least this width, even if another one is left out for it: sentences need room."""


class Table:
    """A table without borders. Its last column may hold sentences.

    Every other column keeps its full width. Where they do not fit, the table leaves out columns without content first,
    then those of `optional`, and names them in a line below. A table that still does not fit is folded, never cut.

    Args:
        headers: of the columns.
        rows: a cell for each column.
        optional: headers of columns that may be left out, the least important first.
    """

    def __init__(
        self, headers: Sequence[str], rows: Iterable[Sequence[Text | str]], optional: Sequence[str] = ()
    ) -> None:
        self._headers = list(headers)
        self._rows = [[cell if isinstance(cell, Text) else Text(clean_line(cell)) for cell in row] for row in rows]
        self._optional = optional

    def left_out(self, width: int) -> list[str]:
        """The columns that do not fit into `width` characters, in table order."""
        gone: list[str] = []
        for header in dict.fromkeys([*self._empty(), *self._optional]):
            if self._width_without(gone) <= width:
                break
            gone.append(header)
        return [header for header in self._headers if header in gone]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table in this console's width."""
        gone = self.left_out(options.max_width)
        kept = [index for index, header in enumerate(self._headers) if header not in gone]
        table = rich.table.Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        fits = self._width_without(gone) <= options.max_width
        for index in kept:
            whole = fits and index != kept[-1]
            table.add_column(self._headers[index], overflow="fold", no_wrap=whole)
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        yield table
        if gone:
            yield Text(f"left out: {', '.join(gone)} (-o json shows all)", style="dim")

    def _empty(self) -> list[str]:
        """The columns without content in any row. The first column always stays."""
        cells = {header: {row[index].plain for row in self._rows} for index, header in enumerate(self._headers)}
        return [header for header in self._headers[1:] if cells[header] <= {"", "-"}]

    def _width_without(self, gone: Sequence[str]) -> int:
        """The least width of the table without these columns."""
        kept = [index for index, header in enumerate(self._headers) if header not in gone]
        widths = [max([cell_len(self._headers[i]), *(row[i].cell_len for row in self._rows)]) for i in kept]
        return sum(widths[:-1]) + GAP * (len(kept) - 1) + min(widths[-1], PROSE_MIN)
