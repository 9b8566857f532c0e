"""The 1,797 real handwritten digits that scikit-learn ships, as two datasets.

KFP ships the function's source alone, so everything it needs is imported inside it.
"""

from kfp import dsl

import kr_kfp

__all__ = ["digits"]


@kr_kfp.component(
    base_image="python:3.12",
    packages_to_install=["numpy>=2,<3", "scikit-learn>=1.6,<2"],
)
def digits(
    train: dsl.Output[dsl.Dataset],
    test: dsl.Output[dsl.Dataset],
    test_fraction: float = 0.2,
    seed: int = 0,
) -> None:
    """Write the handwritten digits as a training and a test dataset, each class in the same proportion in both.

    The images are the test part of the UCI data set "Optical Recognition of Handwritten Digits" by 13 people, which
    scikit-learn carries along: nothing is downloaded. The same seed gives the same bytes.

    Args:
        train: An .npz file with ``images``, float32 (rows, 8, 8), ink from 0 (paper) to 1, and ``labels``, int32
            (rows,), 0 to 9. Metadata: rows, classes, image_shape.
        test: The same for the rows that are kept apart.
        test_fraction: Share of the 1,797 rows that is kept apart, above 0 and below 1; each part needs at least one
            row of each of the 10 classes.
        seed: Seed of the split, 0 or more.

    Raises:
        ValueError: If fraction or seed are out of range.
    """
    from pathlib import Path

    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    problems = []
    if not 0 < test_fraction < 1:
        problems.append(f"test_fraction={test_fraction}: give a share above 0 and below 1, such as 0.2")
    if seed < 0:
        problems.append(f"seed={seed}: give 0 or more")
    if problems:
        raise ValueError("digits: " + "; ".join(problems))

    source = load_digits()
    images = (source.images / 16).astype(np.float32)  # the source counts inked pixels of 4x4 blocks: 0 to 16
    labels = source.target.astype(np.int32)
    kept, apart = train_test_split(np.arange(len(labels)), test_size=test_fraction, stratify=labels, random_state=seed)
    for dataset, rows in ((train, kept), (test, apart)):
        with Path(dataset.path).open("wb") as file:
            np.savez_compressed(file, images=images[rows], labels=labels[rows])
        dataset.metadata["rows"] = len(rows)
        dataset.metadata["classes"] = 10
        dataset.metadata["image_shape"] = [8, 8]
        print(f"{dataset.path}: {len(rows)} rows of 8 x 8 in 10 classes", flush=True)
