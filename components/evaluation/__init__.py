"""Components that judge models."""
