"""Artifact types of one's own, in a module that a step can import: it needs nothing of KFP's compiler."""

from kfp import dsl

__all__ = ["Checkpoint", "Table"]


class Checkpoint(dsl.Artifact):
    """A checkpoint."""

    schema_title = "system.Checkpoint"
    schema_version = "0.0.1"


class Table(dsl.Artifact):
    """A table."""

    schema_title = "system.Table"
    schema_version = "0.0.1"
