# The service: answers inference servers and draws the dashboard. It has no PyTorch and no compiler, and needs no GPU.
# Build it from the top of the repository:
#     docker build -f docker/service.Dockerfile -t fp4tune-service .
# Python 3.11 or newer. To pin the base by content, give its digest, too: --build-arg BASE_IMAGE=python:...@sha256:...
ARG BASE_IMAGE=python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# What the service needs, each in the release that was tested; a layer that a change of the source does not touch.
COPY docker/requirements.txt docker/
RUN python -m venv --without-pip /opt/fp4tune \
    && python -m pip --python /opt/fp4tune/bin/python install --no-deps --only-binary=:all: -r docker/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY db db
COPY tuner tuner
COPY api api
RUN python -m pip wheel --no-deps --wheel-dir /wheels . \
    && python -m pip --python /opt/fp4tune/bin/python install --no-deps /wheels/fp4tune-*.whl \
    && python -m pip --python /opt/fp4tune/bin/python check
COPY docker/healthcheck.py /opt/fp4tune/

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="fp4tune-service" \
      org.opencontainers.image.description="The fastest known way to run every NVFP4 GEMM, over HTTP, with a dashboard." \
      org.opencontainers.image.licenses="Apache-2.0"
# The number is fixed, so that a volume keeps its owner from image to image; the tuner's image has the same.
RUN groupadd --gid 10001 fp4tune \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --no-log-init \
        --shell /usr/sbin/nologin fp4tune \
    && install --directory --owner=10001 --group=10001 --mode=0750 /data
COPY --from=build /opt/fp4tune /opt/fp4tune
# Only /data (the database, with -wal and -shm beside it) and /tmp are written: the rest may be read-only.
ENV PATH=/opt/fp4tune/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FP4TUNE_DB=/data/fp4tune.db \
    FP4TUNE_HOST=0.0.0.0 \
    FP4TUNE_PORT=8040
VOLUME /data
WORKDIR /data
USER 10001:10001
EXPOSE 8040
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=6s --start-period=60s --retries=3 CMD ["python", "/opt/fp4tune/healthcheck.py"]
ENTRYPOINT ["fp4tune"]
CMD ["serve"]
