"""A small Keras model trained by one process that drives all TPU chips through Pathways."""

from kr_kfp_pipelines.training.pathways_train.pipeline import pathways_train

__all__ = ["pathways_train"]
