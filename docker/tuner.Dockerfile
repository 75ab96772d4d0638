# The tuner: measures on a GPU. A config is only as good as the versions it was measured with, so build this on the very
# image that serves, from the top of the repository:
#     docker build -f docker/tuner.Dockerfile --build-arg BASE_IMAGE=lmsysorg/sglang:v0.5.23 -t fp4tune-tuner .
# The base must have PyTorch for CUDA, and for `cutlass` and FlashInfer's compiled kernels a CUDA toolkit with nvcc (the
# images called devel have it). Nothing that the base brings is moved: the build fails if anything would be.
ARG BASE_IMAGE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel

FROM ${BASE_IMAGE} AS build
# The base's Python that serves: the one that imports its PyTorch.
ARG PYTHON=python3
# The wheel is made in a stage that is thrown away, and bases may end as a user who may not write.
# hadolint ignore=DL3002
USER 0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY db db
COPY tuner tuner
COPY api api
RUN ${PYTHON} -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE_IMAGE}
ARG PYTHON=python3
# A release of humming-kernels, where the base has none and the backend `humming` is wanted; docs/humming.md.
ARG HUMMING=
LABEL org.opencontainers.image.title="fp4tune-tuner" \
      org.opencontainers.image.description="Finds the fastest way to run every NVFP4 GEMM of a model on this card." \
      org.opencontainers.image.licenses="Apache-2.0"
# Images of Debian and Ubuntu forbid pip to install into their own Python; in this image there is nobody else to harm.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
USER 0
COPY --from=build /wheels /opt/fp4tune/wheels
COPY docker/unmoved.py docker/tuner_entry.sh /opt/fp4tune/
# Every package of the base becomes a constraint at its own version, and is compared afterwards.
RUN ${PYTHON} -c 'import torch' \
    && ${PYTHON} /opt/fp4tune/unmoved.py write /opt/fp4tune/base.txt \
    && if [ -n "${HUMMING}" ]; then \
        ${PYTHON} -m pip install --no-deps "humming-kernels==${HUMMING}" \
        && ${PYTHON} -m pip install -c /opt/fp4tune/base.txt numpy safetensors jinja2 cuda-bindings tqdm tabulate; \
    fi \
    && for wheel in /opt/fp4tune/wheels/fp4tune-*.whl; do \
        ${PYTHON} -m pip install -c /opt/fp4tune/base.txt "${wheel}[postgres]" nvidia-ml-py; \
    done \
    && ${PYTHON} /opt/fp4tune/unmoved.py check /opt/fp4tune/base.txt \
    && rm -r /opt/fp4tune/wheels
RUN if ! getent group 10001 > /dev/null; then groupadd --gid 10001 fp4tune; fi \
    && if ! getent passwd 10001 > /dev/null; then \
        useradd --uid 10001 --gid 10001 --home-dir /cache --no-create-home --no-log-init --shell /usr/sbin/nologin fp4tune; \
    fi \
    && install --directory --owner=10001 --group=10001 --mode=0750 /data /cache \
    && install --directory --mode=1777 /locks
# What is written: the database, the compilers' caches, device locks and /tmp. HOME moves whatever is not named here.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FP4TUNE_PYTHON=${PYTHON} \
    FP4TUNE_DB=/data/fp4tune.db \
    FP4TUNE_LOCK_DIR=/locks \
    FP4TUNE_CUTLASS_CACHE_DIR=/cache/cutlass \
    TRITON_CACHE_DIR=/cache/triton \
    HUMMING_CACHE_DIR=/cache/humming/cache \
    HUMMING_TMP_DIR=/cache/humming/tmp \
    FLASHINFER_WORKSPACE_BASE=/cache \
    CUDA_CACHE_PATH=/cache/nv \
    HOME=/cache
VOLUME ["/data", "/cache", "/locks"]
WORKDIR /data
USER 10001:10001
STOPSIGNAL SIGTERM
# It comes, measures and goes: there is nothing to ask it meanwhile.
HEALTHCHECK NONE
ENTRYPOINT ["/bin/sh", "/opt/fp4tune/tuner_entry.sh"]
CMD ["doctor"]
