"""What is wrong with a declaration: every problem, with path, value and fix."""

from __future__ import annotations

from typing import Any

import pytest
from kfp import dsl
from kfp.dsl import pipeline_channel

from kr_kfp.errors import Problem
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.check import check_arguments, check_misplaced, check_placeholders, check_value
from kr_kfp.spec.declare import declare, describe_shape
from kr_kfp.spec.options import DEFAULTS, OPTIONS, Options
from kr_kfp.spec.step import ConfigKey, Gpu, Secret, StepSpec, Tpu


def problems(given: dict[str, Any], **more: Any) -> list[str]:
    """Give all problems of a declaration as text."""
    _, found = declare(given, name="train", image="python:3.12", keywords=("base_image",), **more)
    return [str(problem) for problem in found]


def step(given: dict[str, Any], **more: Any) -> StepSpec:
    """Give the step of a declaration that is right."""
    made, found = declare(given, name="train", image="python:3.12", **more)
    assert found == ()
    assert made is not None
    return made


def test_every_option_is_typed() -> None:
    """The table and the types name the same arguments."""
    dsl_names = {"base_image", "target_image", "packages_to_install", "pip_index_urls", "output_component_file"}
    dsl_names |= {"install_kfp_package", "kfp_package_path", "pip_trusted_hosts", "use_venv", "additional_funcs"}
    dsl_names |= {"embedded_artifact_path"}
    assert set(Options.__annotations__) == set(OPTIONS) | dsl_names
    assert set(DEFAULTS) == set(OPTIONS)


def test_defaults() -> None:
    """Without arguments it is one pod on CPU, with the documented defaults."""
    assert step({}) == StepSpec(
        name="train", reason="auto: CPU, 1 host in all", image="python:3.12", finish_grace=300.0, terminate_grace=60.0
    )


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "accelerator",
            5,
            "accelerator: 5 is of type int. Fix: give a name such as 'v5litepod-16', or Tpu(...), or Gpu(...).",
        ),
        ("hosts", 0, "hosts: 0 is less than 1. Fix: give a whole number from 1."),
        ("hosts", True, "hosts: True is of type bool. Fix: give a whole number from 1."),
        ("hosts", "4", "hosts: '4' is of type str. Fix: give a whole number from 1."),
        ("slices", 1.0, "slices: 1.0 is of type float. Fix: give a whole number from 1."),
        ("backend", "lsw", "backend: 'lsw' is not one of 'auto', 'pod', 'lws' or 'pathways'. Fix: did you mean 'lws'?"),
        (
            "backend",
            None,
            "backend: None is not one of 'auto', 'pod', 'lws' or 'pathways'. "
            "Fix: choose 'auto', 'pod', 'lws' or 'pathways'.",
        ),
        (
            "framework",
            "tensorflow",
            (
                "framework: 'tensorflow' is not one of 'auto', 'jax', 'torch' or 'none'. "
                "Fix: choose 'auto', 'jax', 'torch' or 'none'."
            ),
        ),
        (
            "processes_per_host",
            "tpu",
            "processes_per_host: 'tpu' is of type str. Fix: give a whole number from 1 or 'gpu'.",
        ),
        (
            "timeout",
            "1x",
            "timeout: '1x' is no duration. Fix: write '90s', '90m', '1h30m', '2d' or a number of seconds.",
        ),
        (
            "finish_grace",
            -1,
            "finish_grace: -1 is negative. Fix: write '90s', '90m', '1h30m', '2d' or a number of seconds.",
        ),
        ("max_restarts", -1, "max_restarts: -1 is less than 0. Fix: give a whole number from 0."),
        ("spot", 1, "spot: 1 is of type int. Fix: give True or False."),
        (
            "logs",
            "worker",
            "logs: 'worker' is not one of 'leader', 'all' or 'none'. Fix: choose 'leader', 'all' or 'none'.",
        ),
        (
            "cluster",
            "gke:p/l",
            (
                "cluster: 'gke:p/l' names no cluster. Fix: write 'kubeconfig', 'kubeconfig:<context>', "
                "'gke:<project>/<location>/<name>' or 'local'."
            ),
        ),
        ("launcher_image", "a b", "launcher_image: 'a b' is no image name. Fix: give a name such as 'python:3.12'."),
        (
            "checkpoint_root",
            "ckpt",
            "checkpoint_root: 'ckpt' is no URI. Fix: write a URI such as 'gs://bucket/folder'.",
        ),
        ("kr_kfp_package_path", " ", "kr_kfp_package_path: it is empty. Fix: give a text, or leave it out."),
        ("packages_to_install", "keras", "packages_to_install: 'keras' is a text, not a list. Fix: write ['keras']."),
        ("packages_to_install", [1], "packages_to_install[0]: 1 is of type int. Fix: give a text."),
        (
            "env",
            ["A"],
            "env: ['A'] is of type list. Fix: give a dict of names and texts, such as {'LOG_LEVEL': 'debug'}.",
        ),
        ("env", {"A": 1}, "env['A']: 1 is of type int, not text. Fix: write '1'."),
        (
            "env",
            {"A": None},
            "env['A']: None is of type NoneType, not text. "
            "Fix: give a text, Secret(name, key) or ConfigKey(name, key).",
        ),
        (
            "env",
            {"a=b": "x"},
            "env['a=b']: 'a=b' is no name of an environment variable. Fix: use letters, digits and _.",
        ),
        ("env", {"A": "\0"}, "env['A']: the text holds a zero byte. Fix: leave it out: no process can have it."),
        (
            "env",
            {"A": Secret("My_Secret", "key")},
            (
                "env['A'].name: 'My_Secret' is no name of a Kubernetes Secret. "
                "Fix: use lower-case letters, digits, - and ., at most 253."
            ),
        ),
        (
            "env",
            {"A": ConfigKey("c", "a/b")},
            "env['A'].key: 'a/b' is no key of a Kubernetes ConfigKey. "
            "Fix: use letters, digits, -, _ and ., at most 253.",
        ),
        (
            "labels",
            {"exp": "a b"},
            (
                "labels['exp']: 'a b' is no value of a Kubernetes label. "
                "Fix: use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends."
            ),
        ),
        (
            "labels",
            {"exp": "x" * 64},
            (
                f"labels['exp']: '{'x' * 64}' is no value of a Kubernetes label. "
                "Fix: use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends."
            ),
        ),
        ("labels", {"exp": 1}, "labels['exp']: 1 is of type int. Fix: write '1'."),
        (
            "labels",
            {"a b": "x"},
            (
                "labels['a b']: 'a b' is no name of a Kubernetes label or annotation. "
                "Fix: use at most 63 letters, digits, -, _ and . after an optional prefix such as 'team.example/'."
            ),
        ),
        (
            "labels",
            {"A_B/x": "x"},
            "labels['A_B/x']: the prefix 'A_B' is no DNS name. Fix: use a prefix such as 'team.example/'.",
        ),
        (
            "annotations",
            {"kr-kfp.dev/holder": "x"},
            "annotations['kr-kfp.dev/holder']: kr_kfp or LeaderWorkerSet sets it itself. Fix: leave it out.",
        ),
        (
            "annotations",
            {"a": "x" * 262_145},
            "annotations: the values are 262,145 bytes together; Kubernetes takes 262,144. Fix: shorten them.",
        ),
        (
            "pod_security",
            "strict",
            "pod_security: 'strict' is not one of 'kfp' or 'restricted'. Fix: did you mean 'restricted'?",
        ),
        (
            "service_account",
            "My_Account",
            "service_account: 'My_Account' is no name of an object of Kubernetes. "
            "Fix: use lower-case letters, digits, - and ., at most 253.",
        ),
        ("api_token", 1, "api_token: 1 is of type int. Fix: give True or False."),
        ("shm", 5, "shm: 5 is of type int. Fix: give True, False or a size such as '16Gi'."),
        ("shm", "much", "shm: 'much' is no amount of memory. Fix: write '16Gi' or the like."),
        (
            "retry_on",
            "oom",
            "retry_on: 'oom' is of type str. Fix: give a set, such as {'oom', 42, 'ConnectionError'}.",
        ),
        ("retry_on", {0}, "retry_on[0]: 0 is no exit code of a failure. Fix: give a code from 1 to 255."),
        (
            "retry_on",
            {int},
            "retry_on[<class 'int'>]: int is no exception class. Fix: give an exception class or its name.",
        ),
        (
            "retry_on",
            {"requests.Timeout"},
            (
                "retry_on['requests.Timeout']: 'requests.Timeout' names no failure. "
                "Fix: give 'oom', an exit code, or the name of an exception class without its module."
            ),
        ),
        (
            "launcher_resources",
            {"cpu": "two"},
            "launcher_resources['cpu']: 'two' is no amount of cpu. Fix: write '500m' or '2'.",
        ),
        (
            "launcher_resources",
            {"nvidia.com/gpu": "1"},
            "launcher_resources['nvidia.com/gpu']: a launcher has cpu and memory only. Fix: leave it out.",
        ),
    ],
)
def test_one_value(name: str, value: Any, problem: str) -> None:
    """A value that cannot be is named with what to write instead."""
    assert [str(found) for found in check_value(name, value)] == [problem]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accelerator", "v5litepod-16"),
        ("accelerator", Tpu("v5e", "4x4")),
        ("accelerator", Gpu("h100", per_host=8)),
        ("accelerator", None),
        ("processes_per_host", "gpu"),
        ("env", {"A_1": "$$ $(X) ü", "B": Secret("a.b-c", "K_1"), "C": ConfigKey("c", "k.txt")}),
        ("capacity_timeout", None),
        ("retry_on", {"oom", 42, "137", ConnectionError, "MyError"}),
        ("cluster", "kubeconfig:my-context"),
        ("cluster", "gke:p/europe-west4/c"),
        ("labels", {"team.example/exp": "a-b_c.d", "x": ""}),
        ("launcher_resources", {"cpu": "500m", "memory": "512Mi"}),
        ("checkpoint_root", "/mnt/ckpt"),
        ("additional_funcs", [len]),
    ],
)
def test_right_values(name: str, value: Any) -> None:
    """What is documented is taken."""
    assert check_value(name, value) == ()


def test_unknown_argument() -> None:
    """A misspelt argument is answered with the nearest names, any other with all of them."""
    [near] = check_arguments({"hostss": 3})
    assert near == Problem(
        "hostss", "kr_kfp.component has no such argument, and dsl.component has none either.", "did you mean hosts?"
    )
    [far] = check_arguments({"zzz": 3}, keywords=("base_image",))
    assert far.fix.startswith("leave it out; there are: accelerator, annotations, api_token, backend, base_image, ")


def test_keyword_that_kr_kfp_needs() -> None:
    """dsl.component's keyword for passthroughs is refused with the reason."""
    [problem] = check_arguments({"task_config_passthroughs": []}, keywords=("task_config_passthroughs",))
    assert problem.path == "task_config_passthroughs"
    assert check_arguments({"task_config_passthroughs": None}, keywords=("task_config_passthroughs",)) == ()


def test_five_mistakes_give_five_problems() -> None:
    """All problems come at once, in the order of the arguments."""
    given = {
        "accelerator": "v5litepod-16",
        "hosts": 3,
        "timeout": "soon",
        "env": {"A": 1, "KR_KFP_RUN": "x"},
        "host": 3,
    }
    assert problems(given) == [
        (
            "hosts: 3 contradicts v5litepod-16: topology 4x4 is 16 chips with 4 on each host, 16 / 4 = 4 hosts. "
            "Fix: leave it out or write 4."
        ),
        "timeout: 'soon' is no duration. Fix: write '90s', '90m', '1h30m', '2d' or a number of seconds.",
        "env['A']: 1 is of type int, not text. Fix: write '1'.",
        "env['KR_KFP_RUN']: kr_kfp sets it on every host. Fix: choose another name, or leave it out.",
        "host: kr_kfp.component has no such argument, and dsl.component has none either. Fix: did you mean hosts?",
    ]


def test_what_means_nothing_need_not_be_right() -> None:
    """An argument that is refused for the backend is not also refused for its value."""
    assert [text.partition(":")[0] for text in problems({"timeout": "soon", "max_restarts": -1, "hosts": 1})] == [
        "timeout",
        "max_restarts",
    ]


@pytest.mark.parametrize(
    ("given", "hosts", "backend", "reason"),
    [
        ({}, 1, "pod", "auto: CPU, 1 host in all"),
        ({"hosts": 4}, 4, "lws", "auto: CPU, 4 hosts in all"),
        ({"backend": "lws"}, 1, "lws", "asked for by backend='lws'"),
        ({"accelerator": "v5litepod-1"}, 1, "pod", None),
        ({"accelerator": "v5litepod-16"}, 4, "lws", None),
        ({"accelerator": "v5litepod-16", "hosts": 4}, 4, "lws", None),
        ({"accelerator": "v5litepod-16", "slices": 2, "hosts": 8}, 8, "lws", None),
        ({"accelerator": Gpu("h100", per_host=8)}, 1, "pod", None),
        ({"accelerator": Gpu("h100", per_host=8), "hosts": 2}, 2, "lws", None),
    ],
)
def test_backend_and_hosts(given: dict[str, Any], hosts: int, backend: str, reason: str | None) -> None:
    """One host is a pod, more are a LeaderWorkerSet, and a TPU's hosts follow from its topology."""
    made = step(given)
    shape = f"{describe_shape(made.shape)}, {hosts} host{'s' if hosts > 1 else ''} in all"
    assert (made.hosts, made.backend, made.reason) == (hosts, backend, reason or f"auto: {shape}")


def test_describe_shape() -> None:
    """What an accelerator resolved to is said in full, since names of TPUs count cores or chips."""
    assert describe_shape(None) == "CPU"
    assert describe_shape(resolve("v5litepod-16")) == "v5litepod-16 (v5e, topology 4x4: 16 chips on 4 hosts)"
    assert describe_shape(resolve(Gpu("h100", per_host=8))).endswith("(8 GPUs on each host)")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"accelerator": "v5litepod-16", "slices": 2, "hosts": 4},
            (
                "hosts: 4 contradicts v5litepod-16: topology 4x4 is 16 chips with 4 on each host, 16 / 4 = 4 hosts, "
                "times 2 slices = 8 hosts. Fix: leave it out or write 8."
            ),
        ),
        (
            {"slices": 2},
            (
                "slices: 2 slices of CPU: only TPUs come in slices. "
                "Fix: leave it out, and say with hosts= how many hosts there are."
            ),
        ),
        (
            {"accelerator": "v5litepod-4", "slices": 2},
            (
                "slices: 2 slices of v5litepod-4 (v5e, topology 2x2: 4 chips on 1 host): GKE joins slices of several "
                "hosts only. Fix: leave it out, or choose a larger accelerator."
            ),
        ),
        (
            {"accelerator": "v3-32", "slices": 2},
            "slices: 2 slices of v3-32: v3 has no multislice. Fix: leave it out.",
        ),
        (
            {"backend": "pod", "hosts": 2},
            "backend: 'pod' is one pod, but this is CPU, 2 hosts in all. Fix: write backend='lws' or leave it out.",
        ),
        (
            {"backend": "lws", "processes_per_host": "gpu"},
            "processes_per_host: 'gpu' is one process for each GPU, but this is CPU. Fix: give a number.",
        ),
        (
            {"accelerator": "v5litepod-16", "processes_per_host": 4},
            "processes_per_host: 4 processes cannot share the TPU chips of a host. Fix: leave it out.",
        ),
        (
            {"hosts": 2, "framework": "jax", "processes_per_host": 4},
            (
                "processes_per_host: 4 processes on each host are for PyTorch, but framework is 'jax'. "
                "Fix: leave it out: one JAX process drives all devices of its host; or write framework='torch'."
            ),
        ),
        (
            {"hosts": 2, "launcher_resources": {"cpu": "1"}},
            (
                "launcher_resources: with passthrough, KFP sends resources set on the task to the training pods and gives "
                "the launcher none. "
                "Fix: add passthrough=False (settings made on the task then stay on the launcher), or leave it out."
            ),
        ),
        (
            {"hosts": 2, "env": {"LWS_GROUP_SIZE": "3"}},
            "env['LWS_GROUP_SIZE']: LeaderWorkerSet sets it on every host. Fix: choose another name, or leave it out.",
        ),
        (
            {"env": {"KR_KFP_TASK": "3"}},
            "env['KR_KFP_TASK']: kr_kfp sets it on every host. Fix: choose another name, or leave it out.",
        ),
        (
            {"install_kr_kfp_package": False, "kr_kfp_package_path": "x.whl"},
            (
                "kr_kfp_package_path: 'x.whl' is what to install, but install_kr_kfp_package is False. "
                "Fix: leave one of the two out."
            ),
        ),
        (
            {"timeout": "1h"},
            (
                "timeout: '1h' means nothing for backend 'pod', which is one pod without a launcher. "
                "Fix: leave it out, and call kfp.kubernetes.set_timeout(task, seconds) on the task."
            ),
        ),
        (
            {"max_restarts": 3},
            (
                "max_restarts: 3 means nothing for backend 'pod', which is one pod without a launcher. "
                "Fix: leave it out, and call set_retry(...) on the task."
            ),
        ),
    ],
)
def test_arguments_that_do_not_fit_together(given: dict[str, Any], problem: str) -> None:
    """A contradiction is shown with its computation and the way out."""
    assert problems(given) == [problem]


def test_misplaced() -> None:
    """Exactly these arguments mean nothing for each backend; None is as good as not given."""
    given = dict.fromkeys(OPTIONS, "x")
    assert [problem.path for problem in check_misplaced(given, "pod")] == [
        "processes_per_host",
        "timeout",
        "capacity_timeout",
        "start_grace",
        "finish_grace",
        "terminate_grace",
        "max_restarts",
        "retry_on",
        "logs",
        "cluster",
        "launcher_image",
        "launcher_resources",
        "stream_inputs",
        "pod_security",
        "service_account",
        "api_token",
        "passthrough",
        "pathways",
    ]
    assert [problem.path for problem in check_misplaced(given, "lws")] == ["pathways"]
    assert [problem.path for problem in check_misplaced(given, "pathways")] == [
        "processes_per_host",
        "finish_grace",
        "logs",
    ]
    assert check_misplaced({"timeout": None}, "pod") == ()
    assert check_misplaced(given, "") == ()


def test_values_of_a_step() -> None:
    """Durations become seconds, sets become sorted texts, dicts keep their order."""
    made = step(
        {
            "accelerator": Gpu("h100", per_host=8),
            "hosts": 2,
            "framework": "torch",
            "processes_per_host": "gpu",
            "env": {"B": "2", "A": Secret("s", "k")},
            "timeout": "2d",
            "capacity_timeout": None,
            "retry_on": {"oom", 42, ConnectionError},
            "spot": True,
            "labels": {"b": "1", "a": "2"},
        },
        requirement="kr-kfp==1",
    )
    assert made.processes_per_host == 8
    assert made.env == (("B", "2"), ("A", Secret("s", "k")))
    assert (made.timeout, made.capacity_timeout) == (172_800.0, None)
    assert made.retry_on == ("42", "ConnectionError", "oom")
    assert made.max_restarts == 10
    assert made.labels == (("b", "1"), ("a", "2"))
    assert made.requirement == "kr-kfp==1"


def test_inherited_arguments_that_no_longer_fit_are_dropped() -> None:
    """Another shape of a step keeps what it can; what was asked for now is still refused."""
    base = {"accelerator": "v5litepod-16", "hosts": 4, "finish_grace": "9s", "timeout": "1h", "spot": True}
    made = step({"accelerator": "v5litepod-1"}, inherited=base)
    assert (made.backend, made.hosts, made.finish_grace, made.timeout, made.spot) == ("pod", 1, 300.0, None, True)
    assert step({"slices": 2}, inherited=base).hosts == 8
    assert step({"accelerator": None}, inherited={"accelerator": "v5litepod-16", "slices": 2}).slices == 1
    assert step({"accelerator": None}, inherited={"hosts": 3}).hosts == 3
    assert problems({"accelerator": "v5litepod-1", "finish_grace": "1s"}, inherited=base) == [
        (
            "finish_grace: '1s' means nothing for backend 'pod', which is one pod without a launcher. "
            "Fix: leave it out: a pod step has no other hosts to wait for."
        )
    ]


def channel(name: str = "run") -> Any:
    """Give what KFP puts in place of a pipeline input."""
    return pipeline_channel.create_pipeline_channel(name=name, channel_type="String")


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("hosts", channel(), "hosts"),
        ("accelerator", f"{channel()}", "accelerator"),
        ("accelerator", Tpu("v5e", f"{channel()}"), "accelerator.topology"),
        ("env", {"RUN": f"run-{channel()}"}, "env['RUN']"),
        ("env", {f"{channel()}": "x"}, "env key"),
        ("env", {"A": Secret("s", f"{channel()}")}, "env['A'].key"),
        ("labels", {"exp": channel()}, "labels['exp']"),
        ("labels", {"a": "b", "exp": dsl.PIPELINE_JOB_ID_PLACEHOLDER}, "labels['exp']"),
        ("packages_to_install", ["keras", f"x=={channel()}"], "packages_to_install[1]"),
    ],
)
def test_placeholders(path: str, value: Any, where: str) -> None:
    """A pipeline input is found however deep, and the message says what must be constant."""
    [problem] = check_placeholders(path, value)
    assert problem.path == where
    assert "is known only when the pipeline runs" in problem.message
    assert "{{" in problem.message
    assert problem.fix.startswith(
        "give a constant. So must be all of: accelerator, hosts, slices, backend, framework, processes_per_host, env, "
    )


def test_placeholder_is_one_problem() -> None:
    """A placeholder where a number belongs is not also of a wrong type."""
    assert [problem.path for problem in check_arguments({"hosts": channel(), "accelerator": channel()})] == [
        "hosts",
        "accelerator",
    ]


@pytest.mark.parametrize("value", ["{{ jinja }}", "{{}}", "{'a': {}}", {"A": "{{other}}"}])
def test_other_braces_are_no_placeholders(value: Any) -> None:
    """Braces that are not KFP's stay what they are."""
    assert check_placeholders("env", value) == ()


@pytest.mark.parametrize(
    ("accelerator", "slices"), [("v5litepod-32", 2), ("v5litepod-4", 1), ("v3-32", 1), ("h100x8", 1), (None, 1)]
)
def test_slices_of_another_shape(accelerator: str | None, slices: int) -> None:
    """Slices are kept where the other shape comes in slices, and dropped where it does not."""
    inherited = {"accelerator": "v5litepod-16", "slices": 2}
    assert step({"accelerator": accelerator}, inherited=inherited).slices == slices


@pytest.mark.parametrize(
    ("given", "shm", "size"),
    [
        ({}, False, ""),
        ({"accelerator": "v5litepod-16"}, False, ""),
        ({"accelerator": "h100x8"}, True, ""),
        ({"accelerator": "h100x8", "hosts": 2}, True, ""),
        ({"accelerator": "h100x8", "shm": False}, False, ""),
        ({"accelerator": "h100x8", "shm": "64Gi"}, True, "64Gi"),
        ({"hosts": 2, "shm": True}, True, ""),
    ],
)
def test_shared_memory(given: dict[str, Any], shm: bool, size: str) -> None:
    """GPU hosts have shared memory of their own by default, others if they ask for it."""
    made = step(given)
    assert (made.shm, made.shm_size) == (shm, size)
