"""What Kubernetes' texts say, for :mod:`kr_kfp.spec.diagnose`: names, causes and advice. Pure.

Reasons are few and stable; the messages behind them name what is missing. Each function reads one kind of message and
gives nothing for a text that it does not know, so that another wording costs exactness and never the diagnosis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kr_kfp.spec.causes import Category, Rule

__all__ = ["literal", "missing_config", "pull_advice", "refusal", "scheduling"]


def literal(text: str) -> str:
    """Protect the braces of a foreign text that becomes part of a template."""
    return text.replace("{", "{{").replace("}", "}}")


def missing_config(message: str) -> tuple[str, str] | None:
    """Name the Secret, ConfigMap or key that is missing (kubernetes pkg/kubelet/kubelet_pods.go).

    Returns:
        What is wrong and what to do.
    """
    key = re.search(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", message)
    if key:
        owner = f"{key[2]} {key[3].rpartition('/')[2]}"
        return f"{owner} has no key {key[1]}", f"Add the key {key[1]} to {owner}, or correct env=."
    missing = re.search(r'(secret|configmap) "([^"]+)" not found', message, re.IGNORECASE)
    if missing:
        owner = f"{'Secret' if missing[1].lower() == 'secret' else 'ConfigMap'} {missing[2]}"
        return f"{owner} does not exist", f"Create {owner} in the namespace of the run, or correct env=."
    return None


def pull_advice(message: str, image: str, secrets: Sequence[str]) -> str | None:
    """Tell from a registry's answer what to do.

    Args:
        message: The container runtime's text.
        image: The image that was asked for.
        secrets: The pod's image pull secrets.
    """
    text = message.lower()
    if re.search(r"unauthorized|denied|authentication required|forbidden|\b40[13]\b", text):
        listed = ", ".join(secrets)
        given = f"pull secret {listed}" if secrets else "node or service account (the pod has no pull secret)"
        return f"Give the {given} the right to read {image}, or correct the image's name (base_image)."
    if re.search(r"no match for platform|no matching manifest", text):
        return f"Build {image} for the node's architecture."
    if re.search(r"toomanyrequests|too many requests|\b429\b", text):
        return f"Wait, or pull {image} from a mirror: its registry limits the rate."
    if re.search(r"no such host|i/o timeout|connection refused|dial tcp|tls handshake", text):
        return f"Check that the nodes reach the registry of {image}: its name, DNS and firewall."
    if re.search(r"not found|manifest unknown|does not exist", text):
        return f"Push {image}, or correct its name and tag (base_image)."
    return None


def scheduling(message: str, selector: Mapping[str, object]) -> tuple[tuple[str, ...], str]:
    """Read the scheduler's message.

    Its form is ``0/5 nodes are available: 2 Insufficient google.com/tpu, 3 node(s) didn't match ...``
    (kubernetes pkg/scheduler/framework/types.go, FitError).

    Args:
        message: The text of the condition PodScheduled.
        selector: The pod's node selector.

    Returns:
        The causes in words, and what to do about the first of them.
    """
    causes: dict[str, str] = {}
    for claim in re.findall(r'persistentvolumeclaim "([^"]+)" not found', message):
        causes[f"PersistentVolumeClaim {claim} does not exist"] = f"Create PersistentVolumeClaim {claim}."
    if re.search(r"didn't match Pod's node affinity/selector|didn't match node selector", message):
        labels = ", ".join(f"{key}={value}" for key, value in selector.items()) or "the labels of its node affinity"
        causes[f"some nodes do not match its selector ({labels})"] = (
            f"Add a node pool with {labels}, or correct accelerator=."
        )
    for resource in re.findall(r"Insufficient ([\w./-]*\w)", message):
        causes[f"not enough free {resource}"] = f"Wait for nodes with free {resource}, or add some."
    for taint in re.findall(r"untolerated taint(?:\(s\))? \{([^}]*)\}", message):
        name = taint.rstrip(": ")
        causes[f"a taint keeps it out ({name})"] = f"Tolerate the taint {name} (kfp-kubernetes add_toleration)."
    if "volume node affinity conflict" in message:
        causes["its volume is bound to another zone"] = "Use a volume that the nodes' zones share."
    if re.search(r"anti-affinity rules|didn't match pod affinity", message):
        causes["its topology is taken by another group"] = "Wait for a free node pool, or add one."
    return tuple(causes), next(iter(causes.values()), "Look at the nodes: kubectl describe nodes.")


def _for_level(level: str) -> str:
    """Say what lets a pod pass a level such as ``restricted:latest``."""
    if level.startswith("restricted"):
        return (
            "Write pod_security='restricted' for the step. If it is written already, take from the task what the "
            "detail names."
        )
    return "Take from the task what the detail names, or run it in another namespace."


def refusal(message: str) -> Rule | None:
    """Read why the API server refuses to make a pod: the texts of its admission plugins."""
    account = re.search(r'service ?account "?([^\s":/]+)"?(?: was)? not found', message)
    if account:
        return Rule(
            Category.SERVICE_ACCOUNT,
            f"pod {{pod}} cannot be created: service account {account[1]} does not exist",
            f"Create service account {account[1]} in the namespace of the run, or name another one.",
            permanent=True,
        )
    quota = re.search(r"(exceeded|failed) quota: ([^,:\s]+)", message)
    if quota and quota[1] == "exceeded":
        return Rule(
            Category.QUOTA,
            f"pod {{pod}} cannot be created: quota {quota[2]} is used up",
            f"Wait for other pods to end, raise quota {quota[2]}, or ask for less.",
        )
    if quota:
        return Rule(
            Category.QUOTA,
            f"pod {{pod}} cannot be created: quota {quota[2]} wants requests or limits that the pod does not have",
            "Set the requests and limits that the detail names on the task.",
            permanent=True,
        )
    level = re.search(r'violates PodSecurity "([^"]+)"', message)
    if level:
        return Rule(
            Category.POD_SECURITY,
            f"pod {{pod}} cannot be created: it violates the namespace's Pod Security level {literal(level[1])}",
            _for_level(level[1]),
            permanent=True,
        )
    return None
