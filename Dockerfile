# A worker in a container: one process, one worker, as an ordinary user.
#
#   docker build -t queuert .
#   docker run --rm -e QUEUERT_URL queuert migrate up
#   docker run --rm -e QUEUERT_URL -v "$PWD/app:/app/app:ro" queuert worker app.jobs:processors --concurrency 10
#
# Your own image begins with `FROM queuert`, installs what your handlers need, and copies them to /app.
# docker-compose.yml shows the rest: grace, health, limits.

ARG PYTHON_VERSION=3.13

# --- build: what is needed to install, and not to run -----------------------------------------------------------------
FROM python:${PYTHON_VERSION}-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src

# The dependencies first, since they change least. Every file is checked against its hash.
COPY requirements/worker.txt requirements/build.txt requirements/
RUN python -m venv /opt/queuert \
    && /opt/queuert/bin/pip install --require-hashes --requirement requirements/worker.txt \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --requirement requirements/build.txt

# All that pyproject.toml names, or the wheel cannot be built.
COPY pyproject.toml README.md LICENSE pytest_queuert.py pyspark_queuert.py ./
COPY queuert queuert
COPY alembic alembic
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/queuert/bin/pip install --no-deps /wheels/*.whl

# --- run --------------------------------------------------------------------------------------------------------------
FROM python:${PYTHON_VERSION}-slim

# A user with a number that a cluster's policies can name, and with a name, which some libraries ask for.
RUN useradd --system --uid 10001 --home-dir /app --shell /usr/sbin/nologin queuert
COPY --from=build /opt/queuert /opt/queuert
ENV PATH=/opt/queuert/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# `queuert worker` finds applications below the current directory.
WORKDIR /app
USER 10001

# The exec form: a shell in between would keep SIGTERM to itself, and every stop would end as a kill.
ENTRYPOINT ["queuert"]
CMD ["--help"]
