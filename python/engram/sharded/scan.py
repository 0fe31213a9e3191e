"""Scans of all shards, one after the other."""

from engram import _engram

__all__ = ["ChainedScan"]


class ChainedScan:
    """Has the methods of a native `Scan`; returns the batches of one scan after those of another."""

    def __init__(self, scans: list[_engram.Scan]) -> None:
        self._scans = scans
        self._current = 0

    @property
    def num_items(self) -> int:
        """Number of items that all scans read."""
        return sum(scan.num_items for scan in self._scans)

    def next(self) -> _engram.Batch | None:
        """Returns the next batch; None if all scans have ended."""
        while self._current < len(self._scans):
            batch = self._scans[self._current].next()
            if batch is not None:
                return batch
            self._current += 1
        return None

    def close(self) -> None:
        """Ends all scans."""
        for scan in self._scans:
            scan.close()
