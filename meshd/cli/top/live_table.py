"""A table that changes in place: only cells that are other than before are drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable
from textual.widgets.data_table import ColumnKey

from meshd.cli.top.tables import Column, Line


class LiveTable(DataTable[Text]):
    """Shows lines.

    Args:
        columns: all that it may have.
        id: the widget's.
    """

    # Textual hides this key, which is the one to begin with.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Explain")]

    def __init__(self, columns: Sequence[Column], *, id: str) -> None:  # noqa: A002  # textual's own name
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._all = columns
        self._shown: list[int] = []
        self._lines: dict[str, tuple[Text, ...]] = {}

    def show(self, lines: Sequence[Line], width: int) -> None:
        """Show these lines, and the columns that a terminal of this width has. The cursor stays on its line."""
        shown = [index for index, column in enumerate(self._all) if column.from_width <= width]
        if shown != self._shown:
            self.clear(columns=True)
            self._lines, self._shown = {}, shown
            for index in shown:
                self.add_column(self._all[index].name, key=f"{index}")
        wanted = {line.key: tuple(line.cells[index] for index in shown) for line in lines}
        if list(wanted) != list(self._lines):
            self._replace(wanted)
        else:
            for key, cells in wanted.items():
                for index, cell, before in zip(shown, cells, self._lines[key], strict=True):
                    if cell != before:
                        # Columns only grow: to shrink one, the table would measure all its cells for each that changed.
                        grows = cell.cell_len > self.columns[ColumnKey(f"{index}")].content_width
                        self.update_cell(key, f"{index}", cell, update_width=grows)
        self._lines = wanted

    @property
    def chosen(self) -> str:
        """The key of the line under the cursor; "" when there is none."""
        return list(self._lines)[self.cursor_row] if 0 <= self.cursor_row < len(self._lines) else ""

    def _replace(self, wanted: dict[str, tuple[Text, ...]]) -> None:
        chosen, row, top = self.chosen, self.cursor_row, self.scroll_offset
        self.clear()
        for key, cells in wanted.items():
            self.add_row(*cells, key=key)
        again = list(wanted).index(chosen) if chosen in wanted else min(row, len(wanted) - 1)
        self.move_cursor(row=max(again, 0), scroll=False)
        self.scroll_to(top.x, top.y, animate=False)
