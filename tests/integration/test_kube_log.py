"""Logs of hosts against a real HTTP server: every line once, whatever breaks, until the first start has ended."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kr_kfp.cluster.kube import KubeCluster
from kr_kfp.errors import ForbiddenError, UnavailableError
from tests import kube_kit
from tests.kube_kit import DEADLINE, Inbox, Json, WatchedApi, pod, until
from tests.kube_server import Fault, KubeServer


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """An API server with one host that runs."""
    server = KubeServer()
    server.put("pods", pod(0, uid="p0"))
    yield server
    server.close()


@contextmanager
def connected(server: KubeServer) -> Iterator[tuple[KubeCluster, WatchedApi]]:
    """A cluster on the test server. Who reads a log and waits, for a moment in truth, is not overtaken by that.

    A status is 2.5 s behind at most, which are 0.1 s here: no time passes while the watch has something to tell.
    """
    with kube_kit.connected(server) as (cluster, api):

        def is_told() -> bool:
            known = {uid: pod["metadata"]["resourceVersion"] for uid, pod in [*cluster._pods.items()] if pod}
            return not cluster._watches or known == server.versions("pods")

        def wait(event: threading.Event, seconds: float) -> bool:
            until(lambda: event.is_set() or is_told())
            return api.pauses.wait(event, seconds)

        cluster._logs._wait = wait
        yield cluster, api


class Follower:
    """Follows a log in a thread, as the launcher does."""

    def __init__(self, cluster: KubeCluster, followed: Json) -> None:
        self.got = b""
        self.ended = threading.Event()
        self._cluster, self._pod = cluster, followed
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for data in self._cluster.follow_log(self._pod):
            self.got += data
        self.ended.set()

    def whole(self) -> list[bytes]:
        assert self.ended.wait(DEADLINE), self.got[-300:]
        return self.got.splitlines()


def lines(first: int, last: int) -> list[tuple[str, bytes]]:
    """Numbered lines, eight in each millisecond."""
    return [
        (f"2026-01-01T00:00:{n // 8000:02}.{n // 8 % 1000:03}{n % 8:06}Z", f"line {n}".encode())
        for n in range(first, last)
    ]


def texts(first: int, last: int) -> list[bytes]:
    return [f"line {n}".encode() for n in range(first, last)]


def end(server: KubeServer) -> None:
    """The container ends and the kubelet starts it again."""
    server.write_log("train-x-0", ("2026-01-01T00:01:00.000000000Z", b"OUTCOME of the second start"), start=1)
    server.put("pods", pod(0, uid="p0", restarts=1))
    server.end_log("train-x-0")


def test_a_log_is_followed_to_the_end_of_the_first_start(server: KubeServer) -> None:
    """Lines come as they are written; the second start's are none of them."""
    server.write_log("train-x-0", *lines(0, 10))
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 10)
        server.write_log("train-x-0", *lines(10, 20))
        until(lambda: follower.got.count(b"\n") == 20)
        end(server)
        assert follower.whole() == texts(0, 20)
    first = server.of("log pods")[0]
    assert first.path == "/api/v1/namespaces/ml/pods/train-x-0/log"
    assert first.query == {"container": "main", "follow": "true", "previous": "false", "timestamps": "true"}


@pytest.mark.parametrize("how", ["end", "reset"])
def test_breaks_lose_and_double_nothing(server: KubeServer, how: str) -> None:
    """2,000 lines, several in each millisecond, the connection cut nine times."""
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        server.write_log("train-x-0")
        follower = Follower(cluster, pod(0, uid="p0"))
        for part in range(10):
            server.write_log("train-x-0", *lines(200 * part, 200 * (part + 1)))
            if part < 9:
                at = 200 * part + 100 * (part % 3)
                until(lambda at=at: follower.got.count(b"\n") >= at)  # type: ignore[misc]
                opened = server.count("log pods")
                server.end_streams(how)
                until(lambda opened=opened: server.count("log pods") > opened)  # type: ignore[misc]
        until(lambda: follower.got.count(b"\n") == 2000)
        end(server)
        assert follower.whole() == texts(0, 2000)


@pytest.mark.parametrize("seed", range(3))
def test_breaks_at_any_byte_lose_and_double_nothing(server: KubeServer, seed: int) -> None:
    """The connection ends in the middle of a timestamp, a line or a line's end, about every 200 lines (case 19)."""
    chance = random.Random(seed)
    given = [(stamp, b"" if n % 50 == 49 else text) for n, (stamp, text) in enumerate(lines(0, 2000))]
    size = len(f"{given[0][0]} line 1000\n")
    # Each time from the start of a millisecond anew, so that every break is a little further on.
    server.cuts = [chance.randrange(1, 10), *(chance.randrange(8 * size, 400 * size) for _ in range(9))]
    server.write_log("train-x-0", *given)
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 2000)
        end(server)
        assert follower.whole() == [text for _, text in given]
    assert len(server.cuts) < 5


def test_a_log_that_cannot_be_had_yet(server: KubeServer) -> None:
    """400 while the container is being created and 429 are waited out; all lines from the first are given."""
    server.fail("log pods", *[Fault(status=400, message="ContainerCreating")] * 5, Fault(status=429))
    server.write_log("train-x-0", *lines(0, 3))
    with connected(server) as (cluster, api):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 3)
        end(server)
        assert follower.whole() == texts(0, 3)
        assert api.warnings == []


def test_a_pod_that_waits_costs_no_requests(server: KubeServer) -> None:
    """Until its container starts, what the watch tells is looked at, and nothing is asked for."""
    waiting = server.put("pods", pod(0, uid="p0", state={"waiting": {"reason": "ContainerCreating"}}))
    with connected(server) as (cluster, api):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, waiting)
        until(lambda: len(api.pauses.waited) > 20)
        assert (server.count("log pods"), server.count("get pods")) == (0, 0)
        server.write_log("train-x-0", *lines(0, 2))
        server.put("pods", pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 2)
        end(server)
        assert follower.whole() == texts(0, 2)


def test_a_start_that_is_over_is_read_as_the_one_before(server: KubeServer) -> None:
    """A launcher that adopts the group gives the first start's log, not the holding container's."""
    server.write_log("train-x-0", *lines(0, 3))
    server.end_log("train-x-0")
    end(server)
    with connected(server) as (cluster, _):
        assert b"".join(cluster.follow_log(pod(0, uid="p0", restarts=1))).splitlines() == texts(0, 3)
    assert server.of("log pods")[0].query == {
        "container": "main",
        "follow": "false",
        "previous": "true",
        "timestamps": "true",
    }


def test_the_rest_is_read_after_the_restart(server: KubeServer) -> None:
    """A connection that broke just before the end: what was written last is read from the start before."""
    server.write_log("train-x-0", *lines(0, 5))
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 5)
        server.fail("log pods", Fault(status=502))
        server.end_streams("reset")
        server.write_log("train-x-0", *lines(5, 8))
        end(server)
        assert follower.whole() == texts(0, 8)


def test_the_second_starts_log_is_noticed(server: KubeServer) -> None:
    """The status is behind: "current" is the second start's log already, which is seen by its first line."""
    server.write_log("train-x-0", *lines(0, 5))
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 5)
        server.write_log("train-x-0", *lines(5, 8))
        until(lambda: follower.got.count(b"\n") == 8)
        opened, told, wait = server.count("log pods"), threading.Event(), cluster._logs._wait

        def in_time(event: threading.Event, seconds: float) -> bool:
            """Once the log was asked for again, the status tells before its usual delay is over."""
            assert server.count("log pods") == opened or told.wait(DEADLINE)
            return bool(wait(event, seconds))

        cluster._logs._wait = in_time
        server.write_log("train-x-0", ("2026-01-01T00:00:00.900000000Z", b"OUTCOME"), start=1)
        server.end_log("train-x-0")
        until(lambda: server.count("log pods") > opened)
        server.put("pods", pod(0, uid="p0", restarts=1))
        told.set()
        assert follower.whole() == texts(0, 8)


def test_a_rotated_log_goes_on(server: KubeServer) -> None:
    """Lines that the kubelet has put away are not waited for."""
    server.write_log("train-x-0", *lines(0, 20))
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 20)
        del server.logs["train-x-0"][0].lines[:15]
        server.write_log("train-x-0", *lines(20, 23))
        server.end_streams("reset")
        until(lambda: follower.got.count(b"\n") == 23)
        end(server)
        assert follower.whole() == texts(0, 23)


def test_a_pod_that_is_gone_ends_its_log(server: KubeServer) -> None:
    """A deleted pod's log ends, and another pod of its name is another one."""
    server.write_log("train-x-0", *lines(0, 2))
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 2)
        server.remove("pods", "train-x-0")
        server.put("pods", pod(0, uid="p1"))
        server.end_streams("reset")
        assert follower.whole() == texts(0, 2)


def test_without_the_right_to_logs(server: KubeServer) -> None:
    """One warning for all hosts, and no log; the group runs on."""
    denied = 'User "u" cannot get resource "pods/log" in API group "" in the namespace "ml"'
    server.put("pods", pod(1, uid="p1"))
    server.fail("log pods", *[Fault(status=403, reason="Forbidden", message=denied)] * 3)
    with connected(server) as (cluster, api):
        assert list(cluster.follow_log(pod(0, uid="p0"))) == []
        assert list(cluster.follow_log(pod(1, uid="p1"))) == []
        assert api.warnings == [
            "u may not get pods/log in namespace ml. Give it the rights: kr-kfp install; logs of hosts are not shown"
        ]
        with pytest.raises(ForbiddenError):
            cluster.read_log(pod(0, uid="p0"))


def test_read_log(server: KubeServer) -> None:
    """Current and previous start, whole or their last bytes, as they were written."""
    server.write_log("train-x-0", ("2026-01-01T00:00:00Z", b"first"), ("2026-01-01T00:00:01Z", b"\xe4 second"))
    with connected(server) as (cluster, _):
        assert cluster.read_log(pod(0, uid="p0")) == b"first\n\xe4 second\n"
        assert cluster.read_log(pod(0, uid="p0"), tail_bytes=5) == b"cond\n"
        assert cluster.read_log(pod(0, uid="p0"), tail_bytes=0) == b""
        assert cluster.read_log(pod(0, uid="p0"), previous=True) == b""
        end(server)
        assert cluster.read_log(pod(0, uid="p0")) == b"OUTCOME of the second start\n"
        assert cluster.read_log(pod(0, uid="p0"), previous=True, tail_bytes=3) == b"nd\n"


def test_read_log_of_what_is_not_there(server: KubeServer) -> None:
    """No start, no pod, or another pod of its name: there is nothing to read."""
    with connected(server) as (cluster, _):
        assert cluster.read_log(pod(0, uid="p0")) == b""
        assert cluster.read_log(pod(3, uid="p3")) == b""
        server.write_log("train-x-0", ("2026-01-01T00:00:00Z", b"of another"))
        assert cluster.read_log(pod(0, uid="earlier")) == b""


def test_read_log_does_not_wait_for_a_lost_node(server: KubeServer) -> None:
    """A node that does not answer is waited for seconds, not minutes."""
    server.write_log("train-x-0", ("2026-01-01T00:00:00Z", b"a"))
    server.fail("log pods", *[Fault(status=502, message="dial tcp: no route to host")] * 20)
    with connected(server) as (cluster, api):
        with pytest.raises(UnavailableError, match="no route to host"):
            cluster.read_log(pod(0, uid="p0"))
        assert sum(api.pauses.waited) <= 20.0


def test_close_ends_followed_logs(server: KubeServer) -> None:
    """Nobody waits for a log of a cluster that is left."""
    server.write_log("train-x-0", *lines(0, 2))
    with connected(server) as (cluster, _):
        follower = Follower(cluster, pod(0, uid="p0"))
        until(lambda: follower.got.count(b"\n") == 2)
        cluster.close()
        assert follower.whole() == texts(0, 2)
