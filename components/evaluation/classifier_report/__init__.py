"""Accuracy, confusion matrix and an HTML report of an image classifier."""

from kr_kfp_components.evaluation.classifier_report.component import classifier_report

__all__ = ["classifier_report"]
