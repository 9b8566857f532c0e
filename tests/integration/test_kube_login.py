"""Logging in to a cluster, on real TLS: from a KFP pod, by kubeconfig, and what is said where it cannot work."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kr_kfp.cluster.choose import choose
from kr_kfp.cluster.kube import connect
from kr_kfp.cluster.kube_group import PODS
from kr_kfp.cluster.kube_http import Api
from kr_kfp.cluster.kube_login import from_pod
from kr_kfp.errors import ForbiddenError, SetupError
from tests.kube_kit import pod
from tests.kube_server import Fault, KubeServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    today = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(days=1))
        .not_valid_after(today + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def server(certificate: Path) -> Iterator[KubeServer]:
    """An API server with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = KubeServer(context)
    yield server
    server.close()


@pytest.fixture
def account(tmp_path: Path, certificate: Path) -> Path:
    """The files of a pod's service account."""
    (tmp_path / "token").write_text("first\n", encoding="utf-8")
    (tmp_path / "namespace").write_text("ml", encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
    return tmp_path


def env_of(server: KubeServer, name: str = "launcher") -> dict[str, str]:
    return {
        "KFP_POD_NAME": name,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        # No proxy between a pod and the API server, whatever the environment says.
        "HTTPS_PROXY": "http://127.0.0.1:1",
    }


def launcher(**labels: str) -> dict[str, object]:
    return {"metadata": {"name": "launcher", "uid": "l1", "labels": labels}, "spec": {}}


def test_from_a_kfp_pod(server: KubeServer, account: Path) -> None:
    """Namespace and account come from the mounted files, the pod from its name."""
    own = server.put("pods", launcher(**{"pipeline/runid": "r1"}))
    cluster = connect(None, env_of(server), account=account)
    assert cluster.own_pod() == own
    assert cluster.holder() == "l1"
    assert cluster.where == "namespace ml"
    assert server.requests[0].headers["Authorization"] == "Bearer first"


def test_a_renewed_token_is_used(server: KubeServer, account: Path) -> None:
    """The kubelet writes a new token before the old one ends: it is read again after a minute, and on a refusal."""
    server.put("pods", pod(0))
    passed = [0.0]
    api = Api(from_pod(env_of(server), account, clock=lambda: passed[0]))
    api.get(PODS, "train-x-0", namespace="ml")
    (account / "token").write_text("second", encoding="utf-8")
    api.get(PODS, "train-x-0", namespace="ml")
    server.fail("get pods", Fault(status=401))
    api.get(PODS, "train-x-0", namespace="ml")
    (account / "token").write_text("third", encoding="utf-8")
    passed[0] = 61.0
    api.get(PODS, "train-x-0", namespace="ml")
    tokens = [request.headers["Authorization"].removeprefix("Bearer ") for request in server.requests]
    assert tokens == ["first", "first", "first", "second", "third"]


def test_a_pod_that_is_none_of_kfps(server: KubeServer, account: Path) -> None:
    """The variable alone, without the run's label, chooses nothing."""
    server.put("pods", launcher(app="notebook"))
    with pytest.raises(SetupError) as caught:
        connect(None, env_of(server), account=account)
    assert str(caught.value) == (
        "KFP_POD_NAME='launcher' is set, but the pod has no label pipeline/runid: it is none of a KFP run. "
        "Unset KFP_POD_NAME, or choose the cluster by name (cluster=, KR_KFP_CLUSTER)"
    )


def test_a_pod_that_does_not_exist(server: KubeServer, account: Path) -> None:
    """A name from elsewhere names no pod here."""
    with pytest.raises(SetupError, match="KFP_POD_NAME='launcher' names no pod of namespace ml"):
        connect(None, env_of(server), account=account)


def test_without_the_right_to_the_own_pod(server: KubeServer, account: Path) -> None:
    """The first request already says which right is missing and who lacks it."""
    message = (
        'pods "launcher" is forbidden: User "system:serviceaccount:ml:x" cannot get resource "pods" in API group ""'
    )
    server.fail("get pods", Fault(status=403, reason="Forbidden", message=message))
    with pytest.raises(ForbiddenError) as caught:
        connect(None, env_of(server), account=account)
    assert str(caught.value) == (
        "system:serviceaccount:ml:x may not get pods in namespace ml. Give it the rights: kr-kfp install"
    )


@pytest.mark.parametrize("missing", ["token", "namespace", "ca.crt"])
def test_an_account_that_is_not_mounted(server: KubeServer, account: Path, missing: str) -> None:
    """The file that is missing is named, and the namespace is never guessed."""
    (account / missing).unlink()
    with pytest.raises(SetupError, match=missing) as caught:
        connect(None, env_of(server), account=account)
    assert "Let the pod mount its token (automountServiceAccountToken)" in str(caught.value)


def test_an_empty_namespace_is_refused(server: KubeServer, account: Path) -> None:
    """An empty file is as bad as none."""
    (account / "namespace").write_text("\n", encoding="utf-8")
    with pytest.raises(SetupError, match="is empty"):
        connect(None, env_of(server), account=account)


def test_a_server_that_is_not_trusted(server: KubeServer, account: Path) -> None:
    """A certificate of another authority is no outage that passes."""
    import certifi

    (account / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    with pytest.raises(SetupError, match="the API server's certificate is not trusted"):
        connect(None, env_of(server), account=account)


def kubeconfig(folder: Path, server: KubeServer, certificate: Path, **context: str) -> dict[str, str]:
    authority = base64.b64encode(certificate.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", **context}},
            {"name": "two", "context": {"cluster": "c", "user": "u", "namespace": "other"}},
        ],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return {"KUBECONFIG": os.fspath(file)}


@pytest.mark.parametrize(
    ("wanted", "extra", "where"),
    [
        ("kubeconfig", {}, "namespace ml of context one"),
        ("kubeconfig:two", {}, "namespace other of context two"),
        ("kubeconfig:two", {"KR_KFP_NAMESPACE": "third"}, "namespace third of context two"),
    ],
)
def test_by_kubeconfig(
    server: KubeServer, certificate: Path, tmp_path: Path, wanted: str, extra: dict[str, str], where: str
) -> None:
    """The current context or the named one, its namespace or the one that the user overrides it with."""
    env = {**kubeconfig(tmp_path, server, certificate, namespace="ml"), **extra}
    cluster = connect(wanted, env)
    assert cluster.where == where
    assert cluster.own_pod() is None
    assert cluster.holder().startswith("lease:kr-kfp-")
    assert cluster.read_group("train-x") is None
    request = server.requests[0]
    assert request.path.split("/")[5] == where.split()[1]
    assert request.headers["Authorization"] == "Bearer secret"


def test_a_context_without_a_namespace_means_default(server: KubeServer, certificate: Path, tmp_path: Path) -> None:
    """As kubectl does, and only by kubeconfig."""
    assert connect("kubeconfig", kubeconfig(tmp_path, server, certificate)).where == "namespace default of context one"


def test_a_context_that_does_not_exist(server: KubeServer, certificate: Path, tmp_path: Path) -> None:
    """Those that do are named."""
    with pytest.raises(SetupError) as caught:
        connect("kubeconfig:three", kubeconfig(tmp_path, server, certificate))
    assert str(caught.value).startswith("cluster='kubeconfig:three': ")
    assert str(caught.value).endswith(" Contexts there: one, two")


def test_no_kubeconfig(tmp_path: Path) -> None:
    """A file that is not there is said so."""
    with pytest.raises(SetupError, match=r"cluster='kubeconfig': .*Contexts there: none"):
        connect("kubeconfig", {"KUBECONFIG": os.fspath(tmp_path / "none")})


@pytest.mark.parametrize("name", ["kubeconf", "gkeproject", "https://127.0.0.1"])
def test_another_text_names_no_cluster(name: str) -> None:
    """What is possible is listed."""
    with pytest.raises(SetupError, match=r"is none of local, kubeconfig, kubeconfig:<context>, gke:"):
        connect(name, {})


@pytest.mark.parametrize("name", ["gke:", "gke:p", "gke:p/l", "gke:p//n", "gke:p/l/n/more"])
def test_a_gke_name_has_three_parts(name: str) -> None:
    """Project, location and name, none of them empty."""
    with pytest.raises(SetupError) as caught:
        connect(name, {})
    assert str(caught.value) == f"cluster={name!r} is not gke:project/location/name"


def test_gke_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands that help are given, and nothing is asked of the network."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", os.fspath(tmp_path / "none.json"))
    with pytest.raises(SetupError) as caught:
        connect("gke:p/europe-west4/c", {})
    assert str(caught.value).endswith(
        "Run: gcloud auth application-default login. Or: gcloud container clusters get-credentials c "
        "--location=europe-west4 --project=p, then cluster='kubeconfig'"
    )


def test_choose_connects_to_what_is_named(server: KubeServer, certificate: Path, tmp_path: Path) -> None:
    """The step's cluster, or the override on the user's machine, decides."""
    env = kubeconfig(tmp_path, server, certificate, namespace="ml")
    assert choose("kubeconfig", env).where == "namespace ml of context one"
    assert choose(None, {**env, "KR_KFP_CLUSTER": "kubeconfig:two"}).where == "namespace other of context two"
    assert choose("local", env).where == "the local cluster"
    assert choose(None, env).where == "the local cluster"
