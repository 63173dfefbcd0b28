# A server of bundles, as an image: `docker build -t jumok .`; with CUDA, `docker build -t jumok:cuda --target cuda .`
# The digest names one image for all platforms; take the newest of the tag when Python or Debian has mended a fault.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base

# Versions and digests of all packages are those of deploy/locks. These here stay out of the images.
FROM base AS tools
COPY deploy/locks /locks
RUN pip install --no-cache-dir --require-hashes --requirement /locks/build.txt


FROM tools AS wheel
# The compiler of the native kernels; which version of it does not matter.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --no-install-recommends --yes g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN JUMOK_NATIVE=required pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist .


FROM tools AS cpu-environment
# NumPy's own tests are 17 MB that nothing here imports.
RUN python -m venv --without-pip /opt/jumok \
    && pip --python /opt/jumok install --no-cache-dir --require-hashes --requirement /locks/cpu.txt \
    && find /opt/jumok -path '*/numpy/*' -type d -name tests -prune -exec rm -r {} +
COPY --from=wheel /dist /dist
# Without an index: fails if the wheel needs a package that the lock lacks.
RUN pip --python /opt/jumok install --no-index "$(echo /dist/*.whl)[serve,http]" \
    && cyclonedx-py environment --output-file /opt/jumok/sbom.cdx.json /opt/jumok


FROM tools AS cuda-environment
# The lock has CUDA and cuDNN: the host needs a driver and the NVIDIA container toolkit, and nothing else.
RUN python -m venv --without-pip /opt/jumok \
    && pip --python /opt/jumok install --no-cache-dir --require-hashes --requirement /locks/cuda.txt
COPY --from=wheel /dist /dist
RUN pip --python /opt/jumok install --no-index "$(echo /dist/*.whl)[serve-gpu,http]" \
    && cyclonedx-py environment --output-file /opt/jumok/sbom.cdx.json /opt/jumok


FROM base AS server
LABEL org.opencontainers.image.title="jumok" \
      org.opencontainers.image.description="An inference service for neural machine translation" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes sees that it is not root.
RUN groupadd --gid 10001 jumok && useradd --uid 10001 --gid jumok --no-create-home --home-dir /tmp jumok
# Inside a container only what is published can be reached.
ENV PATH=/opt/jumok/bin:$PATH \
    JUMOK_HOST=0.0.0.0 \
    JUMOK_HTTP_HOST=0.0.0.0 \
    JUMOK_METRICS_HOST=0.0.0.0
WORKDIR /models
USER 10001:10001
EXPOSE 50051 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["jumok", "health"]
ENTRYPOINT ["jumok"]
CMD ["serve"]


FROM server AS cuda
COPY --from=cuda-environment /opt/jumok /opt/jumok
# The libraries lie in Python packages, where the dynamic linker does not look by itself.
USER 0
RUN printf '%s\n' /opt/jumok/lib/python*/site-packages/nvidia/*/lib >/etc/ld.so.conf.d/jumok.conf && ldconfig
USER 10001:10001
# What the NVIDIA container toolkit asks images for.
ENV JUMOK_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility


# The last target is the default.
FROM server AS cpu
COPY --from=cpu-environment /opt/jumok /opt/jumok
