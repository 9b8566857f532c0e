"""Everything kr_kfp raises on purpose.

```
KrKfpError
├── UnknownAcceleratorError  no accelerator of this name (in kr_kfp.spec.accelerators, beside the registry)
├── DeclarationError     a component, its options or a task is declared wrongly; lists every Problem
├── WireError            a message between author, launcher and host cannot be read
├── SetupError           the step's surroundings are wrong (package missing, JAX touched too early, ...)
├── StepFailedError      the step ran and failed; carries the diagnosis
├── StorageError         data could not be moved; lists every Problem, each with its URI
│   └── StorageStoppedError  it was told to stop (SIGTERM) before all was there
└── ClusterError         the cluster refused or failed a request
    ├── NotFoundError    the object is not there (any more)
    ├── ConflictError    it exists already, or somebody changed it first
    ├── ForbiddenError   a right is missing: verb, resource, namespace and account are named
    └── UnavailableError the cluster did not answer; the request may be tried again
```

Callers tell retryable from fatal by class, never by text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "ClusterError",
    "ConflictError",
    "DeclarationError",
    "ForbiddenError",
    "KrKfpError",
    "NotFoundError",
    "Problem",
    "SetupError",
    "StepFailedError",
    "StorageError",
    "StorageStoppedError",
    "UnavailableError",
    "WireError",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it.

    Args:
        path: The argument or field path, such as ``hosts`` or ``env['RUN']``.
        message: What is wrong, with the value that was given.
        fix: What to write instead; a sentence in the imperative.
    """

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" Fix: {self.fix}" if self.fix else "")


class KrKfpError(Exception):
    """The root of all errors that kr_kfp raises on purpose."""


class DeclarationError(KrKfpError, ValueError):
    """A declaration is wrong; every problem is listed at once.

    Attributes:
        subject: What was declared, for example ``component 'train'``.
        problems: All problems found, in the order of the arguments.
    """

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{subject}: {count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([head, *(f"  {n}. {p}" for n, p in enumerate(self.problems, 1))]))

    def __reduce__(self) -> tuple[type[DeclarationError], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.subject, self.problems)


class WireError(KrKfpError, ValueError):
    """A message between author, launcher and host cannot be read."""


class SetupError(KrKfpError, RuntimeError):
    """The surroundings of a step are wrong; the message says what to do."""


class StepFailedError(KrKfpError, RuntimeError):
    """A step ran and failed; the message is its diagnosis."""


class StorageError(KrKfpError, RuntimeError):
    """Data could not be moved; every problem is listed at once, without any secret.

    Attributes:
        problems: All problems found; ``path`` of each is the URI or local path it is about.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        texts = [str(problem) for problem in self.problems]
        if len(texts) == 1:
            super().__init__(texts[0])
        else:
            super().__init__("\n".join([f"{len(texts)} problems", *(f"  {n}. {t}" for n, t in enumerate(texts, 1))]))

    def __reduce__(self) -> tuple[type[StorageError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class StorageStoppedError(StorageError):
    """A transfer was told to stop (SIGTERM) before all was there."""


class ClusterError(KrKfpError, RuntimeError):
    """The cluster refused or failed a request.

    Attributes:
        status: The HTTP status, 0 where there is none.
        reason: The cluster's own reason, such as ``AlreadyExists``.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(ClusterError):
    """The object is not there (any more)."""


class ConflictError(ClusterError):
    """The object exists already, or somebody changed it first."""


class ForbiddenError(ClusterError):
    """A right is missing; the message names verb, resource, namespace and account."""


class UnavailableError(ClusterError):
    """The cluster did not answer; the request may be tried again."""
