# One image for every process: the command says which one (`serve http`, `serve worker --backend gpu`, `topics`...).
FROM python:3.11.14-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src

# What changes seldom first. Everything that is fetched is checked against the lock.
COPY requirements/base.txt requirements/build.txt requirements/
RUN python -m venv /opt/pointsman \
    && /opt/pointsman/bin/pip install --no-deps --only-binary :all: --require-hashes -r requirements/base.txt \
    && pip install --no-deps --only-binary :all: --require-hashes -r requirements/build.txt

COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY policies policies
COPY router router
COPY consumers consumers
COPY gateway gateway
RUN python -m hatchling build -t wheel -d /tmp/wheel \
    && /opt/pointsman/bin/pip install --no-deps --no-index /tmp/wheel/*.whl \
    && /opt/pointsman/bin/pip uninstall --yes pip setuptools


FROM python:3.11.14-slim-bookworm

LABEL org.opencontainers.image.title="Pointsman" \
      org.opencontainers.image.description="A gateway for OpenAI clients that makes every model call a job" \
      org.opencontainers.image.licenses="Apache-2.0"

# Its files belong to root and are compiled already, so the process needs no folder that it may write to but
# /tmp and, where objects or an embedded start keep their data, the volume at /data.
RUN groupadd --gid 10001 pointsman \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin pointsman \
    && install --directory --owner pointsman --group pointsman /data /config
COPY --from=build /opt/pointsman /opt/pointsman

ENV PATH=/opt/pointsman/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 4000
ENTRYPOINT ["pointsman"]
CMD ["--help"]
