"""For tests of steps and of everything that talks to a cluster.

:func:`run` runs a step on real processes of this machine, one per host, and gives its outputs. :class:`FakeCluster`
and :class:`FakeClock` stand in for a cluster and for time where a test wants to say what happens when.
"""

from kr_kfp.testing.clock import FakeClock
from kr_kfp.testing.cluster import FakeCluster
from kr_kfp.testing.steps import Result, run

__all__ = ["FakeClock", "FakeCluster", "Result", "run"]
