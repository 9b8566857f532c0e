"""Artifact URIs, their parts, and KFP's local paths, the same both ways as in KFP's own code."""

from __future__ import annotations

import pytest
from kfp.dsl import Artifact

from kr_kfp.errors import StorageError
from kr_kfp.storage import uris
from kr_kfp.storage.uris import Location


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("gs://bucket/a/b c/ü", Location(scheme="gs", bucket="bucket", key="a/b c/ü")),
        ("s3://bucket", Location(scheme="s3", bucket="bucket", key="")),
        ("minio://mlpipeline/v2/artifacts/", Location(scheme="minio", bucket="mlpipeline", key="v2/artifacts")),
        ("gs://bucket/a%20b#1", Location(scheme="gs", bucket="bucket", key="a%20b#1")),
        (
            "s3://b/k?region=eu-west-1&endpoint=host:9000&disableSSL=true",
            Location(
                scheme="s3",
                bucket="b",
                key="k",
                query=(("region", "eu-west-1"), ("endpoint", "host:9000"), ("disableSSL", "true")),
            ),
        ),
        ("/tmp/a?b", Location(scheme="file", bucket="", key="/tmp/a?b")),
        ("relative/path", Location(scheme="file", bucket="", key="relative/path")),
        ("file:///tmp/a%20b", Location(scheme="file", bucket="", key="/tmp/a b")),
        ("file://localhost/tmp/a", Location(scheme="file", bucket="", key="/tmp/a")),
    ],
)
def test_parse(uri: str, location: Location) -> None:
    """Scheme, bucket, key and parameters; a key stays as it is, a file URI is decoded."""
    assert uris.parse(uri) == location


@pytest.mark.parametrize(
    "uri", ["", "oci://registry/image", "kfp-workspace://a", "gs://", "gs:///bucket/key", "http://host/a", "mem://b/k"]
)
def test_parse_refuses(uri: str) -> None:
    """What kr_kfp does not move is an error that says what it does."""
    with pytest.raises(StorageError) as caught:
        uris.parse(uri)
    assert str(caught.value) == (
        f"{uri or repr('')}: is not a URI that kr_kfp can read or write. "
        "Fix: use gs://<bucket>/<key>, minio://<bucket>/<key>, s3://<bucket>/<key>"
    )


@pytest.mark.parametrize("key", ["../etc", "a/../../b", "a//b", "./a", "a/."])
def test_a_key_cannot_lead_out_of_its_folder(key: str) -> None:
    """Parts that are empty or dots are refused before they become a path."""
    with pytest.raises(StorageError, match=r"has a part that is empty, '\.' or '\.\.'\."):
        uris.local_path(f"gs://bucket/{key}")


@pytest.mark.parametrize(
    ("uri", "managed"),
    [
        ("gs://b/k", True),
        ("s3://b/k", True),
        ("minio://b/k", True),
        ("file:///a", True),
        ("/a", True),
        ("", False),
        ("oci://registry/image", False),
        ("kfp-workspace://volume/a", False),
        ("https://host/a", False),
    ],
)
def test_is_managed(uri: str, *, managed: bool) -> None:
    """Object stores and files are moved; images and workspace volumes are left alone."""
    assert uris.is_managed(uri) is managed
    assert uris.is_managed(uri, workspace=True) is False


@pytest.mark.parametrize("uri", ["gs://b/k/a b", "s3://b/k?region=x", "minio://b/k", "/a/b"])
def test_local_paths_are_those_of_kfp(uri: str) -> None:
    """KFP's SDK gives the same path for a URI, and takes the path back to the URI."""
    artifact = Artifact(uri=uri)
    assert uris.local_path(uri) == artifact.path
    artifact.path = uris.local_path(uri)
    assert uris.uri_of(uris.local_path(uri)) == artifact.uri == uri


def test_local_paths_below_another_root() -> None:
    """Hosts that may not write to / have KFP's mount points in a folder of their own."""
    assert uris.local_path("gs://b/k", root="/work/host-0/") == "/work/host-0/gcs/b/k"
    assert uris.uri_of("/work/host-0/gcs/b/k", root="/work/host-0") == "gs://b/k"
    assert uris.uri_of("/gcs/b/k", root="/work/host-0") == "/gcs/b/k"
    assert uris.uri_of("/gcs/../etc/passwd") == "/gcs/../etc/passwd"


@pytest.mark.parametrize(
    ("prefix", "uri", "below"),
    [
        ("gs://b/run", "gs://b/run", True),
        ("gs://b/run", "gs://b/run/a/b", True),
        ("gs://b/run/", "gs://b/run/a", True),
        ("gs://b", "gs://b/a", True),
        ("gs://b/run", "gs://b/running", False),
        ("gs://b/run", "s3://b/run/a", False),
        ("gs://b/run", "gs://c/run/a", False),
        ("/out", "/out/a", True),
        ("/out", "/out/../etc", False),
    ],
)
def test_contains(prefix: str, uri: str, *, below: bool) -> None:
    """A URI lies below another by whole names, in the same bucket."""
    assert uris.contains(prefix, uri) is below


def test_join_keeps_parameters_at_the_end() -> None:
    """Names are put before the question mark, but in a local path it is part of the name."""
    assert uris.join("s3://b/k/?region=x", "a", "b") == "s3://b/k/a/b?region=x"
    assert uris.join("/a?b", "c") == "/a?b/c"
