"""Pipelines that train."""
