# Two images for all processes; the command says which process it is (`serve http`, `serve worker --backend gpu`, ...).
#
#   docker build -t pointsman .                           http, sweeper, inbox, topics, workers and replicas of `gpu`
#   docker build -t pointsman-aws --target aws .          workers and collectors of `bedrock` and `sagemaker`
#
# The first one has neither litellm nor boto3. Pin the base by its digest where you build: --build-arg PYTHON=...@sha256:...
ARG PYTHON=python:3.11.14-slim-bookworm

FROM ${PYTHON} AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src

# What changes seldom first. Everything that is fetched is checked against the locks.
COPY requirements/otel.txt requirements/build.txt requirements/
RUN python -m venv /opt/pointsman \
    && /opt/pointsman/bin/pip install --no-deps --only-binary :all: --require-hashes -r requirements/otel.txt \
    && pip install --no-deps --only-binary :all: --require-hashes -r requirements/build.txt

COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY policies policies
COPY router router
COPY consumers consumers
COPY gateway gateway
RUN python -m hatchling build -t wheel -d /tmp/wheel \
    && /opt/pointsman/bin/pip install --no-deps --no-index /tmp/wheel/*.whl


FROM build AS build-aws

COPY requirements/bedrock.txt requirements/sagemaker.txt requirements/
RUN /opt/pointsman/bin/pip install --no-deps --only-binary :all: --require-hashes -r requirements/bedrock.txt \
    && /opt/pointsman/bin/pip install --no-deps --only-binary :all: --require-hashes -r requirements/sagemaker.txt \
    && /opt/pointsman/bin/pip uninstall --yes pip setuptools


FROM build AS build-plain

RUN /opt/pointsman/bin/pip uninstall --yes pip setuptools


FROM ${PYTHON} AS run

LABEL org.opencontainers.image.title="Pointsman" \
      org.opencontainers.image.description="A gateway for OpenAI clients that makes every model call a job" \
      org.opencontainers.image.licenses="Apache-2.0"

# Its files belong to root and are compiled already, so the process needs no folder that it may write to but
# /tmp and, where objects or an embedded start keep their data, the volume at /data. Nothing in it installs anything.
RUN groupadd --gid 10001 pointsman \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin pointsman \
    && install --directory --owner pointsman --group pointsman /data /config \
    && python -m pip uninstall --yes pip setuptools wheel \
    && rm -rf /usr/local/lib/python3.11/ensurepip

ENV PATH=/opt/pointsman/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 4000
ENTRYPOINT ["pointsman"]
CMD ["--help"]


FROM run AS aws

COPY --from=build-aws /opt/pointsman /opt/pointsman


FROM run AS plain

COPY --from=build-plain /opt/pointsman /opt/pointsman
