"""Ready pipelines, installed as ``kr_kfp_pipelines``; one folder each, grouped by what they are for."""
