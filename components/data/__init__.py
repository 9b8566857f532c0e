"""Components that bring data."""
