# Two images from one build:
#   docker build --target router -t continuum-router .
#   docker build --target kv-listener -t continuum-kv-listener .
# BASE_IMAGE is any image with Python 3.11 or newer on Linux with glibc.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# What is installed changes less often than our own code: a layer of its own.
COPY requirements/runtime.txt requirements/
RUN python -m venv /opt/continuum-router \
 && /opt/continuum-router/bin/pip install -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY kv_listener kv_listener
COPY router router
COPY man man
RUN /opt/continuum-router/bin/pip install --no-deps . \
 && /opt/continuum-router/bin/python -m compileall -q /opt/continuum-router/lib

FROM ${BASE_IMAGE} AS base
LABEL org.opencontainers.image.title="continuum-router" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/continuum-router /opt/continuum-router
COPY deploy/container/healthcheck.py /opt/continuum-router/bin/healthcheck.py
COPY config.kv-listener.yaml.example deploy/config.router.yaml.example LICENSE \
     /usr/share/doc/continuum-router/
ENV PATH=/opt/continuum-router/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked; no entry in /etc/passwd is needed.
USER 10001:10001
WORKDIR /

FROM base AS kv-listener
# In the file: listen: "0.0.0.0:7817". Engines that connect to us need their ports published too.
EXPOSE 7817
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
  CMD ["python", "/opt/continuum-router/bin/healthcheck.py", "http://127.0.0.1:7817/health"]
ENTRYPOINT ["continuum-kv-listener"]
CMD ["--config", "/etc/continuum/kv-listener.yaml"]

FROM base AS router
# In the file: server: {listen: "0.0.0.0:8080"}
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
  CMD ["python", "/opt/continuum-router/bin/healthcheck.py", "http://127.0.0.1:8080/health"]
ENTRYPOINT ["continuum-router"]
CMD ["serve", "--config", "/etc/continuum/router.yaml"]
