"""Ready components, installed as ``kr_kfp_components``; one folder each, grouped by what they are for."""
