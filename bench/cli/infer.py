from bench.cli.base import Command, action

COMMAND = Command(
    "infer", "results", "classify a folder of images with a checkpoint, on all devices",
    "FOLDER=photos RESUME=checkpoint GPUS=2 [OUT=predictions.csv]", run=action("infer"), options=True, takes=(
        "num_devices", "device", "share_gpu", "gpu_ids", "threads", "timeout", "launcher", "per_device_batch",
        "workers", "precision", "model", "resume",
    ), positional={"folder": {"metavar": "FOLDER", "help": "folder of images, searched with its subfolders"}}, flags={
        "--classes": {"metavar": "FILE", "help": "names of the classes, one per line [those of the checkpoint]"},
        "--out": {"metavar": "FILE", "help": "a new file, .csv or .parquet [predictions.csv]"},
    }, gone={"--to": "--out=FILE"},
)  # fmt: skip
