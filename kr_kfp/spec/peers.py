"""How an exception says that another process went away. Pure, and small: hosts ask too."""

from __future__ import annotations

import re

from kr_kfp.wire import ErrorInfo

__all__ = ["tells_of_a_peer"]

# What JAX, gloo, NCCL and libtpu say on the hosts that remain when one goes away.
_PEER_WORDS = re.compile(
    r"gloo|nccl|coordination.?service|coordination_service|heartbeat|barrier|connection (reset|closed|refused|aborted)"
    r"|connect(ion)? failed|socket closed|broken pipe|remote (peer|process)|peer|unavailable:|deadline_exceeded"
    r"|aborted:|cancelled:|ifrt proxy|slice health|preempt|leader task|task .* (died|restarted|disconnected)",
    re.IGNORECASE,
)
_PEER_TYPES = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DistBackendError",
        "DistNetworkError",
        "JaxRuntimeError",
        "RuntimeError",
        "ValueError",
        "XlaRuntimeError",
    }
)


def tells_of_a_peer(error: ErrorInfo) -> bool:
    """Tell whether an exception is what a collective raises when another process goes away."""
    return error.type in _PEER_TYPES and _PEER_WORDS.search(error.message) is not None
