"""Train a classifier in plain JAX, with checkpoints by Orbax."""

from kr_kfp_components.training.jax_classifier.component import jax_classifier

__all__ = ["jax_classifier"]
