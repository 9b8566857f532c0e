"""A real Kubernetes cluster on this machine, and what kr_kfp does on it."""
