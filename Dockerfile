# A node of onelog: the server in a virtual environment, run by a user that owns only its data.
#
# The base is any image with Python 3.11 or newer and its venv module.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# pip has its own environment, which is not copied: the server does not need it.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/onelog
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY cluster cluster
COPY node node
COPY onelog onelog
COPY projections projections
COPY snapshot snapshot
COPY spark spark
COPY ual ual
# The builder decides where packages come from: the secrets "pip" and "ca", if given, are pip's
# configuration and the trusted certificate authorities. Neither ends up in the image.
# Bytecode is compiled here, because the root file system may be read-only at run time.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /opt/pip/bin/pip --python /opt/onelog/bin/python install --compile '.[server]'

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 onelog \
    && useradd --uid 10001 --gid onelog --home-dir /var/lib/onelog --shell /usr/sbin/nologin onelog \
    && install --directory --owner onelog --group onelog --mode 0750 /var/lib/onelog
COPY --from=build /opt/onelog /opt/onelog
ENV PATH=/opt/onelog/bin:$PATH PYTHONUNBUFFERED=1 ONELOG_DATA_DIR=/var/lib/onelog/data
USER onelog
WORKDIR /var/lib/onelog
VOLUME /var/lib/onelog
EXPOSE 7400 7500 7600
STOPSIGNAL SIGTERM
ENTRYPOINT ["onelog"]
CMD ["serve"]
