"""``import kr_kfp`` with its decorator against ``import kfp``, and the runner's start against an empty Python.

Aims: ratio at most 1.10 plus the A/A spread; the runner is up within 60 ms of an empty Python.
"""

from __future__ import annotations

import subprocess
import sys
import time

from pairs import measure


def seconds(code: str) -> float:
    """Give the wall time of a fresh Python that runs ``code``."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    print("an empty Python (a) against the runner with everything it imports (b)")
    runner = "from kr_kfp.runtime import __main__, host"
    start = measure(lambda: seconds("pass"), lambda: seconds(runner))
    print("import kfp (a) against import kr_kfp alone (b)")
    bare = measure(lambda: seconds("import kfp"), lambda: seconds("import kr_kfp"))
    print("import kfp (a) against import kr_kfp and its decorator, which loads kfp (b)")
    pairs = measure(lambda: seconds("import kfp, kfp.kubernetes"), lambda: seconds("import kr_kfp; kr_kfp.component"))
    print(
        pairs.line(
            bare_ratio=f"{bare.ratio:.3f}",
            runner_ms=f"{(start.b - start.a) * 1000:.1f}",
            empty_ms=f"{start.a * 1000:.1f}",
        )
    )


if __name__ == "__main__":
    main()
