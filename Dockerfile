# One image for every process of rollbus; EXTRAS says which packages it carries.
#   docker build --build-arg EXTRAS="--extra local" -t rollbus .
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS base

FROM base AS install

# The codec is built in C; the image itself needs no compiler. Debian's release decides the compiler's version.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ARG UV_VERSION=0.13.8
RUN pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"

WORKDIR /app
ENV UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never

# The locked packages first: they change far less often than the code.
ARG EXTRAS="--extra streams --extra clickhouse --extra trainer"
COPY pyproject.toml uv.lock setup.py README.md LICENSE ./
RUN uv sync --frozen --no-dev --no-cache --no-install-project ${EXTRAS}

COPY schemas schemas
COPY runtime runtime
COPY producers producers
COPY streams streams
COPY consumers consumers
COPY trainer trainer
COPY rollbus rollbus
RUN uv sync --frozen --no-dev --no-cache --no-editable ${EXTRAS}

# Not root, and from a folder without sources, so that only what was installed is imported.
FROM base
WORKDIR /app
COPY --from=install /app/.venv .venv
# With it the ART server fetches SmolLM2 where no model is named.
COPY --from=install /usr/local/bin/uv /usr/local/bin/uv
ENV PYTHONUNBUFFERED=1 \
    PATH=/app/.venv/bin:$PATH
# The first process of a container ends by SIGTERM only where it has said how: tini is it, and passes the signal on, also
# to a process that still starts. It also takes leave of children whose parents have ended.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 rollbus && mkdir .rollbus && chown rollbus .rollbus
# By its number, so that a cluster can see that it is not root.
USER 1000
ENTRYPOINT ["tini", "--", "rollbus"]
