"""The only door out: clusters behind one protocol (:mod:`kr_kfp.cluster.api`)."""
