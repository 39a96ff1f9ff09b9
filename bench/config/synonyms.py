"""Other training scripts' names of options: the ImageNet example, torchvision's references, Horovod's and Apex's
examples, Lightning, Hugging Face, Slurm templates. Names are in lower case with dashes."""

# Option here -> its names elsewhere.
WRITE = {
    "MODEL=…": "arch a model-name net network backbone",
    "DATA=synthetic": "dummy dummy-data fake-data synthetic use-synthetic-data",
    "DATA=URL, as in s3://BUCKET/PATH": "data-url",
    "DATA=imagefolder:PATH": "data-path data-root dataset dataset-path train-dir",
    "DATA_DIR=…": "cache-dir download-dir",
    "VAL_LABELS=…": "val-annotations",
    "IMAGE_SIZE=…": "img-size crop-size train-crop-size resolution input-size",
    "CONTEXT=…": "seq-len seq-length sequence-length max-seq-length block-size",
    "NUM_LAYERS=…": "n-layer n-layers",
    "NUM_HEADS=…": "n-head n-heads",
    "EMBED_DIM=…": "n-embd hidden-size d-model",
    "PRETRAINED=…": "weights init-checkpoint",
    "RESUME=…": "ckpt checkpoint-path resume-from resume-from-checkpoint load load-checkpoint",
    "BATCH=…, per device": "batch-size b bs train-batch-size micro-batch-size mbs per-device-train-batch-size "
        "device-batch-size",
    "BATCH=…, which is per device: the global batch over GPUS": "global-batch global-batch-size gbs total-batch-size",
    "VAL_BATCH=…": "val-batch-size eval-batch-size test-batch-size per-device-eval-batch-size",
    "ACCUMULATE=…": "accum accum-iter accum-steps grad-accum gradient-accumulation gradient-accumulation-steps "
        "accumulate-grad-batches batches-per-allreduce",
    "WORKERS=…, in total": "num-workers j n-workers dataloader-num-workers data-workers",
    "EPOCHS=…": "num-epochs max-epochs n-epochs num-train-epochs",
    "STEPS=…": "num-steps max-steps iterations num-iterations num-iters iters num-batches max-iters",
    "LR=…": "base-lr learning-rate init-lr lr-rate",
    "WEIGHT_DECAY=…": "wd l2 weight-decay-rate",
    "OPTIMIZER=…": "opt optim optimiser",
    "SCHEDULE=…": "scheduler lr-scheduler lr-scheduler-type lr-schedule lr-policy sched",
    "SCHEDULE=step:30,60,80:0.1": "step-size lr-step-size decay-epochs gamma lr-gamma lr-decay decay-rate",
    "LR_WARMUP=5e": "warmup-epochs",
    "LR_WARMUP=500": "warmup-steps num-warmup-steps warmup-iters",
    "CLIP_NORM=…": "max-grad-norm grad-clip clip-grad clip-grad-norm gradient-clip-val",
    "EMA=…": "model-ema ema-decay model-ema-decay",
    "NORM=sync": "sync-bn syncbn sync-batchnorm sync-batch-norm use-sync-bn",
    "PRECISION=bf16 or fp16": "amp use-amp fp16 bf16 half mixed-precision opt-level dtype apex loss-scale amp-level "
        "tf32",
    "SEED=…": "random-seed manual-seed rng-seed",
    "CHANNELS_LAST=1": "memory-format nhwc",
    "COMPRESSION=fp16": "fp16-allreduce gradient-compression",
    "ADASUM=1": "use-adasum",
    "FUSION_MB=…": "fusion-threshold fusion-threshold-mb",
    "BUCKET_CAP_MB=…": "bucket-size bucket-mb allreduce-bucket-size",
    "ACTIVATION_CHECKPOINTING=1": "gradient-checkpointing grad-checkpointing activation-checkpoint use-checkpoint "
        "recompute",
    "COMPILE=1": "torch-compile use-compile",
    "MODE=…": "strategy distributed parallel-mode ddp fsdp horovod data-parallel dist",
    "MODE=ddp LAUNCHER=spawn": "multiprocessing-distributed spawn mp",
    "GPUS=…": "num-gpus n-gpus ngpu ngpus n-gpu num-devices devices num-processes nproc nproc-per-node np "
        "world-size-per-node gpu-ids gpus-per-node",
    "GPUS=…, and HOSTS=node1:4,node2:4 where there are several machines": "world-size",
    "HOSTS=node1:4,node2:4": "nnodes nodes num-nodes n-nodes num-machines hostfile host",
    "DIST_URL=tcp://HOST:PORT": "init-method rdzv-endpoint dist-init",
    "DEVICE=cpu or cuda": "cuda no-cuda use-cuda cpu use-cpu accelerator",
    "OUT=…": "output-dir output out-dir log-dir logdir save-dir save-path work-dir results-dir checkpoint-dir "
        "model-dir",
    "COPY_TO=URL": "train-url",
    "PRINT_EVERY=…": "print-freq p log-interval log-freq log-every logging-steps display",
    "EVALUATE=1": "e eval eval-only evaluate-only test-only validate",
    "CHECKPOINT_STEPS=…": "save-steps save-interval ckpt-interval",
    "TRACK=wandb or tensorboard": "wandb use-wandb enable-wandb wandb-project tensorboard report-to logger",
    "PROFILE=1": "prof profiler with-profiler",
}  # fmt: skip

# Replacement for an option that does not exist here -> its names elsewhere.
NO_OPTION = {
    "NCCL carries GPUs' tensors and Gloo those of CPUs, so leave it out":
        "dist-backend backend distributed-backend ddp-backend",
    "the launcher gives it to each rank: leave it out, or start `bench run` with torchrun":
        "rank local-rank node-rank master-addr master-port global-rank dist-rank",
}  # fmt: skip

FOUND = {name: text for text, names in WRITE.items() for name in names.split()}
ADVICE = {name: text for text, names in NO_OPTION.items() for name in names.split()}


def option_of(text: str) -> str:
    """The long flag of a replacement, without its dashes: ``PRINT_EVERY=…`` -> print-every."""
    return text.partition("=")[0].lower().replace("_", "-")


def advice(word: str, options: list[str]) -> str:
    """What to write for another script's name of an option; "" if unknown. options: the command's long flags, without
    dashes.

    >>> advice("dist_backend", ["mode"]), advice("ARCH", ["model"]), advice("arch", ["out"])
    ("NCCL carries GPUs' tensors and Gloo those of CPUs, so leave it out", 'use MODEL=… (--model)', '')
    """
    name = word.lower().replace("_", "-")
    if name in FOUND and (option := option_of(FOUND[name])) in options:
        return f"use {FOUND[name]} (--{option})"
    return ADVICE.get(name, "") if "mode" in options else ""
