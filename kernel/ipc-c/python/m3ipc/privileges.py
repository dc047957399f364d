"""Who may call whom, and with which calls."""

import enum
from dataclasses import dataclass
from typing import Tuple

from ._library import CPeers, CPrivileges
from .errors import BadArgument

Ranges = Tuple[Tuple[int, int], ...]


class Calls(enum.IntFlag):
    """Calls that an endpoint may make. Receiving and answering need none."""

    SEND = 1
    SENDREC = 2
    NOTIFY = 4
    COPY = 8
    RING = 16
    DELEGATE = 32
    MANAGE = 64
    INFO = 128


@dataclass(frozen=True)
class Privileges:
    """What one endpoint may do, and who may call it. A set of endpoints is ranges: pairs of the first and the last."""

    calls: Calls
    to: Ranges
    from_: Ranges
    rings: Ranges

    def to_c(self):
        return CPrivileges(int(self.calls), _peers(self.to), _peers(self.from_), _peers(self.rings))

    @classmethod
    def of_c(cls, found):
        return cls(Calls(found.calls), _ranges(found.to), _ranges(found.from_), _ranges(found.rings))


def _peers(ranges):
    made = CPeers(len(ranges))
    if len(ranges) > len(made.ranges):
        raise BadArgument(f"a set has at most {len(made.ranges)} ranges")
    for place, (first, last) in zip(made.ranges, ranges):
        if not 0 <= first <= last < 8192:
            raise BadArgument(f"{first}-{last} is no range of endpoints")
        place.first, place.last = first, last
    return made


def _ranges(peers):
    return tuple((one.first, one.last) for one in peers.ranges[: peers.count])
