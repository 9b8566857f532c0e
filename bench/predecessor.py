"""Runs a group as keras-team/remote does (cab055c, ``kinetic/backend/pathways_client.py``), in a stand-in of our own.

The LeaderWorkerSet keeps LWS's policy RecreateGroupOnPodRestart. Every ten seconds the leader pod is read: the job is
over when its container is found ended, now or in the start before. Then the LeaderWorkerSet is deleted, and asked for
every two seconds until it is gone. The leader's log is printed from when it is found running.

Usage: predecessor.py KUBECONFIG NAMESPACE MANIFEST.json
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config

POLL, POLL_GONE = 10.0, 2.0
KIND = {"group": "leaderworkerset.x-k8s.io", "version": "v1", "plural": "leaderworkersets"}


def exit_code(pod: Any) -> int | None:
    """Give how the leader's container ended; None while nothing says so."""
    for status in pod.status.container_statuses or ():
        for state in (status.state, status.last_state):
            if state.terminated is not None:
                return int(state.terminated.exit_code)
    return None


def show_log(core: Any, name: str, namespace: str) -> None:
    """Print the leader's log until it ends or cannot be read."""
    try:
        answer = core.read_namespaced_pod_log(name, namespace, follow=True, _preload_content=False)
        for line in answer:
            print(line.decode(errors="replace"), end="", flush=True)
    except client.ApiException:
        return


def wait(core: Any, name: str, namespace: str) -> int:
    """Poll the leader until it is found ended."""
    is_shown = False
    while True:
        try:
            pod = core.read_namespaced_pod(name, namespace)
        except client.ApiException as problem:
            if problem.status != 404:
                raise
        else:
            code = exit_code(pod)
            if code is not None:
                return code
            if pod.status.phase == "Running" and not is_shown:
                is_shown = True
                threading.Thread(target=show_log, args=(core, name, namespace), daemon=True).start()
        time.sleep(POLL)


def main(kubeconfig: str, namespace: str, file: str) -> int:
    """Make the group, wait for its end, delete it; give its leader's exit code."""
    manifest = json.loads(Path(file).read_text(encoding="utf-8"))
    name = manifest["metadata"]["name"]
    config.load_kube_config(kubeconfig)
    custom, core = client.CustomObjectsApi(), client.CoreV1Api()
    client.ApisApi().get_api_versions()
    custom.create_namespaced_custom_object(namespace=namespace, body=manifest, **KIND)
    code = wait(core, f"{name}-0", namespace)
    custom.delete_namespaced_custom_object(namespace=namespace, name=name, **KIND)
    while True:
        try:
            custom.get_namespaced_custom_object(namespace=namespace, name=name, **KIND)
        except client.ApiException as problem:
            if problem.status == 404:
                return code
            raise
        time.sleep(POLL_GONE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
