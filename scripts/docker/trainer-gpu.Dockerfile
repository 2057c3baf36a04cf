# The trainer for nodes with NVIDIA GPUs:
#   docker build -f scripts/docker/trainer-gpu.Dockerfile -t REGISTRY/beambert-trainer:1 .
#   docker run --gpus all --shm-size=16g --ulimit memlock=-1 -v /runs:/runs REGISTRY/beambert-trainer:1 \
#       torchrun --nproc_per_node=8 -m trainer pretrain --config configs/pretrain/bert-large.yaml \
#       --data s3://bucket/data --output /runs/bert-large
# CUDA's compiler belongs to it: DeepSpeed looks for it when it starts, and Triton compiles with gcc.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${CUDA_IMAGE}
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc g++ git pdsh openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY configs configs
COPY pipeline pipeline
COPY tokenizer tokenizer
COPY trainer trainer
# The wheel of torch on PyPI is the one with CUDA; the drivers of the stores are for --data s3:// and gs://.
RUN pip install --constraint constraints.txt '.[trainer]'
# Away from the sources: python -m would import them, without their compiled modules, before what was installed.
WORKDIR /beambert
COPY configs configs
