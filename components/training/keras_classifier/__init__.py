"""A Keras 3 classifier on JAX, data-parallel over every device of every host."""

from kr_kfp_components.training.keras_classifier.component import keras_classifier

__all__ = ["keras_classifier"]
