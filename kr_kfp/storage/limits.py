"""The limits of a transfer: connections, memory, patience. One value, with defaults that suit a pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MIB", "Limits"]

MIB = 1024 * 1024

_MAX_PARTS = 9_000
"""Parts of one upload; S3 and Google Cloud Storage take 10,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a transfer may use.

    Args:
        requests: Requests on their way at the same time, over all items.
        memory: Bytes of data held at the same time, over all items. The process needs about 40 MB beside it.
        part: Bytes of one ranged read, and of one part of an upload. An object that is not larger moves in one request.
        patience: Seconds for which a request that fails for a passing reason is tried again.
        stall: Seconds without a byte after which a request counts as failed.
        progress: Seconds between two progress lines.
    """

    requests: int = 32
    memory: int = 128 * MIB
    part: int = 8 * MIB
    patience: float = 120.0
    stall: float = 30.0
    progress: float = 10.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """Read limits; what is not named keeps its default.

        Raises:
            TypeError: If there is no limit of such a name.
        """
        return cls(**data)

    def flying(self, part: int, share: int) -> int:
        """Give the number of parts of one upload that may be on their way at the same time.

        Args:
            part: Bytes of one.
            share: Part of the memory that the upload may take: 1 for all of it, 2 for half.
        """
        # One part is being read and one handed over beside those. Two on their way are worth more memory than meant,
        # as long as parts are not huge.
        least = 2 if part <= self.memory // 2 else 1
        return max(least, self.memory // share // part - 2)

    def upload_part(self, size: int) -> int:
        """Give the bytes of one part of an upload: larger for objects that would need too many."""
        return max(self.part, -(-size // _MAX_PARTS))
