"""Stands in for PyTorch, whose wheel on PyPI comes with gigabytes of CUDA on Linux: the rendezvous alone, over TCP."""
