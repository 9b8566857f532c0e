"""Artifact URIs and local paths, and the transfer between them: the data plane (docs/storage.md)."""
