# Two images (docs/images.md):
#
#   docker build --target launcher --tag kr-kfp .        launcher: kr_kfp, clients of Kubernetes and of object stores
#   docker build --target train --tag kr-kfp-train .     training: the same, KFP's runtime, JAX and Keras (CPU)
#
# Whatever is installed is pinned with checksums (images/*.lock, `make lock`). BASE may be any image that has Python
# 3.11 or newer with pip and venv, and useradd; it decides the Python, so the locks hold for 3.11 and later.
ARG BASE=python:3.11-slim-bookworm

# The user by number: with a name, Kubernetes could not tell that it is not root (runAsNonRoot).
FROM ${BASE} AS base
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 65532 kr-kfp && useradd --uid 65532 --gid 65532 --create-home kr-kfp
WORKDIR /home/kr-kfp

FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
COPY images /src/images
# Debian's own Python may be installed into only in a venv; the images' has no pip of its own, which saves 10 MB.
# kr_kfp comes from a folder beside the venv: as a layer of its own, last, since it changes most.
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --quiet --require-hashes --requirement /src/images/build.lock \
 && python3 -m venv --without-pip /opt/venv \
 && echo /opt/kr-kfp > "$(echo /opt/venv/lib/python3*/site-packages)/kr-kfp.pth"

FROM build AS launcher-venv
RUN /opt/build/bin/python -m pip --python /opt/venv/bin/python install --quiet --require-hashes \
    --requirement /src/images/launcher.lock

FROM build AS train-venv
RUN /opt/build/bin/python -m pip --python /opt/venv/bin/python install --quiet --require-hashes \
    --requirement /src/images/train.lock

FROM build AS kr-kfp
COPY pyproject.toml README.md LICENSE /src/
COPY kr_kfp /src/kr_kfp
COPY components /src/components
COPY pipelines /src/pipelines
# Scripts would name this stage's Python; `python3 -m kr_kfp` is the command line.
RUN /opt/build/bin/python -m pip install --quiet --no-deps --no-build-isolation --target /opt/kr-kfp /src \
 && rm -rf /opt/kr-kfp/bin

FROM base AS train
ENV KERAS_BACKEND=jax
COPY --from=train-venv /opt/venv /opt/venv
COPY --from=kr-kfp /opt/kr-kfp /opt/kr-kfp
USER 65532:65532

# The default: what `docker build .` makes.
FROM base AS launcher
COPY --from=launcher-venv /opt/venv /opt/venv
COPY --from=kr-kfp /opt/kr-kfp /opt/kr-kfp
USER 65532:65532
