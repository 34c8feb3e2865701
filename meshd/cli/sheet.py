"""Tables that stay readable on a narrow terminal: whole words, and the least needed columns left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from meshd.runtime.terminal import clean_line

GAP = 2
PROSE_MIN = 24
"""So wide a last column is before another one is left out for it: narrower sentences are hard to read."""


class Sheet:
    """A borderless table whose last column may be a sentence.

    Every other column keeps its full width. Where they do not fit, columns without content are left out first, then
    those of `spare`, the first named first, and a line below says which. What still does not fit is folded by the
    terminal's width, never hidden.

    Args:
        headers: of the columns.
        rows: a cell for each.
        spare: headers of the columns that can be done without, the least needed first.
    """

    def __init__(self, headers: Sequence[str], rows: Iterable[Sequence[Text | str]], spare: Sequence[str] = ()) -> None:
        self._headers = list(headers)
        self._rows = [[cell if isinstance(cell, Text) else Text(clean_line(cell)) for cell in row] for row in rows]
        self._spare = spare

    def left_out(self, width: int) -> list[str]:
        """The columns that do not fit into so many characters, in the order in which they stand."""
        gone: list[str] = []
        for header in dict.fromkeys([*self._empty(), *self._spare]):
            if self._needs(gone) <= width:
                break
            gone.append(header)
        return [header for header in self._headers if header in gone]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for this console's width."""
        gone = self.left_out(options.max_width)
        kept = [index for index, header in enumerate(self._headers) if header not in gone]
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        fits = self._needs(gone) <= options.max_width
        for index in kept:
            whole = fits and index != kept[-1]
            table.add_column(self._headers[index], overflow="fold", no_wrap=whole)
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        yield table
        if gone:
            yield Text(f"left out: {', '.join(gone)} (widen, or -o json)", style="dim")

    def _empty(self) -> list[str]:
        """The columns that say nothing in any row; a column is not left out for them."""
        cells = {header: {row[index].plain for row in self._rows} for index, header in enumerate(self._headers)}
        return [header for header in self._headers[1:] if cells[header] <= {"", "-"}]

    def _needs(self, gone: Sequence[str]) -> int:
        """The least width without these columns."""
        kept = [index for index, header in enumerate(self._headers) if header not in gone]
        widths = [max([cell_len(self._headers[i]), *(row[i].cell_len for row in self._rows)]) for i in kept]
        return sum(widths[:-1]) + GAP * (len(kept) - 1) + min(widths[-1], PROSE_MIN)
