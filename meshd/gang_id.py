"""The id of a gang: machines that one create call rents. It says the name of each of them. PURE.

`lab-h100-k7q2mz:1-4+7` are the machines `lab-h100-1-k7q2mz` to `lab-h100-4-k7q2mz` and `lab-h100-7-k7q2mz`. The machine
at index 0 of the call is the first of them. A cloud that gives all machines of one call the same tags, but an index to
each (EC2's AmiLaunchIndex), shows each machine's name so from its first moment.

The id has only characters that every cloud allows in the value of a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

GANG_ID_MAX_CHARS = 200
"""EC2 allows 256 characters in the value of a tag."""
GANG_MACHINES_MAX = 5000

_MACHINE = re.compile(r"([a-z][-a-z0-9]*)-([1-9][0-9]{0,5})-([a-z0-9]+)")
_GANG = re.compile(r"([a-z][-a-z0-9]*)-([a-z0-9]+):([0-9]+(?:-[0-9]+)?(?:\+[0-9]+(?:-[0-9]+)?)*)")


def gang_id(machines: Sequence[str]) -> str:
    """The id for machines whose names differ in the slot's number alone; "" where they cannot have one.

    Args:
        machines: their names, in any order.
    """
    found = [_MACHINE.fullmatch(name) for name in machines]
    parts = {(match[1], match[3]) for match in found if match}
    if len(parts) != 1 or not all(found):
        return ""
    (head, unique), numbers = parts.pop(), sorted({int(match[2]) for match in found if match})
    made = f"{head}-{unique}:{_ranges(numbers)}"
    return made if len(numbers) == len(machines) and len(made) <= GANG_ID_MAX_CHARS else ""


@lru_cache(maxsize=256)
def gang_machines(gang: str) -> tuple[str, ...]:
    """The names of a gang's machines, by index; () for a text that is no gang's id."""
    found = _GANG.fullmatch(gang[: GANG_ID_MAX_CHARS + 1])
    if found is None:
        return ()
    numbers: list[int] = []
    for part in found[3].split("+"):
        first, _, last = part.partition("-")
        if (
            len(first) > 6
            or len(last) > 6
            or not 0 <= int(last or first) - int(first) < GANG_MACHINES_MAX - len(numbers)
        ):
            return ()
        numbers += range(int(first), int(last or first) + 1)
    return tuple(f"{found[1]}-{number}-{found[2]}" for number in numbers)


def machine_at(gang: str, index: int) -> str:
    """The name of the machine at an index; "" when the gang has none there."""
    machines = gang_machines(gang)
    return machines[index] if 0 <= index < len(machines) else ""


def ranges_of(gang: str) -> str:
    """The numbers of the gang's slots, e.g. `1-4+7`."""
    return gang.partition(":")[2]


def _ranges(numbers: Iterable[int]) -> str:
    """The numbers, which ascend, as ranges."""
    ordered = list(numbers)
    ends = [number for number, after in pairwise(ordered) if after != number + 1]
    starts = [ordered[0], *(after for number, after in pairwise(ordered) if after != number + 1)]
    pairs = zip(starts, [*ends, ordered[-1]], strict=True)
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)
