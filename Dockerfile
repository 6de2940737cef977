# An image that runs every command of tnctl, on CPUs: docs/installing.md.
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY . .
RUN python -m venv --without-pip /opt/tnctl \
    && pip wheel --no-deps --wheel-dir /built . \
    && python -c "import tomllib; print(*(d for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] if not d.startswith('tensorflow>')), sep='\n')" > /built/dependencies.txt
# tensorflow-cpu is for x86-64 only; elsewhere tensorflow has no GPU code. Programs that compile
# against TensorFlow would need the headers, tnctl does not.
RUN pip --python /opt/tnctl/bin/python install --no-cache-dir --requirement /built/dependencies.txt \
        "tensorflow-cpu>=2.18; platform_machine == 'x86_64'" \
        "tensorflow>=2.18; platform_machine != 'x86_64'" \
    && pip --python /opt/tnctl/bin/python install --no-deps /built/*.whl \
    && rm -r /opt/tnctl/lib/python3.11/site-packages/tensorflow/include

FROM python:3.11-slim
COPY --from=build /opt/tnctl /opt/tnctl
ENV PATH=/opt/tnctl/bin:$PATH
RUN useradd --uid 1000 --create-home tnctl
USER tnctl
WORKDIR /home/tnctl
ENTRYPOINT ["tnctl"]
CMD ["--help"]
