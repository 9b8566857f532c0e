"""Digits, a classifier trained on 4 hosts of 4 chips, and its report."""

from kr_kfp_pipelines.training.digits_retrain.pipeline import digits_retrain

__all__ = ["digits_retrain"]
