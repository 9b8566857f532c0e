"""The components and pipelines that are installed with kr_kfp."""

from kr_kfp_components.data.digits import digits
from kr_kfp_components.evaluation.classifier_report import classifier_report
from kr_kfp_components.training.jax_classifier import jax_classifier
from kr_kfp_components.training.keras_classifier import keras_classifier
from kr_kfp_pipelines.training.digits_retrain import digits_retrain
from kr_kfp_pipelines.training.pathways_train import pathways_train

CASES = {
    "component-digits": digits,
    "component-jax-classifier": jax_classifier,
    "component-keras-classifier": keras_classifier,
    "component-keras-classifier-one-chip": keras_classifier.options(accelerator="v5litepod-1"),
    "component-keras-classifier-cpu": keras_classifier.options(accelerator=None),
    "component-classifier-report": classifier_report,
    "pipeline-digits-retrain": digits_retrain,
    "pipeline-pathways-train": pathways_train,
}
