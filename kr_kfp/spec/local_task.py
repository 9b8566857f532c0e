"""What was set on a task with ``set_env_variable``, where kfp.local runs it.

On a cluster the task's settings win over the component's ``env=``. kfp.local tells a step neither apart: it puts the
task's variables into the process environment, where the author's own are too. So the author's process notes which
values were its own; what differs from them was set on the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kr_kfp.spec.step import EnvVar

__all__ = ["note", "task_env"]

_NOTE = "KR_KFP_AMBIENT_"


def note(name: str, variables: Sequence[EnvVar], env: Mapping[str, str]) -> dict[str, str]:
    """Give the variable that notes the author's own values of a step's variables.

    Args:
        name: The step's name.
        variables: Its ``env``.
        env: The author's environment.

    Returns:
        One variable with JSON in it; nothing for a step without ``env``.
    """
    if not variables:
        return {}
    return {f"{_NOTE}{name}": json.dumps({key: env[key] for key, _ in variables if key in env})}


def task_env(name: str, variables: Sequence[EnvVar], env: Mapping[str, str]) -> dict[str, str]:
    """Give those of a step's variables that were set on the task to another value.

    Args:
        name: The step's name.
        variables: Its ``env``.
        env: The environment that kfp.local gave the step; nothing is known without the note of :func:`note`.
    """
    text = env.get(f"{_NOTE}{name}")
    if text is None:
        return {}
    own = json.loads(text)
    found = {}
    for key, value in variables:
        # KFP has the component's own value with Kubernetes' escapes.
        known = (own.get(key), value.replace("$", "$$") if isinstance(value, str) else None)
        if key in env and env[key] not in known:
            found[key] = env[key]
    return found
