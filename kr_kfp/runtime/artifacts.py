"""Artifacts of a host in a group: which URIs go to which paths before user code, and back after it.

Beside hosts of a group stands no KFP launcher, which would do this in an ordinary task. The transfers themselves run in
a process of their own (:mod:`kr_kfp.storage.run`). Local artifacts (kfp.local) need none. Standard library only.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from kr_kfp.errors import Problem, SetupError, StorageError
from kr_kfp.executor_input import attempt_uri, output_uris
from kr_kfp.storage import settings, uris
from kr_kfp.storage.run import Item, Plan, Result, transfer
from kr_kfp.wire import UPLOADING, Json, Payload

__all__ = ["ROOT_ENV", "fetch_inputs", "input_items", "output_items", "put_outputs", "user_env"]

ROOT_ENV = "KR_KFP_ARTIFACTS"
"""Folder before KFP's paths ``/gcs``, ``/minio`` and ``/s3``; in pods there is none, and volumes are mounted there."""

_WORKSPACE = "_kfp_workspace"
"""Metadata key of artifacts on KFP's shared workspace volume (kfp/dsl/types/artifact_types.py, ``_get_path``)."""


def stores_of(payload: Payload) -> tuple[settings.StoreSettings, ...]:
    """Give what the launcher found out about the step's stores."""
    return settings.load_stores(payload.options.get("stores") or ())


def input_items(executor_input: Json, *, root: str, stream: Sequence[str] = ()) -> tuple[Item, ...]:
    """List the input artifacts to fetch, each place once.

    Args:
        executor_input: KFP's ExecutorInput.
        root: Folder before KFP's paths; empty in pods.
        stream: Inputs that user code reads by their ``.uri`` (``stream_inputs``).
    """
    found: dict[str, Item] = {}
    for name, group in ((executor_input.get("inputs") or {}).get("artifacts") or {}).items():
        several = len(group.get("artifacts") or ()) > 1
        for at, artifact in enumerate(group.get("artifacts") or ()):
            if name not in stream and _is_remote(artifact):
                path = _path(artifact, root)
                found.setdefault(path, Item(uri=artifact["uri"], path=path, name=f"{name}[{at}]" if several else name))
    return tuple(found.values())


def fetch_inputs(payload: Payload, work: str) -> Result:
    """Bring the inputs to the paths where KFP's executor looks for them.

    Raises:
        StorageError: Listing every artifact that could not be fetched.
        SetupError: If the transfer could not be started.
    """
    root = os.environ.get(ROOT_ENV, "")
    items = input_items(payload.executor_input, root=root, stream=payload.options.get("stream_inputs") or ())
    return transfer("fetch", Plan(stores=stores_of(payload), items=items), work=work)


def output_items(executor_input: Json, outputs: Json, *, attempt: int, root: str) -> tuple[tuple[Item, ...], list[str]]:
    """List the output artifacts to upload, and name those that hold neither file nor metadata nor another URI.

    Args:
        executor_input: KFP's ExecutorInput, as the launcher got it.
        outputs: What KFP's executor wrote (:func:`kr_kfp.runtime.collect.outputs`).
        attempt: 0-based attempt, whose suffix the URIs have.
        root: Folder before KFP's paths; empty in pods.

    Returns:
        What to upload, and the names of outputs of which nothing is known locally: objects may be at their URIs.

    Raises:
        StorageError: Listing every output whose changed ``.uri`` KFP would not take.
    """
    items, untouched, problems = [], [], []
    for name, artifact, expected in _written(executor_input, outputs, attempt):
        path = _path(artifact, root)
        if artifact["uri"] != expected:
            problems += _check_place(name, artifact["uri"], expected)
        if os.path.lexists(path):
            if _is_remote(artifact):
                items.append(Item(uri=artifact["uri"], path=path, name=name))
        elif artifact["uri"] == expected and not artifact.get("metadata"):
            untouched.append(name)
    if problems:
        raise StorageError(problems)
    return tuple(items), untouched


def put_outputs(payload: Payload, outputs: Json, *, attempt: int, work: str) -> tuple[str, ...]:
    """Upload the leader's outputs.

    Returns:
        Sentences for the user: each names an output that got neither file nor object nor metadata.

    Raises:
        StorageError: Listing every output that could not be uploaded, or whose ``.uri`` KFP would not take.
        SetupError: If the transfer could not be started.
    """
    root = os.environ.get(ROOT_ENV, "")
    items, untouched = output_items(payload.executor_input, outputs, attempt=attempt, root=root)
    stores = stores_of(payload)
    if items:
        print(UPLOADING, flush=True)
    transfer("put", Plan(stores=stores, items=items), work=work)
    places = {name: attempt_uri(uri, attempt) for name, uri in output_uris(payload.executor_input).items()}
    remote = tuple(Item(uri=places[n], path="", name=n) for n in untouched if _is_remote({"uri": places[n]}))
    try:
        probed = transfer("probe", Plan(stores=stores, items=remote), work=work)
    except (StorageError, SetupError) as problem:
        return (f"it could not be seen whether outputs are there that have no local file: {problem}",)
    there = {moved.name for moved in probed.items if moved.files}
    return tuple(
        f"output {name!r} got neither a file nor metadata; a consumer will find nothing"
        for name in untouched
        if name not in there
    )


def user_env(payload: Payload, env: Mapping[str, str]) -> dict[str, str]:
    """Give what lets user code reach the step's stores: for ``kr_kfp.checkpoints``, and for AWS's own libraries.

    ``AWS_*`` variables (https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html) are set for the
    checkpoint folder's store, or the only one, unless the user set one of them: what Orbax (tensorstore) and fsspec
    read for ``s3://``.
    """
    stores = stores_of(payload)
    if not stores:
        return {}
    given = {settings.STORES_ENV: json.dumps(settings.dump_stores(stores))}
    place = env.get("KR_KFP_CHECKPOINT_DIR", "")
    store = settings.choose(stores, place) if place.startswith("s3://") else None
    if store is None or not store.access_key_env or any(name in env for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")):
        return given
    aws = {
        "AWS_ACCESS_KEY_ID": env.get(store.access_key_env, ""),
        "AWS_SECRET_ACCESS_KEY": env.get(store.secret_key_env, ""),
        "AWS_SESSION_TOKEN": env.get(store.session_token_env, ""),
        "AWS_REGION": store.region,
        "AWS_ENDPOINT_URL": settings.endpoint_url(store.endpoint, plain=store.disable_ssl),
    }
    return {**given, **{name: value for name, value in aws.items() if value and name not in env}}


def _written(executor_input: Json, outputs: Json, attempt: int) -> Iterator[tuple[str, Json, str]]:
    """Give each declared output: its name, what the executor wrote of it, and the URI that was meant for it."""
    written = (outputs.get("executorOutput") or {}).get("artifacts") or {}
    for name, uri in output_uris(executor_input).items():
        expected = attempt_uri(uri, attempt)
        for artifact in (written.get(name) or {}).get("artifacts") or [{}]:
            yield name, {**artifact, "uri": artifact.get("uri") or expected}, expected


def _check_place(name: str, uri: str, expected: str) -> list[Problem]:
    """Refuse a changed URI that KFP's launcher would refuse, with a clearer message.

    It must stay below ``<bucket>/<root>/<pipeline>/<run id>`` (seen on KFP 2.17).
    """
    if uris.is_local(expected):
        return []
    run = os.environ.get("KR_KFP_RUN", "")
    head, mark, _ = expected.partition(f"/{run}/")
    allowed = f"{head}/{run}" if run and mark else posixpath.dirname(expected.partition("?")[0])
    if uris.contains(allowed, uri.partition("?")[0]):
        return []
    fix = f"write below {allowed}, or give the address as a parameter"
    return [Problem(f"output {name!r}", f"its .uri was changed to {uri}, outside of this run's folder.", f"{fix}.")]


def _is_remote(artifact: Json) -> bool:
    uri = artifact.get("uri", "")
    workspace = bool((artifact.get("metadata") or {}).get(_WORKSPACE))
    return uris.is_managed(uri, workspace=workspace) and not uris.is_local(uri)


def _path(artifact: Json, root: str) -> str:
    """Give the path that user code sees (kfp/dsl/types/artifact_types.py, ``_get_path``)."""
    own = artifact.get("custom_path") or artifact.get("customPath")
    if own:
        return str(own)
    uri = artifact["uri"]
    return uris.local_path(uri, root=root) if _is_remote(artifact) else uri.removeprefix("file://")
