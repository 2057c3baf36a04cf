# A worker image for Dataflow, or for a Flink or Spark worker pool: Beam's own image with this project's core installed.
#   docker build -f scripts/docker/beam-worker.Dockerfile -t REGISTRY/beambert-worker:1 .
# Use the Python and Beam versions of the machine that launches: Beam refuses to mix them.
ARG PYTHON_VERSION=3.11
ARG BEAM_VERSION=2.77.0
FROM apache/beam_python${PYTHON_VERSION}_sdk:${BEAM_VERSION}
WORKDIR /beambert
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY configs configs
COPY pipeline pipeline
COPY tokenizer tokenizer
COPY trainer trainer
# Core only: torch and deepspeed belong to the trainer.
RUN pip install --no-cache-dir --constraint constraints.txt .
# All is installed. Otherwise every worker makes a virtual environment when it starts: a minute on a busy machine.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# glibc otherwise keeps most of the memory of Beam's messages (10 MB each) after they were sent.
ENV MALLOC_TRIM_THRESHOLD_=131072
WORKDIR /
