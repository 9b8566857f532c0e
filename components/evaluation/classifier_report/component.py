"""Accuracy, confusion matrix and an HTML report of an image classifier.

KFP ships the function's source alone, so everything it needs is imported or defined inside it, the page included.
"""

from kfp import dsl

import kr_kfp

__all__ = ["classifier_report"]


@kr_kfp.component(
    base_image="python:3.12",
    packages_to_install=[
        "jax>=0.9,<0.12",
        "jinja2>=3.1,<4",
        "keras>=3.12,<4",
        "matplotlib>=3.9,<4",
        "numpy>=2,<3",
    ],
)
def classifier_report(  # noqa: C901, PLR0915 # KFP ships one function
    model: dsl.Input[dsl.Model],
    test: dsl.Input[dsl.Dataset],
    history: dsl.Input[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    confusion: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
    title: str = "Classifier report",
) -> float:
    """Judge a classifier on rows it has not seen, in numbers and as one page without any outside resource.

    Args:
        model: A folder with ``model.keras``: images in, one logit (or probability) per class out.
        test: An .npz file with ``images``, float32 (rows, height, width) or (rows, height, width, channels), 0 to 1,
            and ``labels``, int (rows,), 0 to classes - 1.
        history: A JSON file with one list of floats per curve, one value per epoch: loss, accuracy and, if there are
            validation rows, val_loss, val_accuracy.
        metrics: accuracy (0 to 1), rows, errors.
        confusion: Rows of each true class (down) that were read as each class (across).
        report: The page: key numbers, learning curves, confusion matrix, misread images, a table by class.
        title: The page's heading.

    Returns:
        The share of the test rows that were read right, 0 to 1.

    Raises:
        ValueError: If the test dataset has no rows, or the model gives other classes than the labels name.
    """
    import base64
    import io
    import json
    import os
    from pathlib import Path

    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jinja2
    import keras
    import numpy as np
    from matplotlib import colormaps, rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import imsave
    from matplotlib.ticker import MaxNLocator

    ink, quiet, blue, orange = "#1c2733", "#5f6e7d", "#2563a8", "#d9722b"
    shown_at_most = 48

    # --- the numbers ---
    with np.load(test.path) as file:
        images, labels = file["images"], file["labels"]
    if not len(labels):
        message = f"classifier_report: {test.path} has no rows"
        raise ValueError(message)
    network = keras.saving.load_model(Path(model.path) / "model.keras", compile=False)
    scores = np.asarray(network.predict(images, batch_size=256, verbose=0))
    classes = scores.shape[1]
    if labels.max() >= classes:
        message = f"classifier_report: a label is {labels.max()}, but the model knows the classes 0 to {classes - 1}"
        raise ValueError(message)
    read = scores.argmax(axis=1)
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels, read), 1)
    wrong = np.flatnonzero(read != labels)
    accuracy = float((read == labels).mean())
    curves = json.loads(Path(history.path).read_text(encoding="utf-8"))

    metrics.log_metric("accuracy", accuracy)
    metrics.log_metric("rows", len(labels))
    metrics.log_metric("errors", len(wrong))
    confusion.log_confusion_matrix([str(name) for name in range(classes)], matrix.tolist())

    # --- the pictures ---
    def svg(figure: Figure) -> str:
        """Give a figure as markup; text stays text, so it can be searched and scales."""
        held = io.StringIO()
        figure.savefig(held, format="svg", transparent=True, metadata={"Date": None})
        return held.getvalue()[held.getvalue().index("<svg") :]

    def png(pixels: np.ndarray) -> str:
        """Give an image as a data URI, one pixel a pixel: the page enlarges it without smoothing."""
        held = io.BytesIO()
        if pixels.shape[-1] in (1, 3) and pixels.ndim == 3:
            pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        imsave(held, pixels, cmap="gray_r", vmin=0, vmax=1, format="png")
        return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()

    def plain(axes: Axes) -> None:
        """Leave of the axes only what carries meaning."""
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c3ccd5")
        axes.tick_params(colors=quiet, labelsize=10, length=0)

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "kr-kfp", "font.family": "sans-serif"}):
        learning = Figure(figsize=(5.6, 5.2), layout="constrained")
        top, bottom = learning.subplots(2, 1, sharex=True)
        for axes, name, above in ((top, "accuracy", False), (bottom, "loss", True)):
            for key, label, color in ((name, "training", blue), (f"val_{name}", "validation", orange)):
                values = curves.get(key)
                if not values:
                    continue
                axes.plot(
                    range(1, len(values) + 1), values, color=color, marker="o", markersize=4, label=label, clip_on=False
                )
            axes.set_title(name, loc="left", fontsize=11, color=ink, pad=10)
            axes.grid(axis="y", color="#e6ebf0")
            axes.set_axisbelow(True)
            axes.set_ylim(bottom=0 if above else None, top=None if above else 1.0)
            plain(axes)
        bottom.set_xlabel("epoch", fontsize=10, color=quiet)
        bottom.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        if any(key.startswith("val_") for key in curves):
            bottom.legend(frameon=False, fontsize=10, labelcolor=ink, loc="upper right")
        learning_svg = svg(learning)

        heat = Figure(figsize=(5.6, 5.2), layout="constrained")
        axes = heat.subplots()
        share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        # Right answers would drown the rest on one scale: they are blue, the mistakes orange on a scale of their own.
        right, amiss = colormaps["Blues"], colormaps["Oranges"]
        worst = max((share - np.diag(np.diag(share))).max(), 1e-9)
        colors = np.full((classes, classes, 3), 0.96)
        for row in range(classes):
            for column in range(classes):
                value = share[row, column]
                if row == column:
                    colors[row, column] = right(0.15 + 0.65 * value)[:3]
                elif value:
                    colors[row, column] = amiss(0.2 + 0.5 * value / worst)[:3]
                if matrix[row, column] or row == column:
                    dark = colors[row, column] @ [0.3, 0.6, 0.1] < 0.55
                    axes.text(
                        column,
                        row,
                        str(matrix[row, column]),
                        ha="center",
                        va="center",
                        fontsize=11 if classes <= 12 else 6,
                        color="white" if dark else ink,
                    )
        axes.imshow(colors)
        axes.set_xticks(range(classes), [str(name) for name in range(classes)])
        axes.set_yticks(range(classes), [str(name) for name in range(classes)])
        axes.set_xticks(np.arange(classes - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(classes - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", colors=quiet, labelsize=10, length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("read as", fontsize=10, color=quiet)
        axes.set_ylabel("is", fontsize=10, color=quiet)
        heat_svg = svg(heat)

    # --- the page ---
    by_class = [
        {
            "name": name,
            "rows": int(matrix[name].sum()),
            "recall": float(matrix[name, name] / max(matrix[name].sum(), 1)),
            "precision": float(matrix[name, name] / max(matrix[:, name].sum(), 1)),
        }
        for name in range(classes)
    ]
    # KFP hands whole numbers on as floats.
    said = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in model.metadata.items()
    }
    facts = [(key.replace("_", " "), value) for key, value in said.items() if isinstance(value, str | int | float)]
    page = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { margin: 0; background: #f4f6f8; color: {{ ink }}; font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans",
    sans-serif; }
  main { max-width: 1160px; margin: 0 auto; padding: 32px 24px 48px; }
  h1 { font-size: 26px; line-height: 1.2; margin: 0 0 20px; }
  h2 { font-size: 16px; margin: 0 0 2px; }
  p { margin: 0 0 12px; color: {{ quiet }}; font-size: 14px; }
  section { background: #fff; border: 1px solid #e1e6eb; border-radius: 10px; padding: 18px 20px; margin-top: 20px; }
  svg text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important; }
  svg { display: block; width: 100%; height: auto; max-width: 540px; margin: 0 auto; }
  .numbers { display: flex; flex-wrap: wrap; gap: 12px 48px; }
  .numbers dt { color: {{ quiet }}; font-size: 13px; }
  .numbers dd { margin: 0; font-size: 28px; line-height: 1.2; font-variant-numeric: tabular-nums; }
  .numbers dl { margin: 0; }
  .pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 0 20px; }
  .digits { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: 12px; }
  figure { margin: 0; border: 1px solid #e1e6eb; border-radius: 8px; padding: 8px; text-align: center; }
  figure img { width: 100%; aspect-ratio: 1; image-rendering: pixelated; display: block; }
  figcaption { font-size: 13px; margin-top: 6px; color: {{ quiet }}; }
  figcaption b { color: {{ ink }}; }
  figcaption i { color: #b4530f; font-style: normal; font-weight: 600; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: 5px 12px; border-bottom: 1px solid #edf0f3; }
  tr:last-child td { border-bottom: 0; }
  th { color: {{ quiet }}; font-weight: 500; font-size: 13px; }
  th:first-child, td:first-child { text-align: left; }
  .bar { display: inline-block; width: 120px; height: 8px; border-radius: 4px; background: #e6ebf0; margin-left: 10px; }
  .bar span { display: block; height: 8px; border-radius: 4px; background: {{ blue }}; }
  .facts td { font-size: 13px; text-align: left; overflow-wrap: anywhere; }
  .facts td:first-child { color: {{ quiet }}; white-space: nowrap; }
  @media (max-width: 560px) { .bar { width: 48px; } }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<section class="numbers">
  <dl><dt>accuracy on unseen rows</dt><dd>{{ "%.2f" % (accuracy * 100) }} %</dd></dl>
  <dl><dt>test rows</dt><dd>{{ "{:,}".format(rows) }}</dd></dl>
  <dl><dt>misread</dt><dd>{{ errors }}</dd></dl>
  {% if epochs %}<dl><dt>epochs trained</dt><dd>{{ epochs }}</dd></dl>{% endif %}
  {% if model.devices %}<dl><dt>trained on</dt><dd>{{ model.devices }} device{{ "" if model.devices == 1 else "s" }},
    {{ model.hosts }} host{{ "" if model.hosts == 1 else "s" }}</dd></dl>{% endif %}
</section>
<div class="pair">
  <section><h2>Learning curves</h2><p>After each epoch, as recorded while training</p>{{ learning_svg|safe }}</section>
  <section><h2>Confusion matrix</h2><p>Test rows by true class and by answer; mistakes are orange</p>
    {{ heat_svg|safe }}</section>
</div>
<section><h2>Misread images</h2>
  {% if misread %}<p>{% if misread|length < errors %}The {{ misread|length }} of {{ errors }} of which the model was
    surest{% else %}All {{ errors }}, the surest mistakes first{% endif %}</p>
  <div class="digits">
    {% for one in misread %}<figure><img src="{{ one.image }}" alt="row {{ one.row }}, class {{ one.true }}">
      <figcaption>is <b>{{ one.true }}</b>, read as <i>{{ one.read }}</i><br>{{ "%.0f" % (one.sure * 100) }} % sure
      </figcaption></figure>{% endfor %}
  </div>{% else %}<p>None: every test row was read right</p>{% endif %}
</section>
<section><h2>By class</h2><p>Recall: share of the rows of a class that were read as it. Precision: share of the rows
  read as a class that are of it</p>
  <table><tr><th>class</th><th>rows</th><th>recall</th><th>precision</th></tr>
  {% for one in by_class %}<tr><td>{{ one.name }}</td><td>{{ one.rows }}</td>
    {% for value in (one.recall, one.precision) %}<td>{{ "%.1f" % (value * 100) }} %<span class="bar"><span
      style="width:{{ "%.1f" % (value * 100) }}%"></span></span></td>{% endfor %}</tr>{% endfor %}</table>
</section>
{% if facts %}<section class="facts"><h2>Model</h2><p>What its metadata says</p>
  <table>{% for key, value in facts %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>{% endfor %}</table>
</section>{% endif %}
</main>
</body>
</html>
"""
    chances = scores
    if scores.min() < 0 or not np.allclose(scores.sum(axis=1), 1, atol=1e-3):  # logits
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
    sure = chances.max(axis=1)
    misread = [
        {
            "image": png(images[row]),
            "row": int(row),
            "true": int(labels[row]),
            "read": int(read[row]),
            "sure": float(sure[row]),
        }
        for row in wrong[np.argsort(-sure[wrong], kind="stable")][:shown_at_most]
    ]
    html = (
        jinja2.Environment(autoescape=True)
        .from_string(page)
        .render(
            title=title,
            ink=ink,
            quiet=quiet,
            blue=blue,
            accuracy=accuracy,
            rows=len(labels),
            errors=len(wrong),
            epochs=len(curves.get("loss") or []),
            model=said,
            learning_svg=learning_svg,
            heat_svg=heat_svg,
            misread=misread,
            by_class=by_class,
            facts=facts,
        )
    )
    Path(report.path).write_text(html, encoding="utf-8")
    print(f"accuracy {accuracy:.4f} on {len(labels)} rows, {len(wrong)} misread; report {report.path}", flush=True)
    return accuracy
