"""Whether hosts would reach the object store: KFP's configuration, and the Secret that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kr_kfp.errors import StorageError
from kr_kfp.spec.facts import ADMINISTRATOR, Finding, Unknown
from kr_kfp.storage.settings import StoreSettings
from kr_kfp.storage.sources import CONFIG_MAP, resolve

__all__ = ["check_store"]

_ROOT = "defaultPipelineRoot"
_DEFAULT_ROOT = "minio://mlpipeline/v2/artifacts"
"""Where runs put their artifacts (kubeflow/pipelines ``backend/src/v2/config/env.go``)."""

_KEYS = ("access_key_key", "secret_key_key", "session_token_key", "gcs_json_key")


def check_store(
    config: Mapping[str, str] | Unknown | None,
    namespace: str,
    keys_of: Callable[[str], tuple[str, ...] | Unknown | None],
) -> Iterator[Finding]:
    """Judge the configuration of the store.

    Args:
        config: Data of the ConfigMap ``kfp-launcher``; None if there is none.
        namespace: The namespace of the runs.
        keys_of: Gives the keys of a Secret by its name, None if there is none.
    """
    if isinstance(config, Unknown):
        message = f"ConfigMap {CONFIG_MAP} cannot be read: {config.why}"
        yield Finding("store", "warn", message, ADMINISTRATOR)
        return
    data = config or {}
    root = data.get(_ROOT) or _DEFAULT_ROOT
    source = f"ConfigMap {CONFIG_MAP}" if config is not None else f"KFP's defaults (there is no ConfigMap {CONFIG_MAP})"
    try:
        stores = resolve([root], {}, data)
    except StorageError as error:
        for problem in error.problems:
            yield Finding(
                "store", "fail", f"{problem.path} {problem.message}", problem.fix or f"Correct it in {source}"
            )
        return
    yield Finding("store", "pass", f"artifacts are kept below {root}, by {source}")
    for store in stores:
        yield _secret(store, namespace, keys_of)


def _secret(
    store: StoreSettings, namespace: str, keys_of: Callable[[str], tuple[str, ...] | Unknown | None]
) -> Finding:
    name = store.secret_name
    if not name:
        return Finding("store", "pass", "no Secret is named: hosts use the identity of their service account")
    keys = keys_of(name)
    if isinstance(keys, Unknown):
        message = f"whether Secret {name} has what it should is not known: {keys.why}"
        return Finding("store", "warn", message, ADMINISTRATOR)
    if keys is None:
        fix = f"Make it in namespace {namespace}, or name another one in ConfigMap {CONFIG_MAP}"
        return Finding("store", "fail", f"there is no Secret {name}, from which hosts get their credentials", fix)
    wanted = [key for field in _KEYS if (key := getattr(store, field))]
    missing = [key for key in wanted if key not in keys]
    if missing:
        fix = f"Add it, or name the right keys in ConfigMap {CONFIG_MAP}; it has: {', '.join(keys) or 'none'}"
        return Finding("store", "fail", f"Secret {name} has no key {', '.join(missing)}", fix)
    return Finding("store", "pass", f"Secret {name} has {', '.join(wanted)}")
