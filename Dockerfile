# The benchmark on PyTorch's own image, with NCCL and a Horovod that has it. No GPU is needed to build it:
#
#   docker build -t data-parallel-bench .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD/results:/bench/results" data-parallel-bench make compare GPUS=2
#
# CUDA 12.6 runs on drivers from 525 on and on GPUs up to Hopper. Blackwell needs CUDA 12.8 or newer:
#   docker build --build-arg PYTORCH=pytorch/pytorch:2.14.1-cuda13.2-cudnn9-devel -t data-parallel-bench .
ARG PYTORCH=pytorch/pytorch:2.14.1-cuda12.6-cudnn9-devel
FROM ${PYTORCH}

# VENV=none: the image's Python and its torch are used as they are. That Python is the system's, which pip changes only
# when it is told that this is meant.
ENV VENV=none \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_NO_CACHE_DIR=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git make && rm -rf /var/lib/apt/lists/*

# The packages and Horovod first: they are built again only when what they are made from has changed.
WORKDIR /bench
COPY pyproject.toml ./
COPY bench ./bench
RUN python3 -m bench.install.packages --venv none --extra data --extra dev && \
    python3 -m bench install-horovod --gpu nccl

COPY . .
RUN make setup
CMD ["make", "help"]
