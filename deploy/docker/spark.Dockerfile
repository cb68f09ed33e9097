# Spark with CometMQ, for drivers and executors on Kubernetes. With a wheel in dist/ (`uv build --wheel`):
#
#   docker build -f deploy/docker/spark.Dockerfile -t registry.example.org/cometmq-spark .
#
# The wheel has the jar of the store reader if scripts/store-jar made it before.
ARG SPARK_IMAGE=apache/spark:4.3.0
ARG UV_IMAGE=ghcr.io/astral-sh/uv:0.13.9

FROM ${UV_IMAGE} AS uv

FROM ${SPARK_IMAGE}
ARG PYTHON_VERSION=3.13
USER root
# A Python of its own, because that of the image may be older than 3.11. PySpark is in the image already.
COPY --from=uv /uv /usr/local/bin/uv
COPY dist/*.whl /wheels/
RUN export UV_PYTHON_INSTALL_DIR=/opt/python \
    && echo pyspark > /wheels/without.txt \
    && uv venv --python "${PYTHON_VERSION}" --managed-python /opt/cometmq \
    && uv pip install --no-cache --python /opt/cometmq/bin/python --compile-bytecode \
        --excludes /wheels/without.txt "$(echo /wheels/*.whl)[spark,tables]" \
    && rm -r /wheels \
    # Paths for manifests that do not depend on the version of Python.
    && ln -s /opt/cometmq/lib/python*/site-packages /opt/cometmq/packages
ENV PYSPARK_PYTHON=/opt/cometmq/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/cometmq/bin/python
# The user of Spark's images.
USER 185
