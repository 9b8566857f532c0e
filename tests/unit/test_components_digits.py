"""components/data/digits: the split of the real digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl
from sklearn.datasets import load_digits

from kr_kfp_components.data.digits import digits

Split = tuple[dsl.Dataset, dsl.Dataset]


@pytest.fixture(name="split")
def _split(tmp_path: Path) -> Callable[..., Split]:
    def make(name: str = "a", **arguments: Any) -> Split:
        train = dsl.Dataset(uri=str(tmp_path / f"{name}-train"))
        test = dsl.Dataset(uri=str(tmp_path / f"{name}-test"))
        digits.python_func(train=train, test=test, **arguments)
        return train, test

    return make


def test_default_split_has_the_documented_rows(split: Callable[..., Split]) -> None:
    """With the defaults 1,437 rows are for training and 360 apart, as the metadata says."""
    train, test = split()

    assert train.metadata == {"rows": 1437, "classes": 10, "image_shape": [8, 8]}
    assert test.metadata == {"rows": 360, "classes": 10, "image_shape": [8, 8]}
    with np.load(train.path) as file:
        assert file.files == ["images", "labels"]
        assert (file["images"].shape, file["images"].dtype) == ((1437, 8, 8), np.float32)
        assert (file["labels"].shape, file["labels"].dtype) == ((1437,), np.int32)
        assert (file["images"].min(), file["images"].max()) == (0.0, 1.0)


def test_each_class_has_its_share_of_the_test_rows(split: Callable[..., Split]) -> None:
    """The split is stratified: a fifth of each class is kept apart."""
    _, test = split()

    with np.load(test.path) as file:
        assert np.bincount(file["labels"]).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]


def test_no_row_is_lost_or_doubled(split: Callable[..., Split]) -> None:
    """Both datasets together are the source, row for row."""
    parts = [np.load(dataset.path) for dataset in split()]
    source = load_digits()

    written = np.concatenate([np.column_stack([part["images"].reshape(-1, 64), part["labels"]]) for part in parts])
    expected = np.column_stack([source.data / 16, source.target])
    assert sorted(map(tuple, expected.tolist())) == sorted(map(tuple, written.tolist()))


def test_bytes_follow_from_the_seed(split: Callable[..., Split]) -> None:
    """Equal seeds give equal bytes, another seed gives another split."""
    first, again, other = split("a", seed=3), split("b", seed=3), split("c", seed=4)

    assert Path(first[0].path).read_bytes() == Path(again[0].path).read_bytes()
    assert Path(first[1].path).read_bytes() == Path(again[1].path).read_bytes()
    assert Path(first[1].path).read_bytes() != Path(other[1].path).read_bytes()


def test_fraction_sets_the_size(split: Callable[..., Split]) -> None:
    """A quarter of 1,797 rows is 450, rounded up as scikit-learn does."""
    train, test = split(test_fraction=0.25)

    assert (train.metadata["rows"], test.metadata["rows"]) == (1347, 450)


def test_all_wrong_arguments_are_named_at_once(split: Callable[..., Split]) -> None:
    """One error lists every argument that is out of range, with the fix."""
    with pytest.raises(ValueError) as caught:
        split(test_fraction=1.0, seed=-1)

    assert str(caught.value) == (
        "digits: test_fraction=1.0: give a share above 0 and below 1, such as 0.2; seed=-1: give 0 or more"
    )
